"""How far predictions can be trusted: their errors by kind of setting, and what no measured run was like."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsnb.prediction import gpus
from dsnb.prediction.calibration import Measured, calibrate
from dsnb.prediction.gpus import Link
from dsnb.prediction.step_time import DEFAULT, Constants, Setting, parts, stack, step_times
from dsnb.prediction.work import shape
from dsnb.settings.experiment import Experiment
from dsnb.settings.training import CUDA_GRAPHS

ALL = "all"
SLOWER, SLOWED = 1.5, 0.1
"""A step is limited by the CPU if a host that is so many times slower would make it longer by more than this share."""
HOST_CONSTANTS = ("host_launch_us", "host_parameter_us", "host_gather_us")
MIN_SETTINGS, MIN_PEAKS = 5, 3
"""Settings of a kind that its own error of times or peaks is taken from; with fewer it is that of a wider kind."""
MAX_FITS = 20
"""Fits of the constants for the errors of some runs: each takes 20 to 40 ms, and more for thousands of runs."""
MARGIN = 2.0
"""A range of a calibration is left when a value is this many times below or above it."""
GPU, NODES = "GPU", "number of nodes"


class PredictionError(NamedTuple):
    """Errors of predicted figures in per cent of the measured ones, on so many settings.

    Those of peaks of memory are absolute, with their arithmetic mean. Those of step times are factors, the same for
    step time, tokens/s, days and cost: 25 if a step takes 1.25 or 1 / 1.25 times as long, with their geometric mean.
    """

    settings: int
    mean_pct: float
    worst_pct: float
    bias_pct: float = 0.0  # of step times: the mean with signs, above 0 if steps were predicted too long


Errors = Mapping[str, PredictionError]
"""Errors by kind of setting, as `kinds` names them, and of `ALL`."""

_DATA = json.loads(Path(__file__).with_name("accuracy.json").read_text(encoding="utf-8"))
TIME_ERRORS, ELSEWHERE, PEAK_ERRORS = (
    {name: PredictionError(*numbers) for name, numbers in _DATA[table].items()}
    for table in ("times", "elsewhere", "peaks")
)
"""`python -m benchmarks.prediction_errors` measures them: `unseen` those of settings that were drawn at random or
chosen before any run like them, on one and two H200 of three hosts, with constants that none of them was fitted to;
`elsewhere` those of the constants of H200 on four published tables and our own runs on H100; `memory` those of peaks on
one and two H200. Kinds of fewer settings are in docs/explanation/prediction.md only."""


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


def kinds(experiment: Experiment, by_cpu: bool) -> Iterator[str]:
    """Yield the kinds of a setting on a measured GPU, from the narrowest to `ALL`; the CPU may limit its step."""
    if experiment.offload != "none":  # the CPU's work anyway
        yield kind(experiment)
    else:
        limit = f"limited by the {'CPU' if by_cpu else 'GPU'}"
        on_gpus = f"{limit}, {'one GPU' if experiment.gpus == 1 else 'several GPUs'}"
        yield from (f"{kind(experiment)}, {on_gpus}", on_gpus, limit)
    yield ALL


def kinds_elsewhere(gpu: str, nodes: int) -> Iterator[str]:
    """Yield the kinds of a setting on a GPU that no run was measured on, from the narrowest to `ALL`."""
    place = "one node" if nodes == 1 else "several nodes"
    yield from (f"{gpu}, {place}", place, ALL)


def peak_error(experiment: Experiment) -> tuple[str, PredictionError]:
    """Return the kind of settings on which the error of a predicted peak was measured, and that error."""
    return expected_error((kind(experiment), ALL), PEAK_ERRORS, MIN_PEAKS)


def expected_error(
    names: Iterable[str], errors: Errors, min_settings: int = MIN_SETTINGS
) -> tuple[str, PredictionError]:
    """Return the first of some kinds on which enough settings were measured, else `ALL`, and their error."""
    name = next((name for name in names if name in errors and errors[name].settings >= min_settings), ALL)
    return name, errors[name]


def limited_by_cpu(settings: Setting, constants: Constants = DEFAULT) -> NDArray[np.bool_]:
    """Return whether the CPU limits the steps of settings, shape (settings,): whether a slower host would show.

    Hosts differ by a factor of two, so this says how far a prediction may be off better than the predicted time that
    a GPU waits for the host.
    """
    slower = replace(constants, **{name: SLOWER * getattr(constants, name) for name in HOST_CONSTANTS})
    times = [np.asarray(parts(settings, each).step_time_s) for each in (constants, slower)]
    return np.asarray(times[1] > (1 + SLOWED) * times[0])


def left_out(runs: Sequence[Measured], start: Constants = DEFAULT) -> list[float]:
    """Return the error of each run in per cent, predicted with constants fitted to the runs of all other models.

    Runs of a single model are left out setting by setting. Of more than 20 models or settings, several are left out
    together, so that the constants are fitted 20 times at most. No run may have a part in the constants `start`.
    """
    several = len({run.experiment.model for run in runs}) > 1
    groups: list[object] = [run.experiment.model if several else run.setting for run in runs]
    numbers = {group: number % MAX_FITS for number, group in enumerate(dict.fromkeys(groups))}
    folds, errors = np.array([numbers[group] for group in groups]), np.zeros(len(runs))
    for fold in sorted(set(numbers.values())):
        chosen = np.flatnonzero(folds == fold).tolist()
        constants = calibrate([run for run, own in zip(runs, folds, strict=True) if own != fold], start)
        seconds = np.asarray(step_times([runs[place].setting for place in chosen], constants).step_time_s)
        errors[chosen] = 100 * (seconds / [runs[place].step_time_s for place in chosen] - 1)
    return [float(error) for error in errors]


def by_kind(
    runs: Sequence[Measured], errors: Sequence[float], constants: Constants = DEFAULT
) -> dict[str, PredictionError]:
    """Return the errors of runs by each of their kinds; the constants say whether the CPU limits a step."""
    limits = limited_by_cpu(stack([run.setting for run in runs]), constants)
    return grouped([[*kinds(run.experiment, bool(by_cpu))] for run, by_cpu in zip(runs, limits, strict=True)], errors)


def grouped(names: Sequence[Sequence[str]], errors: Sequence[float]) -> dict[str, PredictionError]:
    """Return the errors of runs, as `error_of` takes them, by each of their kinds, the wider kinds last."""
    groups: dict[tuple[int, str], list[float]] = {}
    for own, error in zip(names, errors, strict=True):
        for place, name in enumerate(own):
            groups.setdefault((place - len(own), name), []).append(error)
    return {name: error_of(groups[width, name]) for width, name in sorted(groups)}


def error_of(errors: Sequence[float]) -> PredictionError:
    """Return the summary of some errors: predicted step times in per cent of the measured ones, less 100."""
    logs = np.log1p(np.asarray(errors, dtype=float) / 100)
    sizes = np.abs(logs)
    mean, worst, bias = (round(100 * float(np.expm1(log)), 1) for log in (sizes.mean(), sizes.max(), logs.mean()))
    return PredictionError(len(errors), mean, worst, bias)


@dataclass(frozen=True)
class Coverage:
    """What a calibration has seen: the names of each kind, and the (least, most) of each number, by its words."""

    names: Mapping[str, frozenset[str]]
    ranges: Mapping[str, tuple[float, float]]

    @property
    def gpus(self) -> frozenset[str]:
        """The GPUs that runs were measured on."""
        return self.names[GPU]

    @classmethod
    def of(cls, runs: Sequence[Measured], link: Link) -> "Coverage":
        """Return what one or more measured runs cover; `link` says how many nodes they took."""
        names = [_names(run.experiment, gpus.find(run.gpu_name).name) for run in runs]
        numbers = [_numbers(run.experiment, link) for run in runs]
        return cls(
            {words: frozenset(one[words] for one in names) for words in names[0]},
            {words: (min(one[words] for one in numbers), max(one[words] for one in numbers)) for words in numbers[0]},
        )


DEFAULT_COVERAGE = Coverage(
    names={words: frozenset(names) for words, names in _DATA["covered"]["names"].items()},
    ranges={words: (least, most) for words, (least, most) in _DATA["covered"]["ranges"].items()},
)
"""What `dsnb.prediction.step_time.DEFAULT` was fitted to; offloaded optimizers were measured on one CPU thread only."""


def outside(experiment: Experiment, gpu: str, covered: Coverage, link: Link) -> list[str]:
    """Return a sentence for each thing in which an experiment on a GPU differs from all runs of a calibration."""
    sentences = [
        f"no calibration run has the {words} {name}, only {', '.join(sorted(covered.names[words]))}"
        for words, name in _names(experiment, gpu).items()
        if name not in covered.names[words]
    ]
    for words, number in _numbers(experiment, link).items():
        least, most = covered.ranges[words]
        margin = 1.0 if words == NODES and most == 1 else MARGIN  # one node tells nothing of a network
        if not least / margin <= number <= most * margin:
            seen = f"{least:,}" if least == most else f"{least:,} to {most:,}"
            sentences.append(f"the {words} is {number:,}, calibration runs have {seen}")
    return sentences


def _names(experiment: Experiment, gpu: str) -> dict[str, str]:
    modes = {"off": "eager", "default": "compiled", **dict.fromkeys(CUDA_GRAPHS, "CUDA graphs")}
    strategy = f"ZeRO {experiment.zero_stage}" if experiment.strategy == "deepspeed" else experiment.strategy
    parallel = [kind for kind in ("tensor", "pipeline") if getattr(experiment, f"{kind}_parallel") > 1]
    used = " and ".join([f"{kind} parallel" for kind in parallel] + ["ZeRO++"] * (experiment.zeropp != "none"))
    return {
        GPU: gpu,
        "models of the family": shape(experiment.model).family,
        "strategy": f"{strategy} with {used}" if used else strategy,
        "precision": experiment.precision,
        "mode of compilation": modes.get(experiment.compile, experiment.compile),
        "offload": experiment.offload,
        "optimizer": experiment.optimizer,
        "loss": experiment.loss,
        "gradient compression": experiment.gradient_compression,
    }


def _numbers(experiment: Experiment, link: Link) -> dict[str, float]:
    return {
        "hidden size": shape(experiment.model).hidden,
        "number of tokens in a micro-batch": int(experiment.micro_batch_size) * experiment.seq_len,
        "number of GPUs": experiment.gpus,
        NODES: link.nodes(experiment),
    }
