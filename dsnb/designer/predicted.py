"""Predicted memory and speed of experiments, from a function that is given, and the time of their runs."""

import math
from collections.abc import Callable

import pandas as pd

from dsnb.analysis.recommend import by_task
from dsnb.errors import DsnbError
from dsnb.files import plain_text
from dsnb.settings.experiment import Experiment

Predict = Callable[[list[Experiment]], pd.DataFrame]
"""Experiments -> a row for each, in order, with `COLUMNS` and perhaps `ERRORS`; NaN where something is unknown."""
COLUMNS = ["experiment", "fits", "peak_allocated_gib", "tokens_per_s", "step_time_s"]
ERRORS = ["peak_allocated_error_pct", "tokens_per_s_error_pct"]
BEST = {
    "time": ("tokens_per_s", "highest throughput"),
    "gpu_hours": ("tokens_per_s_per_gpu", "fewest GPU-hours"),
    "cost": ("tokens_per_s_per_gpu", "lowest cost"),
    "memory": ("peak_allocated_gib", "least memory"),
}
"""Objective of `dsnb.analysis.decide` -> the predicted figure that decides, and what it is called."""
PREDICTING = "Predicting memory and speed ..."
START_S = 20.0
"""Usual seconds of a run outside its steps."""


class StillPredictingError(DsnbError):
    """A prediction that is being made beside the form."""


def rows(experiments: list[Experiment], predict: Predict, start_s: float) -> tuple[pd.DataFrame, str]:
    """Return a row for each experiment, empty where nothing is predicted, and a note if that is so for all.

    Parameters
    ----------
    experiments
        All of them valid.
    predict
        The function that predicts.
    start_s
        Seconds of a run outside its steps.

    Returns
    -------
    pandas.DataFrame
        `COLUMNS` and `ERRORS`, `experiment` under its name in a sweep and `fits` as True, False or None; `task`;
        `gpus`; `tokens_per_s_per_gpu`; `run_s`, the time of one run, and its `cost`, NaN if unknown or if the run does
        not fit.
    str
        Why nothing is predicted; empty if something is.
    """
    table, note = _asked(experiments, predict)
    several_models = len({one.model for one in experiments}) > 1
    table["experiment"] = [one.name_with_model if several_models else one.name for one in experiments]
    table["task"] = pd.Series(
        {place: title for title, places in by_task(experiments) for place in places}, dtype=object
    )
    table["gpus"] = [one.gpus for one in experiments]
    table["tokens_per_s_per_gpu"] = table["tokens_per_s"] / table["gpus"]
    steps = pd.Series([one.warmup_steps + one.steps for one in experiments])
    table["run_s"] = (steps * table["step_time_s"] + start_s).where(table["fits"].ne(False))
    prices = pd.Series([one.price_per_gpu_hour for one in experiments])
    table["cost"] = table["run_s"] / 3600 * table["gpus"] * prices
    return table, note


def _asked(experiments: list[Experiment], predict: Predict) -> tuple[pd.DataFrame, str]:
    nothing = pd.DataFrame(math.nan, index=range(len(experiments)), columns=[*COLUMNS, *ERRORS]).assign(fits=None)
    try:
        found = predict(experiments).reindex(columns=nothing.columns).reset_index(drop=True)
        figures = list(nothing.columns[2:])
        found[figures] = found[figures].apply(pd.to_numeric).astype(float).replace([math.inf, -math.inf], math.nan)
        fits = [None if pd.isna(value) else bool(value) for value in found["fits"]]
        found["fits"] = pd.Series(fits, index=found.index, dtype=object)
    except StillPredictingError:
        return nothing, PREDICTING
    except Exception as error:  # what a function from elsewhere raises is a note in the form, not a traceback
        said = str(error) if isinstance(error, DsnbError) else f"{type(error).__name__}: {error}"
        return nothing, f"Nothing is predicted: {plain_text.line(said)}"
    if len(found) != len(experiments):
        return nothing, f"Nothing is predicted: {len(found)} rows were returned for {len(experiments)} experiments."
    return found, ""
