"""Strategies of programs that dsnb does not run, as logs and tables name them."""

from dataclasses import replace
from typing import Any

from dsnb.base.errors import SettingsError
from dsnb.base.formulas import memory
from dsnb.settings.strategies.base import States
from dsnb.settings.strategies.deepspeed import DeepSpeed

MEGATRON = "megatron-deepspeed"
"""The strategy of published runs of Megatron with DeepSpeed."""


class Logged(DeepSpeed):
    """Share as the stage of ZeRO says, if one is known."""

    is_runnable = False
    is_deepspeed = False
    settings = frozenset()

    def __init__(self, name: str) -> None:
        self.name = name
        self.has_masters = name == MEGATRON

    def label_of(self, zero_stage: object = None) -> str:
        """Return the stage of ZeRO, or the program's name for its strategy."""
        return super().label_of(zero_stage) or self.name

    def short(self, s: Any) -> str:
        """Return the name."""
        return self.name

    def trainer(self, s: Any) -> str:
        """Refuse to train: a rank on a host without the strategy's package comes here."""
        raise SettingsError(
            f"strategy {self.name!r} is not installed on this host: install its package here, too"
        )

    def candidates(self) -> list[dict[str, Any]]:
        """Return nothing: it cannot be recommended."""
        return []

    def accumulates_in_fp32(self, s: Any) -> bool:
        """Return whether it is known."""
        return bool(s.grad_accum_dtype == "fp32")

    def states(self, s: Any) -> States:
        """Return states with fp32 masters in native half precision, which is usual."""
        states = super().states(s)
        if self.numbers(s).natively_half:
            return replace(states, each=memory.MASTERS)
        return states

    def former_defaults(self, s: Any) -> dict[str, Any]:
        """Return nothing: dsnb never ran it."""
        return {}
