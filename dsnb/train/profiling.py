"""Profiles a run after its timed steps: the breakdown of a step, and a trace of another one.

All ranks train the same steps, because collectives need them all; rank 0 writes. The run's record is written before,
and a profiler that fails is reported in `profile.json` and on the console: a profile never fails a run.
"""

import gzip
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import methodcaller
from pathlib import Path
from typing import Any, TypeVar

import deepspeed
import orjson
import torch
from torch import profiler

from dsnb.files import records
from dsnb.run_folder.paths import RunPaths
from dsnb.settings.experiment import Experiment
from dsnb.system import launch_clock
from dsnb.train.failure import one_line
from dsnb.train.meter import clock_of
from dsnb.train.trainer import Trainer, no_section

CUT_OFF = "the profile was cut off before it was measured"
MAX_S, MAX_STEPS = 60.0, 30
"""Time limit of a profile, in seconds plus steps: a rank that fails must not leave the others waiting."""
RESERVE_S = 5.0
"""Seconds of the run's time limit that are kept for its end."""
PARTS = ("forward", "backward", "optimizer")
HANDOVER = "communication"
"""The part of a pipeline step in which stages exchange activations, gradients and losses, and wait for each other."""
STEPS = 3
MicroBatches = Sequence[torch.Tensor]
Interval = tuple[float, float]
Result = TypeVar("Result")


@contextmanager
def time_limited(experiment: Experiment, step_s: float) -> Iterator[None]:
    """End this rank successfully if a profile takes too long: its record is written already."""
    if not experiment.profile:
        yield
        return
    left_s = experiment.time_limit_s - RESERVE_S - launch_clock.since_launch_s()
    timer = threading.Timer(max(1.0, min(MAX_S + MAX_STEPS * step_s, left_s)), _give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _give_up() -> None:
    print("dsnb: the profile took too long and is left unfinished", flush=True)
    sys.stderr.flush()
    os._exit(0)


class Profile:
    """The profile of one run, written as it grows, so that a rank that dies leaves what was measured."""

    def __init__(self, run: RunPaths, writes: bool) -> None:
        self.run, self.writes = run, writes
        self.missing = dict.fromkeys(("split", "trace", "communication"), CUT_OFF)
        self.figures: dict[str, Any] = {"from_s": launch_clock.since_launch_s()}
        self.save()

    def save(self) -> None:
        """Write `profile.json`."""
        if self.writes:
            records.write_json(self.run.profile, {**self.figures, "missing": self.missing})

    def finish_part(self, part: str, why: str | None) -> None:
        """Record that a part is complete, or why it is missing."""
        del self.missing[part]
        if why is not None:
            self.missing[part] = why
            if self.writes:
                print(f"dsnb: no {part} in the profile: {why}", flush=True)
        self.save()


def profile(run: RunPaths, trainer: Trainer, micro_batches: MicroBatches, device: torch.device) -> None:
    """Train a few more steps under the profilers and write the results.

    A step that fails on any rank ends the profile: the other ranks may be in any collective.
    """
    report = Profile(run, deepspeed.comm.get_rank() == 0)
    try:
        parts = time_parts(trainer, micro_batches, clock_of(device).synchronize, deepspeed.comm.barrier)
        report.figures |= parts
        absent = [name for name in PARTS if parts[f"{name}_s"] is None]
        report.finish_part("split", f"the strategy does not mark its {', '.join(absent)}" if absent else None)
        path = run.trace if report.writes else None
        why = trace_step(trainer, micro_batches, device, path)
        report.finish_part("trace", why)
        if path:
            report.finish_part("communication", _communication(report, device, why))
    except Exception as error:
        for part in [part for part, why in report.missing.items() if why == CUT_OFF]:
            report.finish_part(part, one_line(error))
    report.figures["ended_s"] = launch_clock.since_launch_s()
    report.save()


def _communication(report: Profile, device: torch.device, no_trace: str | None) -> str | None:
    """Take the time of the collectives from the trace; return why it is missing, None if it is not."""
    if deepspeed.comm.get_world_size() == 1:
        return "a single rank does not communicate"
    if no_trace is not None:
        return "there is no trace"
    attempt = BestEffort()
    events: Any = attempt(read_events, report.run.trace)
    read = attempt(communication_s, events, device.type)
    report.figures["traced_step_s"] = attempt(step_s, events)
    report.figures["communication_s"], report.figures["exposed_communication_s"] = read or (None, None)
    return "the trace shows no collective" if attempt.why is None and read == (None, None) else attempt.why


class BestEffort:
    """Calls functions until the first one fails, in `why` in one line; later calls do nothing and return None.

    A rank that raised would leave the others in a collective.
    """

    def __init__(self) -> None:
        self.why: str | None = None

    def __call__(self, action: Callable[..., Result], *arguments: Any) -> Result | None:
        """Call `action` and return its result."""
        if self.why is not None:
            return None
        try:
            return action(*arguments)
        except Exception as error:
            self.why = one_line(error)
            return None


def time_parts(
    trainer: Trainer, micro_batches: MicroBatches, synchronize: Callable[[], Any], barrier: Callable[[], Any]
) -> dict[str, float | None]:
    """Time the parts of a few steps, and return those of the step with the median time.

    All figures are from one step, so the parts, summed over micro-batches, add up to `step_s`, apart from what the
    trainer does between them. A part that it does not mark is None. Only a pipeline has `handover_s`.
    """
    timed: list[dict[str, float]] = []

    @contextmanager
    def section(name: str) -> Iterator[None]:
        synchronize()  # so that the device is idle before and after each part
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
    handover = {"handover_s": middle[HANDOVER]} if HANDOVER in middle else {}
    return {f"{name}_s": middle.get(name) for name in (*PARTS, "step")} | handover


def trace_step(trainer: Trainer, micro_batches: MicroBatches, device: torch.device, path: Path | None) -> str | None:
    """Train two steps and record the second; the first warms up the profiler.

    The steps are trained even if the profiler fails, because the other ranks wait in them. The trace is written to
    `path`, None on other ranks. Why there is none is returned in one line; None if there is one.
    """
    attempt, synchronize = BestEffort(), clock_of(device).synchronize
    recorder: Any = attempt(_started, device)
    trainer.section = profiler.record_function
    try:
        trainer.step(micro_batches)
        synchronize()
        deepspeed.comm.barrier()
        synchronize()  # a barrier is a collective that must not be in the trace
        attempt(methodcaller("step"), recorder)
        trainer.step(micro_batches)
        synchronize()
        attempt(methodcaller("step"), recorder)
    finally:
        trainer.section = no_section
        attempt(methodcaller("stop"), recorder)
    if path:
        attempt(methodcaller("export_chrome_trace", str(path)), recorder)
    return attempt.why


def _started(device: torch.device) -> Any:
    wanted = {profiler.ProfilerActivity.CPU}
    if device.type == "cuda":
        wanted.add(profiler.ProfilerActivity.CUDA)
    recorder = profiler.profile(
        activities=wanted & profiler.supported_activities(),
        schedule=profiler.schedule(wait=0, warmup=1, active=1, repeat=1),
        acc_events=True,  # avoids a warning; without effect for a single recorded step
    )
    recorder.start()
    return recorder


def length(intervals: Iterable[Interval]) -> float:
    """Return the length of the union of intervals (begin, end): overlaps count once."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def read_events(path: Path) -> list[dict[str, Any]]:
    """Read the events of a trace in Chrome's format, gzipped."""
    return list(orjson.loads(gzip.decompress(path.read_bytes()))["traceEvents"])


def communication_s(events: Iterable[dict[str, Any]], device: str) -> tuple[float | None, float | None]:
    """Return how long collectives ran in one rank's trace, and for how much of that time no other kernel ran.

    On a GPU these are NCCL's kernels, including the time in which they wait for other ranks; on a CPU gloo's
    operations, from when its threads start them. Both are None if the trace shows none, and the second on a CPU, where
    the trace does not show when an operation really has a core.
    """
    spans = [event for event in events if event.get("ph") == "X" and "dur" in event]
    if device == "cpu":
        gloo = [_interval_s(event) for event in spans if str(event.get("name")).startswith("gloo:")]
        return length(gloo) if gloo else None, None
    kernels = [event for event in spans if event.get("cat") == "kernel"]
    collectives = [_interval_s(event) for event in kernels if _is_nccl(event)]
    computing = [_interval_s(event) for event in kernels if not _is_nccl(event)]
    if not collectives:
        return None, None
    return length(collectives), length([*collectives, *computing]) - length(computing)


def step_s(events: Iterable[dict[str, Any]]) -> float | None:
    """Return how long the traced step took, including the overhead of tracing; None if the trace does not mark it."""
    annotations = [event for event in events if event.get("cat") == "user_annotation"]
    steps = [_interval_s(event) for event in annotations if event["name"].startswith("ProfilerStep#")]
    return length(steps) if steps else None


def _is_nccl(event: dict[str, Any]) -> bool:
    return "nccl" in str(event.get("name")).lower()


def _interval_s(event: dict[str, Any]) -> Interval:
    """Return the interval of an event; traces are in microseconds."""
    return event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6
