"""How wrong predicted step times were on runs that the constants were not fitted to, by kind of setting."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dsnb.prediction.calibration import calibrate
from dsnb.prediction.constants import DEFAULT, Constants
from dsnb.prediction.measured import Measured
from dsnb.prediction.step_time import step_times
from dsnb.settings.experiment import Experiment

ALL = "all"
FEWEST = 3
"""Settings of a kind that its own error is taken from; with fewer it is that of all settings."""
MOST_FITS = 20
"""Fits of the constants for the errors of some runs: each takes 20 to 40 ms, and more for thousands of runs."""


@dataclass(frozen=True)
class TimeError:
    """Errors of predicted step times in per cent of the measured ones.

    Attributes
    ----------
    settings
        Number of runs.
    mean_pct, worst_pct
        Mean and largest absolute error.
    bias_pct
        Mean error; above 0 if steps were predicted too slow.
    """

    settings: int
    mean_pct: float
    worst_pct: float
    bias_pct: float


# Leave-one-model-out on one to four H200, from `constants.PRIOR`: `python -m benchmarks.prediction_errors`.
DEFAULT_ERRORS: dict[str, TimeError] = {
    "DDP": TimeError(7, 3.8, 11.2, -2.7),
    "FSDP": TimeError(7, 6.0, 11.9, -3.7),
    "LoRA": TimeError(3, 2.4, 4.0, 0.3),
    "ZeRO 0": TimeError(26, 6.8, 19.3, 3.1),
    "ZeRO 1": TimeError(20, 6.1, 16.0, 0.3),
    "ZeRO 2": TimeError(5, 8.0, 16.2, 1.5),
    "ZeRO 3": TimeError(18, 7.7, 30.6, 1.1),
    "offload to the CPU": TimeError(5, 10.5, 29.2, -10.5),
    "plain loop": TimeError(8, 5.0, 9.2, 4.1),
    "tensor and pipeline parallel": TimeError(2, 9.9, 15.0, 5.1),
    "all": TimeError(101, 6.6, 30.6, 0.6),
}

ELSEWHERE = ("published on other GPUs", TimeError(71, 35.3, 87.8, -28.2))
"""Errors on four published tables of A100, H100 and V100, with the constants of H200: `prediction_errors elsewhere`."""


def kind(experiment: Experiment) -> str:
    """Return the kind of a setting, by what decides how well it is predicted."""
    if experiment.offload != "none":
        return "offload to the CPU"
    if experiment.tensor_parallel > 1 or experiment.pipeline_parallel > 1:
        return "tensor and pipeline parallel"
    if experiment.lora_rank:
        return "LoRA"
    names = {"plain": "plain loop", "ddp": "DDP", "fsdp": "FSDP"}
    return names.get(experiment.strategy, f"ZeRO {experiment.zero_stage}")


def expected_error(experiment: Experiment, known: Mapping[str, TimeError] = DEFAULT_ERRORS) -> tuple[str, TimeError]:
    """Return the kind of settings on which the error of an experiment's prediction was measured, and that error."""
    own = kind(experiment)
    name = own if own in known and known[own].settings >= FEWEST else ALL
    return name, known[name]


def left_out(runs: Sequence[Measured], start: Constants = DEFAULT) -> list[float]:
    """Return the error of each run in per cent, predicted with constants fitted to the runs of all other models.

    Runs of a single model are left out setting by setting. Of more than 20 models or settings, several are left out
    together, so that the constants are fitted 20 times at most.

    Parameters
    ----------
    start
        Constants that none of the runs had a part in.
    """
    several = by_model(runs)
    groups: list[object] = [run.experiment.model if several else run.setting for run in runs]
    errors = np.zeros(len(runs))
    distinct = {group: number % MOST_FITS for number, group in enumerate(dict.fromkeys(groups))}
    folds = [distinct[group] for group in groups]
    for fold in range(min(len(distinct), MOST_FITS)):
        chosen = [number for number, own in enumerate(folds) if own == fold]
        constants = calibrate([run for run, own in zip(runs, folds, strict=True) if own != fold], start)
        seconds = step_times([runs[number].setting for number in chosen], constants).step_time_s
        errors[chosen] = 100 * (np.asarray(seconds) / [runs[number].step_time_s for number in chosen] - 1)
    return [float(error) for error in errors]


def by_model(runs: Sequence[Measured]) -> bool:
    """Return whether runs are left out model by model; otherwise setting by setting."""
    return len({run.experiment.model for run in runs}) > 1


def by_kind(runs: Sequence[Measured], errors: Sequence[float]) -> dict[str, TimeError]:
    """Return the errors of runs by kind of setting, and of all of them."""
    groups: dict[str, list[float]] = {name: [] for name in sorted({kind(run.experiment) for run in runs})}
    for run, error in zip(runs, errors, strict=True):
        groups[kind(run.experiment)].append(error)
    return {name: error_of(group) for name, group in [*groups.items(), (ALL, list(errors))]}


def error_of(errors: Sequence[float]) -> TimeError:
    """Return the summary of some errors in per cent."""
    sizes = [abs(error) for error in errors]
    mean, bias = sum(sizes) / len(sizes), sum(errors) / len(errors)
    return TimeError(len(errors), round(mean, 1), round(max(sizes), 1), round(bias, 1))
