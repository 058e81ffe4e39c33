"""Contributed rows beside what is predicted for their settings."""

import math
from typing import Any, NamedTuple

import pandas as pd

import dsnb
from dsnb.base.errors import SettingsError
from dsnb.prediction.accuracy import PredictionError
from dsnb.settings.experiment import Experiment

SETTING = ["sweep", "program", "gpu_name", "link", "experiment"]
"""What tells settings of the tree apart."""
PREDICTED = ("tokens_per_s", "tokens_per_s_low", "tokens_per_s_high", "peak_allocated_gib")


class Compared(NamedTuple):
    """The median of a setting's runs beside its prediction; errors in per cent of what was measured."""

    contribution: str
    gpu: str
    setting: str
    runs: int
    tokens_per_s: float
    predicted_tokens_per_s: float
    speed_error_pct: float
    in_range: bool
    peak_gib: float
    predicted_peak_gib: float
    memory_error_pct: float
    problem: str = ""
    """Why nothing is predicted; empty if something is."""


def compared(rows: pd.DataFrame) -> list[Compared]:
    """Return a line for each setting with an ok run."""
    measured = rows[rows["status"] == "ok"]
    return [_line(group) for _, group in measured.groupby(SETTING, sort=False)]


def _line(group: pd.DataFrame) -> Compared:
    first = group.iloc[0].to_dict()
    predicted, problem = _predicted(first)
    speed = float(group["tokens_per_s"].median())
    peak_gib = float(group["peak_allocated_gib"].median())
    return Compared(
        first["sweep"],
        first["gpu_name"],
        first["experiment"],
        len(group),
        speed,
        predicted["tokens_per_s"],
        100 * (predicted["tokens_per_s"] / speed - 1),
        predicted["tokens_per_s_low"] <= speed <= predicted["tokens_per_s_high"],
        peak_gib,
        predicted["peak_allocated_gib"],
        100 * (predicted["peak_allocated_gib"] / peak_gib - 1),
        problem,
    )


def _predicted(row: dict[Any, Any]) -> tuple[dict[str, float], str]:
    """Return the predicted figures of a row's setting, NaN where there are none, and why there are none."""
    try:
        experiment = Experiment.of_row(row)
        table = dsnb.predict([experiment], row["gpu_name"], link=row["link"], probe=False)
    except SettingsError as error:
        return dict.fromkeys(PREDICTED, math.nan), str(error)
    record = table.iloc[0].to_dict()
    return {name: float(record[name]) for name in PREDICTED}, ""


def speed_error(lines: list[Compared]) -> PredictionError | None:
    """Return the error of predicted step times; None if nothing is predicted."""
    times = [line.tokens_per_s / line.predicted_tokens_per_s for line in lines]
    known_pct = [100 * (ratio - 1) for ratio in times if not math.isnan(ratio)]
    return PredictionError.of(known_pct) if known_pct else None


def memory_error_pct(lines: list[Compared]) -> float:
    """Return the mean absolute error of predicted peaks; NaN if no peak is known."""
    known_pct = [
        abs(line.memory_error_pct) for line in lines if not math.isnan(line.memory_error_pct)
    ]
    return sum(known_pct) / len(known_pct) if known_pct else math.nan
