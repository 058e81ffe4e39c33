"""How wrong predicted step times were on runs that the constants were not fitted to, by kind of setting."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsnb.prediction.calibration import calibrate
from dsnb.prediction.constants import DEFAULT, Constants
from dsnb.prediction.measured import Measured
from dsnb.prediction.step_time import StepTime, step_times
from dsnb.settings.experiment import Experiment

ALL = "all"
WAITING = "waiting for the host"
WAITS = 0.2
"""Share of a predicted step that a GPU waits for the host, above which the host decides how wrong the prediction is."""
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
        Number of settings.
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
    "DDP": TimeError(11, 7.6, 18.3, -5.7),
    "FSDP": TimeError(13, 8.0, 15.0, -8.0),
    "LoRA": TimeError(7, 5.1, 9.1, -3.2),
    "ZeRO 0": TimeError(66, 5.6, 22.6, 2.5),
    "ZeRO 1": TimeError(38, 6.8, 19.7, -1.6),
    "ZeRO 2": TimeError(9, 8.8, 25.0, -3.2),
    "ZeRO 3": TimeError(2, 8.1, 12.1, -4.0),
    "compressed gradients": TimeError(1, 2.7, 2.7, -2.7),
    "offload to the CPU": TimeError(1, 61.6, 61.6, 61.6),
    "plain loop": TimeError(16, 4.0, 10.8, 1.1),
    "tensor and pipeline parallel": TimeError(8, 12.0, 19.5, 1.1),
    "waiting for the host": TimeError(104, 12.8, 52.3, 0.5),
    "all": TimeError(276, 9.1, 61.6, 0.1),
}

ELSEWHERE = ("on other GPUs", TimeError(82, 32.6, 87.4, -25.2))
"""Errors on four published tables of A100, H100 and V100, and our own of H100, with the constants of H200:
`prediction_errors elsewhere`."""


def kind(experiment: Experiment) -> str:
    """Return the kind of a setting: its strategy, unless it shares or leaves out something besides."""
    if experiment.offload != "none":
        return "offload to the CPU"
    if experiment.tensor_parallel > 1 or experiment.pipeline_parallel > 1:
        return "tensor and pipeline parallel"
    if experiment.lora_rank:
        return "LoRA"
    if experiment.gradient_compression != "none":
        return "compressed gradients"
    names = {"plain": "plain loop", "ddp": "DDP", "fsdp": "FSDP"}
    return names.get(experiment.strategy, f"ZeRO {experiment.zero_stage}")


def kind_of_time(experiment: Experiment, host_share: float) -> str:
    """Return the kind of a setting by what decides how well its step time is predicted: that of offload is the CPU."""
    own = kind(experiment)
    return WAITING if host_share > WAITS and experiment.offload == "none" else own


def host_share(time: StepTime) -> Any:
    """Return the share of predicted steps in which a GPU waits for the host."""
    return time.host_s / time.step_time_s


def expected_error(
    experiment: Experiment, share: float, known: Mapping[str, TimeError] = DEFAULT_ERRORS
) -> tuple[str, TimeError]:
    """Return the kind of settings on which the error of a predicted step time was measured, and that error.

    Parameters
    ----------
    share
        What `host_share` says of the prediction.
    """
    own = kind_of_time(experiment, share)
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
    shares = host_share(step_times([run.setting for run in runs]))
    kinds = [kind_of_time(run.experiment, share) for run, share in zip(runs, shares, strict=True)]
    groups: dict[str, list[float]] = {name: [] for name in sorted(set(kinds))}
    for name, error in zip(kinds, errors, strict=True):
        groups[name].append(error)
    return {name: error_of(group) for name, group in [*groups.items(), (ALL, list(errors))]}


def error_of(errors: Sequence[float]) -> TimeError:
    """Return the summary of some errors in per cent."""
    sizes = [abs(error) for error in errors]
    mean, bias = sum(sizes) / len(sizes), sum(errors) / len(errors)
    return TimeError(len(errors), round(mean, 1), round(max(sizes), 1), round(bias, 1))
