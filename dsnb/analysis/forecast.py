"""What a training would take with each of some settings: measured where that was measured, otherwise predicted."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from dsnb.analysis import ratio_errors, stability, would_fit
from dsnb.analysis.ratio_errors import RatioError
from dsnb.analysis.tasks import settings_of, tasks
from dsnb.errors import SettingsError
from dsnb.formulas import metrics
from dsnb.prediction import gpus
from dsnb.prediction.calibration import FEWEST
from dsnb.prediction.measured import measured, recorded
from dsnb.prediction.predict import predict
from dsnb.runs.table import as_runs
from dsnb.settings.experiment import Experiment

MEASURED, PREDICTED = "measured", "predicted"
COLUMNS = [
    "task",
    "experiment",
    "gpus",
    "basis",
    "fits",
    "peak_allocated_gib",
    "peak_allocated_error_pct",
    "tokens_per_s",
    "tokens_per_s_error_pct",
    "days",
    "days_low",
    "days_high",
    "gpu_hours",
    "cost",
    "outside",
]


@dataclass(frozen=True)
class Forecast:
    """What a training would take.

    Attributes
    ----------
    gpu
        The GPU, by its data sheet.
    table
        One row per setting, task by task (`dsnb.analysis.tasks`, whose title is `task`), the fewest days first and
        those that do not fit last: `basis` is `measured` or `predicted`, the rest as `dsnb.predict` returns it.
        Measured figures are medians over runs, and their error is NaN.
    refused
        Why combinations of settings were left out.
    calibrated_on
        Number of measured settings on this GPU that the speeds of the others follow from; 0 if there were too few, and
        the predictions are those of `dsnb.predict` without any runs.
    doubts
        By task: on which pairs of settings the error of predicted ratios was measured, and that error, for the first
        two settings; None if not both are predicted.
    instead
        By task: what would fit, in sentences, if no setting does.
    """

    gpu: gpus.Gpu
    table: pd.DataFrame
    refused: tuple[str, ...]
    calibrated_on: int
    doubts: Mapping[str, tuple[str, RatioError] | None] = field(default_factory=dict)
    instead: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def forecast(
    settings: Mapping[str, Any],
    gpu: str,
    runs: pd.DataFrame | None = None,
    *,
    tokens: float = 100e9,
    price: float | None = None,
    link: str = "nvlink",
) -> Forecast:
    """Return what training would take with each combination of settings.

    Parameters
    ----------
    settings
        Settings by name; a list is an axis. Combinations that are refused are left out.
    gpu
        Name of the GPU.
    runs
        Measured runs, as `dsnb.load_runs` and `dsnb.published` return them. Of those on the same GPU, the same settings
        count in place of the prediction, and all of them calibrate the predicted speeds.
    tokens, price
        Tokens to train on, and the price of a GPU-hour.
    link
        As `dsnb.predict` takes it.

    Raises
    ------
    SettingsError
        If every combination is refused, such as one of 0 GPUs, or as `dsnb.predict` does.
    """
    kind = gpus.find(gpu)
    experiments, refused = _combinations({**settings, "device": "cuda"})
    own = _of_gpu(runs, kind) if runs is not None else pd.DataFrame()
    known = len({run.experiment.name_with_model for run in measured(own, link)})
    calibrate = own if known >= FEWEST else None
    table = predict(experiments, gpu, link=link, calibrate=calibrate, tokens=tokens, price=price).assign(
        basis=PREDICTED
    )
    groups = _by_name(own)
    rows = [
        {**row, **_as_measured(groups[row["experiment"]], experiment.gpus, tokens, price)}
        if row["experiment"] in groups
        else row
        for row, experiment in zip(table.to_dict("records"), experiments, strict=True)
    ]
    found = pd.DataFrame(rows).assign(gpus=[one.gpus for one in experiments])
    parts = [
        found.loc[task.runs.index]
        .assign(task=task.title)
        .sort_values(["fits", "days"], ascending=[False, True], kind="stable")
        for task in tasks(settings_of(experiments))
    ]
    options = {"link": link, "calibrate": calibrate}
    instead = {part["task"].iloc[0]: _would_fit(part, experiments, table, gpu, options) for part in parts}
    doubts = {part["task"].iloc[0]: _doubt(part, experiments, gpu, options) for part in parts}
    chosen = pd.concat(parts, ignore_index=True)[COLUMNS]
    return Forecast(kind, chosen, refused, known if calibrate is not None else 0, doubts, instead)


def _would_fit(
    part: pd.DataFrame, experiments: Sequence[Experiment], found: pd.DataFrame, gpu: str, options: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return what would fit where no setting of a task does; nothing where one does, or would have by prediction."""
    own = found.loc[part.index].reset_index(drop=True)
    if part["fits"].any() or own["fits"].any():
        return ()
    return would_fit.sentences([experiments[place] for place in part.index], own, gpu, **options)


def _doubt(
    part: pd.DataFrame, experiments: Sequence[Experiment], gpu: str, options: Mapping[str, Any]
) -> tuple[str, RatioError] | None:
    """Return the error of the predicted ratio of a task's first two settings; None if one of them was measured."""
    pair = part[part["fits"].astype(bool)].head(2)
    if len(pair) < 2 or not pair["basis"].eq(PREDICTED).all():
        return None
    first, second = (experiments[place] for place in pair.index)
    return ratio_errors.expected(
        first, second, list(pair["limited_by"] == "CPU"), ratio_errors.known_for(gpu, **options)
    )


def _combinations(settings: Mapping[str, Any]) -> tuple[list[Experiment], tuple[str, ...]]:
    """Return the experiments, each once, and the reasons against the combinations that are none."""
    axes = [value if isinstance(value, list) else [value] for value in settings.values()]
    found: dict[str, Experiment] = {}
    problems: list[str] = []
    for values in itertools.product(*axes):
        try:
            one = Experiment(**dict(zip(settings, values, strict=True)))
        except SettingsError as error:
            problems += error.problems
        else:
            found[one.name_with_model] = one
    refused = tuple(dict.fromkeys(problems))
    if not found:
        raise SettingsError(refused or "no combination of settings is left: give each setting a value")
    return list(found.values()), refused


def _of_gpu(runs: pd.DataFrame, gpu: gpus.Gpu) -> pd.DataFrame:
    """Return the runs on a GPU that tell how fast a setting is, or that it does not fit."""
    known = as_runs(runs)
    known = known.reindex(columns=[*known, *({"status", "tokens_per_s", "peak_allocated_gib", "gpu_name"} - {*known})])
    known = known[known["status"].eq("oom") | (known["status"].eq("ok") & known["tokens_per_s"].notna())]
    return known[[_is(name, gpu) for name in known["gpu_name"]]]


def _by_name(runs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return runs by the names of their settings, which are those of dsnb whatever the runs are called."""
    names = pd.Series([recorded(row).name_with_model for row in runs.to_dict("records")], index=runs.index, dtype=str)
    return {str(name): group for name, group in runs.groupby(names)}


def _is(name: object, gpu: gpus.Gpu) -> bool:
    try:
        return gpus.find(str(name)) == gpu
    except SettingsError:
        return False


def _as_measured(runs: pd.DataFrame, ranks: int, tokens: float, price: float | None) -> dict[str, Any]:
    """Return the columns of a setting that was measured."""
    ok = runs[runs["status"] == "ok"]
    rate = float(ok["tokens_per_s"].median())
    hours = math.nan if math.isnan(rate) else metrics.gpu_hours(tokens, rate, ranks) or math.nan
    return {
        "basis": MEASURED,
        "fits": len(ok) > 0,
        "peak_allocated_gib": float(ok["peak_allocated_gib"].astype(float).median()),
        "peak_allocated_error_pct": math.nan,
        "tokens_per_s": rate,
        "tokens_per_s_error_pct": math.nan,
        **dict.fromkeys(("days", "days_low", "days_high"), hours / 24 / ranks),
        "gpu_hours": hours,
        "cost": math.nan if price is None else hours * price,
        "outside": _doubtful(ok),
    }


def _doubtful(ok: pd.DataFrame) -> str:
    """Return why the median of a measured setting is no answer; empty if its repeats agree."""
    is_unstable = bool(stability.unstable(ok.assign(experiment="")))
    return f"its repeats differ by more than {stability.UNSTABLE:g} times" if is_unstable else ""
