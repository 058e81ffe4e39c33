"""Speed-up, efficiency and days of measured workloads on more GPUs, and schedules of batch-size ramp-ups.

A batch-size ramp-up has the constraints of the BigScience benchmark of a 1.3B model (`experiments/tr3m-1B3.md` of
bigscience-workshop/bigscience): micro-batch x gradient accumulation x data-parallel size is the global batch, a replica
takes tensor x pipeline GPUs, nodes are used whole, and a small batch limits how many replicas have anything to do.

1. The first batch gets as many nodes as it can feed while a GPU keeps `least_efficiency` of its best throughput.
2. Each later batch first brings the existing nodes to their best micro-batch, and then adds nodes. Nodes are never
   released; when no more may be added, gradients are accumulated.
"""

import itertools
import math

import pandas as pd

from dsnb.base.errors import SettingsError
from dsnb.base.formulas import metrics, planning
from dsnb.results.runs import labels
from dsnb.results.runs.table import as_runs, factor, numbers
from dsnb.results.statistics.choices import split
from dsnb.results.statistics.tasks import tasks

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
SAME_SPEED = 0.98
"""Relative throughput from which a micro-batch counts as fast as the best one: repeated runs differ by as much."""
RAMPUP = [
    "nodes", "gpus", "global_batch_size", "micro_batch_size", "grad_accum", "data_parallel", "efficiency",
]  # fmt: skip


def scaling(
    runs: pd.DataFrame, base_gpus: int | None = None, tokens: float = 100e9
) -> pd.DataFrame:
    """Compare ok runs that differ only in the number of GPUs.

    Efficiency is relative to `base_gpus`, such as those of one node, or to the smallest measured number if it is None
    or was not measured. Returns `COLUMNS`, a row per workload and number of GPUs, for workloads with at least two such
    numbers: `tokens_per_s` is a median, `lowest` and `highest` are single runs, `unit` is what `gpus` counts (`GPU`, or
    `rank` without GPUs).

    >>> runs = pd.DataFrame({"sweep": "s", "experiment": ["a", "b"], "status": "ok", "model": "gpt2",
    ...                      "gpus": [1, 4], "tokens_per_s": [100.0, 300.0]})
    >>> print(scaling(runs)[["workload", "gpus", "speed_up", "efficiency"]].to_string())
      workload  gpus  speed_up  efficiency
    0     gpt2     1       1.0        1.00
    1     gpt2     4       3.0        0.75
    """
    planning.check(tokens, {})
    runs = as_runs(runs)
    ok = runs[(runs["status"] == "ok") & runs["tokens_per_s"].notna() & runs["gpus"].notna()]
    rows = []
    for workload, part in workloads(ok):
        by_size = part.groupby("gpus")["tokens_per_s"].agg(["count", "median", "min", "max"])
        if len(by_size) < 2:
            continue
        base = (
            base_gpus
            if base_gpus is not None and base_gpus in by_size.index
            else int(by_size.index[0])
        )
        base_rate, unit = by_size.loc[base, "median"], labels.common_unit(part)
        for gpus, count, rate, lowest, highest in by_size.itertuples():
            speed_up = metrics.speed_up(rate, base_rate)
            efficiency = metrics.scaling_efficiency(rate, gpus, base_rate, base)
            measured = (int(gpus), int(count), rate, lowest, highest)
            rows.append(
                (workload, *measured, base, speed_up, efficiency, metrics.days(tokens, rate), unit)
            )
    return pd.DataFrame(rows, columns=COLUMNS)


def super_linear(table: pd.DataFrame) -> list[str]:
    """Return a sentence for each workload that is more efficient on more GPUs than at its base."""
    beyond = table[(table["gpus"] > table["base_gpus"]) & (table["efficiency"] > SUPER_LINEAR)]
    highest = beyond.loc[beyond.groupby("workload", sort=False)["efficiency"].idxmax()]
    return [
        f"{row.workload}: {100 * row.efficiency:.0f} % efficiency on {row.gpus:,} {row.unit}s is super-linear, "
        f"relative to the tokens/s/{row.unit} on {row.base_gpus:,}. The base itself may be slow: limited by memory, "
        f"if more {row.unit}s leave each a smaller part of the model states, or by communication, if its "
        f"{row.unit}s have a slower link. Compare with another base before you extrapolate."
        for row in highest.itertuples()
    ]


def gpus_per_node(runs: pd.DataFrame) -> int | None:
    """Return the number of GPUs per node, for efficiency relative to one node; None if no run has a number of nodes."""
    counted = runs.dropna(subset=["gpus", "nodes"])
    per_node = (counted["gpus"] / counted["nodes"])[counted["nodes"] > 0]
    return int(per_node.max()) if len(per_node) else None


def workloads(runs: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Split runs into workloads, which differ in more than the number of GPUs; return pairs of a title and the runs."""
    parts = split(runs, NOT_WORKLOAD)
    if len(parts) == 1 and len(runs):
        return [(labels.text(runs["model"].iloc[0]), runs)]
    return [(title or "unknown workload", part) for title, part in parts]


def rampup(
    first: int,
    last: int,
    *,
    gpus_per_node: int,
    micro_batch_size: int | None = None,
    replica_gpus: int | None = None,
    runs: pd.DataFrame | None = None,
    max_nodes: int | None = None,
    increment: int | None = None,
    least_efficiency: float = 0.9,
    ramp_samples: int | None = None,
    seq_len: int | None = None,
) -> pd.DataFrame:
    """Return the schedule of a batch-size ramp-up.

    Parameters
    ----------
    first, last
        The global batch size in sequences, at the beginning and after the ramp-up.
    gpus_per_node
        GPUs of a node; nodes are used whole.
    micro_batch_size, replica_gpus
        The largest micro-batch that fits, and tensor- times pipeline-parallel size (1 by default). Or instead of both:
    runs
        Measured runs of one task on one kind of GPU, for the fastest replica and the throughput of each micro-batch.
    max_nodes
        Most nodes; without it, the batch alone limits them.
    increment
        What each stage adds to the batch, as in Megatron's `--rampup-batch-size`; without it, the batch doubles.
    least_efficiency
        Throughput of a GPU at the first batch, relative to its best, above 0 and at most 1; it needs `runs`.
    ramp_samples, seq_len
        Samples over which the batch grows, in equal shares rounded up to whole steps, and tokens of each.

    Returns
    -------
    pandas.DataFrame
        One row per global batch size: `nodes`, `gpus`, `global_batch_size`, `micro_batch_size`, `grad_accum`,
        `data_parallel`; `efficiency` (throughput of a GPU relative to its best micro-batch, NaN if it was not measured;
        slower communication on more nodes is not in it); `until_samples` and `until_tokens`, after which the next stage
        begins, missing for the last one and without `ramp_samples`.

    Raises
    ------
    SettingsError
        If a number is too small, the stages do not reach `last`, no measured run can be used, or no number of whole
        nodes divides a batch.

    Examples
    --------
    Four nodes of 2 GPUs take a sequence per GPU of the first batch, and fill them as the batch grows.

    >>> schedule = rampup(8, 32, gpus_per_node=2, micro_batch_size=4)
    >>> print(schedule[["global_batch_size", "nodes", "gpus", "micro_batch_size"]].to_string())
       global_batch_size  nodes  gpus  micro_batch_size
    0                  8      4     8                 1
    1                 16      4     8                 2
    2                 32      4     8                 4
    """
    counts = {
        "first": first,
        "last": last,
        "gpus_per_node": gpus_per_node,
        "micro_batch_size": micro_batch_size,
    }
    counts |= {"replica_gpus": replica_gpus, "max_nodes": max_nodes, "increment": increment}
    if small := next(
        (name for name, number in counts.items() if number is not None and number < 1), None
    ):
        raise SettingsError(f"{small} is {counts[small]}: give a whole number of at least 1")
    if not 0 < least_efficiency <= 1:
        raise SettingsError(
            f"least_efficiency is {least_efficiency}: give a number above 0, at most 1"
        )
    if (runs is None) == (micro_batch_size is None) or (runs is not None and replica_gpus):
        raise SettingsError(
            "give either micro_batch_size, the largest that fits, with replica_gpus, or measured runs"
        )
    efficiencies: dict[int, float] = {}
    if runs is None:  # a larger micro-batch is faster, and how much is unknown
        per_replica, least_efficiency = replica_gpus or 1, 0.0
        scores = {
            size: size / (micro_batch_size or 1) for size in range(1, (micro_batch_size or 1) + 1)
        }
    else:
        per_replica, speeds = fastest_replica(runs)
        efficiencies = {size: speed / max(speeds.values()) for size, speed in speeds.items()}
        scores = {
            size: 1.0 if value >= SAME_SPEED else value for size, value in efficiencies.items()
        }
    batches = _batches(first, last, increment)
    rows: list[tuple[float, ...]] = []
    min_nodes, enough = 1, least_efficiency
    for batch in batches:
        options = []
        for data_parallel in divisors(batch):
            nodes, rest = divmod(data_parallel * per_replica, gpus_per_node)
            sizes = [size for size in divisors(batch // data_parallel) if size in scores]
            if sizes and not rest and min_nodes <= nodes <= (max_nodes or math.inf):
                options.append(
                    (nodes, data_parallel, max(sizes, key=lambda size: (scores[size], size)))
                )
        if not options:
            allowed = f"{min_nodes:,} to {max_nodes:,}" if max_nodes else f"{min_nodes:,} or more"
            raise SettingsError(
                f"a global batch of {batch:,} cannot be shared equally among {allowed} nodes of "
                f"{labels.count(gpus_per_node, 'GPU')} with {per_replica:,} a replica, in micro-batches that fit: "
                "choose other batch sizes, or fewer GPUs a node"
            )
        # The most nodes of the options with enough efficiency; if there are none, the most efficient option.
        nodes, data_parallel, size = max(
            options, key=lambda option: (min(scores[option[2]], enough), option[0])
        )
        min_nodes, enough = nodes, 1.0
        grad_accum, efficiency = batch // (data_parallel * size), efficiencies.get(size, math.nan)
        rows.append(
            (nodes, nodes * gpus_per_node, batch, size, grad_accum, data_parallel, efficiency)
        )
    table = pd.DataFrame(rows, columns=RAMPUP)
    stage_samples = [
        batch * math.ceil((ramp_samples or 0) / (len(batches) - 1) / batch)
        for batch in batches[:-1]
    ]
    ends = [*itertools.accumulate(stage_samples), None] if ramp_samples else [None] * len(batches)
    table["until_samples"] = pd.array(ends, dtype="Int64")
    table["until_tokens"] = (table["until_samples"] * (seq_len or pd.NA)).astype("Int64")
    return table


def divisors(number: int) -> list[int]:
    """Return the divisors of a number in ascending order."""
    small = [factor for factor in range(1, math.isqrt(number) + 1) if number % factor == 0]
    return sorted({*small, *(number // factor for factor in small)})


def fastest_replica(runs: pd.DataFrame) -> tuple[int, dict[int, float]]:
    """Return the GPUs of the replica with the highest throughput per GPU, and that throughput by micro-batch size.

    Only ok runs on the most GPUs count. Of equally fast replicas, the smallest is taken. Runs of several tasks or kinds
    of GPU raise SettingsError.
    """
    runs = as_runs(runs).reset_index(drop=True)
    columns = ("tokens_per_s_per_gpu", "micro_batch_size", "gpus")
    ok = runs[
        (runs["status"] == "ok")
        & pd.concat([numbers(runs, name) > 0 for name in columns], axis=1).all(axis=1)
    ]
    if ok.empty:
        raise SettingsError(
            "no run is ok with a throughput and a micro-batch size: measure some sizes first"
        )
    replica_gpus = factor(ok, "tensor_parallel") * factor(ok, "pipeline_parallel")
    ok = ok[replica_gpus.notna()]
    if ok.empty:
        raise SettingsError(
            "the tensor- or pipeline-parallel size of every run is unknown: give micro_batch_size and replica_gpus"
        )
    kinds = {
        "tasks": [task.title for task in tasks(ok)],
        "kinds of GPU": [*ok["gpu_name"].dropna().unique()],
    }
    for what, names in kinds.items():
        if len(names) > 1:
            raise SettingsError(
                f"the runs are of {len(names)} {what} ({'; '.join(names[:4])}): choose those of one"
            )
    ok = ok[numbers(ok, "gpus") == numbers(ok, "gpus").max()]
    replicas = []
    for _, alike in workloads(ok.drop(columns=["micro_batch_size", "grad_accum"], errors="ignore")):
        sizes = numbers(ok.loc[alike.index], "micro_batch_size").astype(int)
        speeds = numbers(alike, "tokens_per_s_per_gpu").groupby(sizes).median()
        replicas.append(
            (
                int(replica_gpus[alike.index[0]]),
                {int(size): float(speed) for size, speed in speeds.items()},
            )
        )
    return max(replicas, key=lambda replica: (max(replica[1].values()), -replica[0]))


def _batches(first: int, last: int, increment: int | None) -> list[int]:
    """Return the global batch sizes from the first to the last one."""
    batches = [first]
    while batches[-1] < last:
        batches.append(batches[-1] + (increment or batches[-1]))
    if batches[-1] != last:
        grows = f"grows by {increment:,}" if increment else "doubles"
        nearest = " or ".join(f"{batch:,}" for batch in batches[-2:])
        raise SettingsError(
            f"last is {last:,}, but the batch {grows} from {first:,} on: choose {nearest}, or another increment"
        )
    return batches
