"""Profiles a run after its timed steps: the breakdown of one step, and a trace of another.

All ranks train the same extra steps, because of the collectives; rank 0 writes. The run's record is
written first, and a profile that fails is reported in `profile.json` and on the console: it never
fails the run.
"""

import gzip
import os
import re
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deepspeed
import orjson
import torch
from torch import profiler

from dsnb.base.files import json_files
from dsnb.base.system import launch_clock
from dsnb.measure.record.clock import Clock
from dsnb.measure.record.failure import one_line
from dsnb.measure.train.trainer import Trainer, no_section
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.paths import RunPaths

CUT_OFF = "the profile was cut off before it was measured"
MAX_S, MAX_STEPS = 60.0, 30
"""Time limit of a profile, in seconds plus steps: if one rank fails, the others would wait in a
collective."""
RESERVE_S = 5.0
"""Seconds of the run's time limit that are kept for its end."""
PARTS = ("forward", "backward", "optimizer")
HANDOVER = "communication"
"""The part of a pipeline step in which stages exchange activations, gradients and losses, or wait
for each other."""
STEPS = 3
KERNELS = {
    "attention": re.compile(r"^triton_tem_.*flex_attention|^(?!triton_).*(flash|fmha|sdpa)"),
    "loss": re.compile(r"log_?softmax|nll_loss|cross_?entropy", re.IGNORECASE),
}
"""Names of the kernels of fused attention (flash, efficient, cuDNN, flex), and of the loss between its
products, in eager mode or compiled: the compiler names a kernel by the operators that it fused."""
MicroBatches = Sequence[torch.Tensor]
Interval = tuple[float, float]


def profile(
    run: RunPaths,
    trainer: Trainer,
    micro_batches: MicroBatches,
    device: torch.device,
    step_s: float,
) -> None:
    """Train a few more steps under the profilers; `profile.json` is saved after each part.

    A failure on any rank ends the profile, since the other ranks may be in any collective.
    """
    _limit_time(trainer.experiment, step_s)
    writes = deepspeed.comm.get_rank() == 0
    missing = dict.fromkeys(("split", "trace", "communication"), CUT_OFF)
    figures: dict[str, Any] = {"from_s": launch_clock.since_launch_s()}

    def save() -> None:
        if writes:
            json_files.write_json(run.profile, {**figures, "missing": missing})

    save()
    try:
        figures |= time_parts(
            trainer, micro_batches, Clock(device).synchronize, deepspeed.comm.barrier
        )
        del missing["split"]
        save()
        trace_step(trainer, micro_batches, device, run.trace if writes else None)
        del missing["trace"]
        if writes:
            events = read_events(run.trace)
            figures["traced_step_s"] = step_s_of(events)
            total_s, exposed_s = communication_s(events, device.type)
            figures |= {"communication_s": total_s, "exposed_communication_s": exposed_s}
            figures |= kernels_s(events)
            if total_s is not None:
                del missing["communication"]
            elif deepspeed.comm.get_world_size() == 1:
                missing["communication"] = "a single rank does not communicate"
            else:
                missing["communication"] = "the trace shows no collective"
    except Exception as error:
        for part, why in missing.items():
            if why == CUT_OFF:
                missing[part] = one_line(error)
    figures["ended_s"] = launch_clock.since_launch_s()
    save()
    if writes:
        for part, why in missing.items():
            print(f"dsnb: no {part} in the profile: {why}", flush=True)


def _limit_time(experiment: Experiment, step_s: float) -> None:
    """End this rank successfully if the rest of it takes too long: the run's record is written already."""
    left_s = experiment.time_limit_s - RESERVE_S - launch_clock.since_launch_s()
    timer = threading.Timer(max(1.0, min(MAX_S + MAX_STEPS * step_s, left_s)), _give_up)
    timer.daemon = True
    timer.start()


def _give_up() -> None:
    print("dsnb: the profile took too long and is left unfinished", flush=True)
    sys.stderr.flush()
    os._exit(0)


def time_parts(
    trainer: Trainer,
    micro_batches: MicroBatches,
    synchronize: Callable[[], Any],
    barrier: Callable[[], Any],
) -> dict[str, float]:
    """Time the parts of a few steps, and return those of the step with the median time.

    All figures are from one step, so the parts, summed over micro-batches, add up to `step_s`
    except for what the trainer does between them. Only a pipeline has `handover_s`.
    """
    timed: list[dict[str, float]] = []

    @contextmanager
    def section(name: str) -> Iterator[None]:
        synchronize()  # the device is idle before and after each part
        began = time.perf_counter()
        yield
        synchronize()
        timed[-1][name] += time.perf_counter() - began

    trainer.section = section
    try:
        for _ in range(STEPS):
            timed.append(defaultdict(float))
            synchronize()
            barrier()
            with section("step"):
                trainer.step(micro_batches)
    finally:
        trainer.section = no_section
    middle = sorted(timed, key=lambda step: step["step"])[STEPS // 2]
    figures = {f"{name}_s": middle[name] for name in (*PARTS, "step")}
    if HANDOVER in middle:
        figures["handover_s"] = middle[HANDOVER]
    return figures


def trace_step(
    trainer: Trainer, micro_batches: MicroBatches, device: torch.device, path: Path | None
) -> None:
    """Train two steps and write a trace of the second to `path` (None on other ranks); the first is a warm-up."""
    synchronize = Clock(device).synchronize
    activities = [profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(profiler.ProfilerActivity.CUDA)
    trainer.section = profiler.record_function
    try:
        with profiler.profile(
            activities=activities,
            schedule=profiler.schedule(wait=0, warmup=1, active=1, repeat=1),
            acc_events=True,  # avoids a warning; no effect on a single recorded step
        ) as recorder:
            trainer.step(micro_batches)
            synchronize()
            deepspeed.comm.barrier()
            synchronize()  # keeps the barrier, which is a collective, out of the trace
            recorder.step()
            trainer.step(micro_batches)
            synchronize()
            recorder.step()
    finally:
        trainer.section = no_section
    if path:
        recorder.export_chrome_trace(str(path))


def length(intervals: Iterable[Interval]) -> float:
    """Return the length of the union of intervals (begin, end): overlaps count once."""
    total = 0.0
    reached = float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def read_events(path: Path) -> list[dict[str, Any]]:
    """Read the events of a trace in Chrome's format, gzipped."""
    return list(orjson.loads(gzip.decompress(path.read_bytes()))["traceEvents"])


def communication_s(
    events: Iterable[dict[str, Any]], device: str
) -> tuple[float | None, float | None]:
    """Return how long collectives ran in one rank's trace, and for how long no other kernel ran beside them.

    On a GPU these are NCCL kernels, including the time they wait for other ranks; on a CPU gloo
    operations, from when its threads start them. Both are None without collectives. The second is
    also None on a CPU, where the trace does not show when an operation has a core.
    """
    spans = [event for event in events if event.get("ph") == "X" and "dur" in event]
    if device == "cpu":
        gloo = [_interval_s(event) for event in spans if event["name"].startswith("gloo:")]
        return length(gloo) if gloo else None, None
    kernels = [event for event in spans if event.get("cat") == "kernel"]
    collectives = [_interval_s(event) for event in kernels if "nccl" in event["name"].lower()]
    computing = [_interval_s(event) for event in kernels if "nccl" not in event["name"].lower()]
    if not collectives:
        return None, None
    return length(collectives), length([*collectives, *computing]) - length(computing)


def kernels_s(events: Iterable[dict[str, Any]]) -> dict[str, float | None]:
    """Return how long a GPU's kernels of attention and of the loss ran in a trace, both passes; None without any."""
    kernels = [event for event in events if event.get("cat") == "kernel"]
    found: dict[str, float | None] = {}
    for part, pattern in KERNELS.items():
        spans = [_interval_s(event) for event in kernels if pattern.search(event["name"])]
        found[f"{part}_kernels_s"] = length(spans) or None
    return found


def step_s_of(events: Iterable[dict[str, Any]]) -> float | None:
    """Return how long the traced step took, including tracing overhead; None if the trace does not mark it."""
    annotations = [event for event in events if event.get("cat") == "user_annotation"]
    steps = [event for event in annotations if event["name"].startswith("ProfilerStep#")]
    return length(map(_interval_s, steps)) if steps else None


def _interval_s(event: dict[str, Any]) -> Interval:
    """Return the interval of an event; traces are in microseconds."""
    return event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6
