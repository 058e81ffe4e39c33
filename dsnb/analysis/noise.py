"""The one rule for "within noise": how far two medians must be apart to count as different.

Used by the answer in words and the table of single changes; the explorer's page applies the same rule.
"""

import math


def beyond_noise(before: float, after: float, before_std: float, after_std: float) -> bool | None:
    """Return whether two medians differ by more than the noise between repeats.

    They do if `|after - before| > before_std + after_std`: the intervals `median ± standard deviation` do not overlap.
    A reader can check the rule in the table, and it works from two repeats on. With three repeats of each, two settings
    that are equal in truth are called different in one case of ten (simulated with normal noise: 10.5 %; with two
    repeats 21.5 %, with five 2.6 %), so a single small difference proves little.

    Parameters
    ----------
    before, after
        Medians over the repeats of two settings.
    before_std, after_std
        Their sample standard deviations (n - 1), in the same unit. NaN for a single run: one run says nothing about
        noise, so its spread is unknown, not 0.

    Returns
    -------
    bool or None
        None if any of the four is unknown (NaN).
    """
    if any(math.isnan(value) for value in (before, after, before_std, after_std)):
        return None
    return bool(abs(after - before) > before_std + after_std)
