"""What a plan may be asked for (tokens, GPUs at hand, prices), in Python and on pages, and when it is no answer."""

import math
import numbers
from collections.abc import Mapping
from typing import Any, TypeGuard

from dsnb.base.errors import SettingsError

MIN_TOKENS, MAX_TOKENS = 1.0, 1e18
DEFAULT_TOKENS = 100e9
"""Tokens to train on where the size of the model is unknown."""
TOKENS_PER_PARAMETER = 20
"""About the number that is optimal for a given compute (Hoffmann et al. 2022, arXiv:2203.15556)."""
FINE_TUNING_TOKENS, FINE_TUNING_SEQUENCES = 50e6, 64
"""Tokens to train on, and sequences of a step, with LoRA or pretrained weights: a convention, of
the order of instruction tuning (Taori et al. 2023, Stanford Alpaca: 52,000 examples three times,
128 a step)."""
MAX_GPUS = 10**9
MAX_PRICE = 1e9
"""Largest price of a GPU-hour, in any currency."""
MAX_DAYS = 365.0
"""A training that would take longer is no plan: hardware and models change before it ends."""
GOAL_DAYS = 30.0
"""Duration that the number of GPUs is stated for where `MAX_DAYS` is exceeded."""


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a finite number; a truth value is none."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether a value is an integer; a truth value and 8.0 are none."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check(tokens: object, prices: Mapping[str, object], **amounts: object) -> None:
    """Refuse tokens, prices and other amounts (None if not given) that are out of range; keys name them in messages."""
    given = {**prices, **{name: value for name, value in amounts.items() if value is not None}}
    wrong = [name for name, value in given.items() if not (is_number(value) and value >= 0)]
    problems = [f"{name} is {given[name]!r}: give a finite number of 0 or more" for name in wrong]
    if not (is_number(tokens) and tokens > 0):
        problems.insert(0, f"tokens is {tokens!r}: give a finite number of more than 0")
    if problems:
        raise SettingsError(problems)


def is_fine_tuning(settings: Mapping[str, Any]) -> bool:
    """Return whether settings adapt a trained model: LoRA, or pretrained weights; unknown settings do not say so."""
    rank = settings.get("lora_rank")
    return (is_number(rank) and rank > 0) or settings.get("weights") == "pretrained"


def usual_tokens(parameters: float, fine_tuning: bool = False) -> float:
    """Return the tokens that a model of this size (0 if unknown) is trained on if none are given, to two digits."""
    if fine_tuning:
        return FINE_TUNING_TOKENS
    if parameters > 0:
        return float(f"{TOKENS_PER_PARAMETER * parameters:.1e}")
    return DEFAULT_TOKENS


def gpus_needed(gpu_hours: float, days: float = GOAL_DAYS) -> int:
    """Return the GPUs that finish in these days if each works as fast as the GPU-hours assume."""
    return math.ceil(round(gpu_hours / (24 * days), 6))
