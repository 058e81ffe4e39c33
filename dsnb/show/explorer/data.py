"""Runs as the explorer uses them: settings as coded values, figures in the units of their columns."""

from dataclasses import dataclass
from functools import cached_property
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
from dsnb.results.statistics.tasks import FEWEST_SETTINGS, TASK, is_fine_tuning, tasks
from dsnb.settings.records.columns import key_columns

REQUIRED = ("experiment", "repeat", "status")
MAX_EXACT_INTEGER = 2**53
"""The largest integer that JavaScript stores exactly; a larger one becomes text."""
FEW_SETTINGS = {0: " (nothing measured)", 1: " (one setting)"}
"""Marks of tasks with fewer than two settings."""
EVERY_TASK = "all"
"""The choice of all tasks side by side, instead of a task's title."""


@dataclass(frozen=True)
class Data:
    """The runs as the explorer shows them."""

    runs: pd.DataFrame
    """The table passed to `explore`."""
    experiments: list[str]
    """Each run's experiment, as `summarize` names it."""
    values: dict[str, list[object]]
    """Every setting that varies, then the status -> its distinct values in order."""
    codes: pd.DataFrame
    """The position in `values` of each setting, and in `tasks` of the `task`: of the runs, then of
    the predicted settings (-1 where they have no value)."""
    constant: dict[str, object]
    """The settings that are the same for all runs, with their values."""
    figures: pd.DataFrame
    """The measured columns of `labels.METRIC_LABELS`, in the units of the table."""
    tasks: dict[str, "ShownTask"]
    """The tasks by title, the default one first."""
    menu: list[dict[str, Any]]
    """Models, the largest first, each with its `tasks`: positions in `tasks` and labels."""
    predicted: pd.DataFrame
    """Predicted settings without a finished run (`dsnb.prediction.predicted`); no statistic
    includes them."""
    notes: tuple[str, ...]
    """Notes on the predictions."""

    @cached_property
    def run_codes(self) -> pd.DataFrame:
        """The codes of the runs."""
        return self.codes[: len(self.runs)]

    @cached_property
    def axes(self) -> list[str]:
        """The settings that vary between experiments; nodes only if the GPUs do not imply them."""
        others = {"status", "sweep"}
        if {"nodes", "gpus"} <= set(self.values):
            nodes = self.run_codes.groupby(["task", "gpus"])["nodes"].nunique()
            if (nodes == 1).all():
                others.add("nodes")
        return [name for name in self.values if name not in others]

    @cached_property
    def is_ok(self) -> np.ndarray:
        """Which runs are ok: (runs,)."""
        return self.runs["status"].map(labels.text).eq("ok").to_numpy()

    @property
    def neighbours(self) -> dict[str, int]:
        """Measured experiment -> number of measured experiments of its task that differ in a single setting."""
        table = self.run_codes[[*self.axes, "task"]].set_axis(self.experiments)[self.is_ok]
        table = table[~table.index.duplicated()]
        codes = table.to_numpy()
        counts = {}
        for name, own in zip(table.index, codes, strict=True):
            differs = codes != own
            is_neighbour = (differs.sum(axis=1) == 1) & ~differs[:, -1]
            counts[str(name)] = int(is_neighbour.sum())
        return counts

    def task_rows(self, task: str | None) -> pd.Series:
        """Return which runs and predicted settings belong to a task or to `EVERY_TASK`."""
        shown = [code for code, title in enumerate(self.tasks) if task in {title, EVERY_TASK}]
        return self.codes["task"].isin(shown)

    def of_task(self, task: str | None) -> np.ndarray:
        """Return which runs belong to a task or to `EVERY_TASK`: (runs,)."""
        return self.task_rows(task)[: len(self.runs)].to_numpy()


def prepared(runs: pd.DataFrame, predicted: Unmeasured | None = None) -> Data:
    """Return the data of a table of runs and of predicted settings, except those that these runs measured."""
    missing = [name for name in REQUIRED if name not in getattr(runs, "columns", ())]
    if missing:
        raise SettingsError(
            f"explore needs the table that load_runs returns; it has no column {', '.join(missing)}"
        )
    runs = as_runs(runs)
    predicted = predicted or Unmeasured()
    expected = predicted.without(runs)
    if len(expected):  # the fastest first, then those that would not fit
        expected = expected.sort_values("tokens_per_s", ascending=False, kind="stable")
        expected = expected.sort_values("fits", key=lambda fits: fits.eq(False), kind="stable")
    cleaned = runs.assign(status=runs["status"].map(labels.text), sweep=runs.get("sweep", ""))
    rows = with_setting_axes(_beside(cleaned, expected))
    columns = {name: rows[name] for name in setting_axes(rows) if name not in TASK}
    columns |= {"sweep": cleaned["sweep"], "status": cleaned["status"]}
    values = {}
    constant = {}
    codes = {}
    for name, column in columns.items():
        distinct, places = coded(name, column)
        if len(distinct) > 1 or name == "status":
            values[name] = distinct
            codes[name] = pd.Series(places, dtype=float)
        elif name != "sweep" and distinct not in ([], [None]):
            constant[name] = distinct[0]
    shown = _tasks(rows)
    codes["task"] = pd.Series(
        {row: code for code, task in enumerate(shown) for row in task.runs.index}, dtype=float
    ).sort_index()
    return Data(
        runs=runs,
        experiments=[labels.text(name) for name in named_runs(cleaned)["experiment"]],
        values=values,
        codes=pd.DataFrame(codes).fillna(-1).astype(int),
        constant=constant,
        figures=figures(cleaned),
        tasks={task.title: task for task in shown},
        menu=_menu(shown),
        predicted=expected.reset_index(drop=True),
        notes=predicted.notes,
    )


def _beside(runs: pd.DataFrame, expected: pd.DataFrame) -> pd.DataFrame:
    """Return runs and predicted settings as one table, with the columns of predictions that some run has."""
    if expected.empty:
        return runs
    names = dict.fromkeys([*setting_axes(expected), *labels.SHARING, *TASK])
    known = [
        name for name in names if name in expected and name in runs and any(runs[name].notna())
    ]
    columns = dict.fromkeys([*known, *key_columns(expected)])
    return pd.concat([runs, expected[[*columns]]], ignore_index=True)


@dataclass
class ShownTask:
    """A task of the menu."""

    model: str
    name: str
    """Its title without the sequence length."""
    title: str
    label: str
    """Its title below its model."""
    runs: pd.DataFrame
    measured: int
    """Its number of measured settings."""
    parameters: float

    @property
    def tokens(self) -> float:
        """The default number of training tokens."""
        return usual_tokens(self.parameters, is_fine_tuning(self.runs))

    @property
    def length(self) -> object:
        """The sequence length; None if it is unknown."""
        return plain(self.runs["seq_len"].iloc[0]) if "seq_len" in self.runs else None

    @property
    def is_on_cpu(self) -> bool:
        """Whether it ran on CPUs only."""
        return labels.common_unit(self.runs) == "rank"


def _tasks(rows: pd.DataFrame) -> list[ShownTask]:
    """Return the tasks of runs and predicted settings in order.

    Tasks of large models come first, but after them those with less than half of the most measured
    settings, those that ran on CPUs only, and those with too few settings for advice.
    """
    shown: list[ShownTask] = []
    for found in tasks(rows.reset_index(drop=True)):
        task = ShownTask(
            model=found.model,
            name=found.name,
            title=found.title,
            label=found.rest or "all runs",
            runs=found.runs,
            measured=found.settings,
            parameters=found.parameters,
        )
        shown.append(task)
    most = max((task.measured for task in shown if not task.is_on_cpu), default=0)

    def rank(task: ShownTask) -> tuple[bool, bool, bool, bool, float]:
        is_few = task.measured < FEWEST_SETTINGS
        is_less = 2 * task.measured < most
        return is_few, task.is_on_cpu, task.measured < 2, is_less, -task.parameters

    shown.sort(key=rank)
    taken = [*(task.title for task in shown), EVERY_TASK]
    for code, task in enumerate(shown):
        if taken.count(task.title) > 1:
            task.title += f" ({code + 1})"
            task.label += f" ({code + 1})"
            task.name += f" ({code + 1})"
        task.label += FEW_SETTINGS.get(task.measured, "")
    return shown


def _menu(shown: list[ShownTask]) -> list[dict[str, Any]]:
    """Return the models with their tasks, those with most settings first: a model's first task is the one shown.

    Models with too few settings for advice come last.
    """
    entries = []
    for model in dict.fromkeys(task.model for task in shown):
        own = [(code, task) for code, task in enumerate(shown) if task.model == model]
        own.sort(key=lambda item: -item[1].measured)
        most = own[0][1].measured
        size = max(task.parameters for _, task in own)
        title = (model or "other") + FEW_SETTINGS[1] * (most < 2)
        entry = {"model": title, "tasks": [(code, task.label) for code, task in own]}
        few = most < FEWEST_SETTINGS, most < 2
        entries.append((*few, -size, model, entry))
    entries.sort(key=lambda item: item[:-1])
    return [entry for *_, entry in entries]


def coded(name: str, column: pd.Series) -> tuple[list[object], list[int]]:
    """Return the distinct values of a setting in order, and the position of each value among them."""
    keys = [(isinstance(value, bool), value) for value in map(plain, column)]  # True is not 1
    distinct = sorted(set(keys), key=lambda key: labels.axis(name).sort_key(key[1]))
    places = {key: place for place, key in enumerate(distinct)}
    return [value for _, value in distinct], [places[key] for key in keys]


def plain(value: object) -> object:
    """Convert a value of a table to a JSON type; whole numbers become integers."""
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return None
    item = value.item() if hasattr(value, "item") else value
    if isinstance(item, bool):
        return item
    if isinstance(item, int | float) and abs(item) <= MAX_EXACT_INTEGER:
        return int(item) if item == int(item) else item
    return str(item)


def figures(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the figures that any ok run measured, in the units of the table; those of failed runs are missing."""
    names = [name for name in labels.METRIC_LABELS if name in runs]
    columns = {name: numbers(runs, name) for name in names}
    table = pd.DataFrame(columns, index=runs.index, dtype=float)
    is_ok = (runs["status"] == "ok").to_numpy()[:, None]
    return table.where(np.isfinite(table) & is_ok).dropna(axis="columns", how="all")


def run_place(data: Data, position: int) -> Path | None:
    """Return a run's folder, or the log that it was read from; None if it does not exist."""
    value = data.runs["run_dir"].iloc[position] if "run_dir" in data.runs else None
    if isinstance(value, str) and Path(value).exists():
        return Path(value)
    return None
