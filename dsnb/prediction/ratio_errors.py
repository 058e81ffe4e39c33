"""Errors of predicted speed ratios of two settings, by what limits them: the uncertainty about which one is faster.

A slow GPU or host slows both settings down, so the error of one predicted speed overstates the
uncertainty of a choice between two. Measured and predicted ratios are compared for all pairs of
settings of one task on one host.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from dsnb.prediction import accuracy, calibration, gpus, loop, tuned
from dsnb.prediction.accuracy import DEFAULT_COVERAGE
from dsnb.prediction.calibration import Measured, limited_by_cpu, measured, of_one_loop
from dsnb.prediction.gpus import GpuSpec
from dsnb.prediction.step_time import stack
from dsnb.results.runs.labels import count
from dsnb.results.statistics.tasks import settings_of, tasks
from dsnb.settings.experiment import Experiment

BY_CPU = (
    "that are both limited by the GPU",
    "with one that is limited by the CPU",
    "that are both limited by the CPU",
)
"""Pairs in words, as in "ratios of two settings that are both limited by the GPU", by how many the
CPU limits."""
ALL = "of one task"
MIN_PAIRS = 10
"""With fewer pairs of a kind, the error of all pairs is taken."""


class RatioError(NamedTuple):
    """Geometric mean and largest error of predicted ratios of two step times, in per cent of the measured ratio."""

    pairs: int
    mean_pct: float
    worst_pct: float

    @classmethod
    def of(cls, logs: Sequence[float]) -> "RatioError":
        """Summarize logarithms of the factors by which ratios are wrong."""
        mean = math.expm1(float(np.mean(logs)))
        worst = math.expm1(max(logs))
        return cls(len(logs), round(100 * mean, 1), round(100 * worst, 1))


Ratios = Mapping[str, RatioError]
"""Errors by the kind of a pair: one of `BY_CPU`, or `ALL`, which includes pairs with an offloaded
optimizer."""


def _stated(table: str) -> dict[str, RatioError]:
    rows = tuned.rows(tuned.TUNED["errors"][table])
    return {kind: RatioError(*row) for kind, row in rows.items()}


DEFAULT_RATIOS = _stated("ratios")
ELSEWHERE = _stated("ratios_elsewhere")
"""Errors on GPUs that the constants were not fitted to."""


def doubt(pair: Sequence[Experiment], by_cpu: Sequence[bool], ratios: Ratios) -> tuple[float, str]:
    """Return the mean error of predicted ratios of two settings, in per cent and in words with its origin."""
    kind = _kind(pair, by_cpu)
    if kind not in ratios or ratios[kind].pairs < MIN_PAIRS:
        kind = ALL
    error = ratios[kind]
    origin = f"the mean error of predicted ratios of two settings {kind}"
    return error.mean_pct, f"{error.mean_pct:.1f} %, {origin} ({count(error.pairs, 'pair')})"


def _kind(pair: Sequence[Experiment], by_cpu: Sequence[bool]) -> str:
    """Return the kind of a pair, given whether the CPU limits each of its settings."""
    if any(experiment.offload != "none" for experiment in pair):
        return ALL
    return BY_CPU[sum(by_cpu)]


def errors_for(gpu: str | GpuSpec, link: str, calibrate: pd.DataFrame | None = None) -> Ratios:
    """Return the errors of ratios for predictions of `dsnb.predict` with these arguments."""
    name = gpus.find(gpu).name
    if calibrate is None:
        if name in DEFAULT_COVERAGE.names[accuracy.GPU]:
            return DEFAULT_RATIOS
        return ELSEWHERE
    of_all, hosts_of_all = of_hosts(calibrate, link)
    runs = of_one_loop(of_all)
    kept = {run.loop for run in runs}
    hosts = [host for run, host in zip(of_all, hosts_of_all, strict=True) if run.loop in kept]
    errors: Ratios = {}
    if runs:
        errors_pct = calibration.left_out(runs, method=loop.method_of(runs))
        errors = by_limit(runs, errors_pct, hosts)
    on_this = {gpus.find(run.gpu_name).name for run in runs}
    return errors if errors and name in on_this else ELSEWHERE


def of_hosts(runs: pd.DataFrame, link: str = "nvlink") -> tuple[list[Measured], list[str]]:
    """Return one measured run of each setting on each host, that with the median step time, and the hosts of these."""
    names = runs["host"].fillna("") if "host" in runs else ""
    fastest_first = runs.assign(host=names).sort_values("step_time_mean_s", kind="stable")
    path = gpus.link(link)
    medians: list[Measured] = []
    hosts: list[str] = []
    for (host, _), repeats in fastest_first.groupby(["host", "experiment"], sort=False):
        middle = (len(repeats) - 1) // 2
        of_setting = measured(repeats.iloc[[middle]], path)
        medians += of_setting
        hosts += [host] * len(of_setting)
    return medians, hosts


def by_limit(
    runs: Sequence[Measured], errors_pct: Sequence[float], hosts: Sequence[object]
) -> dict[str, RatioError]:
    """Return the errors of ratios by the kind of a pair, and of all pairs; empty without any pair.

    `errors_pct` are those of predicted step times; only runs of one of the `hosts` are compared
    with each other.
    """
    if not runs:
        return {}
    by_cpu = limited_by_cpu(stack([run.counts for run in runs])).tolist()
    logs = np.log1p(np.asarray(errors_pct, dtype=float) / 100)
    found: dict[str, list[float]] = defaultdict(list)
    for first, second in _pairs(runs, hosts):
        pair = (runs[first].experiment, runs[second].experiment)
        kind = _kind(pair, (by_cpu[first], by_cpu[second]))
        log = abs(float(logs[first] - logs[second]))
        found[kind].append(log)
        if kind != ALL:
            found[ALL].append(log)
    return {kind: RatioError.of(found[kind]) for kind in (*BY_CPU, ALL) if kind in found}


def _pairs(runs: Sequence[Measured], hosts: Sequence[object]) -> Iterator[tuple[int, int]]:
    """Yield the places of each two runs of one task with different settings on one host and GPU."""
    experiments = [run.experiment for run in runs]
    gpu_names = [run.gpu_name for run in runs]
    table = settings_of(experiments).assign(host=list(hosts), gpu_name=gpu_names)
    names = [experiment.name_with_model for experiment in experiments]
    for task in tasks(table):
        for _, group in task.runs.groupby(["host", "gpu_name"], sort=False):
            for first, second in itertools.combinations(group.index, 2):
                if names[first] != names[second]:
                    yield first, second
