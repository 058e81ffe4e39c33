"""How wrong predicted step times were on runs that the constants were not fitted to, by kind of setting."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dsnb.prediction.calibration import calibrate
from dsnb.prediction.constants import DEFAULT, Constants
from dsnb.prediction.measured import Measured
from dsnb.prediction.step_time import Setting, parts, stack, step_times
from dsnb.settings.experiment import Experiment

ALL = "all"
BY_CPU, BY_GPU = "limited by the CPU", "limited by the GPU"
ONE_GPU, SEVERAL_GPUS = "one GPU", "several GPUs"
ONE_NODE, SEVERAL_NODES = "one node", "several nodes"
SLOWER, SLOWED = 1.5, 0.1
"""A step is limited by the CPU if a host that is so many times slower would make it longer by more than this share."""
HOST_CONSTANTS = ("host_launch_us", "host_parameter_us", "host_gather_us")
FEWEST = 5
"""Settings of a kind that its own error is taken from; with fewer it is that of a wider kind."""
MOST_FITS = 20
"""Fits of the constants for the errors of some runs: each takes 20 to 40 ms, and more for thousands of runs."""


@dataclass(frozen=True)
class TimeError:
    """Errors of predicted step times as factors, in per cent: 25 if a step takes 1.25 or 1 / 1.25 times as long.

    A factor is the same for step time, tokens/s, days and cost, and as large for a step that is predicted too short as
    for one that is predicted too long.

    Attributes
    ----------
    settings
        Number of settings.
    mean_pct, worst_pct
        Geometric mean and largest error.
    bias_pct
        Geometric mean with signs; above 0 if steps were predicted too long.
    """

    settings: int
    mean_pct: float
    worst_pct: float
    bias_pct: float


Errors = Mapping[str, TimeError]
"""Errors by kind of setting, as `kinds` names them, and of `ALL`."""

# Settings drawn at random or chosen before any run like them, measured on one and two H200 of three hosts, and
# predicted with constants that none of them was fitted to: `python -m benchmarks.prediction_errors unseen`.
DEFAULT_ERRORS: dict[str, TimeError] = {
    "DDP, limited by the CPU, several GPUs": TimeError(1, 76.8, 76.8, -43.4),
    "FSDP, limited by the CPU, several GPUs": TimeError(2, 37.5, 47.1, -27.3),
    "LoRA, limited by the CPU, one GPU": TimeError(6, 41.1, 200.4, -7.1),
    "LoRA, limited by the CPU, several GPUs": TimeError(3, 85.2, 296.6, -46.0),
    "LoRA, limited by the GPU, one GPU": TimeError(1, 1.9, 1.9, -1.9),
    "LoRA, limited by the GPU, several GPUs": TimeError(1, 6.0, 6.0, 6.0),
    "ZeRO 0, limited by the CPU, one GPU": TimeError(4, 27.6, 125.9, -21.6),
    "ZeRO 0, limited by the GPU, one GPU": TimeError(7, 9.6, 34.8, -6.4),
    "ZeRO 1, limited by the CPU, one GPU": TimeError(4, 35.0, 45.0, -20.9),
    "ZeRO 1, limited by the CPU, several GPUs": TimeError(3, 15.2, 40.6, -13.2),
    "ZeRO 1, limited by the GPU, one GPU": TimeError(9, 10.4, 18.3, -4.9),
    "ZeRO 2, limited by the CPU, one GPU": TimeError(2, 26.4, 54.8, -18.4),
    "ZeRO 2, limited by the CPU, several GPUs": TimeError(1, 33.8, 33.8, -25.3),
    "ZeRO 2, limited by the GPU, one GPU": TimeError(6, 15.5, 37.5, -12.0),
    "ZeRO 3, limited by the CPU, one GPU": TimeError(9, 34.0, 89.6, -24.3),
    "ZeRO 3, limited by the CPU, several GPUs": TimeError(2, 93.8, 136.6, -48.4),
    "plain loop, limited by the CPU, one GPU": TimeError(10, 21.6, 70.9, -17.1),
    "plain loop, limited by the GPU, one GPU": TimeError(11, 10.4, 52.9, -7.7),
    "limited by the CPU, one GPU": TimeError(35, 30.4, 200.4, -18.5),
    "limited by the CPU, several GPUs": TimeError(12, 52.9, 296.6, -34.6),
    "limited by the GPU, one GPU": TimeError(34, 10.8, 52.9, -7.3),
    "limited by the GPU, several GPUs": TimeError(1, 6.0, 6.0, 6.0),
    "limited by the CPU": TimeError(47, 35.8, 296.6, -22.9),
    "limited by the GPU": TimeError(35, 10.7, 52.9, -6.9),
    "all": TimeError(82, 24.5, 296.6, -16.5),
}

# The constants of H200 on four published tables and our own runs on H100: `prediction_errors elsewhere`.
ELSEWHERE: dict[str, TimeError] = {
    "A100, one node": TimeError(7, 153.2, 248.7, -60.5),
    "A100, several nodes": TimeError(16, 148.4, 621.1, -59.7),
    "H100 NVL, one node": TimeError(8, 36.8, 79.2, 21.5),
    "H100, one node": TimeError(15, 17.1, 58.3, -9.0),
    "H100, several nodes": TimeError(12, 8.7, 11.2, -1.4),
    "MI250X, one node": TimeError(1, 356.7, 356.7, -78.1),
    "V100, several nodes": TimeError(15, 19.5, 69.5, -16.3),
    "V100-16GB, several nodes": TimeError(8, 9.7, 15.3, -8.9),
    "one node": TimeError(31, 51.6, 356.7, -22.5),
    "several nodes": TimeError(51, 45.1, 621.1, -29.9),
    "all": TimeError(82, 47.5, 621.1, -27.2),
}


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


def limited_by_cpu(settings: Setting, constants: Constants = DEFAULT) -> NDArray[np.bool_]:
    """Return whether the CPU limits the steps of settings, shape (settings,): whether a slower host would show.

    Hosts differ by a factor of two, so this says how far a prediction may be off better than the predicted time that
    a GPU waits for the host.

    Parameters
    ----------
    settings
        Counts as arrays, as `step_time.stack` returns them.
    """
    slower = replace(constants, **{name: SLOWER * getattr(constants, name) for name in HOST_CONSTANTS})
    times = [np.asarray(parts(settings, each).step_time_s) for each in (constants, slower)]
    return np.asarray(times[1] > (1 + SLOWED) * times[0])


def kinds(experiment: Experiment, by_cpu: bool) -> Iterator[str]:
    """Yield the kinds of a setting on a GPU that runs were measured on, from the narrowest to `ALL`.

    Parameters
    ----------
    by_cpu
        Whether the CPU limits its step; an offloaded optimizer's is the CPU's work anyway.
    """
    if experiment.offload != "none":
        yield kind(experiment)
    else:
        limit, count = BY_CPU if by_cpu else BY_GPU, ONE_GPU if experiment.gpus == 1 else SEVERAL_GPUS
        yield f"{kind(experiment)}, {limit}, {count}"
        yield f"{limit}, {count}"
        yield limit
    yield ALL


def kinds_elsewhere(gpu: str, nodes: int) -> Iterator[str]:
    """Yield the kinds of a setting on a GPU that no run was measured on, from the narrowest to `ALL`."""
    place = ONE_NODE if nodes == 1 else SEVERAL_NODES
    yield f"{gpu}, {place}"
    yield place
    yield ALL


def expected_error(names: Iterable[str], known: Errors) -> tuple[str, TimeError]:
    """Return the first of some kinds on which at least `FEWEST` settings were measured, and their error.

    Parameters
    ----------
    names
        As `kinds` or `kinds_elsewhere` yield them.
    """
    name = next((name for name in names if name in known and known[name].settings >= FEWEST), ALL)
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


def by_kind(runs: Sequence[Measured], errors: Sequence[float], constants: Constants = DEFAULT) -> dict[str, TimeError]:
    """Return the errors of runs by each of their kinds, and of all of them.

    Parameters
    ----------
    errors
        Predicted step times in per cent of the measured ones, less 100.
    constants
        Those that say whether the CPU limits a step.
    """
    limits = limited_by_cpu(stack([run.setting for run in runs]), constants)
    return grouped([[*kinds(run.experiment, bool(by_cpu))] for run, by_cpu in zip(runs, limits, strict=True)], errors)


def grouped(names: Sequence[Sequence[str]], errors: Sequence[float]) -> dict[str, TimeError]:
    """Return the errors of runs by each of their kinds, the wider kinds last.

    Parameters
    ----------
    names
        The kinds of each run, as `kinds` or `kinds_elsewhere` yield them.
    errors
        Predicted step times in per cent of the measured ones, less 100.
    """
    groups: dict[str, list[float]] = {}
    for own, error in zip(names, errors, strict=True):
        for name in own:
            groups.setdefault(name, []).append(error)
    widths = {name: len(own) - place for own in names for place, name in enumerate(own)}
    return {name: error_of(groups[name]) for name in sorted(groups, key=lambda name: (-widths[name], name))}


def error_of(errors: Sequence[float]) -> TimeError:
    """Return the summary of some errors: predicted step times in per cent of the measured ones, less 100."""
    logs = np.log1p(np.asarray(errors, dtype=float) / 100)
    sizes = np.abs(logs)
    mean, worst, bias = (round(100 * float(np.expm1(one)), 1) for one in (sizes.mean(), sizes.max(), logs.mean()))
    return TimeError(len(errors), mean, worst, bias)
