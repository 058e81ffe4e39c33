"""Measured runs of settings, in place of their predictions."""

import math
from collections.abc import Sequence

import pandas as pd

from dsnb.prediction import gpus
from dsnb.prediction.gpus import known_gpu
from dsnb.prediction.target import Target
from dsnb.results.answers.decide import MEASURED, candidates
from dsnb.results.runs.labels import MEMORY
from dsnb.results.runs.table import as_runs
from dsnb.settings.experiment import Experiment
from dsnb.settings.programs import DSNB


def runs_on(runs: pd.DataFrame, spec: gpus.GpuSpec) -> pd.DataFrame:
    """Return dsnb's runs on a GPU that succeeded with a known speed, or ran out of memory.

    The speed of another program's loop is no measurement of a setting that dsnb's loop would run.
    """
    runs = as_runs(runs)
    if "program" in runs:
        runs = runs[runs["program"].fillna(DSNB) == DSNB]
    needed = {"status", "tokens_per_s", "peak_allocated_gib", "gpu_name"} - {*runs}
    runs = runs.reindex(columns=[*runs, *needed])
    is_timed = runs["status"].eq("ok") & runs["tokens_per_s"].notna()
    runs = runs[runs["status"].eq("oom") | is_timed]
    return runs[[known_gpu(name) == spec for name in runs["gpu_name"]]]


def measured_figures(
    runs: pd.DataFrame, asked: Sequence[Experiment], target: Target
) -> pd.DataFrame | None:
    """Return measured medians in place of predictions; a setting whose runs all ran out of memory does not fit."""
    on = target.hardware.gpu
    runs = runs_on(runs, known_gpu(on.name) or on)
    names = [Experiment.of_row(row).name_with_model for row in runs.to_dict("records")]
    named = runs.assign(experiment=names, sweep="").drop(columns=[*MEMORY[1:]], errors="ignore")
    named = named[named["experiment"].isin([one.name_with_model for one in asked])]
    if named.empty:
        return None
    medians = candidates(named).reindex(named["experiment"].unique())
    is_unstable = medians["is_unstable"].eq(True)
    return medians[["tokens_per_s", "memory_gib"]].assign(
        is_known=True, basis=medians["basis"].astype(object).fillna(MEASURED),
        is_unstable=is_unstable & ~is_unstable.all(),
        fits=medians["n"].gt(0), peak_allocated_gib=medians["memory_gib"], peak_allocated_error_pct=math.nan,
        peak_reserved_gib=math.nan, peak_reserved_error_pct=math.nan, tight=False, tokens_per_s_error_pct=math.nan,
        tokens_per_s_low=math.nan, tokens_per_s_high=math.nan,
        spread_pct=medians["spread_pct"].where(medians["n"] > 1),
        outside="",
    )  # fmt: skip
