"""The state of the explorer's controls: its default, the allowed values, and the runs that it selects.

The page keeps the same state by the same rules in `web/model.js`; a test compares what both select.
"""

import math
from collections.abc import Iterable, Sequence
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
from dsnb.results.statistics.tasks import TASK
from dsnb.settings.checks import closest_match
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
DERIVED_COLUMNS = ("experiment", "repeat", "headroom", "n", "failed", "spread")
"""Columns of the tables of runs and medians that are neither settings nor figures."""
MAX_PINS = 2
MAX_OFFERED = 20
"""Values that a message offers."""
OPEN_EDGE = 1e300
"""The edge of a brush that is open on one side: JSON has no infinity."""
INPUTS: dict[str, State] = {
    "train_tokens": {"least": MIN_TOKENS, "most": MAX_TOKENS, "factor": 1e9, "mayBeEmpty": True},
    "gpus_at_hand": {
        "least": 1,
        "most": MAX_GPUS,
        "factor": 1,
        "isWhole": True,
        "mayBeEmpty": True,
    },
    "price": {"least": 0, "most": MAX_PRICE, "factor": 1, "mayBeEmpty": True},
    "relevance": {"least": 0, "most": 0.99, "factor": 0.01},
}
"""The page's limits of numbers in the units of the state, and the factor of a number in a field of
the page."""
SENTENCES = {
    "currency": "not a sign of up to 8 characters: set it to such as '$'",
    "base": "not an experiment of these runs: set it to the name of one, or to None",
    "run": "not the position of a run of this table: set it to 0 or more and less than their number, or to None",
    "pins": f"not a list of up to {MAX_PINS} names of experiments or positions of runs",
    "sort": "not a column and one of ascending, descending, or None",
    "brush": "not a region: set it to {'x': [low, high], 'y': [low, high]}, or to None",
}
"""Controls that are neither filters, nor in `options`, nor part of the question -> what a wrong
value is."""
MAY_BE_NONE = ("base", "run", "sort", "brush")


def options(data: Data) -> dict[str, list[Any]]:
    """Return the allowed values of each control that is a choice of one."""
    figures = list(data.figures)
    if "tokens_per_s" in figures:
        figures.append("days")
    memory = [name for name in labels.MEMORY if name in figures]
    others = [name for name in figures if name not in memory]
    axes = list(data.values)
    return {
        "y": sorted(figures, key=lambda name: name != rate(data.runs)),
        "x": [*memory, *others, *axes],
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
    if task is None:
        task = next(iter(data.tasks), None)
    allowed = options(data)
    first = {name: next(iter(values), None) for name, values in allowed.items()}
    for side, wanted in (("y", allowed["y"]), ("x", [*labels.MEMORY, "gpus"])):
        offered = [name for name in wanted if name in allowed[side]]
        measured = (name for name in offered if is_measured(data, name, task))
        first[side] = next(measured, first[side])
    codes = data.codes[data.task_rows(task)]
    varying = [name for name in data.axes if codes[name].nunique() > 1] or ["status"]
    varying.sort(key=lambda name: (name != "precision", name != labels.PARALLELISM))
    along = [labels.PARALLELISM] if labels.PARALLELISM in varying else varying[1:2] or varying
    objective = "time"
    if "tokens_per_s" in data.figures:
        objective = default_objective(data.runs[data.of_task(task)])
    return {
        "task": task,
        **{name: [] for name in data.values},
        **first,
        "colour": varying[0],
        "along": along[0],
        "objective": objective,
        "train_tokens": 0,
        "gpus_at_hand": 0,
        "global_batch": 0,
        "prices": recorded_prices(data.runs),
        "currency": "$",
        "relevance": RELEVANCE,
        "base": None,
        "brush": None,
        "run": None,
        "pins": [],
        "sort": None,
    }


def is_measured(data: Data, name: str, task: str | None) -> bool:
    """Return whether a run of a task has a figure; every run has a value of every setting."""
    column = "tokens_per_s" if name == "days" else name
    return name in data.values or bool(data.figures[column].notna()[data.of_task(task)].any())


def change(data: Data, state: State, changes: State) -> State:
    """Return the state with some controls changed; if a control or value is unknown, raise SettingsError.

    Settings of how GPUs share the training, such as `zero_stage`, choose values of `parallelism`.
    """
    changed = dict(state)
    problems = []
    shared = {}
    for name, entered in changes.items():
        value = _converted(entered)
        try:
            if name in data.constant:
                _chosen(name, value, [data.constant[name]])
            elif name in labels.SHARING and _columns(data, name):
                shared[name] = _has_value(data, name, value)
            else:
                changed[name] = _checked(data, state, name, value)
        except (ValueError, TypeError) as error:
            problems.append(str(error))
    if shared and labels.PARALLELISM in data.values:
        is_wanted = np.all(list(shared.values()), axis=0)
        wanted = set(data.runs[labels.PARALLELISM][is_wanted].map(plain))
        if not wanted and not problems:
            problems.append(f"no run has these values of {', '.join(shared)} together")
        offered = [] if is_wanted.all() else data.values[labels.PARALLELISM]
        changed[labels.PARALLELISM] = [value for value in offered if value in wanted]
    if problems:
        raise SettingsError("\n".join(problems))
    question(changed)
    if "brush" not in changes and (changed["x"], changed["y"]) != (state["x"], state["y"]):
        changed["brush"] = None
    given = {*changes, *([labels.PARALLELISM] if shared else [])}
    return changed | _reset(data, state, changed, given)


def _reset(data: Data, state: State, changed: State, given: set[str]) -> State:
    """Return the controls that a change of the task resets: what was chosen among the runs of the other task."""
    if changed["task"] == state["task"]:
        return {}
    fresh = default(data, changed["task"])
    reset = [*data.values, *OF_A_TASK]
    if state["objective"] == default(data, state["task"])["objective"]:
        reset.append("objective")
    for side in ("x", "y"):
        if changed[side] and not is_measured(data, changed[side], changed["task"]):
            reset.append(side)
    return {name: fresh[name] for name in reset if name not in given}


def _converted(value: Any) -> Any:
    """Convert a value, and all that it contains, from NumPy and pandas to JSON types."""
    if isinstance(value, dict):
        return {str(name): _converted(item) for name, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [_converted(item) for item in value]
    if value is None or isinstance(value, float):
        return value
    return plain(value)


def _checked(data: Data, state: State, name: str, value: Any) -> Any:
    """Return the value of a control for the state, or raise ValueError with a sentence."""
    if name in data.values:
        return _chosen(name, value, data.values[name])
    if name not in state:
        raise ValueError(_unknown(data, state, name))
    if name in NAMING:
        value = [*map(_current, value)] if isinstance(value, list) else _current(value)
    tasks = list(data.tasks)
    allowed = {**options(data), "task": [*tasks, EVERY_TASK] if len(tasks) > 1 else tasks}
    if name in allowed and value not in (allowed[name] or [None]):
        offered = _offered(value, list(map(str, allowed[name])))
        raise ValueError(f"{name} {value!r} is not available in these runs: {offered}")
    if name in MAY_BE_NONE and value is None:
        return None
    if name in SENTENCES and not _is_valid(data, name, value):
        raise ValueError(f"{name} {value!r} is {SENTENCES[name]}")
    if name == "brush":
        edges = {side: np.clip(value[side], -OPEN_EDGE, OPEN_EDGE) for side in ("x", "y")}
        return {side: sorted(ends.tolist()) for side, ends in edges.items()}
    return value


def _unknown(data: Data, state: State, name: str) -> str:
    """Return the message about a control that does not exist."""
    if name in TASK:
        return f"{name} belongs to a task: set task to one of {', '.join(data.tasks)}"
    shared = [each for each in labels.SHARING if _columns(data, each)]
    return f"unknown control {name!r}: {_offered(name, [*state, *data.constant, *shared])}"


def _offered(value: object, allowed: list[str]) -> str:
    """Return the end of a message about a value that is none of those allowed: the closest, and the others."""
    match = closest_match(value, allowed) if isinstance(value, str) else None
    hint = f"did you mean {match!r}? Or " if match else ""
    return f"{hint}choose from {', '.join(allowed)}"


def _current(column: Any) -> Any:
    """Return the current name of a column that a control chooses; other values are returned as they are."""
    column = current_name(column)
    if isinstance(column, str):
        return FORMER_NAMES.get(column, column)
    return column


def _columns(data: Data, name: str) -> list[str]:
    """Return the columns of runs with the values of a setting of how GPUs share the training."""
    names = (name, FORMER_NAMES.get(name, name))
    return [each for each in dict.fromkeys(names) if each in data.runs]


def _has_value(data: Data, name: str, value: Any) -> np.ndarray:
    """Return which runs have one of the values of such a setting, all of them for none: (runs,)."""
    columns = data.runs[_columns(data, name)].map(plain)
    available = dict.fromkeys(each for each in columns.to_numpy().flat if each is not None)
    chosen = _chosen(name, value, list(available))
    return columns.isin(chosen or [*available, None]).to_numpy().any(axis=1)


def _chosen(name: str, value: Any, available: Sequence[object]) -> list[object]:
    """Return the chosen values of a filter in display order; none for all."""
    wanted = value if isinstance(value, list) else [value]
    if value is None or wanted == ["all"]:
        return []
    unknown = [choice for choice in wanted if not is_among(choice, available)]
    if unknown:
        offered = _offered(unknown[0], [labels.text(each) for each in available[:MAX_OFFERED]])
        raise ValueError(
            f"{name} {labels.text(unknown[0])} does not occur in these runs: {offered}, or 'all'"
        )
    return [choice for choice in available if is_among(choice, wanted)]


def is_among(value: object, others: Iterable[object]) -> bool:
    """Return whether a value of a setting is one of others, compared as JSON does: True is not 1."""
    return any(
        value == other and isinstance(value, bool) == isinstance(other, bool) for other in others
    )


def _is_valid(data: Data, name: str, value: Any) -> bool:
    """Return whether a control that is in `SENTENCES` may have a value."""
    is_valid = False
    match name, value:
        case "currency", str():
            is_valid = len(value) <= 8
        case "base", _:
            is_valid = value in data.experiments
        case "run", _:
            is_valid = is_number(value) and value in range(len(data.runs))
        case "pins", list():
            kinds = ("base", "run")
            are_known = [any(_is_valid(data, kind, pin) for kind in kinds) for pin in value]
            is_valid = len(value) <= MAX_PINS and all(are_known)
        case "sort", [column, "ascending" | "descending"]:
            is_valid = column in {*DERIVED_COLUMNS, *options(data)["x"]}
        case "brush", {"x": [_, _] as x, "y": [_, _] as y, **others}:
            are_numbers = [isinstance(end, int | float) and not math.isnan(end) for end in (*x, *y)]
            is_valid = not others and all(are_numbers)
    return is_valid


def values(data: Data, state: State, name: str) -> np.ndarray:
    """Return a figure of every run in the unit of its column, or the codes of a setting: (runs,), NaN if missing."""
    if name in data.values:
        return data.run_codes[name].to_numpy(dtype=float)
    if name != "days":
        return data.figures[name].to_numpy()
    usual = [task.tokens for task in data.tasks.values()]
    tokens = [state["train_tokens"] or usual[code] for code in data.run_codes["task"]]
    pairs = zip(tokens, data.figures["tokens_per_s"], strict=True)
    return np.array([metrics.days(*pair) for pair in pairs], dtype=float)


def mask(data: Data, state: State) -> pd.Series:
    """Return which runs of the task the filters and the brush select.

    A filter with nothing chosen selects all runs. A brush includes its edges; it never selects runs
    without the figure.
    """
    selected = data.of_task(state["task"])
    for name, available in data.values.items():
        if state[name]:
            chosen = [code for code, value in enumerate(available) if is_among(value, state[name])]
            selected = selected & data.run_codes[name].isin(chosen).to_numpy()
    for side, (low, high) in (state["brush"] or {}).items():
        figure = values(data, state, state[side])
        selected = selected & (figure >= low) & (figure <= high)
    return pd.Series(selected, index=data.runs.index)
