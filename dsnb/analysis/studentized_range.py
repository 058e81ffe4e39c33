"""The studentized range distribution: how far apart the best and the worst of several equal settings come by chance.

For two groups it is Student's t: the range of two is sqrt(2) |t|. SciPy's function agrees to six digits,
but takes 0.1 to 0.2 s for a quantile instead of 0.01 (and 143 MB): too long for a page with many settings, and for the
simulations that prove the error rates. Tests compare it with published tables.
"""

import functools
import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
STEP = 0.02
WIDEST = 16.0
"""Two normal values are this far apart with a probability of 1e-29: rounding errors are larger."""


@functools.lru_cache(maxsize=64)
def _exceedance_at_known_spread(groups: int) -> Array:
    """Return P(range of `groups` standard normal values > w) for w = 0, STEP, ..., WIDEST."""
    half = round(WIDEST / 2 / STEP)
    z = np.arange(-half, half + 1) * STEP
    # The distribution function on the grid and as far to its left as the widest range reaches.
    grid = np.concatenate([z[0] - WIDEST + np.arange(2 * half) * STEP, z])
    below = np.array([math.erfc(-value / math.sqrt(2)) / 2 for value in grid])
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    at, widths = np.arange(2 * half, 4 * half + 1), np.arange(2 * half + 1)
    within = (below[at] - below[at - widths[:, None]]) ** (groups - 1)
    return np.asarray(np.clip(1 - groups * STEP * (within @ density), 0, 1))


def exceedance(value: float, groups: int, degrees: int) -> float:
    """Return the probability that the studentized range of equal groups exceeds a value: the adjusted p value.

    Tukey, J. W. (1953), The Problem of Multiple Comparisons: P(Q > q) = integral of P(W > q s) f(s) ds, where W is the
    range of `groups` standard normal values and s the square root of a chi-square over its `degrees` of freedom.

    Parameters
    ----------
    value
        The range in units of its estimated standard error; for a Welch statistic t of two groups, sqrt(2) |t|.
    groups
        Number of groups that were compared, 2 or more.
    degrees
        Degrees of freedom of the standard error, 1 or more.
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
        low, high = (middle, high) if exceedance(middle, groups, degrees) > probability else (low, middle)
    return high
