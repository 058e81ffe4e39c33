"""What the steps of one run show of it: spread, stalls, drift. Pure functions of the times of its timed steps.

None of these is the noise between repeats: steps of one run share the machine's state, so their spread says nothing
about how far apart two runs of a setting come.
"""

import math

import numpy as np
import numpy.typing as npt

from dsnb.formulas.metrics import SLOW_STEP

Array = npt.NDArray[np.float64]
FEWEST_STEPS = 10
"""A trend over fewer values could not reach the significance that is asked of it."""
BLOCKS = 20


def spread_pct(times_s: Array) -> float:
    """Return the standard deviation (n - 1) of the steps in per cent of their mean; NaN for fewer than two."""
    return float(100 * times_s.std(ddof=1) / times_s.mean()) if len(times_s) > 1 else math.nan


def mean_over_median(times_s: Array) -> float:
    """Return the mean step time over the median: well above 1 if a few steps took most of the time; NaN for none."""
    return float(times_s.mean() / np.median(times_s)) if len(times_s) else math.nan


def is_slow(times_s: Array) -> npt.NDArray[np.bool_]:
    """Return which steps took more than twice the median, as the column `slow_steps` counts them."""
    return times_s > SLOW_STEP * np.median(times_s) if len(times_s) else np.zeros(0, dtype=bool)


def drift(times_s: Array) -> tuple[float, float]:
    """Return how much step times rose over the run, in per cent of their median, and the p value of the trend.

    The slope is the median of the slopes of all pairs (Theil 1950, A rank-invariant method of linear and polynomial
    regression analysis; Sen 1968, Estimates of the regression coefficient based on Kendall's tau), tested by ranks
    (Mann 1945, Nonparametric tests against trend, with the normal approximation of Kendall 1948, Rank Correlation
    Methods), so single slow steps count little. Neighbouring steps are alike, so the values are medians of at most
    `BLOCKS` blocks of steps.

    Parameters
    ----------
    times_s
        Times of the timed steps in seconds, in their order, shape (steps,).

    Returns
    -------
    tuple of float
        NaN and NaN for fewer than `FEWEST_STEPS` steps.
    """
    count = min(BLOCKS, len(times_s))
    if count < FEWEST_STEPS:
        return math.nan, math.nan
    values = np.array([np.median(block) for block in np.array_split(times_s, count)])
    first, second = np.triu_indices(count, 1)
    rises = values[second] - values[first]
    slope = float(np.median(rises / (second - first)))
    score = float(np.sign(rises).sum())
    deviations = max(0.0, abs(score) - 1) / math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    return 100 * slope * (count - 1) / float(np.median(times_s)), math.erfc(deviations / math.sqrt(2))
