"""The schedule of a batch-size ramp-up: nodes, micro-batch and gradient accumulation for every global batch size.

The constraints are those of the BigScience benchmark of a 1.3B model (`experiments/tr3m-1B3.md` of
bigscience-workshop/bigscience): micro-batch x gradient accumulation x data-parallel size is the global batch, a replica
takes tensor x pipeline GPUs, nodes are used whole, and a small batch limits how many replicas have anything to do.

Two rules decide among what these allow, and both prefer GPUs that are used well:

1. The first batch gets as many nodes as it can feed while a GPU keeps `least_efficiency` of its best throughput.
2. Each later batch first brings the nodes that are already there to their best micro-batch, and then adds nodes. No
   node is given back; where no more may be added, gradients are accumulated.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from dsnb.analysis.replica import Replica, best_replica, divisors
from dsnb.errors import SettingsError
from dsnb.runs.labels import count

MOST = {"ramp_samples": 10**12, "seq_len": 10**6}
"""Their product fits into 64 bits."""
MOST_OTHERS = 10**7
MOST_STAGES = 1000
COLUMNS = [
    "nodes",
    "gpus",
    "global_batch_size",
    "micro_batch_size",
    "grad_accum",
    "data_parallel",
    "efficiency",
    "until_samples",
    "until_tokens",
]


@dataclass(frozen=True)
class _Option:
    """A way to train with one global batch size; `score` is 1 for a micro-batch as fast as the best."""

    nodes: int
    data_parallel: int
    micro_batch_size: int
    score: float


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
    micro_batch_size
        The largest micro-batch that fits into memory; a larger one is taken to be faster.
    replica_gpus
        GPUs of a replica, tensor- times pipeline-parallel size; 1 by default.
    runs
        Measured runs, in place of `micro_batch_size` and `replica_gpus`: `dsnb.analysis.replica.best_replica` takes
        from them the fastest replica and the throughput of a GPU at each micro-batch that fits.
    max_nodes
        Most nodes; without it, the batch alone limits them.
    increment
        What each stage adds to the batch, as in Megatron's `--rampup-batch-size`; without it, the batch doubles.
    least_efficiency
        Throughput of a GPU at the first batch, relative to its best, above 0 and at most 1; it needs `runs`.
    ramp_samples
        Samples over which the batch grows. As in Megatron, each batch size before the last gets an equal share, here
        rounded up to whole optimizer steps.
    seq_len
        Tokens of a sequence, for `until_tokens`.

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
        If a value is not of the allowed size, the stages do not reach `last`, no measured run can be used, or no number
        of whole nodes divides a batch.
    """
    optional = {
        "micro_batch_size": micro_batch_size,
        "replica_gpus": replica_gpus,
        "max_nodes": max_nodes,
        "increment": increment,
        "ramp_samples": ramp_samples,
        "seq_len": seq_len,
    }
    given = {name: value for name, value in optional.items() if value is not None}
    _check_counts(first=first, last=last, gpus_per_node=gpus_per_node, **given)
    if not isinstance(least_efficiency, int | float) or not 0 < least_efficiency <= 1:
        raise SettingsError(f"least_efficiency is {least_efficiency!r}: give a number above 0, at most 1")
    replica = _replica(micro_batch_size, replica_gpus, runs)
    batches = _batches(first, last, increment)
    stages: list[_Option] = []
    for batch in batches:
        least, most = stages[-1].nodes if stages else 1, max_nodes or MOST_OTHERS
        options = [one for one in _options(batch, gpus_per_node, replica) if least <= one.nodes <= most]
        if not options:
            raise SettingsError(_impossible(batch, gpus_per_node, replica.gpus, least, max_nodes))
        enough = 1.0 if stages else least_efficiency if replica.speeds else 0.0
        stages.append(_most_nodes(options, enough))
    table = pd.DataFrame(
        {
            "nodes": one.nodes,
            "gpus": one.nodes * gpus_per_node,
            "global_batch_size": batch,
            "micro_batch_size": one.micro_batch_size,
            "grad_accum": batch // (one.data_parallel * one.micro_batch_size),
            "data_parallel": one.data_parallel,
            "efficiency": replica.efficiency(one.micro_batch_size),
        }
        for batch, one in zip(batches, stages, strict=True)
    )
    table["until_samples"] = pd.array(_ends(batches, ramp_samples), dtype="Int64")
    table["until_tokens"] = table["until_samples"] * (seq_len if seq_len else pd.NA)
    return table.astype({"until_tokens": "Int64"})[COLUMNS]


def _most_nodes(options: list[_Option], enough: float) -> _Option:
    """Return the option with the most nodes of those with enough efficiency; if there are none, the most efficient."""
    return max(options, key=lambda one: (min(one.score, enough), one.nodes))


def _options(batch: int, gpus_per_node: int, replica: Replica) -> Iterator[_Option]:
    """Yield every way to share a global batch among whole nodes."""
    for data_parallel in divisors(batch):
        nodes, rest = divmod(data_parallel * replica.gpus, gpus_per_node)
        size = replica.best_size(batch // data_parallel)
        if rest == 0 and size is not None:
            yield _Option(nodes, data_parallel, size, replica.score(size))


def _batches(first: int, last: int, increment: int | None) -> list[int]:
    """Return the global batch sizes from the first to the last one."""
    if first > last:
        raise SettingsError(f"the batch grows from {first:,} to {last:,}: give a last one that is not smaller")
    if increment is None:
        doubled = [first]
        while doubled[-1] < last:
            doubled.append(2 * doubled[-1])
        if doubled[-1] != last:
            raise SettingsError(
                f"{first:,} doubles to {doubled[-2]:,} and {doubled[-1]:,}, not to {last:,}: choose one of these, "
                "or an increment"
            )
        return doubled
    if (last - first) % increment:
        raise SettingsError(
            f"increment is {increment:,}, which does not divide {last - first:,} ({last:,} - {first:,})"
        )
    if (last - first) // increment >= MOST_STAGES:
        raise SettingsError(
            f"increment is {increment:,}: at most {MOST_STAGES:,} stages are allowed, choose a larger one"
        )
    return list(range(first, last + 1, increment))


def _ends(batches: list[int], ramp_samples: int | None) -> list[int | None]:
    """Return after how many samples each stage ends; the last one has no end."""
    if ramp_samples is None or len(batches) == 1:
        return [None] * len(batches)
    ends, share = [0], ramp_samples / (len(batches) - 1)
    for batch in batches[:-1]:
        ends.append(ends[-1] + batch * math.ceil(share / batch))
    return [*ends[1:], None]


def _impossible(batch: int, gpus_per_node: int, replica_gpus: int, least: int, most: int | None) -> str:
    nodes = f"{least:,} to {most:,}" if most else f"{least:,} or more"
    return (
        f"a global batch of {batch:,} cannot be shared equally among {nodes} nodes of "
        f"{count(gpus_per_node, 'GPU')} with {replica_gpus:,} a replica, in micro-batches that fit: choose other batch "
        "sizes, or fewer GPUs a node"
    )


def _check_counts(**counts: object) -> None:
    problems = [
        f"{name} is {value!r}: give a whole number from 1 to {MOST.get(name, MOST_OTHERS):,}"
        for name, value in counts.items()
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST.get(name, MOST_OTHERS)
    ]
    if problems:
        raise SettingsError(problems)


def _replica(micro_batch_size: int | None, replica_gpus: int | None, runs: pd.DataFrame | None) -> Replica:
    if runs is None:
        if micro_batch_size is None:
            raise SettingsError("micro_batch_size is missing: give the largest that fits, or measured runs")
        return Replica(replica_gpus or 1, micro_batch_size)
    if micro_batch_size is not None or replica_gpus is not None:
        raise SettingsError("micro_batch_size and replica_gpus are taken from the runs: leave them, or the runs, out")
    return best_replica(runs)
