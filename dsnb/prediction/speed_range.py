"""The range of a predicted speed, which covers 80 % of such predictions: of dsnb's own runs, and of other programs.

`python -m benchmarks.ranges` computes the ranges from `measured_runs.csv`. Where dsnb was measured,
the range is that of its own runs; elsewhere that of published runs of other programs on the same
GPU, or on all others, which is wider. No range exceeds the best share of its rates (MFU) that was
ever measured on the GPU.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dsnb.prediction import accuracy, tuned
from dsnb.prediction.accuracy import ExpectedError, PredictionError
from dsnb.prediction.shapes import shape
from dsnb.results.runs.labels import count
from dsnb.settings.experiment import Experiment

RANGE = tuned.numbers("range")
COVERED = RANGE.covered
"""Share of predictions whose measured speed is within their range."""
OTHER_GPUS = "other GPUs"
OF_OTHERS = "other programs"
SEVERAL_NODES = "several nodes"
ONE_NODE = "one node"
STUDENT = (3.078, 1.886, 1.638, 1.533, 1.476, 1.440, 1.415, 1.397)
"""Student's t that is exceeded by 10 % on either side, for 1 to 8 degrees of freedom."""
OWN = {
    name: PredictionError(row[0], row[1], row[1])
    for name, row in tuned.rows(tuned.TUNED["ranges"]["own"]).items()
}
"""Settings and size of the range in per cent, by kind of setting."""
OTHERS = tuned.rows(tuned.TUNED["ranges"]["others"])
BEST_MFU = tuned.rows(tuned.TUNED["ranges"]["best_mfu"])


class SpeedRange(NamedTuple):
    """The range of a speed in times of the predicted one, and what it was measured on."""

    low: float
    high: float
    on: str

    @property
    def error_pct(self) -> float:
        """The larger side of the range in per cent, as a factor."""
        return round(100 * (max(self.high, 1 / self.low) - 1), 1)

    def at_most(self, share: float) -> "SpeedRange":
        """Return the range below a share of the predicted speed; below 1, the range is that of this share."""
        return self._replace(low=self.low * min(1.0, share), high=min(self.high, share))

    @property
    def words(self) -> str:
        """The range in words, as in "20 % slower to 5 % faster", or "6 to 16 % slower"."""
        slower_pct, faster_pct = 100 * (1 - self.low), 100 * (self.high - 1)
        if faster_pct < 0:
            return f"{-faster_pct:.0f} to {slower_pct:.0f} % slower"
        return f"{slower_pct:.0f} % slower to {faster_pct:.0f} % faster"


class SpeedRanges(NamedTuple):
    """The range of a speed that is printed, and those on either basis; None where it was not measured."""

    printed: SpeedRange
    own: SpeedRange | None = None
    others: SpeedRange | None = None

    def at_most(self, share: float) -> "SpeedRanges":
        """Return the ranges below a share of the predicted speed."""
        own = self.own and self.own.at_most(share)
        others = self.others and self.others.at_most(share)
        return SpeedRanges(self.printed.at_most(share), own, others)


def half_width_pct(logs: Sequence[float]) -> float:
    """Return the factor, in per cent, that covers `COVERED` of the settings to come, by the errors of some.

    With few settings it is wider: by Student's t for their spread, otherwise by the order of their
    errors (split conformal prediction).
    """
    sizes = np.sort(np.abs(np.asarray(logs, dtype=float)))
    number = len(sizes)
    if number <= len(STUDENT):
        size = STUDENT[number - 1] * math.sqrt(float(np.mean(sizes**2)))
    else:
        size = float(sizes[math.ceil(COVERED * (number + 1)) - 1])
    return round(100 * math.expm1(size), 1)


def of_errors(errors_pct: Sequence[float]) -> PredictionError:
    """Return the number of some settings, and the size of the range that their errors make."""
    logs = np.log1p(np.asarray(errors_pct, dtype=float) / 100)
    worst_pct = 100 * math.expm1(float(np.abs(logs).max()))
    return PredictionError(len(logs), half_width_pct(logs.tolist()), round(worst_pct, 1))


def own_kinds(experiment: Experiment, gpu: str, by_cpu: bool, nodes: int) -> list[str]:
    """Return the kinds of a setting by which dsnb's own runs tell its range, the narrowest first.

    Runs on several nodes were not measured, and families of models that the fit lacks have ranges
    of their own.
    """
    if experiment.offload != "none":  # the host decides, not the GPU
        return [accuracy.kind(experiment)]
    if nodes > 1:
        return []
    names = accuracy.kinds(experiment, by_cpu)
    family = shape(experiment.model).family
    if not accuracy.is_fitted(family):
        names = [*accuracy.kinds_of_family(family, by_cpu), *names[-2:]]
    return [f"{gpu}: {name}" for name in names]


def own(experiment: Experiment, gpu: str, by_cpu: bool, nodes: int) -> SpeedRange | None:
    """Return the range of dsnb's own runs of such a setting; None where there are too few."""
    names = own_kinds(experiment, gpu, by_cpu, nodes)
    found = [name for name in names if name in OWN]
    if not found:
        return None
    return of_error(ExpectedError(found[0], OWN[found[0]]))


def of_error(expected: ExpectedError) -> SpeedRange:
    """Return the range of an expected error, the same factor on both sides."""
    factor = 1 + expected.error.mean_pct / 100
    settings = count(expected.error.settings, "setting")
    return SpeedRange(1 / factor, factor, f"{settings}, {expected.kind}")


def others(gpu: str, nodes: int) -> SpeedRange:
    """Return the range of other programs on a GPU, or on other GPUs."""
    place = place_of(nodes)
    name = f"{gpu}, {place}"
    if name not in OTHERS:
        name = f"{OTHER_GPUS}, {place}"
    rows, _, low_pct, high_pct = OTHERS[name]
    on = f"{count(rows, 'setting')} of {OF_OTHERS}, {name}"
    return SpeedRange(1 + low_pct / 100, 1 + high_pct / 100, on)


def of_setting(experiment: Experiment, gpu: str, by_cpu: bool, nodes: int) -> SpeedRanges:
    """Return the ranges of a setting.

    That of dsnb's own runs is printed where there are such runs. Where many projects measured the
    GPU as well, it spans theirs: a reader may run either. Of offload, dsnb's own runs alone tell.
    """
    found = own(experiment, gpu, by_cpu, nodes)
    measured = OTHERS.get(f"{gpu}, {place_of(nodes)}")
    if found is None:
        of_others = others(gpu, nodes)
        return SpeedRanges(of_others, others=of_others)
    if measured is None or experiment.offload != "none":
        return SpeedRanges(found, found)
    of_others = others(gpu, nodes)
    printed = found
    if measured[1] >= RANGE.many_sources:
        low, high = min(found.low, of_others.low), max(found.high, of_others.high)
        printed = SpeedRange(low, high, f"{found.on}, and {of_others.on}")
    return SpeedRanges(printed, found, of_others)


def place_of(nodes: int) -> str:
    """Return the place of a training by its number of nodes."""
    return SEVERAL_NODES if nodes > 1 else ONE_NODE


def arithmetic(experiment: Experiment) -> str:
    """Return which peak rate a setting's MFU is a share of."""
    if experiment.matmul == "fp8":
        return "fp8"
    if experiment.precision in {"fp32", "tf32"}:
        return experiment.precision
    return "half"


def best_mfu(gpu: str, experiment: Experiment) -> float:
    """Return the best MFU ever measured on a GPU, or on any if it was not; infinite if no such arithmetic was."""
    form = arithmetic(experiment)
    for name in (gpu, OTHER_GPUS):
        row: Any = BEST_MFU.get(f"{name}, {form}")
        if row:
            return float(row[1])
    return math.inf
