"""Schedules of batch-size ramp-ups: which nodes, micro-batches and accumulation each stage gets.

A batch-size ramp-up has the constraints of the BigScience benchmark of a 1.3B model
(`experiments/tr3m-1B3.md` of bigscience-workshop/bigscience): micro-batch x gradient accumulation x
data-parallel size is the global batch, a replica takes tensor x pipeline GPUs, nodes are used
whole, and a small batch limits how many replicas have anything to do.

1. The first batch gets as many nodes as it can feed while a GPU keeps `least_efficiency` of its
   best throughput.
2. Each later batch first brings the existing nodes to their best micro-batch, and then adds nodes.
   Nodes are never released; when no more may be added, gradients are accumulated.
"""

import math
from collections.abc import Iterator
from itertools import accumulate
from operator import mul

import pandas as pd

from dsnb.base.errors import SettingsError
from dsnb.results.runs import labels
from dsnb.results.runs.table import as_runs, factor, numbers
from dsnb.results.statistics.scaling import NOT_WORKLOAD
from dsnb.results.statistics.setting_axes import split
from dsnb.results.statistics.tasks import tasks

SAME_SPEED = 0.98
"""Relative throughput from which a micro-batch counts as fast as the best one: repeated runs differ
by as much."""
COLUMNS = [
    "nodes", "gpus", "global_batch_size", "micro_batch_size", "grad_accum", "data_parallel", "efficiency",
]  # fmt: skip


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

    >>> schedule = dsnb.rampup(8, 32, gpus_per_node=2, micro_batch_size=4)
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
        "replica_gpus": replica_gpus,
        "max_nodes": max_nodes,
        "increment": increment,
    }
    for name, number in counts.items():
        if number is not None and number < 1:
            raise SettingsError(f"{name} is {number}: give a whole number of at least 1")
    if not 0 < least_efficiency <= 1:
        raise SettingsError(
            f"least_efficiency is {least_efficiency}: give a number above 0, at most 1"
        )
    efficiencies: dict[int, float] = {}
    if micro_batch_size is not None and runs is None:
        # A larger micro-batch is faster, and how much is unknown.
        per_replica = replica_gpus or 1
        scores = {size: size / micro_batch_size for size in range(1, micro_batch_size + 1)}
        enough = 0.0
    elif runs is not None and micro_batch_size is None and replica_gpus is None:
        per_replica, speeds = fastest_replica(runs)
        best = max(speeds.values())
        efficiencies = {size: speed / best for size, speed in speeds.items()}
        scores = {size: 1.0 if e >= SAME_SPEED else e for size, e in efficiencies.items()}
        enough = least_efficiency
    else:
        raise SettingsError(
            "give either micro_batch_size, the largest that fits, with replica_gpus, or measured runs"
        )
    batches = _batches(first, last, increment)
    nodes = 1
    rows = []
    for batch in batches:
        options = [
            option
            for option in _options(batch, per_replica, gpus_per_node, scores)
            if nodes <= option[0] <= (max_nodes or math.inf)
        ]
        if not options:
            allowed = f"{nodes:,} or more"
            if max_nodes:
                allowed = f"{nodes:,} to {max_nodes:,}"
            raise SettingsError(
                f"a global batch of {batch:,} cannot be shared equally among {allowed} nodes of "
                f"{labels.count(gpus_per_node, 'GPU')} with {per_replica:,} a replica, in micro-batches that fit: "
                "choose other batch sizes, or fewer GPUs a node"
            )
        # The most nodes of the options with enough efficiency; if there are none, the most
        # efficient option.
        by_efficiency = [(min(scores[option[2]], enough), option[0]) for option in options]
        nodes, data_parallel, size = options[by_efficiency.index(max(by_efficiency))]
        enough = 1.0
        accumulated = batch // (data_parallel * size)
        efficiency = efficiencies.get(size, math.nan)
        gpus = nodes * gpus_per_node
        rows.append((nodes, gpus, batch, size, accumulated, data_parallel, efficiency))
    table = pd.DataFrame(rows, columns=COLUMNS)
    ends: list[int | None] = [None] * len(batches)
    if ramp_samples:
        growing = batches[:-1]
        steps = [math.ceil(ramp_samples / len(growing) / batch) for batch in growing]
        ends[:-1] = accumulate(map(mul, growing, steps))
    table["until_samples"] = pd.array(ends, dtype="Int64")
    table["until_tokens"] = (table["until_samples"] * (seq_len or pd.NA)).astype("Int64")
    return table


def _options(
    batch: int, per_replica: int, gpus_per_node: int, scores: dict[int, float]
) -> Iterator[tuple[int, int, int]]:
    """Yield nodes, replicas and the best micro-batch for each way to share a batch equally among whole nodes."""
    for replicas in _divisors(batch):
        nodes, rest = divmod(replicas * per_replica, gpus_per_node)
        sizes = [size for size in _divisors(batch // replicas) if size in scores]
        if sizes and not rest:
            yield nodes, replicas, max(sizes, key=lambda size: (scores[size], size))


def _divisors(number: int) -> list[int]:
    divisors = set()
    for small in range(1, math.isqrt(number) + 1):
        if number % small == 0:
            divisors |= {small, number // small}
    return sorted(divisors)


def fastest_replica(runs: pd.DataFrame) -> tuple[int, dict[int, float]]:
    """Return the GPUs of the replica with the highest throughput per GPU, and that throughput by micro-batch size.

    Only ok runs on the most GPUs count. Of equally fast replicas, the smallest is taken. Runs of
    several tasks or kinds of GPU raise SettingsError.
    """
    runs = as_runs(runs).reset_index(drop=True)
    is_usable = runs["status"] == "ok"
    for name in ("tokens_per_s_per_gpu", "micro_batch_size", "gpus"):
        is_usable &= numbers(runs, name) > 0
    ok = runs[is_usable]
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
    _refuse_several("tasks", [task.title for task in tasks(ok)])
    _refuse_several("kinds of GPU", [*ok["gpu_name"].dropna().unique()])
    ok = ok[numbers(ok, "gpus") == numbers(ok, "gpus").max()]
    replicas = []
    for _, alike in split(ok, {*NOT_WORKLOAD, "micro_batch_size", "grad_accum"}):
        sizes = numbers(alike, "micro_batch_size").astype(int)
        speeds = numbers(alike, "tokens_per_s_per_gpu").groupby(sizes).median()
        replicas.append((int(replica_gpus[alike.index[0]]), speeds.to_dict()))
    return max(replicas, key=lambda replica: (max(replica[1].values()), -replica[0]))


def _refuse_several(what: str, names: list[str]) -> None:
    if len(names) > 1:
        raise SettingsError(
            f"the runs are of {len(names)} {what} ({'; '.join(names[:4])}): choose those of one"
        )


def _batches(first: int, last: int, increment: int | None) -> list[int]:
    """Return the global batch sizes from the first to the last one."""
    batches = [first]
    while batches[-1] < last:
        batches.append(batches[-1] + (increment or batches[-1]))
    if batches[-1] != last:
        grows = "doubles"
        if increment:
            grows = f"grows by {increment:,}"
        nearest = " or ".join(f"{batch:,}" for batch in batches[-2:])
        raise SettingsError(
            f"last is {last:,}, but the batch {grows} from {first:,} on: choose {nearest}, or another increment"
        )
    return batches
