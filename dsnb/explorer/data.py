"""Runs as the explorer uses them: settings as coded values, figures in the units of their columns."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dsnb.analysis.choices import SHARING, with_choices
from dsnb.analysis.choices import choices as choices_of
from dsnb.analysis.predicted import Unmeasured
from dsnb.analysis.tasks import TASK, Task, tasks
from dsnb.errors import SettingsError
from dsnb.formulas.planning import usual_tokens
from dsnb.run_folder.columns import key_columns
from dsnb.runs import labels
from dsnb.runs.table import as_runs, named_runs, numbers

REQUIRED = ("experiment", "repeat", "status")
MAX_EXACT_INTEGER = 2**53
"""The largest integer up to which JavaScript numbers are exact; a larger seed becomes text."""
FEW_SETTINGS = {0: " (nothing measured)", 1: " (one setting)"}
"""Marks of tasks that have no choice of settings."""
EVERY_TASK = "all"
"""Chosen in place of a task's title: all tasks side by side."""


@dataclass(frozen=True)
class Choice:
    """One setting: the values that occur, in order, and the position of each run's value among them."""

    name: str
    values: list[object]
    codes: list[int]
    predicted: list[int] = field(default_factory=list)
    """The same for predicted settings, where they have this setting."""

    @property
    def varies(self) -> bool:
        """Whether there is more than one value."""
        return len(self.values) > 1

    @property
    def unknown(self) -> set[int]:
        """The codes of missing values."""
        return {code for code, value in enumerate(self.values) if value is None}

    @property
    def is_filter(self) -> bool:
        """Whether there are several known values to choose from; a single one and missing ones are no choice."""
        return len(self.values) - len(self.unknown) > 1


@dataclass(frozen=True)
class Data:
    """The runs, and what the explorer shows of them."""

    runs: pd.DataFrame
    """The table passed to `explore`."""
    experiments: list[str]
    """Each run's experiment, as `summarize` names it."""
    choices: dict[str, Choice]
    """Every setting that varies, then the status, whether it varies or not."""
    constant: list[Choice]
    """The settings that are the same for all runs."""
    figures: pd.DataFrame
    """The columns of `labels.METRIC_LABELS` that any run measured, in the units of the table."""
    tasks: list[str]
    """The titles of the tasks, the default one first."""
    tokens: list[float]
    """The tokens that the model of each task is trained on if none are given."""
    task_codes: list[int]
    """Each run's task."""
    menu: list[dict[str, Any]]
    """What to choose a task from: models, the largest first, each with its `tasks` as places in `tasks` and labels."""
    predicted: pd.DataFrame = field(default_factory=pd.DataFrame)
    """Predicted settings of which no run has ended (`dsnb.analysis.predicted`); no figure of runs includes them."""
    predicted_tasks: list[int] = field(default_factory=list)
    predicted_notes: tuple[str, ...] = ()

    @property
    def axes(self) -> list[str]:
        """The settings that vary and make an experiment; nodes only where they do not follow from the GPUs."""
        others = {"status", "sweep"}
        if {"nodes", "gpus"} <= set(self.choices):
            pairs = set(zip(self.task_codes, self.choices["gpus"].codes, self.choices["nodes"].codes, strict=True))
            if len(pairs) == len({(task, gpus) for task, gpus, _ in pairs}):
                others.add("nodes")
        return [name for name, choice in self.choices.items() if name not in others and choice.varies]

    @property
    def neighbours(self) -> dict[str, int]:
        """How many measured experiments of its task differ from each measured one in a single setting."""
        names = self.axes
        ok = (self.runs["status"].map(labels.text) == "ok").to_numpy()
        table = pd.DataFrame({name: self.choices[name].codes for name in names} | {"task": self.task_codes})
        table = table.set_index(pd.Index(self.experiments))[ok]
        table = table[~table.index.duplicated()]
        found = pd.Series(0, index=table.index)
        for name in names:
            others = table.groupby([one for one in table if one != name], sort=False)[name].transform("size")
            found += others - table.groupby(list(table), sort=False)[name].transform("size")
        return found.to_dict()

    def of_task(self, task: str | None, codes: list[int] | None = None) -> np.ndarray:
        """Return which runs, or which of these tasks, are a task or any of them: (runs,)."""
        known = self.task_codes if codes is None else codes
        return np.array([task in {self.tasks[code], EVERY_TASK} for code in known], dtype=bool)

    def codes_of(self, name: str, task: str | None) -> list[int]:
        """Return the codes that a setting has among the runs and the predicted settings of a task, each once."""
        choice = self.choices[name]
        every = np.array([*choice.codes, *choice.predicted])
        return np.unique(every[self.of_task(task, [*self.task_codes, *self.predicted_tasks])]).tolist()


def read(runs: pd.DataFrame, predicted: Unmeasured | None = None) -> Data:
    """Read a table of runs, and predicted settings without those that these runs measured."""
    missing = [name for name in REQUIRED if name not in getattr(runs, "columns", ())]
    if missing:
        raise SettingsError(f"explore needs the table that load_runs returns; it has no column {', '.join(missing)}")
    runs, predicted = as_runs(runs), predicted or Unmeasured()
    expected = predicted.without(runs)
    if len(expected):  # the fastest first, then those that would not fit
        order = {"fits": expected["fits"].eq(False), "rate": -numbers(expected, "tokens_per_s")}
        expected = expected.loc[pd.DataFrame(order).sort_values(list(order), kind="stable").index]
    expected = expected.reset_index(drop=True)
    known = runs.assign(status=runs["status"].map(labels.text), sweep=runs.get("sweep", ""))
    named = [labels.text(name) for name in named_runs(known)["experiment"]]
    every = with_choices(_beside(known, expected) if len(expected) else known)
    names = [name for name in choices_of(every) if name not in TASK]
    choices = [choice(name, every[name], len(runs)) for name in names] + [choice("sweep", known["sweep"])]
    shown = [one for one in choices if one.varies] + [choice("status", known["status"])]
    constant = [one for one in choices if len(one.values) == 1 and one.values != [None] and one.name != "sweep"]
    titles, tokens, codes, menu = _tasks(every, len(runs))
    return Data(
        runs, named, {one.name: one for one in shown}, constant, figures(known),
        titles, tokens, codes[: len(runs)], menu, expected, codes[len(runs) :], predicted.notes,
    )  # fmt: skip


def _beside(runs: pd.DataFrame, expected: pd.DataFrame) -> pd.DataFrame:
    """Return runs and predicted settings as one table; what no run tells of itself is not told of predictions."""
    known = [name for name in choices_of(expected) if name in runs and runs[name].notna().any()]
    own = [name for name in {*SHARING, *TASK} if name in expected and name in runs and runs[name].notna().any()]
    return pd.concat([runs, expected[[*dict.fromkeys([*known, *own, *key_columns(expected)])]]], ignore_index=True)


def _tasks(every: pd.DataFrame, runs: int) -> tuple[list[str], list[float], list[int], list[dict[str, Any]]]:
    """Return the titles and usual tokens of the tasks, each row's task, and their menu; the first rows are runs.

    The first task is the largest model with at least half as many measured settings as any. Those with fewer follow,
    then those with one, and what ran on CPUs alone.
    """

    def measured(task: Task) -> int:
        ok = task.runs[(task.runs.index < runs) & (task.runs["status"] == "ok")]
        return len(ok[[name for name in ("sweep", "experiment") if name in ok]].drop_duplicates())

    counted = [(task, measured(task)) for task in tasks(every.reset_index(drop=True))]
    most = max((count for task, count in counted if labels.common_unit(task.runs) == "GPU"), default=0)

    def rank(one: tuple[Task, int]) -> tuple[bool, bool, bool, float]:
        task, count = one
        return labels.common_unit(task.runs) == "rank", count < 2, 2 * count < most, -task.parameters

    counted.sort(key=rank)
    codes = {place: code for code, (task, _) in enumerate(counted) for place in task.runs.index}
    titles = [task.title for task, _ in counted]
    taken = [*titles, EVERY_TASK]
    unique = [title if taken.count(title) == 1 else f"{title} ({code + 1})" for code, title in enumerate(titles)]
    tokens = [usual_tokens(task.parameters) for task, _ in counted]
    return unique, tokens, [codes[place] for place in range(len(every))], _menu(counted, unique)


def _menu(counted: list[tuple[Task, int]], titles: list[str]) -> list[dict[str, Any]]:
    models: dict[str, list[int]] = {}
    for code, (task, _) in enumerate(counted):
        models.setdefault(task.model, []).append(code)
    menu = []
    for model, own in models.items():
        shown = []
        for code in own:
            task, count = counted[code]
            number = titles[code].removeprefix(task.title)  # of tasks with equal titles
            shown.append((code, (task.rest or "all runs") + number + FEW_SETTINGS.get(count, "")))
        few, size = all(counted[code][1] < 2 for code in own), max(counted[code][0].parameters for code in own)
        menu.append((few, -size, model, {"model": (model or "other") + FEW_SETTINGS[1] * few, "tasks": shown}))
    return [entry for *_, entry in sorted(menu, key=lambda one: one[:3])]


def choice(name: str, column: pd.Series, runs: int | None = None) -> Choice:
    """Code the values of a setting by their order; the first `runs` are those of runs, by default all."""
    given = [(isinstance(value, bool), value) for value in map(plain, column)]  # True is not 1
    values = sorted(set(given), key=lambda value: labels.axis(name).sort_key(value[1]))
    codes = {value: code for code, value in enumerate(values)}
    found = [codes[value] for value in given]
    return Choice(name, [value for _, value in values], found[:runs], found[len(found) if runs is None else runs :])


def plain(value: object) -> object:
    """Convert a table's value to a JSON type; whole numbers become integers, whatever the type of the column."""
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return None
    item = value.item() if hasattr(value, "item") else value
    if isinstance(item, float) and item.is_integer():
        return int(item)
    if isinstance(item, int | float) and not (math.isfinite(item) and abs(item) <= MAX_EXACT_INTEGER):
        return str(item)
    return item if isinstance(item, bool | int | float) else str(item)


def figures(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the figures that any ok run measured, in the units of the table.

    A run that is not ok may have measured something before it ended, but that says nothing about its settings.
    """
    ok = (runs["status"] == "ok").to_numpy()
    found = {}
    for name in labels.METRIC_LABELS:
        if name in runs:
            column = pd.to_numeric(runs[name], errors="coerce").to_numpy(dtype=float, na_value=math.nan)
            values = np.where(ok & np.isfinite(column), column, math.nan)
            if not np.isnan(values).all():
                found[name] = values
    return pd.DataFrame(found, index=runs.index, dtype=float)


def run_place(data: Data, position: int) -> Path | None:
    """Return a run's folder, or the log that it was read from; None if the table names none that exists."""
    value = data.runs["run_dir"].iloc[position] if "run_dir" in data.runs else None
    return Path(value) if isinstance(value, str) and Path(value).exists() else None
