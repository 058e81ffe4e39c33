"""How wrong predicted ratios of two settings were, by what the two differ in: the doubt about which one is faster.

Two settings share part of their errors: a GPU or a host that is slower than the constants say slows both down. So the
error of one predicted speed is not the doubt about a choice between two. The ratio of two measured speeds is compared
with the ratio of their predictions, for every pair of settings of one task that were measured on one host.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dsnb.analysis.choices import MEASUREMENT, SHARING
from dsnb.analysis.tasks import TASK, settings_of, tasks
from dsnb.prediction import accuracy, gpus
from dsnb.prediction.accuracy import DEFAULT_COVERAGE
from dsnb.prediction.constants import DEFAULT, Constants
from dsnb.prediction.measured import Measured, measured
from dsnb.prediction.step_time import stack
from dsnb.settings.experiment import Experiment
from dsnb.settings.training import Training

PARTS: dict[str, tuple[str, ...]] = {
    "GPUs": ("gpus", "nodes"),
    "batch sizes": ("micro_batch_size", "grad_accum"),
    "strategy": SHARING,
    "number format": ("precision", "mixed_precision", "grad_accum_dtype"),
    "recomputation": ("activation_checkpointing", "checkpoint_every", "checkpoint_offload"),
    "compilation": ("compile", "compile_unit"),
}
"""Settings that count as one difference, by what it is called; each of the others counts by itself."""
_GROUPED = {name for names in PARTS.values() for name in names}
OTHERS = tuple(sorted(set(Training.model_fields) - _GROUPED - MEASUREMENT - {*TASK, "lora_rank"}))
OTHER = "another setting"
ONE_PART = "that differ only in {}"
SEVERAL = "that differ in several settings"
ONE_BY_CPU = "with one that is limited by the CPU"
BOTH_BY_CPU = "that are both limited by the CPU"
OFFLOADED = "with an optimizer that is offloaded"
ALL = "of one task"
NAMES = (*(ONE_PART.format(part) for part in (*PARTS, OTHER)), SEVERAL, ONE_BY_CPU, BOTH_BY_CPU, OFFLOADED)
"""The differences in words, as in "ratios of two settings that differ only in compilation"."""
MIN_PAIRS = 10
"""Pairs of a difference whose own error is taken; with fewer it is that of all pairs."""


class RatioError(NamedTuple):
    """Geometric mean and largest error of predicted ratios of two step times, in per cent of the measured ratio."""

    pairs: int
    mean_pct: float
    worst_pct: float


Ratios = Mapping[str, RatioError]
"""Errors by what two settings differ in, one of `NAMES` or `ALL`."""
Indices = Sequence[int] | NDArray[np.int64]

# Leave-one-model-out on one to four H200, from the prior: `python -m benchmarks.ratio_errors`.
DEFAULT_RATIOS: dict[str, RatioError] = {
    "that differ only in batch sizes": RatioError(34, 5.2, 14.6),
    "that differ only in strategy": RatioError(40, 5.7, 26.6),
    "that differ only in recomputation": RatioError(11, 1.3, 4.0),
    "that differ only in compilation": RatioError(30, 4.4, 16.4),
    "that differ in several settings": RatioError(256, 6.5, 47.3),
    "with one that is limited by the CPU": RatioError(1241, 18.2, 84.4),
    "that are both limited by the CPU": RatioError(1877, 22.8, 146.6),
    "of one task": RatioError(3489, 19.3, 146.6),
}

# The constants of H200 on published tables of other GPUs: the same command.
ELSEWHERE: dict[str, RatioError] = {
    "that differ only in GPUs": RatioError(40, 5.7, 100.4),
    "that differ only in batch sizes": RatioError(20, 14.1, 220.0),
    "that differ only in strategy": RatioError(5, 20.9, 49.9),
    "that differ only in recomputation": RatioError(4, 2.0, 3.8),
    "that differ only in compilation": RatioError(2, 4.6, 5.2),
    "that differ only in another setting": RatioError(1, 554.6, 554.6),
    "that differ in several settings": RatioError(221, 27.4, 260.3),
    "with one that is limited by the CPU": RatioError(23, 67.9, 120.2),
    "that are both limited by the CPU": RatioError(41, 7.2, 68.0),
    "of one task": RatioError(357, 23.8, 554.6),
}


def expected(pair: Sequence[Experiment], by_cpu: Sequence[bool], known: Ratios) -> tuple[str, RatioError]:
    """Return the pairs on which the error of a predicted ratio was measured, in words, and that error.

    Parameters
    ----------
    pair
        Two settings of one task.
    by_cpu
        Whether the CPU limits the step of each.
    """
    name = str(_differences(pair, np.array(by_cpu), [0], [1])[0]) or ALL
    name = name if name in known and known[name].pairs >= MIN_PAIRS else ALL
    return name, known[name]


def words(name: str, error: RatioError) -> str:
    """Return an error of ratios and on what it was measured, as in "more than 4.5 %, the mean error of ..."."""
    pairs = f"{error.pairs:,} pair{'' if error.pairs == 1 else 's'}"
    return f"{error.mean_pct:.1f} %, the mean error of predicted ratios of two settings {name} ({pairs})"


def known_for(gpu: str, link: str, calibrate: pd.DataFrame | None = None) -> Ratios:
    """Return the errors of ratios that hold for predictions on a GPU.

    Parameters
    ----------
    gpu, link, calibrate
        As `dsnb.predict` takes them.
    """
    if calibrate is None:
        return DEFAULT_RATIOS if gpus.find(gpu).name in DEFAULT_COVERAGE.gpus else ELSEWHERE
    runs, hosts = of_hosts(calibrate, link)
    own = by_difference(runs, accuracy.left_out(runs), hosts)
    on_this = {gpus.find(run.gpu_name).name for run in runs}
    return own if own and gpus.find(gpu).name in on_this else ELSEWHERE


def of_hosts(runs: pd.DataFrame, link: str = "nvlink") -> tuple[list[Measured], list[int]]:
    """Return one measured run of each setting on each host, that with the median step time, and the host's number."""
    hosts = runs["host"].fillna("") if "host" in runs else pd.Series("", index=runs.index)
    fastest_first = runs.assign(host=hosts).sort_values("step_time_s", kind="stable")
    found: list[Measured] = []
    places: list[int] = []
    for place, (_, own) in enumerate(fastest_first.groupby("host", sort=False)):
        middle = [group.iloc[(len(group) - 1) // 2] for _, group in own.groupby("experiment", sort=False)]
        rows = measured(pd.DataFrame(middle), gpus.link(link))
        found += rows
        places += [place] * len(rows)
    return found, places


def by_difference(
    runs: Sequence[Measured], errors: Sequence[float], hosts: Sequence[int], constants: Constants = DEFAULT
) -> dict[str, RatioError]:
    """Return the errors of ratios by what the two settings differ in, and of all pairs; empty without any pair.

    Parameters
    ----------
    runs
        Measured runs.
    errors
        The error of each predicted step time in per cent.
    hosts
        Where each was measured: only runs of one host are compared.
    constants
        Those that say whether the CPU limits a step.
    """
    if not runs:
        return {}
    experiments = [run.experiment for run in runs]
    by_cpu = accuracy.limited_by_cpu(stack([run.setting for run in runs]), constants)
    table = settings_of(experiments).assign(host=list(hosts), gpu_name=[run.gpu_name for run in runs])
    places = [own.index for task in tasks(table) for _, own in task.runs.groupby(["host", "gpu_name"], sort=False)]
    pairs = [(own[first], own[second]) for own in places for first, second in [np.triu_indices(len(own), 1)]]
    first, second = (np.concatenate(side).astype(int) for side in zip(*pairs, strict=True))
    logs = np.log1p(np.asarray(errors, dtype=float) / 100)
    off = pd.Series(np.abs(logs[first] - logs[second]))
    names = _differences(experiments, by_cpu, first, second)
    parts = {name: off[names == name] for name in NAMES} | {ALL: off[names != ""]}
    return {name: _error_of(part) for name, part in parts.items() if len(part)}


def _error_of(off: "pd.Series[float]") -> RatioError:
    """Return the geometric mean and the largest of some absolute logarithms of ratios, in per cent."""
    mean, worst = (round(100 * math.expm1(log), 1) for log in (off.mean(), off.max()))
    return RatioError(len(off), mean, worst)


def _differences(
    experiments: Sequence[Experiment], by_cpu: NDArray[np.bool_], first: Indices, second: Indices
) -> NDArray[np.str_]:
    """Return what the two settings of each pair differ in, one of `NAMES`; empty for equal settings.

    Parameters
    ----------
    experiments, by_cpu
        Settings, and whether the CPU limits the step of each.
    first, second
        The places of the two of each pair.
    """
    columns = [*PARTS.values(), *((name,) for name in OTHERS)]
    values = [[repr([getattr(one, name) for name in names]) for one in experiments] for names in columns]
    codes = np.array([pd.factorize(np.array(column))[0] for column in values]).T
    differs = codes[first] != codes[second]
    count, cpus = differs.sum(axis=1), by_cpu[first].astype(int) + by_cpu[second]
    offloads = np.array([one.offload != "none" for one in experiments])
    names = np.array(NAMES)[np.minimum(differs.argmax(axis=1), len(PARTS))]
    cases = [count == 0, offloads[first] | offloads[second], cpus == 2, cpus == 1, count > 1]
    return np.select(cases, ["", OFFLOADED, BOTH_BY_CPU, ONE_BY_CPU, SEVERAL], names)
