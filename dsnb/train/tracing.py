"""Traces one step with torch's profiler, in a format that Perfetto and Chrome open.

Stacks and shapes are left out: they make a trace many times as large and the step slower. All ranks record, so that
none is slower than the others; the caller decides which of them writes.
"""

from collections.abc import Callable
from operator import methodcaller
from pathlib import Path
from typing import Any

import torch
from torch import profiler

from dsnb.train.best_effort import BestEffort
from dsnb.train.step_breakdown import Batches
from dsnb.train.trainer import Trainer, no_section


def trace_step(
    trainer: Trainer,
    batches: Batches,
    synchronize: Callable[[], Any],
    barrier: Callable[[], Any],
    device: torch.device,
    path: Path | None,
) -> str | None:
    """Train two steps and record the second; the first warms up the profiler.

    The steps are trained even if the profiler fails, because the other ranks wait in them.

    Parameters
    ----------
    path
        File for the trace; None on ranks that do not write it.

    Returns
    -------
    str or None
        Why there is no trace, in one line; None if there is one.
    """
    attempt = BestEffort()
    recorder: Any = attempt(_started, device)
    trainer.section = profiler.record_function
    try:
        trainer.step(batches())
        micro_batches = batches()
        synchronize()
        barrier()
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
