"""Where the time of one optimizer step goes: its forward and backward passes and its update, with a stopwatch.

The device is made to wait at the edges of every part, so that a part is charged for its own work and no other. That
also keeps the host from running ahead, so such a step can take longer than a timed one.
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
"""What a pipeline marks where its stages pass on activations, gradients and losses, and wait for each other."""
STEPS = 3
Batches = Callable[[], Sequence[torch.Tensor]]
"""Gives the micro-batches of the next step."""


class PartTimer:
    """Adds up the seconds of each part of a step."""

    def __init__(self, synchronize: Callable[[], Any]) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._synchronize = synchronize

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Time one part, the device idle before and after."""
        self._synchronize()
        began = time.perf_counter()
        yield
        self._synchronize()
        self.seconds[name] += time.perf_counter() - began


def time_parts(
    trainer: Trainer, batches: Batches, synchronize: Callable[[], Any], barrier: Callable[[], Any]
) -> dict[str, float | None]:
    """Time the parts of a few steps, and give those of the step that took the middle time.

    Being of one step, they add up to it, but for what a trainer does between them.

    Returns
    -------
    dict
        `forward_s`, `backward_s`, `optimizer_s`, summed over micro-batches, and `step_s`, on this rank; a part that
        the trainer does not mark is None. Only of a pipeline `handover_s`: its instructions that pass something on.
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
