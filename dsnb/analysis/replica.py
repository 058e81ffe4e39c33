"""A replica of a model: its GPUs, the micro-batches that fit into them, and how fast each of these is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from dsnb.analysis.scaling import workloads
from dsnb.analysis.tasks import tasks
from dsnb.errors import SettingsError
from dsnb.runs.columns import numbers
from dsnb.runs.table import as_runs

SAME_SPEED = 0.98
"""Relative throughput from which a micro-batch counts as fast as the best one: repeated runs differ by as much."""
BATCH = ("micro_batch_size", "grad_accum")
"""Columns that do not tell two replicas apart."""


@dataclass(frozen=True)
class Replica:
    """GPUs that hold one copy of a model, tensor- times pipeline-parallel size."""

    gpus: int
    largest: int
    """The largest micro-batch that fits."""
    speeds: Mapping[int, float] | None = None
    """Throughput of a GPU by micro-batch size, of those that fit; None if it was not measured."""

    @property
    def best_speed(self) -> float:
        """Throughput of a GPU at the best micro-batch; NaN if it was not measured."""
        return max(self.speeds.values()) if self.speeds else math.nan

    def efficiency(self, size: int) -> float:
        """Return the throughput of a micro-batch relative to that of the best one; NaN if it was not measured."""
        return self.speeds[size] / self.best_speed if self.speeds else math.nan

    def score(self, size: int) -> float:
        """Return what micro-batches are ordered by: measured efficiency, otherwise the size, since larger is faster."""
        if not self.speeds:
            return size / self.largest
        return 1.0 if self.efficiency(size) >= SAME_SPEED else self.efficiency(size)

    def best_size(self, samples: int) -> int | None:
        """Return the best micro-batch that divides a replica's samples; None if there is none."""
        sizes = [size for size in self.speeds or divisors(samples) if samples % size == 0 and size <= self.largest]
        return max(sizes, key=lambda size: (self.score(size), size), default=None)


def divisors(number: int) -> list[int]:
    """Return the divisors of a number in ascending order."""
    small = [one for one in range(1, math.isqrt(number) + 1) if number % one == 0]
    return sorted({*small, *(number // one for one in small)})


def best_replica(runs: pd.DataFrame) -> Replica:
    """Return the replica with the highest throughput a GPU; of equal ones, that with the fewest GPUs.

    Parameters
    ----------
    runs
        One row per run of one task on one kind of GPU, as `dsnb.load_runs` and `dsnb.published` return them. Only ok
        runs count, and of these those on the most GPUs, which are nearest to a larger training.

    Raises
    ------
    SettingsError
        If the runs are of several tasks or kinds of GPU, or none of them is ok with a throughput.
    """
    runs = as_runs(runs).reset_index(drop=True)
    gpus, columns = numbers(runs, "gpus"), ("tokens_per_s_per_gpu", "micro_batch_size", "gpus")
    ok = runs[(runs["status"] == "ok") & pd.concat([numbers(runs, name) > 0 for name in columns], axis=1).all(axis=1)]
    if ok.empty:
        raise SettingsError("no run is ok with a throughput and a micro-batch size: measure some sizes first")
    _require_one("tasks", [task.title for task in tasks(ok)])
    _require_one("kinds of GPU", [str(name) for name in ok["gpu_name"].dropna().unique()])
    ok = ok[gpus[ok.index] == gpus[ok.index].max()]
    alike = workloads(ok.drop(columns=[name for name in BATCH if name in ok]))
    found = [_replica(ok.loc[part.index]) for _, part in alike]
    return max(found, key=lambda one: (one.best_speed, -one.gpus))


def _require_one(what: str, found: list[str]) -> None:
    if len(found) > 1:
        raise SettingsError(f"the runs are of {len(found)} {what} ({'; '.join(found[:4])}): choose those of one")


def _replica(runs: pd.DataFrame) -> Replica:
    sizes = numbers(runs, "micro_batch_size").astype(int)
    medians = numbers(runs, "tokens_per_s_per_gpu").groupby(sizes).median()
    gpus = [numbers(runs, name).fillna(1).iloc[0] for name in ("tensor_parallel", "pipeline_parallel")]
    return Replica(int(math.prod(gpus)), int(sizes.max()), {int(size): float(one) for size, one in medians.items()})
