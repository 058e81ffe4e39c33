"""Steps and samples of runs over time, thinned so that a page with thousands of runs stays small."""

import math
from typing import Any

import pandas as pd

from dsnb.explorer.data import Data, json_numbers, run_folder, run_log
from dsnb.run_folder.columns import GPU_COLUMNS
from dsnb.runs.labels import METRIC_LABELS
from dsnb.runs.literature import measured as literature
from dsnb.runs.load import load_gpu, load_steps

MAX_NUMBERS = 26_000
"""Numbers in the series of all runs of a page together: about 130 kB."""
MIN_POINTS, MAX_POINTS = 24, 240
COLUMNS = 9
GPU = ["host", "gpu"]
"""What identifies a GPU of a run: every host numbers its own from 0."""
SAMPLED = ["util_pct", "memory_used_gib", "power_w"]
_STEP_TIME = METRIC_LABELS["step_time_s"]
CHARTS = [
    {"values": "step_time_s", "times": "t_s", "heading": _STEP_TIME.heading, "factor": _STEP_TIME.factor},
    {"values": "loss", "times": "t_s", "heading": "loss", "factor": 1},
    {"values": "allocated_gib", "times": "t_s", "heading": "memory allocated (GiB)", "factor": 1},
    {"values": "memory_used_gib", "times": "sample_s", "heading": "memory on device (GiB)", "factor": 1},
    {"values": "util_pct", "times": "sample_s", "heading": "utilization (%)", "factor": 1},
    {"values": "power_w", "times": "sample_s", "heading": "power (W), 1 s mean", "factor": 1},
]
"""The charts of one run: the column of a series, the column of its times, the title, and the factor to its unit."""


def load_all(data: Data) -> dict[int, dict[str, Any]]:
    """Load the series of as many runs as fit: first repeats first, and fewer points each if there are many runs.

    Returns
    -------
    dict
        Position of a run -> its series, as `load` returns it. Runs that do not fit are missing.
    """
    firsts = ~pd.Series(data.experiments).duplicated()
    order = sorted(range(len(data.runs)), key=lambda position: not firsts[position])
    room = MAX_NUMBERS // (COLUMNS * MIN_POINTS)
    points = MAX_NUMBERS // (COLUMNS * max(min(len(order), room), 1))
    points = min(max(points, MIN_POINTS), MAX_POINTS)
    found = {position: load(data, position, points) for position in order[:room]}
    return dict(sorted(found.items()))


def load(data: Data, position: int, points: int = MAX_POINTS) -> dict[str, Any]:
    """Load one run's steps and samples, at most `points` of each, evenly spaced; empty if the run recorded none."""
    steps, samples = read(data, position)
    result: dict[str, Any] = {}
    if len(steps):
        every = math.ceil(len(steps) / points)
        warm = steps[steps["phase"] == "warmup"]
        thin = steps.iloc[(len(steps) - 1) % every :: every]  # up to the last step
        result = {name: _rounded(thin[name]) for name in ("step", "t_s", "step_time_s", "loss", "allocated_gib")}
        result |= {"every": every, "warm_steps": len(warm), "warm_s": _rounded([warm["t_s"].max()])[0]}
    if len(samples) and len(means := mean_over_gpus(samples)):
        thin = means.iloc[:: math.ceil(len(means) / points)]
        result |= {name: _rounded(thin[name]) for name in SAMPLED}
        result |= {"sample_s": _rounded(thin["t_s"]), "gpus": samples.groupby(GPU, dropna=False).ngroups}
    return result


def read(data: Data, position: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read the steps and samples of one run; empty tables if it recorded none."""
    place, row = run_folder(data, position) or run_log(data, position), data.runs.iloc[position]
    if place is None:
        steps = literature.steps(str(row.get("source")))
        own = _of_run(steps[steps["sweep"] == row["sweep"]], row) if len(steps) else steps
        return own, pd.DataFrame(columns=GPU_COLUMNS)
    steps, samples = load_steps(place), load_gpu(place)
    return _of_run(steps, row) if place.is_file() else steps, samples  # a log may hold several runs


def _of_run(steps: pd.DataFrame, row: pd.Series) -> pd.DataFrame:
    return steps[(steps["experiment"] == row["experiment"]) & (steps["repeat"] == row["repeat"])]


def mean_over_gpus(samples: pd.DataFrame) -> pd.DataFrame:
    """Average samples over GPUs, each counted once per sampling interval, whenever within it its host read it."""
    gpus = samples.dropna(subset="t_s").groupby(GPU, dropna=False)
    every_s = gpus["t_s"].diff().median()
    if gpus.ngroups < 2 or not every_s > 0:
        return samples.groupby("t_s")[SAMPLED].mean().reset_index()
    interval = (samples["t_s"] / every_s).round().rename("interval")
    each = samples.groupby([interval, *GPU], dropna=False)[["t_s", *SAMPLED]].mean()
    return each.groupby(level="interval").mean()


def _rounded(values: Any) -> list[float | int | None]:
    return json_numbers(float(f"{value:.4g}") for value in values)
