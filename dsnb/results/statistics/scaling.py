"""Speed-up, efficiency and days of measured workloads on more GPUs."""

import pandas as pd

from dsnb.base.formulas import metrics, planning
from dsnb.results.runs import labels
from dsnb.results.runs.table import as_runs
from dsnb.results.statistics.setting_axes import split

NOT_WORKLOAD = (
    "gpus", "nodes", "data_parallel", "global_batch_size", "steps", "warmup_steps", "seed", "learning_rate", "host",
    "sweep", "status",
)  # fmt: skip
"""Columns that depend on the number of GPUs, or do not affect throughput; all others define a
workload."""
SUPER_LINEAR = 1.05
"""Efficiency from which scaling counts as super-linear; below, it is within the usual spread
between runs."""
ABOUT_SUPER_LINEAR = (
    "An efficiency of more than 100 % is super-linear: the base itself may be slow, limited by memory if "
    "more GPUs leave each a smaller part of the model states, or by communication over a slower link. "
    "Compare with another base before you extrapolate."
)
COLUMNS = [
    "workload", "gpus", "n", "tokens_per_s", "lowest", "highest", "base_gpus", "speed_up", "efficiency", "days", "unit",
]  # fmt: skip


def scaling(
    runs: pd.DataFrame, base_gpus: int | None = None, tokens: float = 100e9
) -> pd.DataFrame:
    """Compare ok runs that differ only in the number of GPUs.

    Efficiency is relative to `base_gpus`, such as those of one node, or to the smallest measured
    number if it is None or was not measured. Returns `COLUMNS`, a row per workload and number of
    GPUs, for workloads with at least two such numbers: `tokens_per_s` is a median, `lowest` and
    `highest` are single runs, `unit` is what `gpus` counts (`GPU`, or `rank` without GPUs).

    >>> runs = pd.DataFrame({"sweep": "s", "experiment": ["a", "b"], "status": "ok", "model": "gpt2",
    ...                      "gpus": [1, 4], "tokens_per_s": [100.0, 300.0]})
    >>> print(scaling(runs)[["workload", "gpus", "speed_up", "efficiency"]].to_string())
      workload  gpus  speed_up  efficiency
    0     gpt2     1       1.0        1.00
    1     gpt2     4       3.0        0.75
    """
    planning.check(tokens, {})
    runs = as_runs(runs)
    ok = runs[runs["status"] == "ok"].dropna(subset=["tokens_per_s", "gpus"])
    rows = []
    for workload, part in workloads(ok):
        by_size = part.groupby("gpus")["tokens_per_s"].agg(["count", "median", "min", "max"])
        if len(by_size) < 2:
            continue
        base = int(by_size.index[0])
        if base_gpus is not None and base_gpus in by_size.index:
            base = base_gpus
        base_rate = by_size.loc[base, "median"]
        for gpus, count, rate, lowest, highest in by_size.itertuples():
            row = {"workload": workload, "gpus": int(gpus), "n": int(count), "base_gpus": base}
            row |= {"tokens_per_s": rate, "lowest": lowest, "highest": highest}
            row["speed_up"] = metrics.speed_up(rate, base_rate)
            row["efficiency"] = metrics.scaling_efficiency(rate, gpus, base_rate, base)
            row["days"] = metrics.days(tokens, rate)
            row["unit"] = labels.common_unit(part)
            rows.append(row)
    return pd.DataFrame(rows, columns=COLUMNS)


def super_linear(table: pd.DataFrame) -> list[str]:
    """Return the workloads that are more efficient on more GPUs than at their base, by how much, then what that means.

    Empty if there are none.
    """
    table = table.reset_index(drop=True)
    beyond = table[(table["gpus"] > table["base_gpus"]) & (table["efficiency"] > SUPER_LINEAR)]
    highest = beyond.loc[beyond.groupby("workload", sort=False)["efficiency"].idxmax()]
    lines = [
        f"{row.workload}: {100 * row.efficiency:.0f} % on {row.gpus:,} {row.unit}s, "
        f"relative to {labels.count(row.base_gpus, row.unit)}"
        for row in highest.itertuples()
    ]
    if lines:
        lines.append(ABOUT_SUPER_LINEAR)
    return lines


def gpus_per_node(runs: pd.DataFrame) -> int | None:
    """Return the number of GPUs per node, for efficiency relative to one node; None if no run has a number of nodes."""
    counted = runs.dropna(subset=["gpus", "nodes"])
    per_node = (counted["gpus"] / counted["nodes"])[counted["nodes"] > 0]
    if len(per_node):
        return int(per_node.max())
    return None


def workloads(runs: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Split runs into workloads, which differ in more than the number of GPUs; return pairs of a title and the runs."""
    parts = split(runs, NOT_WORKLOAD)
    if len(parts) == 1 and len(runs):
        return [(labels.text(runs["model"].iloc[0]), runs)]
    return [(title or "unknown workload", part) for title, part in parts]
