"""Measured runs as the time model sees them, the constants that fit them, and how far predictions can be trusted.

Constants are fitted robustly and with priors, so that a few runs are enough: least squares of the logarithm of the step
time, in the logarithms of the constants, by Gauss-Newton steps of `numpy.linalg.lstsq`. Huber's weights keep single odd
runs from deciding (Huber 1964), and each constant is drawn to where it starts from, so that one of which the runs tell
nothing stays as it is. Errors are by kind of setting, beside what no measured run was like.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsnb.errors import SettingsError
from dsnb.prediction import gpus
from dsnb.prediction.gpus import Link
from dsnb.prediction.shapes import shape
from dsnb.prediction.step_time import DEFAULT, Constants, Setting, parts, setting, stack, step_times
from dsnb.settings import deepspeed_keys
from dsnb.settings.experiment import DEFAULTS, Experiment
from dsnb.settings.training import CUDA_GRAPHS, compile_mode

if TYPE_CHECKING:
    import pandas as pd

NOISE = 0.08
"""Relative error of a step time that the model is expected to leave: measured settings vary by about as much."""
SPREADS = {"host_link_": 0.35, "host_": 0.7, "link_": 0.7, "network_": 0.7, "": 0.35}
"""Standard deviation of the logarithm of a constant around its start, by the beginning of its name: hosts and networks
differ by a factor of two, what GPUs reach of their nominal rates by less."""
MIN_CALIBRATED = 3
"""Settings that constants are fitted to; fewer tell too little of a host and a GPU."""
STEPS = 12
MAX_CHANGE = 0.5
"""Of the logarithm of a constant in one step."""
NAMES = tuple(field.name for field in fields(Constants))
SPREAD = np.array([next(spread for start, spread in SPREADS.items() if name.startswith(start)) for name in NAMES])
LOG_MAX = np.array([0.0 if name.endswith("efficiency") or name == "overlap" else np.inf for name in NAMES])
"""The logarithms of the largest values: shares are at most 1."""
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


@dataclass(frozen=True)
class Measured:
    """One measured run: what was run, on what, how long a step took, and its counts."""

    experiment: Experiment
    gpu_name: str
    step_time_s: float
    setting: Setting


def measured(runs: "pd.DataFrame", link: Link | str = "nvlink") -> list[Measured]:
    """Return the successful runs of a table in the columns of `load_runs`, without unknown GPUs and models.

    What a row does not tell has its default; its step time may follow from tokens per second.
    """
    path = gpus.link(link) if isinstance(link, str) else link
    return [run for record in runs.to_dict("records") if (run := of_record(record, path))]


def recorded(record: dict[str, Any]) -> Experiment:
    """Return the settings of a row of a table of runs, unchecked; what it does not tell has its default."""
    told = {name: value for name, value in record.items() if not _missing(value)}
    settings = {name: value for name, value in told.items() if name in DEFAULTS}
    for name, value in settings.items():
        if isinstance(DEFAULTS[name], int):  # whole numbers and truth values come as fractions
            settings[name] = type(DEFAULTS[name])(value)
    if not isinstance(settings.get("deepspeed"), dict):
        settings["deepspeed"] = {}  # in a table of runs, the column of this name holds DeepSpeed's version
    if "compile" in settings:
        settings["compile"] = compile_mode(settings["compile"])
    keys = {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in told.items()
        if name.startswith("deepspeed.")
    }
    return Experiment.recorded(deepspeed_keys.flattened({**settings, **keys}))


def of_record(record: dict[str, Any], link: Link) -> Measured | None:
    """Return the measured run of one row; None if it did not succeed, or its GPU or its model are unknown."""
    told = {name: value for name, value in record.items() if not _missing(value)}
    if told.get("status", "ok") != "ok" or "gpu_name" not in told:
        return None
    experiment, name = recorded(record), str(told["gpu_name"])
    seconds = told.get("step_time_s")
    if seconds is None and "tokens_per_s" in told:
        seconds = experiment.tokens_per_step / float(told["tokens_per_s"])
    try:
        counts = setting(experiment, gpus.find(name), link)
    except SettingsError:
        return None
    return Measured(experiment, name, float(seconds), counts) if seconds and seconds > 0 else None


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def calibrate(runs: Sequence[Measured], start: Constants = DEFAULT) -> Constants:
    """Return the constants that fit runs, repeats of a setting as one together; `start` is known without them."""
    if not runs:
        return start
    settings, targets = stack([run.setting for run in runs]), np.log([run.step_time_s for run in runs])
    repeats = Counter(run.setting for run in runs)
    shares = np.array([1 / repeats[run.setting] for run in runs])
    first = now = np.log([getattr(start, name) for name in NAMES])
    for _ in range(STEPS):
        error = _log_times(settings, now) - targets
        usual = 1.5 * max(NOISE, float(np.median(np.abs(error))))
        weights = np.sqrt(shares * np.minimum(1, usual / np.maximum(np.abs(error), 1e-12))) / NOISE
        slopes = _slopes(settings, now) * weights[:, None]
        system = np.vstack([slopes, np.diag(1 / SPREAD)])
        goal = np.concatenate([-error * weights, (first - now) / SPREAD])
        change = np.linalg.lstsq(system, goal, rcond=None)[0]
        now = np.minimum(now + np.clip(change, -MAX_CHANGE, MAX_CHANGE), LOG_MAX)
    return _constants(now)


def _constants(logarithms: NDArray[np.float64]) -> Constants:
    return Constants(*map(float, np.exp(logarithms)))


def _log_times(settings: Setting, logarithms: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.log(parts(settings, _constants(logarithms)).step_time_s))


def _slopes(settings: Setting, logarithms: NDArray[np.float64], width: float = 1e-4) -> NDArray[np.float64]:
    """Return the derivatives of the logarithms of times by those of constants, shape (settings, constants)."""
    steps = width * np.eye(len(NAMES))
    differences = [_log_times(settings, logarithms + step) - _log_times(settings, logarithms - step) for step in steps]
    return np.array(differences).T / (2 * width)


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

    Hosts differ by a factor of two, so this tells more about the error of a prediction than the predicted idle time of
    the GPU does.
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
