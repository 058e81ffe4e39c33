"""DeepSpeed's flops profiler over the forward pass of one micro-batch, for every strategy.

The profiler counts by wrapping functions of torch, which are restored after the pass. It runs on all ranks, so that a
function that it cannot count is missing on all of them.
"""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from operator import methodcaller
from pathlib import Path
from typing import Any

import einops
import torch
from deepspeed.profiling.flops_profiler import profiler
from torch.nn import functional as F

from dsnb.train.failure import BestEffort
from dsnb.train.trainer import Batches, Trainer, no_section

PATCHED = (torch, torch.Tensor, F, einops)
PREFACE = """\
One forward pass over {tokens} tokens, on rank 0. With DDP and FSDP the profiler does not know the number of ranks and
reports 0 model parameters; with ZeRO 3 it sees only the parameters that a rank keeps between two passes.
"""


class ForwardFlops:
    """Counts the first forward pass of a step that marks one.

    Attributes
    ----------
    attempt
        The calls of the profiler, which may fail.
    passes
        Number of forward passes so far.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.attempt, self.passes = BestEffort(), 0
        engine = getattr(trainer, "engine", None)
        self.profiler: Any = self.attempt(profiler.FlopsProfiler, trainer.module, engine)

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Count a part of a step, if it is the first forward pass."""
        self.passes += name == "forward"
        if name != "forward" or self.passes > 1:
            yield
            return
        self.attempt(self._start)
        try:
            yield
        finally:
            BestEffort()(methodcaller("stop_profile"), self.profiler)  # even if its start failed halfway
            unpatch()

    def _start(self) -> None:
        self.profiler.start_profile()
        linear = profiler.old_functions[F.linear.__str__]
        if linear is not torch._C._nn.linear:  # ZeRO 3's calls matmul: it would be counted twice
            F.linear = linear

    def write(self, path: Path, tokens: int) -> None:
        """Write DeepSpeed's report of the counts, and remove the profiler's attributes from the model."""
        with open(path, "w", encoding="utf-8") as file, contextlib.redirect_stdout(file):
            print(PREFACE.format(tokens=tokens))
            self.profiler.print_model_profile()
        self.profiler.end_profile()


def count_forward(
    trainer: Trainer, batches: Batches, path: Path | None, compiled: bool = False
) -> tuple[float | None, str | None]:
    """Train one step and count the FLOPs of its first forward pass.

    Parameters
    ----------
    path
        File for the profile of every module; None on ranks that do not write it.
    compiled
        Whether the model is compiled: it must run uncompiled here, because compiled code calls no functions of torch.

    Returns
    -------
    tuple
        FLOPs per token of this rank's pass, or None; the reason if they are missing, in one line, or None.
    """
    counted = ForwardFlops(trainer)
    micro_batches = batches()
    trainer.section = counted.section
    try:
        with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
            trainer.step(micro_batches)
    finally:
        trainer.section = no_section
    attempt = counted.attempt
    if not counted.passes:
        return None, attempt.why or "the strategy marks no forward pass"
    tokens = micro_batches[0].numel()
    flops = attempt(lambda: float(counted.profiler.get_total_flops()) / tokens)
    if path:
        attempt(counted.write, path, tokens)
    return (flops, None) if attempt.why is None else (None, attempt.why)


def unpatch() -> None:
    """Restore every function of torch that the profiler has wrapped: it leaves them if it fails halfway."""
    for place in PATCHED:
        for name, value in list(vars(place).items()):
            ours = getattr(value, "__module__", None) == profiler.__name__
            if ours and getattr(value, "__qualname__", "").startswith("wrapFunc"):
                setattr(place, name, profiler.old_functions[value.__str__])
    profiler.module_flop_count.clear()
    profiler.module_mac_count.clear()
