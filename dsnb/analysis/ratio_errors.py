"""How wrong predicted ratios of two settings were, by what the two differ in: the doubt about which one is faster.

Two settings share part of their errors: a GPU or a host that is slower than the constants say slows both down. So the
error of one predicted speed is not the doubt about a choice between two. The ratio of two measured speeds is compared
with the ratio of their predictions, for every pair of settings of one task that were measured on one host.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

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
_SEVERAL, _ONE_BY_CPU, _BOTH_BY_CPU, _OFFLOADED = range(len(PARTS) + 1, len(PARTS) + 5)
NAMES = (*(ONE_PART.format(part) for part in (*PARTS, OTHER)), SEVERAL, ONE_BY_CPU, BOTH_BY_CPU, OFFLOADED)
"""The differences in words, as in "ratios of two settings that differ only in compilation"."""
FEWEST = 10
"""Pairs of a difference whose own error is taken; with fewer it is that of all pairs."""


@dataclass(frozen=True)
class RatioError:
    """Errors of predicted ratios of two step times in per cent of the measured ratio, the larger one of a pair.

    Attributes
    ----------
    pairs
        Number of pairs of settings.
    mean_pct, worst_pct
        Geometric mean and largest error.
    """

    pairs: int
    mean_pct: float
    worst_pct: float


Ratios = Mapping[str, RatioError]
"""Errors by what two settings differ in, one of `NAMES` or `ALL`."""

# Leave-one-model-out on one to four H200, from `constants.PRIOR`: `python -m benchmarks.ratio_errors`.
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


def expected(one: Experiment, other: Experiment, by_cpu: Sequence[bool], known: Ratios) -> tuple[str, RatioError]:
    """Return the pairs on which the error of a predicted ratio was measured, in words, and that error.

    Parameters
    ----------
    one, other
        Two settings of one task.
    by_cpu
        Whether the CPU limits the step of each.
    """
    codes = _codes([one, other])
    limits = np.array(by_cpu)
    offloads = np.array(["none" not in {one.offload} & {other.offload}])
    kind = int(_kinds(codes[:1] != codes[1:], limits[:1], limits[1:], offloads)[0])
    name = NAMES[kind] if kind >= 0 else ALL
    name = name if name in known and known[name].pairs >= FEWEST else ALL
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
    logs = np.log1p(np.asarray(errors, dtype=float) / 100)
    limits = accuracy.limited_by_cpu(stack([run.setting for run in runs]), constants)
    experiments = [run.experiment for run in runs]
    offloads = np.array([one.offload != "none" for one in experiments])
    codes = _codes(experiments)
    found: dict[int, list[NDArray[np.float64]]] = {}
    for places in _groups(runs, hosts):
        for number, place in enumerate(places[:-1]):
            rest = places[number + 1 :]
            kinds = _kinds(codes[rest] != codes[place], limits[[place]], limits[rest], offloads[rest] | offloads[place])
            off = np.abs(logs[rest] - logs[place])
            for kind in set(kinds.tolist()) - {-1}:
                found.setdefault(kind, []).append(off[kinds == kind])
    joined = {NAMES[kind]: np.concatenate(found[kind]) for kind in sorted(found)}
    every = {**joined, ALL: np.concatenate(list(joined.values()))} if joined else {}
    return {name: _error_of(off) for name, off in every.items()}


def _error_of(off: NDArray[np.float64]) -> RatioError:
    """Return the geometric mean and the largest of some absolute logarithms of ratios, in per cent."""
    mean, worst = (100 * float(np.expm1(one)) for one in (off.mean(), off.max()))
    return RatioError(len(off), round(mean, 1), round(worst, 1))


def _groups(runs: Sequence[Measured], hosts: Sequence[int]) -> Iterator[NDArray[np.int64]]:
    """Yield the places of the runs of each task that were measured on one host and one kind of GPU."""
    table = settings_of([run.experiment for run in runs])
    table = table.assign(host=list(hosts), gpu_name=[run.gpu_name for run in runs])
    for task in tasks(table):
        for _, own in task.runs.groupby(["host", "gpu_name"], sort=False):
            yield own.index.to_numpy()


def _codes(experiments: Sequence[Experiment]) -> NDArray[np.int64]:
    """Return numbers that are equal where settings are: (experiments, parts and other settings)."""
    columns = [*PARTS.values(), *((name,) for name in OTHERS)]
    known: list[dict[str, int]] = [{} for _ in columns]
    return np.array(
        [
            [
                codes.setdefault(repr([getattr(one, name) for name in names]), len(codes))
                for names, codes in zip(columns, known, strict=True)
            ]
            for one in experiments
        ]
    ).reshape(-1, len(columns))


def _kinds(
    differs: NDArray[np.bool_], limits: NDArray[np.bool_], others: NDArray[np.bool_], offloaded: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the number in `NAMES` of each pair, -1 for equal settings.

    Parameters
    ----------
    differs
        In which parts and other settings the two of each pair differ: (pairs, parts and other settings).
    limits, others
        Whether the CPU limits the first and the second of each pair.
    offloaded
        Whether one of them offloads its optimizer.
    """
    count = differs.sum(axis=1)
    kinds = np.minimum(differs.argmax(axis=1), len(PARTS))
    kinds[count > 1] = _SEVERAL
    kinds[limits ^ others] = _ONE_BY_CPU
    kinds[limits & others] = _BOTH_BY_CPU
    kinds[offloaded] = _OFFLOADED
    kinds[count == 0] = -1
    return kinds
