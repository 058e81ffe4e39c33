"""The state of the explorer's controls: its default, the allowed values, and the runs that it selects.

The page keeps the same state by the same rules in `web/model.js`; a test compares what both select.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd

from dsnb.base.errors import SettingsError
from dsnb.base.formulas import metrics
from dsnb.base.formulas.planning import MAX_GPUS, MAX_PRICE, MAX_TOKENS, MIN_TOKENS, is_number
from dsnb.results.answers.decide import (
    ASSUMED_PRICE,
    Question,
    default_objective,
    rate,
    recorded_prices,
)
from dsnb.results.runs import labels
from dsnb.results.runs.labels import Metric
from dsnb.results.runs.table import current_name
from dsnb.results.statistics.intervals import RELEVANCE
from dsnb.show.explorer.data import EVERY_TASK, Data, plain

State = dict[str, Any]
DAYS = Metric("days of training", "days", digits=1, better="lower")
OF_A_TASK = ("colour", "along", "base", "brush", "run", "global_batch")
"""Controls that a change of the task resets, in addition to the filters."""
SCALES = ["linear", "log"]
FORMER_NAMES = {"strategy": labels.PARALLELISM}
"""Names of controls, and of settings chosen for them, in addresses and notebooks of earlier versions -> current names.
"""
NAMING = ("x", "y", "colour", "along", "sort")
"""Controls whose value names a column."""
DIRECTIONS = ("ascending", "descending")
DERIVED_COLUMNS = ("experiment", "repeat", "headroom", "n", "failed", "spread")
"""Columns of the tables of runs and medians that are neither settings nor figures."""
MAX_PINS = 2
MAX_BATCH = 10**9
OPEN_EDGE = 1e300
"""The edge of a brush that is open on one side: JSON has no infinity."""
INPUTS: dict[str, dict[str, Any]] = {
    "train_tokens": {"least": MIN_TOKENS, "most": MAX_TOKENS, "factor": 1e9, "mayBeEmpty": True},
    "gpus_at_hand": {
        "least": 1,
        "most": MAX_GPUS,
        "factor": 1,
        "isWhole": True,
        "mayBeEmpty": True,
    },
    "global_batch": {
        "least": 1,
        "most": MAX_BATCH,
        "factor": 1,
        "isWhole": True,
        "mayBeEmpty": True,
    },
    "price": {"least": 0, "most": MAX_PRICE, "factor": 1, "mayBeEmpty": True},
    "relevance": {"least": 0, "most": 0.99, "factor": 0.01},
}
"""The page's limits of numbers in the units of the state, and the factor of a number in a field of the page."""


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
        "table": ["medians", "runs"],
    }


def question(state: State) -> Question:
    """Return the question that the controls ask, or raise SettingsError."""
    return Question(
        tokens=state["train_tokens"],
        objective=state["objective"],
        gpus=state["gpus_at_hand"],
        global_batch=state["global_batch"],
        prices=state["prices"],
        assumed_price=ASSUMED_PRICE,
        currency=state["currency"],
        relevance=state["relevance"],
    )


def default(data: Data, task: str | None = None) -> State:
    """Return the initial state: all runs of a task (by default the first), speed against memory.

    Where the task's runs measured no memory, it is speed against the number of GPUs.
    """
    allowed = options(data)
    chosen = {name: values[0] if values else None for name, values in allowed.items()}
    task = task if task is not None else data.tasks[0] if data.tasks else None
    for side, wanted in (("y", allowed["y"]), ("x", [*labels.MEMORY, "gpus"])):
        measured = [
            name for name in wanted if name in allowed[side] and is_measured(data, name, task)
        ]
        chosen[side] = measured[0] if measured else chosen[side]
    axes = [name for name in data.axes if len(data.codes_of(name, task)) > 1]
    varying = [name for name in ("precision", labels.PARALLELISM, *axes) if name in axes] or [
        "status"
    ]
    chosen["colour"] = varying[0]
    along = (labels.PARALLELISM, *varying[1:], *varying)
    chosen["along"] = next((name for name in along if name in varying), "status")
    asked = {"objective": "time", "train_tokens": 0, "gpus_at_hand": 0, "global_batch": 0}
    asked |= {"prices": recorded_prices(data.runs), "currency": "$", "relevance": RELEVANCE}
    if "tokens_per_s" in data.figures:
        asked["objective"] = default_objective(data.runs[data.of_task(task)])
    view: State = {"base": None, "brush": None, "run": None, "pins": [], "sort": None}
    return {"task": task, **{name: [] for name in data.choices}, **chosen, **asked, **view}


def is_measured(data: Data, name: str, task: str | None) -> bool:
    """Return whether a run of a task has a figure; every run has a value of every setting."""
    column = "tokens_per_s" if name == "days" else name
    return name in data.choices or bool(data.figures[column].notna()[data.of_task(task)].any())


def change(data: Data, state: State, changes: dict[str, Any]) -> State:
    """Return the state with some controls changed; if a control or value is unknown, raise SettingsError."""
    changed, problems = dict(state), []
    changes = {FORMER_NAMES.get(name, name): value for name, value in changes.items()}
    for name, value in changes.items():
        try:
            changed[name] = _checked(data, state, name, _converted(value))
        except (ValueError, TypeError) as error:
            problems.append(str(error))
    if problems:
        raise SettingsError("\n".join(problems))
    question(changed)
    if "brush" not in changes and (changed["x"], changed["y"]) != (state["x"], state["y"]):
        changed["brush"] = None
    if changed["task"] != state["task"]:  # reset what was chosen among the runs of the other task
        fresh = default(data, changed["task"])
        if (
            "objective" not in changes
            and state["objective"] == default(data, state["task"])["objective"]
        ):
            changed["objective"] = fresh["objective"]
        changed |= {
            name: fresh[name] for name in (*data.choices, *OF_A_TASK) if name not in changes
        }
        for side in {"x", "y"} - set(changes):
            if changed[side] and not is_measured(data, changed[side], changed["task"]):
                changed[side] = fresh[side]
    return changed


def _converted(value: Any) -> Any:
    """Convert a value, and all that it contains, from NumPy and pandas to JSON types."""
    if isinstance(value, dict):
        return {str(name): _converted(item) for name, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [_converted(item) for item in value]
    return value if value is None or isinstance(value, float) else plain(value)


def _checked(data: Data, state: State, name: str, value: Any) -> Any:
    """Return the value of a control for the state, or raise ValueError with a sentence."""
    if name in data.choices:
        return _chosen(name, value, data.choices[name].values)
    if name in NAMING:
        value = [*map(_current, value)] if isinstance(value, list) else _current(value)
    allowed = {
        **options(data),
        "task": [*data.tasks, *([EVERY_TASK] if len(data.tasks) > 1 else [])],
    }
    if name in allowed:
        if value not in (allowed[name] or [None]):
            text = ", ".join(map(str, allowed[name]))
            raise ValueError(f"{name} {value!r} is not available in these runs: choose from {text}")
    elif name not in state:
        raise ValueError(f"unknown control {name!r}: choose from {', '.join(state)}")
    elif name in CHECKS and not (value is None and name in MAY_BE_NONE):
        is_allowed, sentence = CHECKS[name]
        if not is_allowed(data, value):
            raise ValueError(f"{name} {value!r} is {sentence}")
    if name == "brush" and value:
        return {
            side: sorted(min(max(edge, -OPEN_EDGE), OPEN_EDGE) for edge in value[side])
            for side in ("x", "y")
        }
    return value


def _current(column: Any) -> Any:
    """Return the current name of a column that a control chooses; other values are returned as they are."""
    column = current_name(column)
    return FORMER_NAMES.get(column, column) if isinstance(column, str) else column


def _chosen(name: str, value: Any, available: list[object]) -> list[object]:
    """Return the chosen values of a filter in display order; none for all."""
    wanted = value if isinstance(value, list) else [value]
    if value is None or wanted == ["all"]:
        return []
    unknown = [labels.text(choice) for choice in wanted if not is_among(choice, available)]
    if unknown:
        text = ", ".join(map(labels.text, available[:20]))
        raise ValueError(
            f"{name} {unknown[0]} does not occur in these runs: choose from {text}, or 'all'"
        )
    return [choice for choice in available if is_among(choice, wanted)]


def is_among(value: object, others: Iterable[object]) -> bool:
    """Return whether a value of a setting is one of others, compared as JSON does: True is not 1."""
    return any(
        value == other and isinstance(value, bool) == isinstance(other, bool) for other in others
    )


def _is_run(data: Data, value: Any) -> bool:
    return is_number(value) and value in range(len(data.runs))


def _is_range(value: Any) -> bool:
    numbers = (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(edge, int | float) for edge in value)
    )
    return numbers and not any(math.isnan(edge) for edge in value)


def _is_sort(data: Data, value: Any) -> bool:
    columns = {*DERIVED_COLUMNS, *options(data)["x"]}
    return (
        isinstance(value, list)
        and len(value) == 2
        and value[0] in columns
        and value[1] in DIRECTIONS
    )


def _are_pins(data: Data, value: Any) -> bool:
    is_list = isinstance(value, list) and len(value) <= MAX_PINS
    return is_list and all(pin in data.experiments or _is_run(data, pin) for pin in value)


CHECKS: dict[str, tuple[Callable[[Data, Any], bool], str]] = {
    "currency": (
        lambda _, value: isinstance(value, str) and len(value) <= 8,
        "not a sign of up to 8 characters: set it to such as '$'",
    ),
    "base": (
        lambda data, value: value in data.experiments,
        "not an experiment of these runs: set it to the name of one, or to None",
    ),
    "run": (
        _is_run,
        "not the position of a run of this table: set it to 0 or more and less than their number, or to None",
    ),
    "pins": (
        _are_pins,
        f"not a list of up to {MAX_PINS} names of experiments or positions of runs",
    ),
    "sort": (_is_sort, f"not a column and one of {', '.join(DIRECTIONS)}, or None"),
    "brush": (
        lambda _, value: (
            isinstance(value, dict)
            and {*value} == {"x", "y"}
            and all(map(_is_range, value.values()))
        ),
        "not a region: set it to {'x': [low, high], 'y': [low, high]}, or to None",
    ),
}
"""Controls that are neither filters, nor in `options`, nor part of the question -> check and sentence if it fails."""
MAY_BE_NONE = ("base", "run", "sort", "brush")


def values(data: Data, state: State, name: str) -> np.ndarray:
    """Return a figure of every run in the unit of its column, or the codes of a setting: (runs,), NaN if missing."""
    if name in data.choices:
        return np.array(data.choices[name].codes, dtype=float)
    if name == "days":
        rates = data.figures["tokens_per_s"]
        tokens = [state["train_tokens"] or data.tokens[code] for code in data.task_codes]
        return np.array(
            [metrics.days(*pair) for pair in zip(tokens, rates, strict=True)], dtype=float
        )
    return data.figures[name].to_numpy()


def mask(data: Data, state: State) -> pd.Series:
    """Return which runs of the task the filters and the brush select.

    A filter with nothing chosen selects all runs. A brush includes its edges; it never selects runs without the figure.
    """
    selected = data.of_task(state["task"])
    for name, choice in data.choices.items():
        if state[name]:
            chosen = [
                code for code, value in enumerate(choice.values) if is_among(value, state[name])
            ]
            selected &= np.isin(choice.codes, chosen)
    if state["brush"] is not None:
        for side in ("x", "y"):
            low, high = state["brush"][side]
            figure = values(data, state, state[side])
            selected &= (figure >= low) & (figure <= high)
    return pd.Series(selected, index=data.runs.index)
