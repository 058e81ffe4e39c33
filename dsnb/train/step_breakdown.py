"""Measures how an optimizer step divides into forward pass, backward pass and update.

The device is synchronized at both ends of every part, so that each part is charged for its own work only. The host
cannot run ahead then, so such a step can take longer than a timed one.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from dsnb.train.trainer import Trainer, no_section

PARTS = ("forward", "backward", "optimizer")
HANDOVER = "communication"
"""The part of a pipeline step in which stages exchange activations, gradients and losses, and wait for each other."""
STEPS = 3
Batches = Callable[[], Sequence[torch.Tensor]]
"""Returns the micro-batches of the next step."""


class PartTimer:
    """Sums the seconds of each part of a step."""

    def __init__(self, synchronize: Callable[[], Any]) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._synchronize = synchronize

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Time one part; the device is idle before and after it."""
        self._synchronize()
        began = time.perf_counter()
        yield
        self._synchronize()
        self.seconds[name] += time.perf_counter() - began


def time_parts(
    trainer: Trainer, batches: Batches, synchronize: Callable[[], Any], barrier: Callable[[], Any]
) -> dict[str, float | None]:
    """Time the parts of a few steps, and return those of the step with the median time.

    All figures are from one step, so the parts add up to it, apart from what the trainer does between them.

    Returns
    -------
    dict
        `forward_s`, `backward_s`, `optimizer_s`, summed over micro-batches, and `step_s`, on this rank; None for a
        part that the trainer does not mark. For a pipeline also `handover_s`, the exchange between stages.
    """
    timed = sorted(
        (_timed_step(trainer, batches(), synchronize, barrier) for _ in range(STEPS)), key=lambda step: step["step"]
    )
    middle = timed[STEPS // 2]
    handover = {"handover_s": middle[HANDOVER]} if HANDOVER in middle else {}
    return {f"{name}_s": middle.get(name) for name in (*PARTS, "step")} | handover


def _timed_step(
    trainer: Trainer, micro_batches: Sequence[torch.Tensor], synchronize: Callable[[], Any], barrier: Callable[[], Any]
) -> dict[str, float]:
    watch = PartTimer(synchronize)
    trainer.section = watch.section
    synchronize()
    barrier()
    try:
        with watch.section("step"):
            trainer.step(micro_batches)
    finally:
        trainer.section = no_section
    return watch.seconds
