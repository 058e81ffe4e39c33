"""One rank: build, warm up, train the timed steps, and leave what was measured in the run folder.

Knows nothing of how it was started beyond the variables every launcher sets.
"""

import functools
import gc
import math
import os
import resource
import sys
import traceback
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import deepspeed
import torch

from dsnb.files import records
from dsnb.run_folder.paths import RunPaths
from dsnb.settings.experiment import Experiment
from dsnb.settings.prepared import lookup
from dsnb.settings.training import ADAMW
from dsnb.system import launch_clock
from dsnb.system.hardware import GIB
from dsnb.system.nvml import POWER_AVERAGE, POWER_COUNTER
from dsnb.train import failure, gpu, peaks, profiling, rendezvous, skew
from dsnb.train.data import Batches, batches
from dsnb.train.engine import DeepSpeedTrainer
from dsnb.train.failure import Position
from dsnb.train.meter import Meter
from dsnb.train.model import build
from dsnb.train.pipeline import PipelineTrainer
from dsnb.train.torch_trainer import TorchTrainer
from dsnb.train.trainer import Trainer, no_section
from dsnb.train.updates import WeightWatch, is_unmoved

MAX_WAIT_S = 30 * 86400.0
"""Ranks wait no longer for each other: torch counts in ns, and 300 years of them are more than it can count."""


def main(run_dir: str) -> int:
    """Run one rank and return its exit code; a failure is written down with its cause."""
    began = launch_clock.now_s()
    run, position = RunPaths(Path(run_dir)), Position()
    try:
        experiment = Experiment.read(run.experiment)
        train(run, experiment.model_copy(update=lookup.places(experiment.model_dump())), position, began)
    except Exception as error:
        failure.record(run, rank(), position, error)
        traceback.print_exc()
        return 1
    return 0


def rank() -> int:
    """Return this process's rank."""
    return int(os.environ["RANK"])


def train(run: RunPaths, experiment: Experiment, position: Position, began: float) -> None:
    """Build everything, run all steps, and write the record of rank 0."""
    launched_at = launch_clock.launched_at()
    device = set_up(experiment)
    position.watch_memory(device)
    trainer = make_trainer(experiment, records.read_json(run.deepspeed) or {}, device)
    data = batches(experiment, trainer.config.vocab_size, rank(), device)
    steps = experiment.warmup_steps + experiment.steps
    with gpu.open_device(device) as nvml_gpu:
        meter = Meter(
            run.steps if rank() == 0 else None,
            steps,
            experiment.tokens_per_step,
            device,
            launched_at,
            gpu=nvml_gpu,
            position=position,
            marks_forward=experiment.pipeline_parallel == 1,  # a stage's first forward pass waits for those before it
        )
        built = launch_clock.now_s()
        measured = train_steps(experiment, trainer, data, meter, position)
    record = {
        **describe(trainer, device),
        **measured,
        "power_source": power_source(device, nvml_gpu),
        "phases_s": {
            "start": began - launched_at,
            "build": built - began,
            "warmup": meter.wall_s["warmup"],
            "timed": meter.wall_s["timed"],
        },
        "ended_s": launch_clock.since_launch_s(),
    }
    if rank() == 0:
        records.write_json(run.worker, record)
    step_s = meter.wall_s["timed"] / experiment.steps
    with profiling.time_limited(experiment, launched_at, step_s) if experiment.profile else nullcontext():
        if experiment.profile:
            profiling.profile(run, experiment, trainer, lambda: data.step(steps - 1), device, launched_at)
        # DDP goes before its process group: the other way round, its destructor and gloo's thread wait for each other.
        del trainer
        gc.collect()
        torch.distributed.destroy_process_group()


def train_steps(
    experiment: Experiment, trainer: Trainer, data: Batches, meter: Meter, position: Position
) -> dict[str, Any]:
    """Train all steps and return what was measured, over all ranks."""
    device = meter.losses.device
    watch = WeightWatch(trainer.optimizer)
    peaks.reset_host_peak()
    trainer.section = meter.section
    compiled = 0
    first_timed, last = experiment.warmup_steps, experiment.warmup_steps + experiment.steps
    try:
        for phase, span in (("warmup", range(first_timed)), ("timed", range(first_timed, last))):
            meter.begin(phase, deepspeed.comm.barrier)
            compiled = compiled_graphs()
            for step in span:
                position.step = step + 1
                loss, skipped = trainer.step(data.step(step))
                meter.step(loss, skipped, trainer.grad_norm())
            meter.end()
        losses = mean_over_ranks(meter.losses)
    except BaseException:
        meter.abort()
        raise
    meter.close(losses)
    trainer.section = no_section
    updates = last - meter.skipped_steps
    update_rms, weights_rms = watch.update_rms(weight_decay(experiment, updates), device)
    return {
        **peaks.over_ranks(meter.peak_gib, device),
        **skew.over_ranks(meter.times_s("timed"), meter.forwards_s("timed"), device),
        "energy_j": sum_over_ranks(meter.energy_j, device),
        "recompilations": compiled_graphs() - compiled,
        "update_rms": update_rms,
        "weights_moved": None if update_rms is None else not is_unmoved(update_rms, weights_rms, updates),
        "timed_wall_s": meter.wall_s["timed"],
        "timed_from_s": meter.span_s["timed"][0],
        "timed_to_s": meter.span_s["timed"][1],
        "steps_from_s": min(began_s for began_s, _ in meter.span_s.values()),
        "first_bad_step": next((k for k, loss in enumerate(losses, start=1) if not math.isfinite(loss)), None),
    }


def describe(trainer: Trainer, device: torch.device) -> dict[str, Any]:
    """Name what was trained, and with which libraries."""
    return {
        **trainer.describe(),
        "parameters": trainer.parameters,
        "trainable_parameters": trainer.trainable_parameters,
        "block_parameters": trainer.block_parameters,
        "layers": trainer.config.num_hidden_layers,
        "hidden": trainer.config.hidden_size,
        "gpu_name": torch.cuda.get_device_name() if device.type == "cuda" else None,
        "versions": versions(),
    }


def set_up(experiment: Experiment) -> torch.device:
    """Choose the device, its arithmetic and its threads, and join the other ranks."""
    torch.manual_seed(experiment.seed)
    torch.backends.cuda.matmul.allow_tf32 = experiment.precision == "tf32"
    torch.backends.cudnn.allow_tf32 = experiment.precision == "tf32"
    if experiment.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        # Training never uses this op, which DeepSpeed would compile for 40 to 77 s at the first start on a CPU.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    limit_memory(experiment, device)
    limit = timedelta(seconds=min(experiment.step_timeout_s, MAX_WAIT_S))
    # DeepSpeed makes groups of its own without a timeout: each would wait half an hour for a rank that is gone.
    torch.distributed.new_group = functools.partial(torch.distributed.new_group, timeout=limit)
    backend = "nccl" if device.type == "cuda" else "gloo"
    deepspeed.init_distributed(dist_backend=backend, timeout=limit, init_method=rendezvous.INIT_METHOD)
    return device


def make_trainer(experiment: Experiment, ds_config: dict[str, Any], device: torch.device) -> Trainer:
    """Build the model and what trains it."""
    if experiment.strategy != "deepspeed":
        return TorchTrainer(experiment, build(experiment, ds_config, device), device)
    if experiment.pipeline_parallel > 1:
        return PipelineTrainer(experiment, ds_config, device)
    return DeepSpeedTrainer(experiment, build(experiment, ds_config, device), ds_config)


def limit_memory(experiment: Experiment, device: torch.device) -> None:
    """Let this rank have no more memory than the settings say: torch's on a GPU, all of the process's on a CPU."""
    if not experiment.memory_limit_gib:
        return
    limit = int(experiment.memory_limit_gib * GIB)
    if device.type == "cuda":
        whole = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / whole), device)
    else:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def mean_over_ranks(losses: torch.Tensor) -> list[float]:
    """Average the losses, shape (steps,), over ranks, after the timed region."""
    losses = losses.clone()
    deepspeed.comm.all_reduce(losses)
    return [float(loss) for loss in losses / deepspeed.comm.get_world_size()]


def sum_over_ranks(value: float | None, device: torch.device) -> float | None:
    """Sum a figure over all ranks; None where a rank lacks it."""
    total = torch.tensor(math.nan if value is None else value, dtype=torch.float64, device=device)
    deepspeed.comm.all_reduce(total)
    return float(total) if math.isfinite(total) else None


def weight_decay(experiment: Experiment, updates: int) -> float:
    """Return what the optimizer's weight decay alone multiplies a weight by in so many updates."""
    return float((1 - experiment.learning_rate * ADAMW["weight_decay"]) ** updates)


def compiled_graphs() -> int:
    """Count the graphs that torch.compile has compiled so far in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo else 0


def power_source(device: torch.device, nvml_gpu: gpu.Gpu | None) -> str | None:
    """Say where the energy of the timed steps comes from; None on a CPU, which has no such figure."""
    if device.type != "cuda":
        return None
    return POWER_COUNTER if nvml_gpu and nvml_gpu.energy else POWER_AVERAGE


def versions() -> dict[str, str | None]:
    """Return what only torch knows of its libraries."""
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None
    return {"cuda": torch.version.cuda, "nccl": nccl}
