"""Fit what torch reserves beyond the peak of its tensors (`dsnb.prediction.reserved`).

`python -m benchmarks.reserved_memory` writes the rules to `dsnb/prediction/tuned.toml`. Runs that
nearly filled their GPU, or had a limit of memory, are left out: the allocator returned memory
there. Each error is that on models which were left out of the fit, given the measured peak of the
tensors.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import dsnb
from benchmarks import tuning
from dsnb.base.system.hardware import GIB
from dsnb.prediction.accuracy import PredictionError
from dsnb.prediction.memory import room_gib
from dsnb.prediction.reserved import kinds
from dsnb.prediction.work import trained_parameters
from dsnb.settings.experiment import Experiment

TABLES = ("h200", "h100", "h200_archive", "h200_memory", "h200_gpt2_zero_precision")
FULL = 0.95
"""Share of the room beyond which a run nearly filled its GPU."""
MIN_SETTINGS = 5


class Row(NamedTuple):
    """A measured setting: its model, GiB that are reserved and allocated, and 2^30 parameters of a rank."""

    model: str
    reserved: float
    allocated: float
    parameters: float


def rows() -> dict[tuple[str, str], list[Row]]:
    """Return the measured settings by allocator and kind; each counts once, with the medians of its runs."""
    found: dict[tuple[str, str], list[Row]] = {}
    for name in TABLES:
        runs = dsnb.published(name)
        runs = runs[
            (runs["status"] == "ok")
            & (runs["peak_reserved_gib"] > 0)
            & runs["memory_limit_gib"].fillna(0).eq(0)
        ]
        for _, group in runs.groupby(["model", "experiment"]):
            first, peaks = (
                group.iloc[0],
                group[["peak_reserved_gib", "peak_allocated_gib"]].median(),
            )
            experiment = Experiment.of_row(first.to_dict())
            reserved, allocated = (float(gib) for gib in peaks)
            if reserved > FULL * room_gib(experiment, first["gpu_memory_gib"]):
                continue
            parameters = trained_parameters(experiment) / experiment.gpus
            row = Row(experiment.model, reserved, allocated, parameters / GIB)
            found.setdefault((first["allocator"], kinds(experiment)[0]), []).append(row)
    return {key: of_kind for key, of_kind in found.items() if len(of_kind) >= MIN_SETTINGS}


def fitted(of_kind: Sequence[Row]) -> tuple[float, float]:
    """Return the share and the bytes per parameter, neither below 0, with the least squares of relative errors."""
    table = np.array([row[1:] for row in of_kind])
    beyond, terms = (table[:, 0] - table[:, 1]) / table[:, 0], table[:, 1:] / table[:, :1]
    solutions = [_least_squares(terms, beyond, used) for used in ((0, 1), (0,), (1,), ())]
    valid = [solution for solution in solutions if (solution >= 0).all()]
    best = min(valid, key=lambda solution: float(((terms @ solution - beyond) ** 2).sum()))
    return float(best[0]), float(best[1])


def _least_squares(
    terms: NDArray[np.float64], wanted: NDArray[np.float64], used: Sequence[int]
) -> NDArray[np.float64]:
    solution = np.zeros(terms.shape[1])
    if used:
        solution[list(used)] = np.linalg.lstsq(terms[:, list(used)], wanted, rcond=None)[0]
    return solution


def error(of_kind: Sequence[Row]) -> PredictionError:
    """Return the error on each model, predicted with what is fitted to the others."""
    errors = []
    for model in {row.model for row in of_kind}:
        others = [row for row in of_kind if row.model != model]
        share, each = fitted(others) if others else (0.0, 0.0)
        for row in (row for row in of_kind if row.model == model):
            errors.append(
                100 * (((1 + share) * row.allocated + each * row.parameters) / row.reserved - 1)
            )
    sizes = np.abs(errors)
    return PredictionError(
        len(errors), float(sizes.mean()), float(sizes.max()), float(np.mean(errors))
    )


def main() -> None:
    """Write the rules and their errors."""
    every = rows()
    for allocator in sorted({allocator for allocator, _ in every}):
        of_allocator = {}
        for key in sorted(key for key in every if key[0] == allocator):
            share, each = fitted(every[key])
            errors_pct = [round(size, 1) for size in error(every[key])[1:]]
            numbers = [round(share, 3), round(each, 2), len(every[key]), *errors_pct]
            of_allocator[key[1]] = numbers
        tuning.write_rows(f"reserved.{allocator}", of_allocator)


if __name__ == "__main__":
    main()
