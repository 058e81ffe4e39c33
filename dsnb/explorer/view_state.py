"""Controls that change only what is displayed: pinned runs, and the sort and the columns of the table of runs."""

from collections.abc import Callable
from typing import Any

from dsnb.explorer.data import Data

MOST_PINS = 2
DIRECTIONS = ("ascending", "descending")
DERIVED_COLUMNS = ("repeat", "headroom")
"""Columns of the table of runs that are neither settings nor figures."""


def default() -> dict[str, Any]:
    """Return the initial values: nothing pinned, the runs in order, the columns that the page chooses."""
    return {"pins": [], "sort": None, "columns": []}


def pins(data: Data, value: Any) -> list[str | int]:
    """Check pins: names of experiments and positions of runs."""
    known = isinstance(value, list | tuple) and len(value) <= MOST_PINS and all(_is_pin(data, one) for one in value)
    if not known:
        raise ValueError(f"pins {value!r} is not a list of up to {MOST_PINS} names of experiments or positions of runs")
    return list(value)


def _is_pin(data: Data, value: Any) -> bool:
    if isinstance(value, str):
        return value in data.experiments
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(data.runs)


def sort(data: Data, value: Any) -> list[str] | None:
    """Check the sort of the table of runs: a column and a direction, or None for the order of the runs."""
    if value is None:
        return None
    pair = list(value) if isinstance(value, list | tuple) else []
    if len(pair) != 2 or pair[0] not in {"experiment", *columns_of(data)} or pair[1] not in DIRECTIONS:
        raise ValueError(f"sort {value!r} is not a column and one of {', '.join(DIRECTIONS)}, or None")
    return pair


def columns(data: Data, value: Any) -> list[str]:
    """Check the columns of the table of runs; none stands for those that the page chooses."""
    known = columns_of(data)
    if not isinstance(value, list | tuple) or any(name not in known for name in value):
        raise ValueError(f"columns {value!r} is not a list of columns: choose from {', '.join(known)}")
    return [name for name in known if name in value]


def columns_of(data: Data) -> list[str]:
    """Return the columns that the table of runs may have besides the experiment's name."""
    days = ["days"] if "tokens_per_s" in data.figures else []
    return [*DERIVED_COLUMNS, *data.figures.columns, *days, *data.choices]


CHECKS: dict[str, Callable[[Data, Any], Any]] = {"pins": pins, "sort": sort, "columns": columns}
