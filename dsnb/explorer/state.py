"""The state of the explorer's controls: its default, the allowed values, and the runs that it selects.

The page keeps the same state by the same rules in `web/model.js`; a test compares both over hundreds of states.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd

from dsnb.errors import SettingsError
from dsnb.explorer import question, view_state
from dsnb.explorer.data import EVERY_TASK, Data, plain
from dsnb.formulas import metrics
from dsnb.render.changes import rate
from dsnb.runs import labels
from dsnb.runs.labels import Metric

State = dict[str, Any]
DAYS = Metric("days of training", "days", digits=1, better="lower")
OF_A_TASK = ("colour", "along", "base", "brush", "run")
"""Controls that a change of the task sets anew, besides the filters."""
SCALES = ["linear", "log"]
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
"""The labels of the controls, in the page and in JupyterLab."""


def metric(name: str) -> Metric:
    """Return how a figure is displayed; `days` is the only one that depends on the state."""
    return DAYS if name == "days" else labels.METRIC_LABELS[name]


def options(data: Data) -> dict[str, list[Any]]:
    """Return the allowed values of each control that is not a filter."""
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


def default(data: Data, task: str | None = None) -> State:
    """Return the initial state: all runs of a task (by default the one with the most), speed against memory.

    Where the task's runs measured no memory, it is speed against the number of GPUs.
    """
    chosen = {name: values[0] if values else None for name, values in options(data).items()}
    task = task if task is not None else data.tasks[0] if data.tasks else None
    for side, wanted in (("y", options(data)["y"]), ("x", [*labels.MEMORY, "gpus"])):
        measured = [name for name in wanted if name in options(data)[side] and is_measured(data, name, task)]
        chosen[side] = measured[0] if measured else chosen[side]
    axes = [name for name in data.axes if _varies(data, name, task)]
    varying = [name for name in ("precision", "strategy", *axes) if name in axes] or ["status"]
    chosen["colour"] = varying[0]
    chosen["along"] = next((name for name in ("strategy", *varying[1:], *varying) if name in varying), "status")
    return {
        "task": task,
        **{name: [] for name in data.choices},
        **chosen,
        **question.default(data),
        "base": None,
        "brush": None,
        "run": None,
        **view_state.default(),
    }


def _varies(data: Data, name: str, task: str | None) -> bool:
    """Return whether a setting has several values among the runs and the predicted settings of a task."""
    return len(data.codes_of(name, task)) > 1


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
            elif name in _OTHERS:
                changed[name] = _OTHERS[name](data, value)
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


def _base(data: Data, value: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or value not in data.experiments):
        raise ValueError(f"base {value!r} is not an experiment of these runs: set it to the name of one, or to None")
    return value


def _run(data: Data, value: Any) -> int | None:
    known = isinstance(value, int | np.integer) and not isinstance(value, bool) and 0 <= value < len(data.runs)
    if value is not None and not known:
        raise ValueError(f"run {value!r} is not the position of a run: set it to 0 to {len(data.runs) - 1}, or to None")
    return None if value is None else int(value)


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


def _task(data: Data, value: Any) -> Any:
    several = [EVERY_TASK] if len(data.tasks) > 1 else []
    return _one_of("task", value, [*data.tasks, *several])


_OTHERS: dict[str, Callable[[Data, Any], Any]] = {
    "task": _task,
    **question.CHECKS,
    "base": _base,
    "brush": _brush,
    "run": _run,
    **view_state.CHECKS,
}


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
