"""Intervals of the difference between settings, from logarithms of independent runs, and the verdict on each.

On the log scale a difference is a ratio, and noise that grows with the figure has the same size everywhere. Every
interval is Welch's: each setting has its own variance, so one noisy setting does not affect the others. What makes the
intervals of a page hold together depends on the base that the settings are compared with: see `chosen_base` and
`given_base`. Measured error rates are in docs/explanation/statistics.md.
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
"""Probability that all intervals of a page hold unless another one is asked for."""


class Verdict(StrEnum):
    """What the runs say about the difference between two settings."""

    LIKELY = "likely"
    NO_LARGER = "no larger difference"
    UNCLEAR = "unclear"
    TOO_FEW = "too few runs"


@dataclass(frozen=True)
class Moments:
    """Mean, variance (divisor n - 1) and number of the log values of settings: arrays of one shape, or that broadcast.

    The variance of a single value is NaN.
    """

    mean: Array
    variance: Array
    count: Array


@dataclass(frozen=True)
class Intervals:
    """Differences on the log scale with bounds that hold together; NaN where a variance is unknown."""

    estimate: Array
    low: Array
    high: Array

    @property
    def excludes_zero(self) -> npt.NDArray[np.bool_]:
        """Whether equality is excluded. A bound of exactly 0 is one that Holm's test moved there."""
        return (self.low >= 0) | (self.high <= 0)

    @property
    def largest(self) -> Array:
        """The largest change, up or down, that is in each interval: 0.02 is 2 %."""
        return np.asarray(np.maximum(np.abs(np.expm1(self.low)), np.abs(np.expm1(self.high))))


@dataclass(frozen=True)
class Welch:
    """Difference of log means with its standard error and degrees of freedom (0 where the error is unknown)."""

    estimate: Array
    error: Array
    degrees: npt.NDArray[np.int64]


def welch(base: Moments, other: Moments) -> Welch:
    """Return the differences of other settings to a base.

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


def chosen_base(base: Moments, other: Moments, groups: int, confidence: float) -> Intervals:
    """Compare settings with one that was chosen by the same runs, such as the fastest.

    Games, P. A. and Howell, J. F. (1976), Pairwise multiple comparison procedures with unequal n's and/or variances,
    Journal of Educational Statistics 1: the studentized range, which is how far apart the best and the worst of equal
    settings come by chance, so the intervals hold for any pair of the page, whichever pair the runs single out.

    Parameters
    ----------
    base, other
        Log moments; `base` broadcasts against `other`.
    groups
        Number of settings that the base was chosen from.
    confidence
        Probability that all intervals of the page hold, such as 0.95.
    """
    return _intervals(welch(base, other), max(groups, 2), 1 - confidence)


def chosen_base_p(base: Moments, other: Moments, groups: int) -> Array:
    """Return the p values that belong to `chosen_base`, adjusted for all pairs of the page."""
    return _p_values(welch(base, other), max(groups, 2))


def given_base(base: Moments, other: Moments, confidence: float) -> Intervals:
    """Compare settings with a base that was named before the runs, or each with a partner of its own.

    Holm, S. (1979), A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6, on
    Welch's p values. Bounds are Bonferroni's, which hold together; a bound on the other side of zero is moved to zero
    where Holm's test, which is stricter with fewer comparisons than Bonferroni's, excludes equality.

    Parameters
    ----------
    base, other
        Log moments of one shape `(settings,)`.
    confidence
        As for `chosen_base`.
    """
    found = welch(base, other)
    compared = max(1, int((found.degrees > 0).sum()))
    bounds = _intervals(found, 2, (1 - confidence) / compared)
    differs = given_base_p(base, other) <= 1 - confidence
    low = np.where(differs & (found.estimate > 0), np.maximum(bounds.low, 0), bounds.low)
    high = np.where(differs & (found.estimate < 0), np.minimum(bounds.high, 0), bounds.high)
    return Intervals(found.estimate, low, high)


def given_base_p(base: Moments, other: Moments) -> Array:
    """Return the p values that belong to `given_base`: Welch's, adjusted by Holm (1979)."""
    return holm(_p_values(welch(base, other), 2))


def holm(p: Array) -> Array:
    """Return p values adjusted by Holm (1979); missing ones stay missing and do not count."""
    adjusted = np.full(p.shape, math.nan)
    order = [int(place) for place in np.argsort(p, kind="stable") if not math.isnan(p[place])]
    least = 0.0
    for rank, place in enumerate(order):
        least = max(least, min(1.0, (len(order) - rank) * float(p[place])))
        adjusted[place] = least
    return adjusted


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
        Differences on the log scale.
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
    relevant = np.abs(np.expm1(intervals.estimate)) >= relevance
    choices = [fewest < fewest_runs, intervals.largest <= relevance, intervals.excludes_zero & relevant]
    return np.select(choices, [Verdict.TOO_FEW, Verdict.NO_LARGER, Verdict.LIKELY], Verdict.UNCLEAR)
