"""Runs -> one row per experiment: how many, and median and spread of every figure.

The spread is the sample standard deviation over repeats, blank for a single run. Only runs that are `ok` are
measured; how many are not is counted beside them.
"""

import pandas as pd

from dsnb.run_folder.table_columns import PHASES, SETTINGS
from dsnb.runs import labels
from dsnb.runs.column_aliases import rename_old_columns

SUMMARY_METRICS = list(labels.METRIC_LABELS)


def summarize(runs: pd.DataFrame, by: str | list[str] = "experiment") -> pd.DataFrame:
    """Aggregate runs.

    Parameters
    ----------
    runs
        One row a run, as `dsnb.load_runs` gives it.
    by
        The column or columns that make a group. Experiments of several sweeps are named `sweep/experiment`: one name
        can stand for different models in two of them.

    Returns
    -------
    pandas.DataFrame
        Indexed by `by`, in order of appearance: `n` (runs that are ok), `n_failed` (all others), and `<metric>_median`
        and `<metric>_std` over the ok ones; NaN where nothing was measured, and for the spread of one run.
    """
    runs = qualify_experiments(rename_old_columns(runs))
    is_ok = runs["status"] == "ok"
    ok = runs[is_ok]
    ok = ok.reindex(columns=[*ok.columns, *(name for name in SUMMARY_METRICS if name not in ok)])
    measured = ok.groupby(by, sort=False, dropna=False)[SUMMARY_METRICS]
    keys = runs[[by]] if isinstance(by, str) else runs[list(by)]
    counts = keys.assign(n=is_ok.astype(int), n_failed=(~is_ok).astype(int)).groupby(by, sort=False, dropna=False).sum()
    medians = measured.median().add_suffix("_median")
    spreads = measured.std(ddof=1).add_suffix("_std")
    columns = [f"{metric}_{statistic}" for metric in SUMMARY_METRICS for statistic in ("median", "std")]
    return counts.join(medians).join(spreads)[["n", "n_failed", *columns]]


def qualify_experiments(runs: pd.DataFrame) -> pd.DataFrame:
    """Name the experiments of several sweeps `sweep/experiment`: one name can stand for different models in two."""
    if runs["sweep"].nunique() <= 1:
        return runs
    return runs.assign(experiment=runs["sweep"].map(labels.text) + "/" + runs["experiment"].map(labels.text))


def axes(runs: pd.DataFrame) -> list[str]:
    """Name the columns that make one experiment differ from another: the settings, and the GPU that it ran on."""
    named = [name for name in labels.AXES if name not in {"sweep", "status"}]
    return [name for name in dict.fromkeys([*named, *SETTINGS]) if name in runs]


def variants(runs: pd.DataFrame, most: int = 4) -> dict[str, pd.DataFrame]:
    """Split runs into parts that differ in nothing but ZeRO stage and precision, which the figures compare.

    Parameters
    ----------
    runs
        One row a run, as `dsnb.load_runs` gives it.
    most
        The parts with the most runs, so many of them, in their order; 0 for all.

    Returns
    -------
    dict
        Title of the part (the settings that vary between parts) -> its runs.
    """
    runs = rename_old_columns(runs)
    names = [
        name for name in dict.fromkeys([*SETTINGS, *axes(runs)]) if name not in {"zero_stage", "precision", "source"}
    ]
    varying = [name for name in names if name in runs and runs[name].nunique(dropna=False) > 1]
    if not varying:
        return {"": runs}
    parts = runs.groupby(varying, sort=False, dropna=False)
    sizes = parts.size().to_numpy()
    kept = set((-sizes).argsort(kind="stable")[: most or None])
    return {
        ", ".join(
            f"{name} {value}" for name, value in zip(varying, key, strict=True) if labels.text(value) != "-"
        ): part
        for number, (key, part) in enumerate(parts)
        if number in kept
    }


def timing(runs: pd.DataFrame) -> pd.DataFrame:
    """Give the median wall seconds of each experiment's ok runs by phase.

    Returns
    -------
    pandas.DataFrame
        Indexed by experiment: `start` (launch to the worker's first line), `build`, `warmup`, `timed`, `stop` (last
        step to the last process gone), `wall` (launch to that moment), `notebook` (all of it, kernel included), and
        `outside_steps`: the notebook less its steps, warm-up included; seconds.
    """
    runs = qualify_experiments(runs)
    ok = runs[runs["status"] == "ok"]
    names = [*(f"{phase}_s" for phase in PHASES), "notebook_s"]
    table = ok.groupby("experiment", sort=False)[names].median()
    table = table.dropna(how="all")  # logs of others do not tell
    whole = table["notebook_s"].fillna(table["wall_s"])
    table["outside_steps_s"] = whole - table["warmup_s"] - table["timed_s"]
    return table.rename(columns=lambda name: name.removesuffix("_s"))
