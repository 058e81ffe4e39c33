"""One rank: build, warm up, train the timed steps, and leave what was measured in the run folder.

Knows nothing of how it was started beyond the variables every launcher sets.
"""

import functools
import gc
import math
import os
import resource
import traceback
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import deepspeed
import torch

from dsnb import launch_clock, records
from dsnb.experiment import Experiment
from dsnb.hardware import GIB
from dsnb.paths import RunPaths
from dsnb.shared import prepared
from dsnb.train import profiling, skew
from dsnb.train.data import batches
from dsnb.train.engine import DeepSpeedTrainer
from dsnb.train.meter import Meter
from dsnb.train.model import build
from dsnb.train.pipeline import PipelineTrainer
from dsnb.train.torch_trainer import TorchTrainer
from dsnb.train.trainer import Trainer, no_section

LONGEST_WAIT_S = 30 * 86400.0
"""Ranks wait no longer for each other: torch counts in ns, and 300 years of them are more than it can count."""


def main(run_dir: str) -> int:
    """Run one rank and give its exit code; a failure is written down with its cause."""
    began = launch_clock.now_s()
    run = RunPaths(Path(run_dir))
    try:
        experiment = Experiment.read(run.experiment)
        train(run, experiment.model_copy(update=prepared.places(experiment.model_dump())), began)
    except Exception as error:
        record_failure(run, error)
        traceback.print_exc()
        return 1
    return 0


def record_failure(run: RunPaths, error: Exception) -> None:
    """Write down why this rank ended, in one line."""
    text = str(error).strip()
    memory = isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in text
    limited = resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY
    memory |= limited and "Resource temporarily unavailable" in text  # no room for a thread's stack
    cause = f"{type(error).__name__}: {text.splitlines()[0][:500] if text else 'no message'}"
    record = {"rank": rank(), "status": "oom" if memory else "failed", "cause": cause}
    records.append_line(run.failures, record)


def rank() -> int:
    """Give this process's rank."""
    return int(os.environ["RANK"])


def train(run: RunPaths, experiment: Experiment, began: float) -> None:
    """Build everything, run all steps, and write the record of rank 0."""
    launched_at = launch_clock.launched_at()
    device = set_up(experiment)
    ds_config = records.read_json(run.deepspeed) or {}
    trainer = make_trainer(experiment, ds_config, device)
    data = batches(experiment, trainer.config.vocab_size, rank(), device)
    steps = experiment.warmup_steps + experiment.steps
    path = run.steps if rank() == 0 else None
    meter = Meter(path, steps, experiment.tokens_per_step, device, launched_at)
    built = launch_clock.now_s()
    if experiment.pipeline_parallel == 1:  # a stage's first forward pass waits for those before it
        trainer.section = meter.section
    try:
        for phase, first, last in (("warmup", 0, experiment.warmup_steps), ("timed", experiment.warmup_steps, steps)):
            meter.begin(phase, deepspeed.comm.barrier)
            for step in range(first, last):
                meter.step(*trainer.step(data.step(step)))
            meter.end()
        losses = mean_over_ranks(meter.losses)
        apart = skew.over_ranks(meter.times_s("timed"), meter.forwards_s("timed"), device)
    except BaseException:
        meter.abort()
        raise
    meter.close(losses)
    trainer.section = no_section
    record = {
        **trainer.describe(),
        "parameters": trainer.parameters,
        "trainable_parameters": trainer.trainable_parameters,
        "layers": trainer.config.num_hidden_layers,
        "hidden": trainer.config.hidden_size,
        "gpu_name": torch.cuda.get_device_name() if device.type == "cuda" else None,
        "versions": versions(),
        **peaks(meter, device),
        **apart,
        "timed_wall_s": meter.wall_s["timed"],
        "timed_from_s": meter.span_s["timed"][0],
        "timed_to_s": meter.span_s["timed"][1],
        "first_bad_step": next((k for k, loss in enumerate(losses, start=1) if not math.isfinite(loss)), None),
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
    with profiling.limited(experiment, launched_at, step_s) if experiment.profile else nullcontext():
        if experiment.profile:
            profiling.profile(run, experiment, trainer, lambda: data.step(steps - 1), device, launched_at)
        # DDP goes before its process group: the other way round, its destructor and gloo's thread wait for each other.
        del trainer
        gc.collect()
        torch.distributed.destroy_process_group()


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
    limit = timedelta(seconds=min(experiment.hang_limit_s, LONGEST_WAIT_S))
    # DeepSpeed makes groups of its own without a timeout: each would wait half an hour for a rank that is gone.
    torch.distributed.new_group = functools.partial(torch.distributed.new_group, timeout=limit)
    deepspeed.init_distributed(dist_backend="nccl" if device.type == "cuda" else "gloo", timeout=limit)
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


def peaks(meter: Meter, device: torch.device) -> dict[str, float]:
    """Give the largest memory of any rank, in GiB; a CPU has no figure of torch's, only that of the process."""
    mine = {
        "host_memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB,
        **{f"peak_{key}": value for key, value in meter.peak_gib.items()},
    }
    largest = torch.tensor(list(mine.values()), dtype=torch.float64, device=device)
    deepspeed.comm.all_reduce(largest, op=deepspeed.comm.ReduceOp.MAX)
    return dict(zip(mine, largest.tolist(), strict=True))


def versions() -> dict[str, str | None]:
    """Give what only torch knows of its libraries."""
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None
    return {"cuda": torch.version.cuda, "nccl": nccl}
