"""One process with a training loop of torch, or ranks that split its layers: the baseline of all other strategies."""

from collections.abc import Iterator
from typing import Any

from dsnb.settings.strategies.base import Strategy


class Plain(Strategy):
    """One process without an engine, or one tensor-parallel group; half precision is autocast, or pure."""

    name = "plain"
    label = "plain"
    phrase = "the plain loop"
    kind = "plain loop"
    simplicity = 0
    settings = frozenset({"tensor_parallel"})
    min_ranks = max_ranks = 1
    why_no_zero = "it is one process"
    may_split_layers = False
    has_native_half = False
    shares_split_inputs = True
    memory_rule = "dsnb.prediction.memory:plain"

    def refusals(self, s: Any) -> Iterator[str]:
        """Refuse several ranks, unless they are one tensor-parallel group."""
        if s.tensor_parallel == 1 and s.gpus != 1:
            yield (
                f"gpus is {s.gpus}, but strategy is '{self.name}': it is a single process; "
                "use gpus 1, or strategy 'ddp'"
            )
        if s.tensor_parallel > 1 and s.gpus != s.tensor_parallel:
            yield (
                f"gpus is {s.gpus}, but strategy is '{self.name}': nothing averages gradients over "
                f"groups; use gpus {s.tensor_parallel}, as tensor_parallel is, or strategy 'fsdp'"
            )
        if s.tensor_parallel > 1 and s.precision == "fp16":
            yield (
                f"precision is 'fp16', but strategy is '{self.name}' and tensor_parallel is set: each "
                "rank would skip steps on its own; use 'bf16'"
            )
