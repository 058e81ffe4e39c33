"""Runs -> one row per experiment: the number of runs, and median, spread and range of every figure.

The spread is the sample standard deviation over repeats (n - 1), missing for a single run. All of them are over runs
with the status `ok`; the others are only counted.
"""

import pandas as pd

from dsnb.results.runs import labels
from dsnb.results.runs.table import named_runs, numbers
from dsnb.results.statistics.choices import MEASUREMENT
from dsnb.settings.records.columns import PHASES, SETTINGS, key_columns

SUMMARY_METRICS = list(labels.METRIC_LABELS)
STATISTICS = {"median": "median", "std": "std", "min": "min", "max": "max", "n": "count"}
"""Statistics of each figure, as they end its columns, and pandas' names of them."""
HARDWARE = ("device", "gpu_name", "gpu_memory_gib", "cpu", "cores")
"""Columns of the machine that, like settings, a median should not be over several values of."""
VARIES = "varies"
UNSTABLE = 1.5
"""Highest over lowest tokens/s of a setting's runs above which its median represents none of them and it is not ranked.
Repeats on an idle machine differ by some per cent; the spreads that decide between settings are far below."""


def summarize(runs: pd.DataFrame, by: str | list[str] = "experiment") -> pd.DataFrame:
    """Aggregate runs by experiment, or by other columns.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` returns it.
    by
        The column or columns to group by. With several sweeps, experiments are named `sweep/experiment`.

    Returns
    -------
    pandas.DataFrame
        Indexed by `by`, in order of appearance: `n` (runs that are ok), `n_failed` (all others), and over the ok runs
        `<metric>_median`, `<metric>_std`, `<metric>_min`, `<metric>_max` and `<metric>_n` (those that measured it);
        NaN if nothing was measured, and for the spread of a single run. Last, `varies`: the settings and hardware in
        which the runs of a row differ, such as `compile, gpus`; empty if they are repeats.
    """
    runs = named_runs(runs)
    is_ok = runs["status"] == "ok"
    ok = runs[is_ok]
    ok = ok.reindex(columns=[*ok.columns, *(name for name in SUMMARY_METRICS if name not in ok)])
    measured = ok.groupby(by, sort=False, dropna=False)[SUMMARY_METRICS]
    keys = runs[[by]] if isinstance(by, str) else runs[list(by)]
    counts = (
        keys.assign(n=is_ok.astype(int), n_failed=(~is_ok).astype(int))
        .groupby(by, sort=False, dropna=False)
        .sum()
    )
    columns = [f"{metric}_{statistic}" for metric in SUMMARY_METRICS for statistic in STATISTICS]
    parts = [
        getattr(measured, name)().add_suffix(f"_{statistic}")
        for statistic, name in STATISTICS.items()
    ]
    table = counts.join(pd.concat([varies(runs, by), *parts], axis=1))[
        ["n", "n_failed", *columns, VARIES]
    ]
    measured_by = [f"{metric}_n" for metric in SUMMARY_METRICS]
    table = table.fillna({VARIES: "", **dict.fromkeys(measured_by, 0)}).astype(
        dict.fromkeys(measured_by, int)
    )
    return table.copy()  # in one piece, which pandas asks for


def varies(runs: pd.DataFrame, by: str | list[str] = "experiment") -> pd.Series:
    """Return the settings and hardware in which the runs of each group differ, as `compile, gpus`; empty for repeats.

    A missing value differs from a known one. Unfinished runs do not count, nor do settings of how a run was measured,
    such as its steps.
    """
    compared = [
        name for name in (*SETTINGS, *key_columns(runs), *HARDWARE) if name not in MEASUREMENT
    ]
    names = [name for name in compared if name in runs]
    has_ended = (
        runs["status"] != "interrupted"
    )  # an unfinished run may not have written all of its records
    codes = pd.DataFrame(
        {name: pd.factorize(runs[name].astype(object))[0] for name in names}, index=runs.index
    )
    keys = [runs[name][has_ended] for name in ([by] if isinstance(by, str) else by)]
    groups = codes[has_ended].groupby(keys, sort=False, dropna=False)
    differs = groups.max() != groups.min()
    words = [", ".join(differs.columns[row]) for row in differs.to_numpy()]
    return pd.Series(words, index=differs.index, name=VARIES, dtype=object)


def timing(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the median wall time of each experiment by phase, over its ok runs.

    Returns
    -------
    pandas.DataFrame
        Seconds, indexed by experiment: `start` (launch to the worker's first line), `build`, `warmup`, `timed`, `stop`
        (last step to the end of the last process), `wall` (all of these), `notebook` (with the start of its kernel),
        and `outside_steps` (the notebook less all steps, warm-up included).
    """
    runs = named_runs(runs)
    ok = runs[runs["status"] == "ok"]
    names = [*(f"{phase}_s" for phase in PHASES), "notebook_s"]
    table = ok.groupby("experiment", sort=False)[names].median()
    table = table.dropna(how="all")  # logs of other programs have no phases
    total_s = table["notebook_s"].fillna(table["wall_s"])
    table["outside_steps_s"] = total_s - table["warmup_s"] - table["timed_s"]
    return table.rename(columns=lambda name: name.removesuffix("_s"))


def repeat_ratios(runs: pd.DataFrame) -> pd.Series:
    """Return the highest over the lowest tokens/s of the ok runs of each experiment; missing for fewer than two."""
    rates = numbers(runs, "tokens_per_s").where(runs["status"] == "ok")
    groups = rates.where(rates > 0).groupby(runs["experiment"], sort=False)
    return (groups.max() / groups.min()).where(groups.count() > 1)


def unstable(runs: pd.DataFrame) -> list[str]:
    """Return the experiments whose ok runs differ by more than `UNSTABLE`, in order of appearance."""
    ratios = repeat_ratios(runs)
    return list(ratios.index[ratios > UNSTABLE])
