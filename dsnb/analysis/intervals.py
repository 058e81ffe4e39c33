"""Intervals of the difference between settings, from independent runs, and the verdict on each.

The values are logarithms, whose difference is a ratio, so that noise that grows with the figure has the same size
everywhere; those of percentages are the percentages themselves. Every interval is Welch's: each setting has its own
variance, so one noisy setting does not affect the others. `all_pairs` makes the intervals of a task hold together,
whichever pair is looked at. Measured error rates are in docs/explanation/statistics.md.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from dsnb.analysis import studentized_range

Array = npt.NDArray[np.float64]
FEWEST_RUNS = 4
"""Below four runs of each of two settings, no exact rank test reaches 5 %: the smallest p value of 3 and 3 is 10 %."""
RELEVANCE = 0.02
"""Smallest change that matters unless another one is asked for."""
CONFIDENCE = 0.95
"""Probability that all intervals of speed and memory hold together unless another one is asked for."""
FIGURES = 2
"""Figures that share the error rate: speed and memory, which decide. Any other one has the same interval as these."""


class Verdict(StrEnum):
    """What the runs say about the difference between two settings."""

    LIKELY = "likely"
    NO_LARGER = "no larger difference"
    UNCLEAR = "unclear"
    TOO_FEW = "too few runs"


@dataclass(frozen=True)
class Moments:
    """Mean, variance (divisor n - 1) and number of the values of settings: arrays of one shape, or that broadcast.

    The variance of a single value is NaN.
    """

    mean: Array
    variance: Array
    count: Array


@dataclass(frozen=True)
class Intervals:
    """Differences with bounds that hold together; NaN where a variance is unknown."""

    estimate: Array
    low: Array
    high: Array
    level: Array | None = None
    """The mean of the base, where values are not logarithms."""

    @property
    def excludes_zero(self) -> npt.NDArray[np.bool_]:
        """Whether equality is excluded."""
        return (self.low > 0) | (self.high < 0)

    @property
    def changes(self) -> tuple[Array, Array, Array]:
        """Estimate and bounds relative to the base: 0.02 is 2 %; NaN where the base is 0."""
        if self.level is None:
            return np.expm1(self.estimate), np.expm1(self.low), np.expm1(self.high)
        level = np.where(self.level == 0, math.nan, self.level)
        return self.estimate / level, self.low / level, self.high / level

    @property
    def largest(self) -> Array:
        """The largest change, up or down, that is in each interval: 0.02 is 2 %."""
        _, low, high = self.changes
        return np.asarray(np.maximum(np.abs(low), np.abs(high)))


@dataclass(frozen=True)
class Welch:
    """Difference of means with its standard error and degrees of freedom (0 where the error is unknown)."""

    estimate: Array
    error: Array
    degrees: npt.NDArray[np.int64]


def welch(base: Moments, other: Moments) -> Welch:
    """Return the differences of the means of other settings to that of a base.

    Welch, B. L. (1947), The generalization of 'Student's' problem when several different population variances are
    involved, Biometrika 34, with the degrees of freedom of Satterthwaite (1946), rounded down: at four to six runs the
    unrounded ones let too many equal settings be called different.
    """
    shares = [one.variance / one.count for one in (base, other)]
    squared = shares[0] + shares[1]
    with np.errstate(invalid="ignore", divide="ignore"):
        parts = [share**2 / (one.count - 1) for share, one in zip(shares, (base, other), strict=True)]
        degrees = np.where(squared > 0, squared**2 / (parts[0] + parts[1]), base.count + other.count - 2)
    known = np.isfinite(squared) & np.isfinite(degrees)
    whole = np.where(known, np.floor(np.where(known, degrees, 0) + 1e-9), 0).astype(np.int64)
    return Welch(other.mean - base.mean, np.sqrt(squared), whole)


def of_one_figure(confidence: float) -> float:
    """Return the confidence of one of the `FIGURES`, such that all of theirs hold together (Bonferroni)."""
    return 1 - (1 - confidence) / FIGURES


def all_pairs(base: Moments, other: Moments, groups: int, confidence: float) -> Intervals:
    """Compare settings such that all pairs of a task hold together, whichever of them are looked at.

    Games, P. A. and Howell, J. F. (1976), Pairwise multiple comparison procedures with unequal n's and/or variances,
    Journal of Educational Statistics 1: the studentized range, which is how far apart the best and the worst of equal
    settings come by chance. So the interval of a pair is the same in each view, and allows for a base that was chosen
    by the same runs, such as the fastest.

    Parameters
    ----------
    base, other
        Moments; `base` broadcasts against `other`.
    groups
        Number of settings with repeats, which pairs can be formed of.
    confidence
        Probability that all intervals hold, such as 0.95.
    """
    return _intervals(welch(base, other), max(groups, 2), 1 - confidence)


def all_pairs_p(base: Moments, other: Moments, groups: int) -> Array:
    """Return the p values that belong to `all_pairs`, adjusted for all of them."""
    return _p_values(welch(base, other), max(groups, 2))


def _intervals(found: Welch, groups: int, probability: float) -> Intervals:
    """Return intervals of which `probability` is outside; two groups make the studentized range Student's t."""
    factors = {
        int(one): studentized_range.quantile(probability, groups, int(one)) for one in np.unique(found.degrees) if one
    }
    critical = np.array([factors.get(one, math.nan) for one in range(max(factors, default=0) + 1)])
    margin = critical[found.degrees] * found.error / math.sqrt(2)
    return Intervals(found.estimate, found.estimate - margin, found.estimate + margin)


def _p_values(found: Welch, groups: int) -> Array:
    with np.errstate(invalid="ignore", divide="ignore"):
        ranges = np.where(found.estimate == 0, 0.0, math.sqrt(2) * np.abs(found.estimate) / found.error)
    pairs = zip(ranges.flat, found.degrees.flat, strict=True)
    p = [studentized_range.exceedance(value, groups, int(df)) if df else math.nan for value, df in pairs]
    return np.reshape(np.array(p, dtype=float), ranges.shape)


def verdicts(
    intervals: Intervals, fewest: Array, relevance: float, fewest_runs: int = FEWEST_RUNS
) -> npt.NDArray[np.str_]:
    """Return the verdict on each difference, from its interval alone.

    Parameters
    ----------
    intervals
        As `all_pairs` returns them.
    fewest
        The smaller number of runs of the two settings.
    relevance
        Smallest change that matters: 0.02 is 2 %.
    fewest_runs
        Runs of either below which no verdict is given.

    Returns
    -------
    numpy.ndarray of str
        `too few runs`: fewer than `fewest_runs` of either. `no larger difference`: the whole interval is within the
        relevance. `likely`: the interval excludes zero and the estimate is relevant. `unclear`: the rest.
    """
    relevant = np.abs(intervals.changes[0]) >= relevance
    choices = [fewest < fewest_runs, intervals.largest <= relevance, intervals.excludes_zero & relevant]
    return np.select(choices, [Verdict.TOO_FEW, Verdict.NO_LARGER, Verdict.LIKELY], Verdict.UNCLEAR)
