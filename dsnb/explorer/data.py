"""Runs as the explorer sees them: the settings that they were made with, coded, and their figures as they are shown."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from dsnb.analysis.summary import axes, summarize, told_apart
from dsnb.errors import SettingsError
from dsnb.runs import labels
from dsnb.runs.column_aliases import rename_old_columns

NEEDED = ("experiment", "repeat", "status")
SIGNIFICANT_DIGITS = 5
WHOLE = 2**53
"""Up to here a browser's numbers are exact; a larger seed is a text."""


@dataclass(frozen=True)
class Choice:
    """One setting: the values that occur, in order, and which of them each run has."""

    name: str
    values: list[object]
    codes: list[int]

    @property
    def varies(self) -> bool:
        """Whether there is anything to choose."""
        return len(self.values) > 1

    def mention(self, code: int) -> str:
        """Name one value, as in "ZeRO 3"; empty for one that goes without saying."""
        return labels.axis(self.name).mention(self.values[code])


@dataclass(frozen=True)
class Data:
    """The runs, and what the explorer shows of them.

    Attributes
    ----------
    runs
        As they were given.
    experiments
        Each run's experiment, as `summarize` names it.
    choices
        Every setting that varies, then the status, whether it varies or not.
    constant
        The settings that are the same for all runs.
    figures
        Columns of `columns.METRICS` that were measured anywhere, in the units of `columns`, to 5 digits: the very
        numbers that the page holds, so that both select the same runs.
    """

    runs: pd.DataFrame
    experiments: list[str]
    choices: dict[str, Choice]
    constant: list[Choice]
    figures: pd.DataFrame

    @property
    def axes(self) -> list[str]:
        """The settings that vary and make an experiment."""
        return [name for name, choice in self.choices.items() if name not in {"status", "sweep"} and choice.varies]


def read(runs: pd.DataFrame) -> Data:
    """Read a table of runs.

    Raises
    ------
    SettingsError
        If it is no table of runs.
    """
    missing = [name for name in NEEDED if name not in getattr(runs, "columns", ())]
    if missing:
        raise SettingsError(f"explore needs the table that load_runs gives; it has no column {', '.join(missing)}")
    runs = rename_old_columns(runs)
    known = runs.assign(status=runs["status"].map(labels.text), sweep=runs.get("sweep", ""))
    named = [labels.text(name) for name in told_apart(known)["experiment"]]
    choices = [choice(name, known[name]) for name in [*axes(known), "sweep"]]
    shown = [one for one in choices if one.varies] + [choice("status", known["status"])]
    constant = [one for one in choices if len(one.values) == 1 and one.values != [None] and one.name != "sweep"]
    return Data(runs, named, {one.name: one for one in shown}, constant, figures(known))


def medians(data: Data) -> pd.DataFrame:
    """Summarize the runs from their figures, in the units that `summarize` has."""
    raw = {name: data.figures[name].to_numpy() / labels.METRICS[name].factor for name in data.figures}
    status = data.runs["status"].map(labels.text).to_numpy()
    return summarize(pd.DataFrame({"experiment": data.experiments, "sweep": "", "status": status, **raw}))


def choice(name: str, column: pd.Series) -> Choice:
    """Give a setting's values in their order, and each run's."""
    given = [(isinstance(value, bool), value) for value in map(plain, column)]  # True is not 1
    values = sorted(set(given), key=lambda value: labels.axis(name).rank(value[1]))
    codes = {value: code for code, value in enumerate(values)}
    return Choice(name, [value for _, value in values], [codes[value] for value in given])


def plain(value: object) -> object:
    """Give a value of a table as JSON knows it; whole numbers as such, whatever the column made of them."""
    if value is None or value is pd.NA or value is pd.NaT or value != value:
        return None
    item = value.item() if hasattr(value, "item") else value
    if isinstance(item, float) and item.is_integer():
        return int(item)
    if isinstance(item, int | float) and not (math.isfinite(item) and abs(item) <= WHOLE):
        return str(item)
    return item if isinstance(item, bool | int | float) else str(item)


def figures(runs: pd.DataFrame) -> pd.DataFrame:
    """Give the figures that were measured anywhere, in the units of `columns`; of runs that are ok only.

    A run that is not ok may have measured something before its end, but not what its settings do.
    """
    ok = (runs["status"] == "ok").to_numpy()
    found = {}
    for name, metric in labels.METRICS.items():
        if name in runs:
            values = pd.to_numeric(runs[name], errors="coerce").to_numpy(dtype=float, na_value=math.nan) * metric.factor
            values[~ok | ~np.isfinite(values)] = math.nan
            if not np.isnan(values).all():
                found[name] = [float(f"{value:.{SIGNIFICANT_DIGITS}g}") for value in values]
    return pd.DataFrame(found, index=runs.index, dtype=float)


def run_log(data: Data, position: int) -> Path | None:
    """Give the log that a foreign run was read from, if the table names one that exists."""
    value = data.runs["run_dir"].iloc[position] if "run_dir" in data.runs else None
    return Path(value) if isinstance(value, str) and Path(value).is_file() else None


def run_folder(data: Data, position: int) -> Path | None:
    """Give a run's folder, if the table names one that exists."""
    value = data.runs["run_dir"].iloc[position] if "run_dir" in data.runs else None
    return Path(value) if isinstance(value, str) and Path(value).is_dir() else None
