"""The controls of the question what to train with: objective, tokens, GPUs at hand, prices, currency, relevance."""

from collections.abc import Callable
from typing import Any

from dsnb.analysis.decide import ASSUMED_PRICE, DEFAULT_TOKENS, OBJECTIVES, Question, recorded_prices
from dsnb.analysis.intervals import RELEVANCE
from dsnb.explorer.data import Data
from dsnb.settings.planning import LEAST_TOKENS, MOST_GPUS, MOST_PRICE, MOST_TOKENS, is_number, is_whole

BILLION = 1e9
INPUTS: dict[str, dict[str, Any]] = {
    "train_tokens": {
        "least": LEAST_TOKENS,
        "most": MOST_TOKENS,
        "factor": BILLION,
        "allowed": f"give a number above 0, at most {MOST_TOKENS / BILLION:,.0f}, such as 300",
    },
    "gpus_at_hand": {
        "least": 1,
        "most": MOST_GPUS,
        "factor": 1,
        "isWhole": True,
        "mayBeEmpty": True,
        "allowed": f"give a whole number from 1 to {MOST_GPUS:,}, or nothing for as many as were measured",
    },
    "price": {
        "least": 0,
        "most": MOST_PRICE,
        "factor": 1,
        "mayBeEmpty": True,
        "allowed": f"give a number from 0 to {MOST_PRICE:,.0f}, such as 2.5, or nothing if it is unknown",
    },
    "relevance": {
        "least": 0,
        "most": 0.99,
        "factor": 0.01,
        "allowed": "give a number from 0 to 99, such as 2",
    },
}
"""What each field of the page allows: limits in the units of the state, what the entered number is multiplied by, and
the same in words, in the units of the field."""


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
    if not (is_number(value) and LEAST_TOKENS <= value <= MOST_TOKENS):
        raise ValueError(f"train_tokens {value!r} is not a number from 1 to 1e18: set it to a number such as 300e9")
    return float(value)


def _gpus_at_hand(data: Data, value: Any) -> int:
    if not (is_whole(value) and 0 <= value <= MOST_GPUS):
        raise ValueError(f"gpus_at_hand {value!r} is not a number of GPUs: set it to 1 or more, or to 0 for any")
    return int(value)


def _prices(data: Data, value: Any) -> dict[str, float]:
    given = value.values() if isinstance(value, dict) else [None]
    if not all(is_number(price) and 0 <= price <= MOST_PRICE for price in given):
        raise ValueError(f"prices {value!r} are not prices of 0 or more: set them to such as {{'NVIDIA H200': 3.5}}")
    return {str(kind): float(price) for kind, price in value.items()}


def _currency(data: Data, value: Any) -> str:
    if not isinstance(value, str) or len(value) > 8:
        raise ValueError(f"currency {value!r} is not a sign of up to 8 characters: set it to such as '$'")
    return value


def _relevance(data: Data, value: Any) -> float:
    if not (is_number(value) and 0 <= value < 1):
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
