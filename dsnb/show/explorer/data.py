"""Runs as the explorer uses them: settings as coded values, figures in the units of their columns."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dsnb.base.errors import SettingsError
from dsnb.base.formulas.planning import usual_tokens
from dsnb.prediction.predicted import Unmeasured
from dsnb.results.runs import labels
from dsnb.results.runs.table import as_runs, named_runs, numbers
from dsnb.results.statistics.setting_axes import setting_axes, with_setting_axes
from dsnb.results.statistics.tasks import TASK, Task, is_fine_tuning, tasks
from dsnb.settings.records.columns import key_columns

REQUIRED = ("experiment", "repeat", "status")
MAX_EXACT_INTEGER = 2**53
"""The largest integer that JavaScript stores exactly; a larger one becomes text."""
FEW_SETTINGS = {0: " (nothing measured)", 1: " (one setting)"}
"""Marks of tasks with fewer than two settings."""
EVERY_TASK = "all"
"""The choice of all tasks side by side, instead of a task's title."""


@dataclass(frozen=True)
class Choice:
    """One setting: its distinct values in order, and the position of each run's value among them."""

    name: str
    values: list[object]
    codes: list[int]
    predicted: list[int] = field(default_factory=list)
    """The same for predicted settings."""

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
        """Whether there are several values to choose from, not counting missing ones."""
        return len(self.values) - len(self.unknown) > 1


@dataclass(frozen=True)
class Data:
    """The runs as the explorer shows them."""

    runs: pd.DataFrame
    """The table passed to `explore`."""
    experiments: list[str]
    """Each run's experiment, as `summarize` names it."""
    choices: dict[str, Choice]
    """Every setting that varies, then the status."""
    constant: list[Choice]
    """The settings that are the same for all runs."""
    figures: pd.DataFrame
    """The measured columns of `labels.METRIC_LABELS`, in the units of the table."""
    tasks: list[str]
    """The titles of the tasks, the default one first."""
    tokens: list[float]
    """The default number of training tokens of each task."""
    task_codes: list[int]
    """Each run's task."""
    menu: list[dict[str, Any]]
    """Models, the largest first, each with its `tasks`: positions in `tasks` and labels."""
    predicted: pd.DataFrame = field(default_factory=pd.DataFrame)
    """Predicted settings without a finished run (`dsnb.prediction.predicted`); no statistic includes them."""
    predicted_tasks: list[int] = field(default_factory=list)
    predicted_notes: tuple[str, ...] = ()

    @property
    def axes(self) -> list[str]:
        """The settings that vary between experiments; nodes only if the GPUs do not imply them."""
        others = {"status", "sweep"}
        if {"nodes", "gpus"} <= set(self.choices):
            pairs = set(
                zip(
                    self.task_codes,
                    self.choices["gpus"].codes,
                    self.choices["nodes"].codes,
                    strict=True,
                )
            )
            if len(pairs) == len({(task, gpus) for task, gpus, _ in pairs}):
                others.add("nodes")
        return [
            name for name, choice in self.choices.items() if name not in others and choice.varies
        ]

    @property
    def neighbours(self) -> dict[str, int]:
        """Measured experiment -> number of measured experiments of its task that differ in a single setting."""
        names = self.axes
        ok = (self.runs["status"].map(labels.text) == "ok").to_numpy()
        table = pd.DataFrame(
            {name: self.choices[name].codes for name in names} | {"task": self.task_codes}
        )
        table = table.set_index(pd.Index(self.experiments))[ok]
        table = table[~table.index.duplicated()]
        counts = pd.Series(0, index=table.index)
        for name in names:
            alike = table.groupby([column for column in table if column != name], sort=False)[
                name
            ].transform("size")
            counts += alike - table.groupby(list(table), sort=False)[name].transform("size")
        return counts.to_dict()

    def of_task(self, task: str | None, codes: list[int] | None = None) -> np.ndarray:
        """Return which runs, or which of these codes, belong to a task or to `EVERY_TASK`: (runs,)."""
        codes = self.task_codes if codes is None else codes
        return np.array([task in {self.tasks[code], EVERY_TASK} for code in codes], dtype=bool)

    def codes_of(self, name: str, task: str | None) -> list[int]:
        """Return the distinct codes of a setting among the runs and predicted settings of a task."""
        codes = np.array([*self.choices[name].codes, *self.choices[name].predicted])
        return np.unique(
            codes[self.of_task(task, [*self.task_codes, *self.predicted_tasks])]
        ).tolist()


def prepared(runs: pd.DataFrame, predicted: Unmeasured | None = None) -> Data:
    """Return the data of a table of runs and of predicted settings, except those that these runs measured."""
    missing = [name for name in REQUIRED if name not in getattr(runs, "columns", ())]
    if missing:
        raise SettingsError(
            f"explore needs the table that load_runs returns; it has no column {', '.join(missing)}"
        )
    runs, predicted = as_runs(runs), predicted or Unmeasured()
    expected = predicted.without(runs)
    if len(expected):  # the fastest first, then those that would not fit
        order = {"fits": expected["fits"].eq(False), "rate": -numbers(expected, "tokens_per_s")}
        expected = expected.loc[pd.DataFrame(order).sort_values(list(order), kind="stable").index]
    expected = expected.reset_index(drop=True)
    cleaned = runs.assign(status=runs["status"].map(labels.text), sweep=runs.get("sweep", ""))
    experiments = [labels.text(name) for name in named_runs(cleaned)["experiment"]]
    rows = with_setting_axes(_beside(cleaned, expected) if len(expected) else cleaned)
    names = [name for name in setting_axes(rows) if name not in TASK]
    choices = [choice(name, rows[name], len(runs)) for name in names] + [
        choice("sweep", cleaned["sweep"])
    ]
    shown = [*filter(lambda choice: choice.varies, choices), choice("status", cleaned["status"])]
    constant = [
        each
        for each in choices
        if len(each.values) == 1 and each.values != [None] and each.name != "sweep"
    ]
    titles, tokens, codes, menu = _tasks(rows, len(runs))
    return Data(
        runs, experiments, {each.name: each for each in shown}, constant, figures(cleaned),
        titles, tokens, codes[: len(runs)], menu, expected, codes[len(runs) :], predicted.notes,
    )  # fmt: skip


def _beside(runs: pd.DataFrame, expected: pd.DataFrame) -> pd.DataFrame:
    """Return runs and predicted settings as one table, with the columns of predictions that some run has."""
    names = [
        *setting_axes(expected),
        *(name for name in (*labels.SHARING, *TASK) if name in expected),
    ]
    names = [name for name in names if name in runs and runs[name].notna().any()]
    return pd.concat(
        [runs, expected[[*dict.fromkeys([*names, *key_columns(expected)])]]], ignore_index=True
    )


def _tasks(
    rows: pd.DataFrame, runs: int
) -> tuple[list[str], list[float], list[int], list[dict[str, Any]]]:
    """Return the titles and default tokens of the tasks, each row's task, and their menu; the first rows are runs.

    Tasks of large models come first, but after them those with less than half of the most measured settings, those with
    one setting, and those that ran on CPUs only.
    """

    def measured(task: Task) -> int:
        ok = task.runs[(task.runs.index < runs) & (task.runs["status"] == "ok")]
        return len(ok[[name for name in ("sweep", "experiment") if name in ok]].drop_duplicates())

    counted = [(task, measured(task)) for task in tasks(rows.reset_index(drop=True))]
    most = max(
        (count for task, count in counted if labels.common_unit(task.runs) == "GPU"), default=0
    )

    def rank(item: tuple[Task, int]) -> tuple[bool, bool, bool, float]:
        task, count = item
        return (
            labels.common_unit(task.runs) == "rank",
            count < 2,
            2 * count < most,
            -task.parameters,
        )

    counted.sort(key=rank)
    codes = {place: code for code, (task, _) in enumerate(counted) for place in task.runs.index}
    titles = [task.title for task, _ in counted]
    taken = [*titles, EVERY_TASK]
    unique = [
        title if taken.count(title) == 1 else f"{title} ({code + 1})"
        for code, title in enumerate(titles)
    ]
    tokens = [usual_tokens(task.parameters, is_fine_tuning(task.runs)) for task, _ in counted]
    return unique, tokens, [codes[place] for place in range(len(rows))], _menu(counted, unique)


def _menu(counted: list[tuple[Task, int]], titles: list[str]) -> list[dict[str, Any]]:
    models: dict[str, list[int]] = {}
    for code, (task, _) in enumerate(counted):
        models.setdefault(task.model, []).append(code)
    menu = []
    for model, task_codes in models.items():
        shown = []
        for code in sorted(
            task_codes, key=lambda code: -counted[code][1]
        ):  # a model's first task is the one shown
            task, count = counted[code]
            number = titles[code].removeprefix(task.title)  # of tasks with equal titles
            shown.append((code, (task.rest or "all runs") + number + FEW_SETTINGS.get(count, "")))
        few = all(counted[code][1] < 2 for code in task_codes)
        size = max(counted[code][0].parameters for code in task_codes)
        menu.append(
            (
                few,
                -size,
                model,
                {"model": (model or "other") + FEW_SETTINGS[1] * few, "tasks": shown},
            )
        )
    return [entry for *_, entry in sorted(menu, key=lambda item: item[:3])]


def choice(name: str, column: pd.Series, runs: int | None = None) -> Choice:
    """Code the values of a setting by their order; the first `runs` rows are runs, by default all of them."""
    keys = [(isinstance(value, bool), value) for value in map(plain, column)]  # True is not 1
    values = sorted(set(keys), key=lambda value: labels.axis(name).sort_key(value[1]))
    place = {value: code for code, value in enumerate(values)}
    codes = [place[value] for value in keys]
    return Choice(
        name,
        [value for _, value in values],
        codes[:runs],
        codes[len(codes) if runs is None else runs :],
    )


def plain(value: object) -> object:
    """Convert a value of a table to a JSON type; whole numbers become integers."""
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return None
    item = value.item() if hasattr(value, "item") else value
    if isinstance(item, float) and item.is_integer():
        return int(item)
    if isinstance(item, int | float) and not (
        math.isfinite(item) and abs(item) <= MAX_EXACT_INTEGER
    ):
        return str(item)
    return item if isinstance(item, bool | int | float) else str(item)


def figures(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the figures that any ok run measured, in the units of the table; those of failed runs are missing."""
    names = [name for name in labels.METRIC_LABELS if name in runs]
    table = pd.DataFrame(
        {name: numbers(runs, name) for name in names}, index=runs.index, dtype=float
    )
    is_ok = (runs["status"] == "ok").to_numpy()[:, None]
    return table.where(np.isfinite(table) & is_ok).dropna(axis="columns", how="all")


def run_place(data: Data, position: int) -> Path | None:
    """Return a run's folder, or the log that it was read from; None if it does not exist."""
    value = data.runs["run_dir"].iloc[position] if "run_dir" in data.runs else None
    return Path(value) if isinstance(value, str) and Path(value).exists() else None
