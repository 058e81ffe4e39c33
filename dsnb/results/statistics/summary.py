"""Runs -> one row per experiment: the number of runs, and median, spread and range of every figure.

The spread is the sample standard deviation over repeats (n - 1), missing for a single run. All of
them are over runs with the status `ok`; the others are only counted.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import pandas as pd

from dsnb.base.errors import SettingsError
from dsnb.results.runs import labels
from dsnb.results.runs.table import current_name, named_runs, numbers
from dsnb.results.statistics.setting_axes import MEASUREMENT, varying, with_setting_axes
from dsnb.settings.checks import closest_match
from dsnb.settings.records.columns import PHASES, SETTINGS, key_columns

SUMMARY_METRICS = list(labels.METRIC_LABELS)
STATISTICS = {"median": "median", "std": "std", "min": "min", "max": "max", "n": "count"}
"""Statistics of each figure, as they end its columns, and pandas' names of them."""
ALL = {f"{metric}_{name}": metric for metric in SUMMARY_METRICS for name in STATISTICS}
"""Every column of statistics, and its figure."""
ALWAYS = ("tokens_per_s_median", "tokens_per_s_std")
READ = (
    *ALWAYS,
    "tokens_per_s_per_gpu_median",
    "of_plain_median",
    "step_time_mean_s_median",
    "peak_allocated_gib_median",
    "host_memory_gib_median",
    "mfu_median",
    "loss_last_median",
)
"""Columns of statistics that most readers need; all but speed are left out where no run measured
them."""
HARDWARE = ("program", "device", "gpu_name", "gpu_memory_gib", "cpu", "cores")
"""The program and columns of the machine that, like settings, a median should not be over several values of."""
VARIES = "varies"
UNSTABLE = 1.5
"""Highest over lowest tokens/s of a setting's runs above which its median represents none of them and it is not ranked.
Repeats on an idle machine differ by some per cent; the spreads that decide between settings are far
below."""


def summarize(
    runs: pd.DataFrame,
    by: str | list[str] = "experiment",
    metrics: Literal["all"] | Sequence[str] | None = None,
) -> pd.DataFrame:
    """Aggregate runs by experiment, or by other columns.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` returns it.
    by
        The column or columns to group by. With several sweeps, experiments are named `sweep/experiment`.
    metrics
        Figures of runs such as `mfu`, for all their statistics, or single columns such as `mfu_max`. By default, those
        of `READ` that were measured; `"all"` is every statistic of every figure.

    Returns
    -------
    pandas.DataFrame
        Indexed by `by`, in order of appearance: `n` (runs that are ok), `n_failed` (all others); unless `metrics` is
        `"all"`, the settings that differ between rows, missing where they differ within a row; over the ok runs
        `<metric>_median`, `<metric>_std`, `<metric>_min`, `<metric>_max` and `<metric>_n` (those that measured it);
        NaN if nothing was measured, and for the spread of a single run. Last, `varies`: the settings and hardware in
        which the runs of a row differ, such as `compile, gpus`; empty if they are repeats.

    Raises
    ------
    SettingsError
        If there is no such column or figure.

    Examples
    --------
    >>> runs = pd.DataFrame({"sweep": "s", "experiment": ["a", "a", "b"], "status": "ok",
    ...                      "zero_stage": [1, 1, 3], "tokens_per_s": [90.0, 110.0, 80.0]})
    >>> print(dsnb.summarize(runs).to_string())
                n  n_failed parallelism  tokens_per_s_median  tokens_per_s_std varies
    experiment
    a           2         0      ZeRO 1                100.0         14.142136
    b           1         0      ZeRO 3                 80.0               NaN
    >>> print(dsnb.summarize(runs, by="zero_stage", metrics=["tokens_per_s_max"])["tokens_per_s_max"])
    zero_stage
    1    110.0
    3     80.0
    Name: tokens_per_s_max, dtype: float64
    """
    runs = named_runs(runs)
    keys = grouping_columns(runs, by)
    is_ok = runs["status"] == "ok"
    columns = _columns(runs[is_ok], metrics)
    figures = list(dict.fromkeys(ALL[column] for column in columns))
    needed = dict.fromkeys([*keys, *figures])
    ok = runs[is_ok].reindex(columns=list(needed))
    measured = ok.groupby(keys, sort=False, dropna=False)[figures]
    parts = [measured.agg(how).add_suffix(f"_{name}") for name, how in STATISTICS.items()]
    counts = runs[keys].assign(n=is_ok, n_failed=~is_ok)
    table = counts.groupby(keys, sort=False, dropna=False).sum().astype(int)
    if metrics != "all":
        table = table.join(_differing_settings(runs, keys))
    statistics = pd.concat(parts, axis=1)[columns]
    table = table.join(statistics).join(varies(runs, keys))
    table[VARIES] = table[VARIES].fillna("")
    measured_by = [column for column in columns if column.endswith("_n")]
    table[measured_by] = table[measured_by].fillna(0).astype(int)
    return table.copy()  # in one piece, which pandas asks for


def _columns(ok: pd.DataFrame, metrics: Literal["all"] | Sequence[str] | None) -> list[str]:
    """Return the columns of statistics that `metrics` asks for."""
    if metrics == "all":
        return list(ALL)
    if metrics is None:
        return [name for name in READ if name in ALWAYS or numbers(ok, ALL[name]).notna().any()]
    columns = []
    for name in metrics:
        if name in SUMMARY_METRICS:
            columns += [f"{name}_{statistic}" for statistic in STATISTICS]
        else:
            _check(name, [*SUMMARY_METRICS, *ALL], "there is no figure")
            columns.append(name)
    return columns


def _differing_settings(runs: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return the settings that differ between groups, missing where they differ within one."""
    table = with_setting_axes(runs)
    names = [name for name in varying(table) if name not in keys]
    first = table.drop_duplicates(keys).set_index(keys)[names]
    groups = table.groupby(keys, sort=False, dropna=False)[names]
    differs = groups.nunique(dropna=False) > 1
    return first.mask(differs).dropna(axis="columns", how="all")


def grouping_columns(runs: pd.DataFrame, by: str | Sequence[str]) -> list[str]:
    """Return the columns to group by under their current names; raise SettingsError if runs lack one."""
    if isinstance(by, str):
        by = [by]
    names = [current_name(name) for name in by]
    for name in names:
        _check(name, runs.columns, "runs have no column")
    return names


def _check(name: str, names: Iterable[str], what: str) -> None:
    """Raise SettingsError, with the closest name, if a name is not one of `names`."""
    if name in names:
        return
    closest = closest_match(name, names)
    hint = ""
    if closest:
        hint = f": did you mean '{closest}'?"
    raise SettingsError(f"{what} {name!r}{hint}")


def varies(runs: pd.DataFrame, by: str | list[str] = "experiment") -> pd.Series:
    """Return the settings and hardware in which the runs of each group differ, as `compile, gpus`; empty for repeats.

    A missing value differs from a known one. Unfinished runs do not count, nor do settings of how a
    run was measured, such as its steps.
    """
    compared = [*SETTINGS, *key_columns(runs), *HARDWARE]
    names = [name for name in compared if name in runs and name not in MEASUREMENT]
    # An unfinished run may not have written all of its records.
    ended = runs[runs["status"] != "interrupted"]
    codes = {name: pd.factorize(ended[name].astype(object))[0] for name in names}
    keys = [ended[name] for name in ([by] if isinstance(by, str) else by)]
    table = pd.DataFrame(codes, index=ended.index)
    groups = table.groupby(keys, sort=False, dropna=False)
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
