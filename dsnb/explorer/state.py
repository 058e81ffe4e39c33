"""The state of the explorer's controls: its default, the allowed values, and the runs that it selects.

The page keeps the same state by the same rules in `web/model.js`; a test compares what both select.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd

from dsnb.analysis.decide import ASSUMED_PRICE, DEFAULT_TOKENS, OBJECTIVES, Question, rate, recorded_prices
from dsnb.analysis.intervals import RELEVANCE
from dsnb.errors import SettingsError
from dsnb.explorer.data import EVERY_TASK, Data, plain
from dsnb.formulas import metrics
from dsnb.runs import labels
from dsnb.runs.labels import Metric
from dsnb.settings.planning import LEAST_TOKENS, MOST_GPUS, MOST_PRICE, MOST_TOKENS, is_number, is_whole

State = dict[str, Any]
DAYS = Metric("days of training", "days", digits=1, better="lower")
OF_A_TASK = ("colour", "along", "base", "brush", "run")
"""Controls that a change of the task sets anew, besides the filters."""
SCALES = ["linear", "log"]
DIRECTIONS = ("ascending", "descending")
DERIVED_COLUMNS = ("repeat", "headroom")
"""Columns of the table of runs that are neither settings nor figures."""
MAX_PINS = 2
OPEN_EDGE = 1e300
"""The limit of a brush that is open on one side: JSON has no infinity."""
LABELS = {
    "y": "Y axis",
    "x": "X axis",
    "colour": "Colour by",
    "along": "Medians by",
    "y_scale": "Y scale",
    "x_scale": "X scale",
    "task": "Task",
    "all_tasks": "All tasks",
    "answer": "The answer",
    "objective": "Objective",
    "train_tokens": "Training tokens (billions)",
    "gpus_at_hand": "{unit}s at hand",
    "price": "Price of an hour",
    "currency": "Currency",
    "relevance": "Smallest relevant difference (%)",
    "reset": "Reset",
    "link": "Copy link",
    "region": "Region: drag in the chart, or enter its limits",
    "clear": "Clear region",
}
"""The labels of the controls."""
INPUTS: dict[str, dict[str, Any]] = {
    "train_tokens": {
        "least": LEAST_TOKENS,
        "most": MOST_TOKENS,
        "factor": 1e9,
        "allowed": f"give a number above 0, at most {MOST_TOKENS / 1e9:,.0f}, such as 300",
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


def metric(name: str) -> Metric:
    """Return how a figure is displayed; `days` is the only one that depends on the state."""
    return DAYS if name == "days" else labels.METRIC_LABELS[name]


def options(data: Data) -> dict[str, list[Any]]:
    """Return the allowed values of each control that is a choice of one."""
    figures = [*data.figures.columns, *(["days"] if "tokens_per_s" in data.figures else [])]
    memory = [name for name in labels.MEMORY if name in figures]
    axes, first = list(data.choices), rate(data.runs)
    return {
        "y": sorted(figures, key=lambda name: name != first),
        "x": [*memory, *(name for name in figures if name not in memory), *axes],
        "colour": axes,
        "along": axes,
        "y_scale": SCALES,
        "x_scale": SCALES,
    }


def question(state: State) -> Question:
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


def default(data: Data, task: str | None = None) -> State:
    """Return the initial state: all runs of a task (by default the one with the most), speed against memory.

    Where the task's runs measured no memory, it is speed against the number of GPUs.
    """
    allowed = options(data)
    chosen = {name: values[0] if values else None for name, values in allowed.items()}
    task = task if task is not None else data.tasks[0] if data.tasks else None
    for side, wanted in (("y", allowed["y"]), ("x", [*labels.MEMORY, "gpus"])):
        measured = [name for name in wanted if name in allowed[side] and is_measured(data, name, task)]
        chosen[side] = measured[0] if measured else chosen[side]
    axes = [name for name in data.axes if len(data.codes_of(name, task)) > 1]
    varying = [name for name in ("precision", "strategy", *axes) if name in axes] or ["status"]
    chosen["colour"] = varying[0]
    chosen["along"] = next((name for name in ("strategy", *varying[1:], *varying) if name in varying), "status")
    asked = {"objective": "time", "train_tokens": DEFAULT_TOKENS, "gpus_at_hand": 0}
    asked |= {"prices": recorded_prices(data.runs), "currency": "$", "relevance": RELEVANCE}
    view: State = {"base": None, "brush": None, "run": None, "pins": [], "sort": None, "columns": []}
    return {"task": task, **{name: [] for name in data.choices}, **chosen, **asked, **view}


def is_measured(data: Data, name: str, task: str | None) -> bool:
    """Return whether a run of a task has a figure; every run has a value of every setting."""
    column = "tokens_per_s" if name == "days" else name
    return name in data.choices or bool(data.figures[column].notna()[data.of_task(task)].any())


def change(data: Data, state: State, changes: dict[str, Any]) -> State:
    """Return the state with some controls changed.

    Raises
    ------
    SettingsError
        Listing every control and value that is unknown or does not occur in these runs.
    """
    changed, problems = dict(state), []
    allowed = options(data)
    for name, value in changes.items():
        try:
            if name in data.choices:
                changed[name] = _values(data, name, value)
            elif name in allowed:
                changed[name] = _one_of(name, value, allowed[name])
            elif name in _CHECKS:
                changed[name] = _CHECKS[name](data, value)
            else:
                raise ValueError(f"unknown control {name!r}: choose from {', '.join(state)}")
        except (ValueError, TypeError) as error:
            problems.append(str(error))
    if problems:
        raise SettingsError("\n".join(problems))
    if "brush" not in changes and (changed["x"], changed["y"]) != (state["x"], state["y"]):
        changed["brush"] = None
    if changed["task"] != state["task"]:  # what was chosen among the runs of another task
        fresh = default(data, changed["task"])
        changed |= {name: fresh[name] for name in (*data.choices, *OF_A_TASK) if name not in changes}
        for side in {"x", "y"} - set(changes):
            if changed[side] and not is_measured(data, changed[side], changed["task"]):
                changed[side] = fresh[side]
    return changed


def _values(data: Data, name: str, value: Any) -> list[object]:
    if value is None or (isinstance(value, str) and value == "all"):
        return []
    several = isinstance(value, Iterable) and not isinstance(value, str | bytes | dict)
    wanted = [plain(one) for one in (value if several else [value])]
    values = data.choices[name].values
    unknown = [one for one in wanted if not any(same(one, other) for other in values)]
    if unknown:
        known = ", ".join(map(labels.text, values[:20]))
        raise ValueError(
            f"{name} {labels.text(unknown[0])} does not occur in these runs: choose from {known}, or 'all'"
        )
    return [one for one in values if any(same(one, other) for other in wanted)]


def same(one: object, other: object) -> bool:
    """Compare values of a setting as JSON does: True is not 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _one_of(name: str, value: Any, allowed: list[Any]) -> Any:
    if value is None and not allowed:
        return None
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} {value!r} is not available in these runs: choose from {', '.join(map(str, allowed))}")
    return value


def _checked(
    name: str,
    is_allowed: Callable[[Data, Any], bool],
    words: str,
    converted: Callable[[Any], Any] = lambda value: value,
) -> Callable[[Data, Any], Any]:
    """Return a function that converts the value of a control, or raises ValueError with a sentence."""

    def check(data: Data, value: Any) -> Any:
        if not is_allowed(data, value):
            raise ValueError(f"{name} {value!r} {words}")
        return converted(value)

    return check


def _task(data: Data, value: Any) -> Any:
    return _one_of("task", value, [*data.tasks, *([EVERY_TASK] if len(data.tasks) > 1 else [])])


def _is_price(price: object) -> bool:
    return is_number(price) and 0 <= price <= MOST_PRICE


def _is_run(data: Data, value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and 0 <= int(value) < len(data.runs)


def _is_pin(data: Data, value: Any) -> bool:
    return value in data.experiments if isinstance(value, str) else _is_run(data, value)


def _is_sort(data: Data, value: Any) -> bool:
    pair = list(value) if isinstance(value, list | tuple) else []
    return len(pair) == 2 and pair[0] in {"experiment", *columns_of(data)} and pair[1] in DIRECTIONS


def _brush(data: Data, value: Any) -> dict[str, list[float]] | None:
    if value is None:
        return None
    try:
        ranges = {
            side: sorted(min(max(float(edge), -OPEN_EDGE), OPEN_EDGE) for edge in value[side]) for side in ("x", "y")
        }
    except (KeyError, TypeError, ValueError):
        ranges = {}
    known = all(not math.isnan(edge) for edges in ranges.values() for edge in edges)
    if [len(edges) for edges in ranges.values()] != [2, 2] or set(value) != {"x", "y"} or not known:
        raise ValueError(
            f"brush {value!r} is not a region: set it to {{'x': [low, high], 'y': [low, high]}}, or to None"
        )
    return ranges


def _columns(data: Data, value: Any) -> list[str]:
    known = columns_of(data)
    if not isinstance(value, list | tuple) or any(name not in known for name in value):
        raise ValueError(f"columns {value!r} is not a list of columns: choose from {', '.join(known)}")
    return [name for name in known if name in value]


def columns_of(data: Data) -> list[str]:
    """Return the columns that the table of runs may have besides the experiment's name."""
    days = ["days"] if "tokens_per_s" in data.figures else []
    return [*DERIVED_COLUMNS, *data.figures.columns, *days, *data.choices]


_CHECKS: dict[str, Callable[[Data, Any], Any]] = {
    "task": _task,
    "objective": _checked(
        "objective", lambda _, value: value in list(OBJECTIVES), f"is unknown: choose from {', '.join(OBJECTIVES)}"
    ),
    "train_tokens": _checked(
        "train_tokens",
        lambda _, value: is_number(value) and LEAST_TOKENS <= value <= MOST_TOKENS,
        "is not a number from 1 to 1e18: set it to a number such as 300e9",
        float,
    ),
    "gpus_at_hand": _checked(
        "gpus_at_hand",
        lambda _, value: is_whole(value) and 0 <= value <= MOST_GPUS,
        "is not a number of GPUs: set it to 1 or more, or to 0 for any",
        int,
    ),
    "prices": _checked(
        "prices",
        lambda _, value: isinstance(value, dict) and all(map(_is_price, value.values())),
        "are not prices of 0 or more: set them to such as {'NVIDIA H200': 3.5}",
        lambda value: {str(kind): float(price) for kind, price in value.items()},
    ),
    "currency": _checked(
        "currency",
        lambda _, value: isinstance(value, str) and len(value) <= 8,
        "is not a sign of up to 8 characters: set it to such as '$'",
    ),
    "relevance": _checked(
        "relevance",
        lambda _, value: is_number(value) and 0 <= value < 1,
        "is not a share from 0 to less than 1: set it to such as 0.02 for 2 %",
        float,
    ),
    "base": _checked(
        "base",
        lambda data, value: value is None or (isinstance(value, str) and value in data.experiments),
        "is not an experiment of these runs: set it to the name of one, or to None",
    ),
    "run": _checked(
        "run",
        lambda data, value: value is None or _is_run(data, value),
        "is not the position of a run of this table: set it to 0 or more and less than their number, or to None",
        lambda value: None if value is None else int(value),
    ),
    "pins": _checked(
        "pins",
        lambda data, value: isinstance(value, list | tuple)
        and len(value) <= MAX_PINS
        and all(_is_pin(data, one) for one in value),
        f"is not a list of up to {MAX_PINS} names of experiments or positions of runs",
        list,
    ),
    "sort": _checked(
        "sort",
        lambda data, value: value is None or _is_sort(data, value),
        f"is not a column and one of {', '.join(DIRECTIONS)}, or None",
        lambda value: value and list(value),
    ),
    "columns": _columns,
    "brush": _brush,
}  # fmt: skip
"""Controls that are neither filters nor in `options`."""


def values(data: Data, state: State, name: str) -> np.ndarray:
    """Return a figure of every run in the unit of its column, or the codes of a setting: (runs,), NaN if missing."""
    if name in data.choices:
        return np.array(data.choices[name].codes, dtype=float)
    if name == "days":
        rates = data.figures["tokens_per_s"]
        return np.array([metrics.days(state["train_tokens"], rate) for rate in rates], dtype=float)
    return data.figures[name].to_numpy()


def mask(data: Data, state: State) -> pd.Series:
    """Return which runs of the task the filters and the brush select.

    A filter with nothing chosen selects all runs. A brush includes its edges; it never selects runs without the figure.
    """
    selected = data.of_task(state["task"])
    for name, choice in data.choices.items():
        if state[name]:
            chosen = [code for code, value in enumerate(choice.values) if any(same(value, one) for one in state[name])]
            selected &= np.isin(choice.codes, chosen)
    if state["brush"] is not None:
        for side in ("x", "y"):
            low, high = state["brush"][side]
            figure = values(data, state, state[side])
            selected &= (figure >= low) & (figure <= high)
    return pd.Series(selected, index=data.runs.index)
