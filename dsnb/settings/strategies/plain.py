"""One process with a training loop of torch: the baseline of all other strategies."""

from collections.abc import Iterator
from typing import Any

from dsnb.settings.strategies.base import Strategy


class Plain(Strategy):
    """One process without an engine; half precision is autocast, or pure."""

    name = "plain"
    label = "plain"
    phrase = "the plain loop"
    kind = "plain loop"
    simplicity = 0
    min_ranks = max_ranks = 1
    why_no_zero = "it is one process"
    may_split_layers = False
    has_native_half = False
    memory_rule = "dsnb.prediction.memory:plain"

    def refusals(self, s: Any) -> Iterator[str]:
        """Refuse several ranks."""
        if s.gpus != 1:
            yield (
                f"gpus is {s.gpus}, but strategy is '{self.name}': it is a single process; "
                "use gpus 1, or strategy 'ddp'"
            )
