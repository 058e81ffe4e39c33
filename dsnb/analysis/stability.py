"""Settings whose repeats do not agree: the median represents none of the runs, so they are not ranked."""

import pandas as pd

from dsnb.runs.columns import numbers

FIGURE = "tokens_per_s"
UNSTABLE = 1.5
"""Highest over lowest tokens/s of a setting's runs above which it is unstable. Repeats on an idle machine differ by
some per cent; the spreads that decide between settings are far below."""


def ratios(runs: pd.DataFrame) -> pd.Series:
    """Return the highest over the lowest tokens/s of the ok runs of each experiment; missing for fewer than two.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` returns it, with experiments named as in `summarize`.
    """
    rates = numbers(runs, FIGURE).where(runs["status"] == "ok")
    groups = rates.where(rates > 0).groupby(runs["experiment"], sort=False)
    return (groups.max() / groups.min()).where(groups.count() > 1)


def unstable(runs: pd.DataFrame) -> list[str]:
    """Return the experiments whose ok runs differ by more than `UNSTABLE`, in order of appearance.

    Parameters
    ----------
    runs
        As for `ratios`.
    """
    found = ratios(runs)
    return list(found.index[found > UNSTABLE])
