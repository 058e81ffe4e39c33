"""What the recommendation loses: `python -m benchmarks.regret` prints the table of docs/explanation/prediction.md.

The regret of a choice among the measured settings of a task is the time that it takes beyond the
fastest of them. The tasks are those of `dsnb.published("h200")` and `("h100")` that have five
settings or more on a number of GPUs. Their settings are ranked by predicted time for a token, as
`dsnb.recommend` ranks them, with constants fitted to all other models on H200.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np
import pandas as pd

import dsnb
from benchmarks import prediction_errors
from dsnb.prediction.calibration import Measured, calibrate, measured
from dsnb.prediction.step_time import step_times
from dsnb.results.statistics.tasks import tasks

MIN_SETTINGS = 5
FIRST = 3
LATER = ("h200_four_gpus", "h200_grid_gemma", "h200_grid_pythia", "h200_grid_qwen3")
"""Sweeps of whole tasks that no constant was fitted to."""
HEADER = """| task | GPUs | settings | first | best of the first three |
|---|---|---|---|---|"""


@dataclass(frozen=True)
class Regret:
    """What the settings that rank first among those of one task lose against the fastest of them, in per cent."""

    task: str
    gpus: int
    gpu: str
    settings: int
    first_pct: float
    of_three_pct: float  # the best of the first three

    def __str__(self) -> str:
        lost = f"{self.first_pct:.1f} % | {self.of_three_pct:.1f} %"
        return f"| {self.task} | {self.gpus} {self.gpu} | {self.settings} | {lost} |"


def regrets(runs: pd.DataFrame | None = None) -> Iterator[Regret]:
    """Yield the regret on each task; no run of its model has a part in the constants that rank its settings."""
    if runs is not None:
        yield from _regrets("H200", runs, runs)
        return
    steady = prediction_errors.steady()
    later = dsnb.published("h200").query(f"sweep in {LATER} and status == 'ok'")
    yield from _regrets("H200", pd.concat([steady, later]), steady)
    yield from _regrets("H100", dsnb.published("h100").query("status == 'ok'"), steady)


def _regrets(gpu: str, runs: pd.DataFrame, to_fit: pd.DataFrame) -> Iterator[Regret]:
    for task in tasks(runs):
        constants = calibrate(
            measured(to_fit[to_fit["model"] != task.model]), prediction_errors.PRIOR
        )
        for gpus, of_size in task.runs.groupby("gpus"):
            medians = _medians(measured(of_size))
            if len(medians) < MIN_SETTINGS:
                continue
            tokens = np.array([run.experiment.tokens_per_step for run in medians])
            speed = tokens / [run.step_time_s for run in medians]
            predicted = np.asarray(
                step_times([run.counts for run in medians], constants).step_time_s
            )
            ranked = np.argsort(predicted / tokens)
            lost = 100 * (speed.max() / speed[ranked] - 1)
            yield Regret(
                task.title, int(gpus), gpu, len(medians), float(lost[0]), float(lost[:FIRST].min())
            )


def table(results: Sequence[Regret]) -> str:
    """Return the table of the documentation: a row for each task, their means and the worst ones."""
    rows = [HEADER, *map(str, results)]
    for name, summary in (("mean", mean), ("worst", max)):
        figures = (
            summary([getattr(result, place) for result in results])
            for place in ("first_pct", "of_three_pct")
        )
        rows.append(
            f"| {name} of {len(results)} tasks | | | {' | '.join(f'{figure:.1f} %' for figure in figures)} |"
        )
    return "\n".join(rows)


def _medians(runs: list[Measured]) -> list[Measured]:
    """Return one run of each setting, that of the median step time."""
    groups: dict[str, list[Measured]] = {}
    for run in runs:
        groups.setdefault(run.experiment.name_with_model, []).append(run)
    return [
        sorted(repeats, key=lambda run: run.step_time_s)[(len(repeats) - 1) // 2]
        for repeats in groups.values()
    ]


if __name__ == "__main__":
    print(table(list(regrets())))
