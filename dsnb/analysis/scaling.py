"""What more GPUs bring: speed-up, efficiency and days, for everything that was measured on several numbers of them."""

import pandas as pd

from dsnb.analysis.summary import axes
from dsnb.formulas import metrics
from dsnb.runs import labels
from dsnb.runs.column_aliases import rename_old_columns

SIZES = (
    "gpus",
    "nodes",
    "data_parallel",
    "global_batch_size",
    "steps",
    "warmup_steps",
    "seed",
    "learning_rate",
    "host",
    "sweep",
    "status",
)
"""Columns that follow the number of GPUs, say how long or where a run was made; the others make a workload."""


def scaling(runs: pd.DataFrame, base_gpus: int | None = None, tokens: float = 100e9) -> pd.DataFrame:
    """Compare runs that differ in the number of GPUs only.

    Parameters
    ----------
    runs
        One row a run, as `dsnb.load_runs` and `dsnb.published` give them; only ok runs count.
    base_gpus
        The number of GPUs that efficiency is relative to, for example those of one node; the smallest measured one
        where it is not given or was not measured.
    tokens
        To be trained, for the days.

    Returns
    -------
    pandas.DataFrame
        One row per workload and number of GPUs, for workloads that have at least two: `workload`, `gpus`, `n`,
        `tokens_per_s` (median), `lowest`, `highest` (tokens/s of single runs: the spread between sub-clusters where
        each is a run), `base_gpus`, `speed_up`, `efficiency`, `days`.
    """
    runs = rename_old_columns(runs)
    ok = runs[(runs["status"] == "ok") & runs["tokens_per_s"].notna() & runs["gpus"].notna()]
    rows = []
    for workload, part in workloads(ok):
        by_size = part.groupby("gpus")["tokens_per_s"].agg(["count", "median", "min", "max"])
        if len(by_size) < 2:
            continue
        base = base_gpus if base_gpus is not None and base_gpus in by_size.index else int(by_size.index[0])
        for gpus, count, median, lowest, highest in by_size.itertuples():
            rows.append(
                {
                    "workload": workload,
                    "gpus": int(gpus),
                    "n": int(count),
                    "tokens_per_s": median,
                    "lowest": lowest,
                    "highest": highest,
                    "base_gpus": base,
                    "speed_up": metrics.speed_up(median, by_size.loc[base, "median"]),
                    "efficiency": metrics.scaling_efficiency(median, gpus, by_size.loc[base, "median"], base),
                    "days": metrics.days(tokens, median),
                }
            )
    return pd.DataFrame(rows, columns=COLUMNS)


COLUMNS = ["workload", "gpus", "n", "tokens_per_s", "lowest", "highest", "base_gpus", "speed_up", "efficiency", "days"]


def gpus_per_node(runs: pd.DataFrame) -> int | None:
    """Give the number of GPUs that one node has, for efficiency relative to it; None where no run tells its nodes."""
    known = runs.dropna(subset=["gpus", "nodes"])
    per_node = (known["gpus"] / known["nodes"])[known["nodes"] > 0]
    return int(per_node.max()) if len(per_node) else None


def workloads(runs: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Split runs into those that differ in nothing but the number of GPUs, each with a name that tells it apart."""
    same = [name for name in axes(runs) if name not in SIZES and runs[name].notna().any()]
    varying = [name for name in same if runs[name].nunique(dropna=False) > 1]
    if not varying:
        return [(_common(runs), runs)]
    parts = runs.groupby(varying, sort=False, dropna=False)
    return [(_said(dict(zip(varying, key, strict=True))), part) for key, part in parts]


def _said(values: dict[str, object]) -> str:
    known = {name: value for name, value in values.items() if labels.text(value) != "-"}
    return ", ".join(labels.axis(name).say(value) for name, value in known.items()) or "not told"


def _common(runs: pd.DataFrame) -> str:
    return _said({"model": runs["model"].iloc[0]}) if len(runs) else ""
