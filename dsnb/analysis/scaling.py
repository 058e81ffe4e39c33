"""Scaling over GPUs: speed-up, efficiency and days, for every workload measured on several numbers of GPUs."""

import pandas as pd

from dsnb.analysis.choices import split
from dsnb.formulas import metrics, planning
from dsnb.runs import labels
from dsnb.runs.table import as_runs

NOT_WORKLOAD = (
    "gpus", "nodes", "data_parallel", "global_batch_size", "steps", "warmup_steps", "seed", "learning_rate", "host",
    "sweep", "status",
)  # fmt: skip
"""Columns that depend on the number of GPUs, or do not affect throughput; all others define a workload."""
SUPER_LINEAR = 1.05
"""Efficiency from which scaling counts as super-linear; below, it is within the usual spread between runs."""
COLUMNS = [
    "workload", "gpus", "n", "tokens_per_s", "lowest", "highest", "base_gpus", "speed_up", "efficiency", "days", "unit",
]  # fmt: skip


def scaling(runs: pd.DataFrame, base_gpus: int | None = None, tokens: float = 100e9) -> pd.DataFrame:
    """Compare ok runs that differ only in the number of GPUs.

    Efficiency is relative to `base_gpus`, for example those of one node, or to the smallest measured number if it is
    None or was not measured.

    Returns
    -------
    pandas.DataFrame
        One row per workload and number of GPUs, for workloads with at least two such numbers: `workload`, `gpus`, `n`,
        `tokens_per_s` (median), `lowest`, `highest` (tokens/s of single runs, such as those of sub-clusters),
        `base_gpus`, `speed_up`, `efficiency`, `days`, `unit` (what `gpus` counts: `GPU`, or `rank` without GPUs).
    """
    planning.check(tokens, {})
    runs = as_runs(runs)
    ok = runs[(runs["status"] == "ok") & runs["tokens_per_s"].notna() & runs["gpus"].notna()]
    rows = []
    for workload, part in workloads(ok):
        by_size = part.groupby("gpus")["tokens_per_s"].agg(["count", "median", "min", "max"])
        if len(by_size) < 2:
            continue
        base = base_gpus if base_gpus is not None and base_gpus in by_size.index else int(by_size.index[0])
        base_rate, unit = by_size.loc[base, "median"], labels.common_unit(part)
        for gpus, count, rate, lowest, highest in by_size.itertuples():
            speed_up = metrics.speed_up(rate, base_rate)
            efficiency = metrics.scaling_efficiency(rate, gpus, base_rate, base)
            measured = (int(gpus), int(count), rate, lowest, highest)
            rows.append((workload, *measured, base, speed_up, efficiency, metrics.days(tokens, rate), unit))
    return pd.DataFrame(rows, columns=COLUMNS)


def super_linear(table: pd.DataFrame) -> list[str]:
    """Return a sentence for each workload that is more efficient on more GPUs than at its base."""
    found = table[(table["gpus"] > table["base_gpus"]) & (table["efficiency"] > SUPER_LINEAR)]
    highest = found.loc[found.groupby("workload", sort=False)["efficiency"].idxmax()]
    return [
        f"{row.workload}: {100 * row.efficiency:.0f} % efficiency on {row.gpus:,} {row.unit}s is super-linear, "
        f"relative to the tokens/s/{row.unit} on {row.base_gpus:,}. The base itself may be slow: limited by memory, "
        f"if more {row.unit}s leave each a smaller part of the model states, or by communication, if its "
        f"{row.unit}s have a slower link. Compare with another base before you extrapolate."
        for row in highest.itertuples()
    ]


def gpus_per_node(runs: pd.DataFrame) -> int | None:
    """Return the number of GPUs per node, for efficiency relative to one node; None if no run has a number of nodes."""
    known = runs.dropna(subset=["gpus", "nodes"])
    per_node = (known["gpus"] / known["nodes"])[known["nodes"] > 0]
    return int(per_node.max()) if len(per_node) else None


def workloads(runs: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Split runs into workloads, which differ in more than the number of GPUs; return pairs of a title and the runs."""
    parts = split(runs, NOT_WORKLOAD)
    if len(parts) == 1 and len(runs):
        return [(labels.text(runs["model"].iloc[0]), runs)]
    return [(title or "unknown workload", part) for title, part in parts]
