"""Errors of predicted speed ratios of two settings, by what limits them: the uncertainty about which one is faster.

A slow GPU or host slows both settings down, so the error of one predicted speed overstates the uncertainty of a choice
between two. Measured and predicted ratios are compared for all pairs of settings of one task on one host.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from dsnb.prediction import calibration, gpus
from dsnb.prediction.calibration import DEFAULT_COVERAGE, Measured, measured
from dsnb.prediction.step_time import stack
from dsnb.results.runs.labels import count
from dsnb.results.statistics.tasks import settings_of, tasks
from dsnb.settings.experiment import Experiment

BY_CPU = (
    "that are both limited by the GPU",
    "with one that is limited by the CPU",
    "that are both limited by the CPU",
)
"""Pairs in words, as in "ratios of two settings that are both limited by the GPU", by how many the CPU limits."""
ALL = "of one task"
MIN_PAIRS = 10
"""With fewer pairs of a kind, the error of all pairs is taken."""


class RatioError(NamedTuple):
    """Geometric mean and largest error of predicted ratios of two step times, in per cent of the measured ratio."""

    pairs: int
    mean_pct: float
    worst_pct: float


Ratios = Mapping[str, RatioError]
"""Errors by the kind of a pair: one of `BY_CPU`, or `ALL`, which includes pairs with an offloaded optimizer."""

# Leave-one-model-out on one to four H200, from the prior: `python -m benchmarks.ratio_errors`.
DEFAULT_RATIOS: dict[str, RatioError] = {
    "that are both limited by the GPU": RatioError(129, 5.0, 25.2),
    "with one that is limited by the CPU": RatioError(945, 15.6, 70.4),
    "that are both limited by the CPU": RatioError(2415, 18.5, 98.6),
    "of one task": RatioError(3489, 17.2, 98.6),
}

# The constants of H200 on published tables of other GPUs: the same command.
ELSEWHERE: dict[str, RatioError] = {
    "that are both limited by the GPU": RatioError(604, 11.1, 552.4),
    "with one that is limited by the CPU": RatioError(205, 15.3, 230.3),
    "that are both limited by the CPU": RatioError(153, 17.0, 198.5),
    "of one task": RatioError(1001, 13.0, 552.4),
}


def doubt(pair: Sequence[Experiment], by_cpu: Sequence[bool], ratios: Ratios) -> tuple[float, str]:
    """Return the mean error of predicted ratios of two settings, in per cent and in words with its origin."""
    name = BY_CPU[sum(by_cpu)]
    is_offloaded = any(experiment.offload != "none" for experiment in pair)
    name = ALL if is_offloaded or name not in ratios or ratios[name].pairs < MIN_PAIRS else name
    pairs, error_pct, _ = ratios[name]
    origin = f"the mean error of predicted ratios of two settings {name} ({count(pairs, 'pair')})"
    return error_pct, f"{error_pct:.1f} %, {origin}"


def errors_for(gpu: str, link: str, calibrate: pd.DataFrame | None = None) -> Ratios:
    """Return the errors of ratios for predictions of `dsnb.predict` with these arguments."""
    if calibrate is None:
        return (
            DEFAULT_RATIOS
            if gpus.find(gpu).name in DEFAULT_COVERAGE.names[calibration.GPU]
            else ELSEWHERE
        )
    runs, hosts = of_hosts(calibrate, link)
    errors = by_limit(runs, calibration.left_out(runs), hosts)
    on_this = {gpus.find(run.gpu_name).name for run in runs}
    return errors if errors and gpus.find(gpu).name in on_this else ELSEWHERE


def of_hosts(runs: pd.DataFrame, link: str = "nvlink") -> tuple[list[Measured], list[str]]:
    """Return one measured run of each setting on each host, that with the median step time, and the hosts of these."""
    hosts = runs["host"].fillna("") if "host" in runs else ""
    fastest_first = runs.assign(host=hosts).sort_values("step_time_mean_s", kind="stable")
    path = gpus.link(link)
    medians = [
        (run, host)
        for (host, _), repeats in fastest_first.groupby(["host", "experiment"], sort=False)
        for run in measured(repeats.iloc[[(len(repeats) - 1) // 2]], path)
    ]
    return [run for run, _ in medians], [host for _, host in medians]


def by_limit(
    runs: Sequence[Measured], errors: Sequence[float], hosts: Sequence[object]
) -> dict[str, RatioError]:
    """Return the errors of ratios by the kind of a pair, and of all pairs; empty without any pair.

    `errors` of predicted step times are in per cent; only runs of one of the `hosts` are compared with each other.
    """
    if not runs:
        return {}
    experiments = [run.experiment for run in runs]
    table = settings_of(experiments).assign(
        host=list(hosts), gpu_name=[run.gpu_name for run in runs]
    )
    places = [
        group.index
        for task in tasks(table)
        for _, group in task.runs.groupby(["host", "gpu_name"], sort=False)
    ]
    pairs = [
        (place[first], place[second])
        for place in places
        for first, second in [np.triu_indices(len(place), 1)]
    ]
    first, second = (np.concatenate(side).astype(int) for side in zip(*pairs, strict=True))
    names = np.array([experiment.name_with_model for experiment in experiments])
    first, second = (side[names[first] != names[second]] for side in (first, second))
    by_cpu = calibration.limited_by_cpu(stack([run.setting for run in runs])).astype(int)
    offloads = np.array([experiment.offload != "none" for experiment in experiments])
    kinds = np.array(BY_CPU)[by_cpu[first] + by_cpu[second]]
    kinds = np.where(offloads[first] | offloads[second], ALL, kinds)
    logs = np.log1p(np.asarray(errors, dtype=float) / 100)
    off = pd.Series(np.abs(logs[first] - logs[second]))
    parts = {name: off[kinds == name] for name in BY_CPU} | {ALL: off}
    return {
        name: RatioError(
            len(part), *(round(100 * math.expm1(log), 1) for log in (part.mean(), part.max()))
        )
        for name, part in parts.items()
        if len(part)
    }
