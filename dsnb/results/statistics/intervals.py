"""Intervals of the difference between settings, from independent runs, and verdicts.

Values are logarithms, so that noise proportional to the figure has the same size everywhere and differences are ratios;
percentages are compared as they are. Intervals are Welch's: each setting has its own variance, so one noisy setting
does not affect the others. A setting counts as at least as noisy as the median setting of its task: few runs of skewed
noise often look quiet and fast because none of them was slow. `all_pairs` controls the error rate over all pairs of a
task. Measured error rates are in docs/explanation/statistics.md.

Runs that failed, or did not measure the figure, are counted and have no value. Effects of a host cancel in a difference
if both settings used the same hosts equally; otherwise the runs of a setting on one host count as one, with their mean.
"""

import functools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pandas as pd

from dsnb.results.runs.table import numbers

Array = npt.NDArray[np.float64]
MIN_RUNS = 4
"""Below four runs of each of two settings, no exact rank test reaches 5 %: the smallest p value of 3 and 3 is 10 %."""
RELEVANCE = 0.02
"""Default of the smallest change that matters."""
CLEAR = 1.9
"""Ratio, about a factor of two, from which a difference is clear even between single runs."""
CONFIDENCE = 0.95
"""Default probability that all intervals of speed and memory hold together."""
FIGURES = 2
"""Figures that share the error rate: speed and memory, which decide. Others have the same intervals."""
STEP, MAX_RANGE = 0.02, 16.0
"""Grid of the studentized range. Two normal values are 16 apart with a probability of 1e-29."""


class Verdict(StrEnum):
    """Verdict on the difference between two settings."""

    LIKELY = "likely"
    NO_LARGER = "no larger difference"
    UNCLEAR = "unclear"
    TOO_FEW = "too few runs"


@dataclass(frozen=True)
class Setting:
    """The runs of one setting."""

    values: Array
    """Natural logarithms of positive figures, one per run; percentages as they are."""
    hosts: tuple[str | None, ...]
    """Host or hosts of each of these runs; None if unknown."""
    median: float
    failed: int
    """Runs whose status is not ok."""
    unusable: int
    """Ok runs without a figure, or with one that has no logarithm."""

    @functools.cached_property
    def by_host(self) -> Array:
        """Return one value per host: the mean of the values of its runs."""
        return (
            pd.Series(self.values)
            .groupby(np.array(self.hosts, object), sort=False)
            .mean()
            .to_numpy()
        )


def settings_of(
    runs: pd.DataFrame, by: str | list[str], figure: str, is_percentage: bool = False
) -> dict[object, Setting]:
    """Return the settings of runs by name, in order of appearance."""
    ok = (runs["status"] == "ok").to_numpy()
    values = numbers(runs, figure).to_numpy()
    values = np.where(ok & np.isfinite(values), values, math.nan)
    usable = ~np.isnan(values) if is_percentage else values > 0
    compared = values if is_percentage else np.log(np.where(usable, values, 1))
    host_names = np.array(hosts(runs), dtype=object)
    groups = runs.assign(**{figure: values}).groupby(
        by, sort=False, dropna=False
    )  # in order of appearance
    places = sorted(groups.indices.items(), key=lambda group: int(group[1][0]))
    return {
        name: Setting(
            values=compared[rows][usable[rows]],
            hosts=tuple(host_names[rows][usable[rows]]),
            median=float(median),
            failed=int((~ok[rows]).sum()),
            unusable=int((ok[rows] & ~usable[rows]).sum()),
        )
        for (name, rows), median in zip(places, groups[figure].median(), strict=True)
    }


def hosts(runs: pd.DataFrame) -> list[str | None]:
    """Return the hosts of each run, from its hostfile or the single machine; None if unknown."""
    columns = runs.reindex(columns=["hosts", "host"]).astype(object)
    return [
        next((name for name in row if isinstance(name, str)), None)
        for row in columns.itertuples(index=False)
    ]


@dataclass(frozen=True)
class Repeated:
    """The settings of a task that have several runs: only their pairs have intervals."""

    count: int = 0
    variance: float = 0.0
    """The median of their variances, which no setting falls below in a comparison."""


def repeated(settings: Iterable[Setting]) -> Repeated:
    """Return what the settings with several runs have in common."""
    variances = [
        float(setting.values.var(ddof=1)) for setting in settings if len(setting.values) > 1
    ]
    return Repeated(len(variances), float(np.median(variances)) if variances else 0.0)


def is_confounded(first: Setting, second: Setting) -> bool:
    """Return whether host effects add more variance to the difference of two settings than their spreads account for.

    With p and q as the shares of the runs of each setting by host, effects of hosts of variance v add v sum (p - q)^2
    to the variance of the difference, while the two sample variances account for v (1 - sum p^2) / (n - 1) and the same
    for the other (variance components of the one-way layout: Searle, Casella and McCulloch 1992, Variance Components).
    """
    pair = (first, second)
    if any(not setting.hosts or None in setting.hosts for setting in pair):
        return False
    p, q = ({host: count / len(s.hosts) for host, count in Counter(s.hosts).items()} for s in pair)
    adds = sum((p.get(host, 0) - q.get(host, 0)) ** 2 for host in {*p, *q})
    shown = sum(
        (1 - sum(share**2 for share in shares.values())) / max(1, len(setting.hosts) - 1)
        for shares, setting in zip((p, q), pair, strict=True)
    )
    return adds > shown + 1e-9


@dataclass(frozen=True)
class Moments:
    """Mean, variance (divisor n - 1; NaN for one value) and number of values of settings: arrays that broadcast."""

    mean: Array
    variance: Array
    count: Array


def moments(values: Sequence[Array]) -> Moments:
    """Return the moments of each setting's values; NaN with too few values."""
    means = [float(of_setting.mean()) if len(of_setting) else np.nan for of_setting in values]
    variances = [
        float(of_setting.var(ddof=1)) if len(of_setting) > 1 else np.nan for of_setting in values
    ]
    return Moments(
        np.array(means),
        np.array(variances),
        np.array([float(len(of_setting)) for of_setting in values]),
    )


def welch(
    base: Moments, other: Moments, least_variance: Array | float = 0.0
) -> tuple[Array, Array, npt.NDArray[np.int64]]:
    """Return differences of means from a base, their standard errors, and degrees of freedom (0 for unknown errors).

    Variances below `least_variance` are raised to it in the errors, not in the degrees of freedom.

    Welch, B. L. (1947), The generalization of 'Student's' problem when several different population variances are
    involved, Biometrika 34, with Satterthwaite's (1946) degrees of freedom, rounded down: unrounded, they call too many
    equal settings different at four to six runs.
    """
    shares = [side.variance / side.count for side in (base, other)]
    squared = shares[0] + shares[1]
    with np.errstate(invalid="ignore", divide="ignore"):
        parts = [
            share**2 / (side.count - 1) for share, side in zip(shares, (base, other), strict=True)
        ]
        degrees = np.where(
            squared > 0, squared**2 / (parts[0] + parts[1]), base.count + other.count - 2
        )
    is_known = np.isfinite(squared) & np.isfinite(degrees)
    whole_degrees = np.floor(np.where(is_known, degrees, 0) + 1e-9).astype(np.int64)
    raised = sum(np.maximum(side.variance, least_variance) / side.count for side in (base, other))
    return other.mean - base.mean, np.sqrt(raised), whole_degrees


@dataclass(frozen=True)
class Intervals:
    """Differences with bounds that hold together; NaN where a variance is unknown."""

    estimate: Array
    low: Array
    high: Array
    level: Array | None = None
    """The mean of the base, where values are not logarithms."""

    @property
    def changes(self) -> tuple[Array, Array, Array]:
        """Estimate and bounds relative to the base: 0.02 is 2 %; NaN where the base is 0."""
        if self.level is None:
            return np.expm1(self.estimate), np.expm1(self.low), np.expm1(self.high)
        level = np.where(self.level == 0, math.nan, self.level)
        return self.estimate / level, self.low / level, self.high / level


def all_pairs(
    base: Moments,
    other: Moments,
    groups: int,
    confidence: float,
    least_variance: Array | float = 0.0,
) -> Intervals:
    """Return simultaneous intervals of all pairs of a task.

    Games, P. A. and Howell, J. F. (1976), Pairwise multiple comparison procedures with unequal n's and/or variances,
    Journal of Educational Statistics 1, by the studentized range: how far apart the best and the worst of equal
    settings are by chance. So a pair has the same interval in each view, which allows for a base that was chosen by the
    same runs, such as the fastest. `base` broadcasts against `other`; `groups` is the number of settings with repeats,
    `least_variance` the smallest variance that counts (`Repeated`).
    """
    estimate, error, degrees = welch(base, other, least_variance)
    critical = [
        quantile(1 - confidence, max(groups, 2), df) if df else math.nan for df in degrees.flat
    ]
    margin = np.reshape(np.array(critical, float), degrees.shape) * error / math.sqrt(2)
    return Intervals(estimate, estimate - margin, estimate + margin)


def all_pairs_p(
    base: Moments, other: Moments, groups: int, least_variance: Array | float = 0.0
) -> Array:
    """Return the p values that belong to `all_pairs`, adjusted for all of them."""
    estimate, error, degrees = welch(base, other, least_variance)
    with np.errstate(invalid="ignore", divide="ignore"):
        ranges = np.where(estimate == 0, 0.0, math.sqrt(2) * np.abs(estimate) / error)
    pairs = zip(ranges.flat, degrees.flat, strict=True)
    p = [exceedance(value, max(groups, 2), int(df)) if df else math.nan for value, df in pairs]
    return np.reshape(np.array(p, dtype=float), ranges.shape)


def verdicts(
    intervals: Intervals, runs: Array, relevance: float, fewest_runs: int = MIN_RUNS
) -> npt.NDArray[np.str_]:
    """Return the verdict on each difference; `runs` is the smaller number of runs of the two settings.

    `too few runs`: below `fewest_runs`. `no larger difference`: the whole interval is within the relevance. `likely`:
    the interval excludes zero and the estimate is relevant. `unclear`: the rest.
    """
    change, low, high = intervals.changes
    is_within = np.maximum(np.abs(low), np.abs(high)) <= relevance
    is_different = ((intervals.low > 0) | (intervals.high < 0)) & (np.abs(change) >= relevance)
    choices = [runs < fewest_runs, is_within, is_different]
    return np.select(choices, [Verdict.TOO_FEW, Verdict.NO_LARGER, Verdict.LIKELY], Verdict.UNCLEAR)


# The studentized range distribution; the range of two groups is sqrt(2) |t| (Student). SciPy's function agrees to six
# digits, but takes 0.1 to 0.2 s for a quantile instead of 0.01, and 143 MB: too slow for a page with many settings.


@functools.lru_cache(maxsize=64)
def _exceedance_at_known_spread(groups: int) -> Array:
    """Return P(range of `groups` standard normal values > w) for w = 0, STEP, ..., MAX_RANGE."""
    half = round(MAX_RANGE / 2 / STEP)
    z = np.arange(-half, half + 1) * STEP
    # The distribution function on the grid, extended to the left by the widest range.
    grid = np.concatenate([z[0] - MAX_RANGE + np.arange(2 * half) * STEP, z])
    below = np.array([math.erfc(-value / math.sqrt(2)) / 2 for value in grid])
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    at, widths = np.arange(2 * half, 4 * half + 1), np.arange(2 * half + 1)
    within = (below[at] - below[at - widths[:, None]]) ** (groups - 1)
    return np.asarray(np.clip(1 - groups * STEP * (within @ density), 0, 1))


def exceedance(value: float, groups: int, degrees: int) -> float:
    """Return the probability that the studentized range of equal groups exceeds a value: the adjusted p value.

    Tukey, J. W. (1953), The Problem of Multiple Comparisons: P(Q > q) = integral of P(W > q s) f(s) ds, where W is the
    range of `groups` standard normal values and s the square root of a chi-square over its `degrees` of freedom.
    """
    if not 0 < value < math.inf:
        return 1.0 if value <= 0 else 0.0 if value == math.inf else math.nan
    exceeds = _exceedance_at_known_spread(groups)
    spread = np.arange(len(exceeds)) * STEP / value
    with np.errstate(divide="ignore"):
        log_density = (degrees - 1) * np.log(spread) if degrees > 1 else np.zeros(len(spread))
    scale = math.log(2) + degrees / 2 * math.log(degrees / 2) - math.lgamma(degrees / 2)
    terms = exceeds * np.exp(scale + log_density - degrees * spread**2 / 2) * STEP / value
    return float(min(1.0, terms.sum() - terms[0] / 2))


@functools.lru_cache(maxsize=4096)
def quantile(probability: float, groups: int, degrees: int) -> float:
    """Return the value that the studentized range exceeds with a probability; see `exceedance`."""
    low, high = 0.0, 1.0
    while exceedance(high, groups, degrees) > probability:
        low, high = high, 2 * high
    while high - low > 1e-7 * high:
        middle = (low + high) / 2
        low, high = (
            (middle, high) if exceedance(middle, groups, degrees) > probability else (low, middle)
        )
    return high
