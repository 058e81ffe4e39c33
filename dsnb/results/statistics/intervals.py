"""Intervals of the difference between settings, from independent runs, and verdicts.

Values are logarithms, so that noise proportional to the figure has the same size everywhere and
differences are ratios; percentages are compared as they are. Intervals are Welch's: each setting
has its own variance, so one noisy setting does not affect the others. A setting counts as at least
as noisy as the median setting of its task: few runs of skewed noise often look quiet and fast
because none of them was slow. `all_pairs` controls the error rate over all pairs of a task.
Measured error rates are in docs/explanation/statistics.md.

Runs that failed, or did not measure the figure, are counted and have no value. Effects of a host
cancel in a difference if both settings used the same hosts equally; otherwise the runs of a setting
on one host count as one, with their mean.
"""

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pandas as pd

from dsnb.results.runs.table import numbers

Array = npt.NDArray[np.float64]
MIN_RUNS = 4
"""Below four runs of each of two settings, no exact rank test reaches 5 %: the smallest p value of
3 and 3 is 10 %."""
RELEVANCE = 0.02
"""Default of the smallest change that matters."""
CLEAR = 1.9
"""Ratio, about a factor of two, from which a difference is clear even between single runs."""
CONFIDENCE = 0.95
"""Default probability that all intervals of speed and memory hold together."""
FIGURES = 2
"""Figures that share the error rate: speed and memory, which decide. Others have the same
intervals."""
STEP = 0.02
"""Distance of the points at which the studentized range is computed."""
MAX_RANGE = 16.0
"""Largest of them. Two normal values are 16 apart with a probability of 1e-29."""


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
        hosts = np.array(self.hosts, object)
        return pd.Series(self.values).groupby(hosts, sort=False).mean().to_numpy()


def settings_of(
    runs: pd.DataFrame, by: str | list[str], figure: str, is_percentage: bool = False
) -> dict[object, Setting]:
    """Return the settings of runs by name, in order of appearance."""
    ok = (runs["status"] == "ok").to_numpy()
    values = numbers(runs, figure).to_numpy()
    values = np.where(ok & np.isfinite(values), values, math.nan)
    if is_percentage:
        usable = ~np.isnan(values)
        compared = values
    else:
        usable = values > 0
        compared = np.log(np.where(usable, values, 1))
    host_names = np.array(hosts(runs), dtype=object)
    groups = runs.assign(**{figure: values}).groupby(by, sort=False, dropna=False)
    medians = groups[figure].median()  # in order of appearance
    settings: dict[object, Setting] = {}
    by_appearance = sorted(groups.indices.items(), key=lambda group: int(group[1][0]))
    for name, rows in by_appearance:
        used = rows[usable[rows]]
        settings[name] = Setting(
            values=compared[used],
            hosts=tuple(host_names[used]),
            median=float(medians.iloc[len(settings)]),
            failed=int((~ok[rows]).sum()),
            unusable=int(ok[rows].sum()) - len(used),
        )
    return settings


def hosts(runs: pd.DataFrame) -> list[str | None]:
    """Return the hosts of each run, from its hostfile or the single machine; None if unknown."""
    names = []
    for hosts, host in runs.reindex(columns=["hosts", "host"]).astype(object).to_numpy():
        known = host
        if isinstance(hosts, str):
            known = hosts
        names.append(known if isinstance(known, str) else None)
    return names


@dataclass(frozen=True)
class Repeated:
    """The settings of a task that have several runs: only their pairs have intervals."""

    count: int = 0
    variance: float = 0.0
    """The median of their variances, which no setting falls below in a comparison."""


def repeated(settings: Iterable[Setting]) -> Repeated:
    """Return what the settings with several runs have in common."""
    values = [setting.values for setting in settings]
    variances = [of_runs.var(ddof=1) for of_runs in values if len(of_runs) > 1]
    if not variances:
        return Repeated()
    return Repeated(len(variances), float(np.median(variances)))


def is_confounded(first: Setting, second: Setting) -> bool:
    """Return whether host effects add more variance to the difference of two settings than their spreads account for.

    With p and q as the shares of the runs of each setting by host, effects of hosts of variance v
    add v sum (p - q)^2 to the variance of the difference, while the two sample variances account
    for v (1 - sum p^2) / (n - 1) and the same for the other (variance components of the one-way
    layout: Searle, Casella and McCulloch 1992, Variance Components).
    """
    hosts = {*first.hosts, *second.hosts}
    if None in hosts or not first.hosts or not second.hosts:
        return False
    added = 0.0
    shown = 0.0
    sizes = [len(setting.hosts) for setting in (first, second)]
    for host in hosts:
        p = first.hosts.count(host) / sizes[0]
        q = second.hosts.count(host) / sizes[1]
        added += (p - q) ** 2
        shown -= p**2 / max(1, sizes[0] - 1) + q**2 / max(1, sizes[1] - 1)
    shown += sum(1 / max(1, size - 1) for size in sizes)
    return added > shown + 1e-9


@dataclass(frozen=True)
class Moments:
    """Mean, variance (divisor n - 1; NaN for one value) and number of values of settings: arrays that broadcast."""

    mean: Array
    variance: Array
    count: Array


def moments(values: Sequence[Array]) -> Moments:
    """Return the moments of each setting's values; NaN with too few values."""
    means = np.full(len(values), np.nan)
    variances = np.full(len(values), np.nan)
    for place, of_setting in enumerate(values):
        if len(of_setting):
            means[place] = of_setting.mean()
        if len(of_setting) > 1:
            variances[place] = of_setting.var(ddof=1)
    return Moments(means, variances, np.array([len(each) for each in values], float))


def welch(
    base: Moments, other: Moments, least_variance: Array | float = 0.0
) -> tuple[Array, Array, npt.NDArray[np.int64]]:
    """Return differences of means from a base, their standard errors, and degrees of freedom (0 for unknown errors).

    Variances below `least_variance` are raised to it in the errors, not in the degrees of freedom.

    Welch, B. L. (1947), The generalization of 'Student's' problem when several different population
    variances are involved, Biometrika 34, with Satterthwaite's (1946) degrees of freedom, rounded
    down: unrounded, they call too many equal settings different at four to six runs.
    """
    base_share = base.variance / base.count
    other_share = other.variance / other.count
    squared = base_share + other_share
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = base_share**2 / (base.count - 1) + other_share**2 / (other.count - 1)
        degrees = np.where(squared > 0, squared**2 / spread, base.count + other.count - 2)
    is_known = np.isfinite(squared) & np.isfinite(degrees)
    whole_degrees = np.floor(np.where(is_known, degrees, 0) + 1e-9).astype(np.int64)
    raised = np.maximum(base.variance, least_variance) / base.count
    raised = raised + np.maximum(other.variance, least_variance) / other.count
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

    Games, P. A. and Howell, J. F. (1976), Pairwise multiple comparison procedures with unequal n's
    and/or variances, Journal of Educational Statistics 1, by the studentized range: how far apart
    the best and the worst of equal settings are by chance. So a pair has the same interval in each
    view, which allows for a base that was chosen by the same runs, such as the fastest. `base`
    broadcasts against `other`; `groups` is the number of settings with repeats, `least_variance`
    the smallest variance that counts (`Repeated`).
    """
    estimate, error, degrees = welch(base, other, least_variance)
    critical = np.full(degrees.shape, math.nan)
    groups = max(groups, 2)
    for place in np.flatnonzero(degrees):
        of_pair = int(degrees.flat[place])
        critical.flat[place] = quantile(1 - confidence, groups, of_pair)
    margin = critical * error / math.sqrt(2)
    return Intervals(estimate, estimate - margin, estimate + margin)


def all_pairs_p(
    base: Moments, other: Moments, groups: int, least_variance: Array | float = 0.0
) -> Array:
    """Return the p values that belong to `all_pairs`, adjusted for all of them."""
    estimate, error, degrees = welch(base, other, least_variance)
    with np.errstate(invalid="ignore", divide="ignore"):
        ranges = np.where(estimate == 0, 0.0, math.sqrt(2) * np.abs(estimate) / error)
    p = np.full(ranges.shape, math.nan)
    groups = max(groups, 2)
    for place in np.flatnonzero(degrees):
        of_pair = int(degrees.flat[place])
        p.flat[place] = exceedance(ranges.flat[place], groups, of_pair)
    return p


def verdicts(
    intervals: Intervals, runs: Array, relevance: float, fewest_runs: int = MIN_RUNS
) -> npt.NDArray[np.str_]:
    """Return the verdict on each difference; `runs` is the smaller number of runs of the two settings.

    `too few runs`: below `fewest_runs`. `no larger difference`: the whole interval is within the
    relevance. `likely`: the interval excludes zero and the estimate is relevant. `unclear`: the
    rest.
    """
    change, low, high = intervals.changes
    is_within = np.maximum(np.abs(low), np.abs(high)) <= relevance
    excludes_zero = (intervals.low > 0) | (intervals.high < 0)
    is_different = excludes_zero & (np.abs(change) >= relevance)
    cases = {
        Verdict.TOO_FEW: runs < fewest_runs,
        Verdict.NO_LARGER: is_within,
        Verdict.LIKELY: is_different,
    }
    return np.select([*cases.values()], [*cases], Verdict.UNCLEAR)


# The studentized range distribution; the range of two groups is sqrt(2) |t| (Student). SciPy's
# function agrees to six digits, but takes 0.1 to 0.2 s for a quantile instead of 0.01, and 143 MB:
# too slow for a page with many settings.


@functools.lru_cache(maxsize=64)
def _exceedance_at_known_spread(groups: int) -> Array:
    """Return P(range of `groups` standard normal values > w) for w = 0, STEP, ..., MAX_RANGE."""
    half = round(MAX_RANGE / 2 / STEP)
    z = np.arange(-half, half + 1) * STEP
    # The distribution function on the grid, extended to the left by the widest range.
    grid = np.concatenate([z[0] - MAX_RANGE + np.arange(2 * half) * STEP, z])
    below = np.array([math.erfc(-value / math.sqrt(2)) / 2 for value in grid])
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    at = np.arange(2 * half, 4 * half + 1)
    widths = np.arange(2 * half + 1)
    within = (below[at] - below[at - widths[:, None]]) ** (groups - 1)
    return np.asarray(np.clip(1 - groups * STEP * (within @ density), 0, 1))


def exceedance(value: float, groups: int, degrees: int) -> float:
    """Return the probability that the studentized range of equal groups exceeds a value: the adjusted p value.

    Tukey, J. W. (1953), The Problem of Multiple Comparisons: P(Q > q) = integral of P(W > q s) f(s)
    ds, where W is the range of `groups` standard normal values and s the square root of a
    chi-square over its `degrees` of freedom.
    """
    if math.isnan(value):
        return math.nan
    if value <= 0:
        return 1.0
    if value == math.inf:
        return 0.0
    at_ranges = _exceedance_at_known_spread(groups)
    ranges = np.arange(len(at_ranges)) * STEP
    # For small values the spread has a grid of its own: divided by them, STEP would be too coarse.
    divisor = max(value, 1.0)
    spread = ranges / divisor
    exceeds = np.interp(value * spread, ranges, at_ranges)
    log_density = np.zeros(len(spread))
    if degrees > 1:
        with np.errstate(divide="ignore"):
            log_density = (degrees - 1) * np.log(spread)
    scale = math.log(2) + degrees / 2 * math.log(degrees / 2) - math.lgamma(degrees / 2)
    terms = exceeds * np.exp(scale + log_density - degrees * spread**2 / 2) * STEP / divisor
    return float(min(1.0, terms.sum() - terms[0] / 2))


@functools.lru_cache(maxsize=4096)
def quantile(probability: float, groups: int, degrees: int) -> float:
    """Return the value that the studentized range exceeds with a probability; see `exceedance`."""
    high = 1.0
    while exceedance(high, groups, degrees) > probability:
        high *= 2
    low = 0.0
    if high > 1:
        low = high / 2
    while high - low > 1e-7 * high:
        middle = (low + high) / 2
        if exceedance(middle, groups, degrees) > probability:
            low = middle
        else:
            high = middle
    return high
