"""The controls of the question what to train with: objective, tokens, GPUs at hand, prices, currency, relevance."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dsnb.analysis.decision import ASSUMED_PRICE, DEFAULT_TOKENS, OBJECTIVES, Question, recorded_prices
from dsnb.analysis.intervals import RELEVANCE
from dsnb.explorer.data import Data

MOST = 1e9
"""Largest price, and largest number of GPUs."""


def default(data: Data) -> dict[str, Any]:
    """Return the question that is answered first."""
    prices = recorded_prices(data.runs)
    return {
        "objective": "time",
        "train_tokens": DEFAULT_TOKENS,
        "gpus_at_hand": 0,
        "prices": prices,
        "currency": "$",
        "relevance": RELEVANCE,
    }


def of(state: dict[str, Any]) -> Question:
    """Return the question that the controls ask."""
    return Question(
        tokens=state["train_tokens"],
        objective=state["objective"],
        gpus=state["gpus_at_hand"],
        prices=state["prices"],
        assumed_price=ASSUMED_PRICE,
        currency=state["currency"],
        relevance=state["relevance"],
    )


def _objective(data: Data, value: Any) -> str:
    if value not in list(OBJECTIVES):
        raise ValueError(f"objective {value!r} is unknown: choose from {', '.join(OBJECTIVES)}")
    return str(value)


def _train_tokens(data: Data, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 1e18:
        raise ValueError(f"train_tokens {value!r} is not a number from 1 to 1e18: set it to a number such as 300e9")
    return float(value)


def _gpus_at_hand(data: Data, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value <= MOST:
        raise ValueError(f"gpus_at_hand {value!r} is not a number of GPUs: set it to 1 or more, or to 0 for any")
    return int(value)


def _prices(data: Data, value: Any) -> dict[str, float]:
    given = value.values() if isinstance(value, dict) else [None]
    if not all(isinstance(price, int | float) and 0 <= price <= MOST for price in given):
        raise ValueError(f"prices {value!r} are not prices of 0 or more: set them to such as {{'NVIDIA H200': 3.5}}")
    return {str(kind): float(price) for kind, price in value.items()}


def _currency(data: Data, value: Any) -> str:
    if not isinstance(value, str) or len(value) > 8:
        raise ValueError(f"currency {value!r} is not a sign of up to 8 characters: set it to such as '$'")
    return value


def _relevance(data: Data, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError(f"relevance {value!r} is not a share from 0 to less than 1: set it to such as 0.02 for 2 %")
    return float(value)


CHECKS: dict[str, Callable[[Data, Any], Any]] = {
    "objective": _objective,
    "train_tokens": _train_tokens,
    "gpus_at_hand": _gpus_at_hand,
    "prices": _prices,
    "currency": _currency,
    "relevance": _relevance,
}
"""Control -> a function that returns its new value, or raises ValueError with a sentence."""
