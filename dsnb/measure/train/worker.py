"""One rank: builds the model, warms up, trains the timed steps, and writes what was measured to the run folder.

It works with any launcher, because it reads only the environment variables that all of them set.
"""

import functools
import gc
import math
import os
import resource
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import register_rendezvous_handler

from dsnb.base.files import json_files
from dsnb.base.system import launch_clock, own_memory
from dsnb.base.system.hardware import GIB, POWER_COUNTER
from dsnb.measure.record import failure
from dsnb.measure.record.failure import Position
from dsnb.measure.train import over_ranks, profiling
from dsnb.measure.train.data import Batches, batches
from dsnb.measure.train.launches import launch_us
from dsnb.measure.train.meter import Meter, open_gpu
from dsnb.measure.train.proving import proved
from dsnb.measure.train.trainer import Trainer, no_section
from dsnb.models.attention import FLEX_NAME, KernelWatch, whole_sequences
from dsnb.models.compile import compiled_graphs, graph_breaks
from dsnb.models.observe import flops
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.strategies import load

MAX_WAIT_S = 30 * 86400.0
"""Maximum timeout of a collective: torch counts nanoseconds, which overflow after 300 years."""


def main(run_dir: str) -> int:
    """Train one rank and return its exit code."""
    return run_rank(run_dir, train)


def run_rank(run_dir: str, work: Callable[[RunPaths, Experiment, Position, float], None]) -> int:
    """Do the work of one rank, which receives its start time, and return its exit code.

    The cause of a failure is recorded. The settings are not validated again: the sweep has done so.
    """
    began = launch_clock.now_s()
    os.environ.setdefault(launch_clock.LAUNCHED_AT, str(began))  # started by hand, with torchrun
    run = RunPaths(Path(run_dir))
    position = Position()
    try:
        work(run, Experiment.read(run.experiment), position, began)
    except Exception as error:
        failure.record(run, rank(), position, error)
        traceback.print_exc()
        return 1
    return 0


def rank() -> int:
    """Return this process's rank."""
    return int(os.environ["RANK"])


def train(run: RunPaths, experiment: Experiment, position: Position, began: float) -> None:
    """Prove and build the model, train all steps, write the record on rank 0, and profile if asked to."""
    device = set_up(experiment)
    experiment, unproved = proved(experiment, device)
    position.watch_memory(device)
    trainer = make_trainer(experiment, json_files.read_json(run.deepspeed) or {}, device)
    data = batches(experiment, trainer.config.vocab_size, rank(), device)
    with open_gpu(device) as gpu:
        meter = Meter(
            run.steps if rank() == 0 else None,
            experiment.warmup_steps + experiment.steps,
            experiment.tokens_per_step,
            device,
            launch_clock.launched_at(),
            gpu=gpu,
            position=position,
            # later stages wait for earlier ones in it
            marks_forward=experiment.pipeline_parallel == 1,
        )
        built = launch_clock.now_s()
        with whole_sequences():
            measured = train_steps(experiment, trainer, data, meter, position)
    record = {
        **trainer.describe(),
        **trainer.parameters,
        "unproved": unproved,
        "layers": trainer.config.num_hidden_layers,
        "hidden": trainer.config.hidden_size,
        "vocab": trainer.config.vocab_size,
        "cpu_threads": torch.get_num_threads(),
        "gpu_name": torch.cuda.get_device_name() if device.type == "cuda" else None,
        "versions": versions(),
        **measured,
        "power_source": POWER_COUNTER if gpu and gpu.energy else None,
        "phases_s": {
            "start": began - launch_clock.launched_at(),
            "build": built - began,
            **meter.wall_s,
        },
    }
    if rank() == 0:
        record["ended_s"] = launch_clock.since_launch_s()
        if device.type == "cuda":
            with suppress(torch.OutOfMemoryError):  # the run itself is over
                record["launch_us"] = launch_us(device)
        json_files.write_json(run.worker, record | flops.record(experiment))
    if experiment.profile:
        last = experiment.warmup_steps + experiment.steps - 1
        profiling.profile(
            run, trainer, data(last), device, meter.wall_s["timed"] / experiment.steps
        )
    # DDP must go before its process group: otherwise its destructor and gloo's thread wait for each
    # other.
    del trainer
    gc.collect()
    torch.distributed.destroy_process_group()


def train_steps(
    experiment: Experiment, trainer: Trainer, data: Batches, meter: Meter, position: Position
) -> dict[str, Any]:
    """Train all steps and return the measurements over all ranks."""
    device = meter.losses.device
    watch = over_ranks.WeightWatch(trainer.optimizer)
    kernel = KernelWatch(flex=trainer.config._attn_implementation == FLEX_NAME)
    own_memory.reset_peak()
    compiled, losses = run_steps(experiment, trainer, data, meter, position, kernel)
    updates = experiment.warmup_steps + experiment.steps - meter.skipped_steps
    is_compiled = experiment.compile != "off"
    bad_steps = (step for step, loss in enumerate(losses, start=1) if not math.isfinite(loss))
    return {
        **over_ranks.peaks_of_ranks(meter.peak_gib, device),
        **over_ranks.skew_of_ranks(meter.times_s("timed"), meter.forwards_s("timed"), device),
        "energy_j": over_ranks.sum_of_ranks(meter.energy_j, device),
        "alloc_retries": over_ranks.max_of_ranks(meter.alloc_retries, device),
        "cpu_bound": over_ranks.max_of_ranks(meter.cpu_bound, device),
        "attention_kernel": kernel.kernel,
        "recompilations": compiled,
        "compiled_graphs": compiled_graphs() if is_compiled else None,
        "graph_breaks": graph_breaks() if is_compiled else None,
        **watch.changes(experiment, updates, device),
        "timed_from_s": meter.span_s["timed"][0],
        "timed_to_s": meter.span_s["timed"][1],
        "steps_from_s": min(began_s for began_s, _ in meter.span_s.values()),
        "first_bad_step": next(bad_steps, None),
    }


def run_steps(
    experiment: Experiment,
    trainer: Trainer,
    data: Batches,
    meter: Meter,
    position: Position,
    kernel: KernelWatch,
) -> tuple[int, list[float]]:
    """Train the warm-up and timed steps; return the number of graphs compiled in the timed ones, and mean losses.

    The attention kernel is watched in the second step if that is a warm-up step: after the model is
    compiled, and before CUDA graphs are replayed.
    """
    watched = min(1, experiment.warmup_steps - 1)
    first_timed = experiment.warmup_steps
    end = first_timed + experiment.steps
    trainer.section = meter.section
    compiled = 0
    try:
        for phase, span in (("warmup", range(first_timed)), ("timed", range(first_timed, end))):
            meter.begin(phase, deepspeed.comm.barrier)
            compiled = compiled_graphs()
            for step in span:
                position.step = step + 1
                with kernel.watching() if step == watched else nullcontext():
                    loss, skipped = trainer.step(data(step))
                meter.step(loss, skipped, trainer.grad_norm())
            meter.end()
        losses = over_ranks.mean_of_ranks(meter.losses)
    except BaseException:
        meter.abort()
        raise
    meter.close(losses)
    trainer.section = no_section
    return compiled_graphs() - compiled, losses


def set_up(experiment: Experiment) -> torch.device:
    """Choose the device, TF32, the number of threads and the memory limit, and join the process group."""
    torch.manual_seed(experiment.seed)
    is_tf32 = experiment.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = is_tf32
    torch.backends.cudnn.allow_tf32 = is_tf32
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads:  # otherwise a forked rank keeps the fork server's number
        torch.set_num_threads(int(threads))
    if experiment.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
        # DeepSpeed would compile deepspeed_shm_comm, which training never uses, for 40 to 77 s at
        # the first start on a CPU if this table listed it. Filling the table also runs a compiler
        # in every rank.
        deepspeed.ops.__compatible_ops__ = {}
    if experiment.memory_limit_gib:
        limit_bytes = int(experiment.memory_limit_gib * GIB)
        if device.type == "cuda":
            total_bytes = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total_bytes), device)
        else:
            resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
    limit = timedelta(seconds=min(experiment.step_timeout_s, MAX_WAIT_S))
    # DeepSpeed creates further groups without a timeout: each would wait half an hour for a dead
    # rank.
    torch.distributed.new_group = functools.partial(torch.distributed.new_group, timeout=limit)
    backend = "nccl" if device.type == "cuda" else "gloo"
    deepspeed.init_distributed(backend, timeout=limit, init_method="dsnb://")
    return device


def make_trainer(
    experiment: Experiment, ds_config: dict[str, Any], device: torch.device
) -> Trainer:
    """Build the model and the trainer of its strategy."""
    place = experiment.parallel_strategy.trainer(experiment)
    trainer: Trainer = load(place)(experiment, ds_config, device)
    return trainer


def join_store(url: str, timeout: timedelta, **_: Any) -> Iterator[tuple[Store, int, int]]:
    """Join torchrun's store, or one that rank 0 opens on MASTER_ADDR alone; a rendezvous handler for torch.

    torch's `env://` listens on all interfaces, even if the ranks share a machine and meet on the
    loopback interface. Anyone who reaches the store can read and change its content.
    """
    ranks = int(os.environ["WORLD_SIZE"])
    address = os.environ["MASTER_ADDR"]
    port = int(os.environ["MASTER_PORT"])
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        yield PrefixStore("dsnb", TCPStore(address, port, ranks, False, timeout)), rank(), ranks
        return
    listener = None
    if rank() == 0:
        listener = socket.create_server((address, port), backlog=max(128, ranks)).detach()
    store = TCPStore(address, port, ranks, rank() == 0, timeout, master_listen_fd=listener)
    yield store, rank(), ranks


register_rendezvous_handler("dsnb", join_store)


def versions() -> dict[str, str | None]:
    """Return the versions of CUDA and NCCL that torch was built with."""
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None
    return {"cuda": torch.version.cuda, "nccl": nccl}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
