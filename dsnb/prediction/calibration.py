"""Fit the constants of the time model to measured runs, and state how accurate its predictions are.

Constants are fitted by robust least squares on the logarithm of the step time, with Gauss-Newton steps in the
logarithms of the constants. Huber weights limit the influence of outliers (Huber 1964), and a prior keeps each constant
near its start unless the runs say otherwise, so a few runs are enough. Errors are stated by kind of setting, together
with what no measured run covers.
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

from dsnb.base.errors import SettingsError
from dsnb.prediction import gpus
from dsnb.prediction.gpus import Link
from dsnb.prediction.shapes import shape
from dsnb.prediction.step_time import (
    DEFAULT,
    HOST_CONSTANTS,
    HOST_COUNTS,
    Constants,
    Setting,
    parts,
    setting,
    stack,
    step_times,
)
from dsnb.settings import deepspeed_keys
from dsnb.settings.experiment import DEFAULTS, Experiment
from dsnb.settings.training import CUDA_GRAPHS, compile_mode

if TYPE_CHECKING:
    import pandas as pd

NOISE = 0.08
"""Relative error of a step time that the model is expected to leave: about the spread of repeated measurements."""
MIN_CALIBRATED = 3
"""Minimum number of settings to fit constants to."""
STEPS = 12
MAX_CHANGE = 0.5
"""Of the logarithm of a constant in one step."""
NAMES = tuple(field.name for field in fields(Constants))
SPREAD = np.array(
    [
        0.7 if name in {*HOST_CONSTANTS, "link_efficiency", "network_efficiency"} else 0.35
        for name in NAMES
    ]
)
"""Standard deviation of the logarithm of each constant around its start: hosts and networks differ by a factor of two,
the share of its nominal rates that a GPU reaches by less."""
LOG_MAX = np.array(
    [0.0 if name.endswith("efficiency") or name == "overlap" else np.inf for name in NAMES]
)
"""The logarithms of the largest values: shares are at most 1."""
ALL = "all"
SLOWER, SLOWED = 1.5, 0.1
"""The CPU limits a step if a host slower by the first factor would lengthen it by more than the second share."""
MIN_SETTINGS, MIN_PEAKS = 5, 3
"""Minimum number of settings of a kind to use its error of times or peaks; with fewer, a wider kind is used."""
LAUNCH_US = (2.0, 1000.0)
"""Launch times beyond these are errors of measurement."""
MAX_FITS = 20
"""Maximum number of fits for the errors of some runs; one takes 20 to 40 ms, more with thousands of runs."""
MARGIN = 2.0
"""A value is outside a calibrated range if it differs from the range by more than this factor."""
GPU, NODES = "GPU", "number of nodes"


@dataclass(frozen=True)
class Measured:
    """One measured run: what was run, on what, how long a step took, and its counts.

    The host's counts are multiplied by `launch_ratio`, the launch time that was measured with the run over the usual
    one, so that runs of fast and slow hosts have the same constants.
    """

    experiment: Experiment
    gpu_name: str
    step_time_s: float
    setting: Setting
    launch_ratio: float = 1.0


def measured(runs: "pd.DataFrame", link: Link | str = "nvlink") -> list[Measured]:
    """Return the successful runs of a table in the columns of `load_runs`, without unknown GPUs and models.

    Missing settings have their defaults; a missing step time is derived from tokens per second.
    """
    path = gpus.link(link) if isinstance(link, str) else link
    return [run for record in runs.to_dict("records") if (run := of_record(record, path))]


def recorded(record: dict[str, Any]) -> Experiment:
    """Return the settings of a row of a table of runs, unvalidated; missing settings have their defaults."""
    settings = {
        name: value
        for name, value in record.items()
        if (name in DEFAULTS or name.startswith("deepspeed.")) and not _is_missing(value)
    }
    for name, value in settings.items():
        if isinstance(
            DEFAULTS.get(name), int
        ):  # integers and booleans are floats in columns with gaps
            settings[name] = type(DEFAULTS[name])(value)
        elif name not in DEFAULTS and isinstance(value, float) and value.is_integer():
            settings[name] = int(value)
    if not isinstance(settings.get("deepspeed"), dict):
        settings[
            "deepspeed"
        ] = {}  # in a table of runs, the column of this name holds DeepSpeed's version
    if "compile" in settings:
        settings["compile"] = compile_mode(settings["compile"])
    return Experiment.recorded(deepspeed_keys.flattened(settings))


def of_record(record: dict[str, Any], link: Link) -> Measured | None:
    """Return the measured run of one row; None if it failed, or its GPU or model is unknown.

    A run whose allocator returned memory while it was timed is None as well: its speed is not that of its setting.
    """
    values = {name: value for name, value in record.items() if not _is_missing(value)}
    if (
        values.get("status", "ok") != "ok"
        or "gpu_name" not in values
        or values.get("alloc_retries", 0) > 0
    ):
        return None
    experiment, gpu_name = recorded(record), str(values["gpu_name"])
    step_time_s = values.get("step_time_mean_s")
    if step_time_s is None and "tokens_per_s" in values:
        step_time_s = experiment.tokens_per_step / float(values["tokens_per_s"])
    try:
        counts = setting(experiment, gpus.find(gpu_name), link)
    except SettingsError:
        return None
    if not step_time_s or step_time_s <= 0:
        return None
    launch_us = values.get("launch_us")
    is_usable = isinstance(launch_us, float) and LAUNCH_US[0] < launch_us < LAUNCH_US[1]
    ratio = float(launch_us or 0.0) / DEFAULT.host_launch_us if is_usable else 1.0
    host = {name: ratio * getattr(counts, name) for name in HOST_COUNTS}
    return Measured(experiment, gpu_name, float(step_time_s), replace(counts, **host), ratio)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def calibrate(runs: Sequence[Measured], start: Constants = DEFAULT) -> Constants:
    """Return the constants that fit the runs, with repeats of a setting weighted as one; `start` is the prior."""
    if not runs:
        return start
    settings, targets = (
        stack([run.setting for run in runs]),
        np.log([run.step_time_s for run in runs]),
    )
    repeats = Counter(run.setting for run in runs)
    shares = np.array([1 / repeats[run.setting] for run in runs])

    def constants(logarithms: NDArray[np.float64]) -> Constants:
        return Constants(*map(float, np.exp(logarithms)))

    def log_times(logarithms: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.log(parts(settings, constants(logarithms)).step_time_s))

    first = now = np.log([getattr(start, name) for name in NAMES])
    width = 1e-4  # of the central differences
    for _ in range(STEPS):
        error = log_times(now) - targets
        usual = 1.5 * max(NOISE, float(np.median(np.abs(error))))
        weights = np.sqrt(shares * np.minimum(1, usual / np.maximum(np.abs(error), 1e-12))) / NOISE
        changes = [
            log_times(now + step) - log_times(now - step) for step in width * np.eye(len(NAMES))
        ]
        slopes = np.array(changes).T / (2 * width) * weights[:, None]
        system = np.vstack([slopes, np.diag(1 / SPREAD)])
        goal = np.concatenate([-error * weights, (first - now) / SPREAD])
        change = np.linalg.lstsq(system, goal, rcond=None)[0]
        now = np.minimum(now + np.clip(change, -MAX_CHANGE, MAX_CHANGE), LOG_MAX)
    return constants(now)


class PredictionError(NamedTuple):
    """Errors of predicted figures in per cent of the measured ones, on a number of settings.

    Errors of peak memory are absolute, with their arithmetic mean. Errors of step times are factors, the same for step
    time, tokens/s, days and cost: 25 if a step takes 1.25 or 1 / 1.25 times as long, with their geometric mean.
    """

    settings: int
    mean_pct: float
    worst_pct: float
    bias_pct: float = 0.0  # of step times: signed mean, above 0 if predicted too long


Errors = Mapping[str, PredictionError]
"""Errors by kind of setting, as `kinds` names them, and of `ALL`."""

_DATA = json.loads(Path(__file__).with_name("accuracy.json").read_text(encoding="utf-8"))
TIME_ERRORS, ELSEWHERE, PEAK_ERRORS, HOST_ERRORS = (
    {name: PredictionError(*numbers) for name, numbers in _DATA[table].items()}
    for table in ("times", "elsewhere", "peaks", "host")
)
"""Measured by `python -m benchmarks.prediction_errors`: `unseen` on settings drawn at random or chosen before any
similar run, on one to four H200 of seven hosts, none used in the fit; `elsewhere` with the constants of H200 on four
published tables and our own runs on H100; `memory` for peaks on one and two H200; `benchmarks.host_memory` for `host`.
docs/explanation/prediction.md also lists kinds of fewer settings."""
HOST_KINDS = ("with offload", "without offload")
"""Kinds of settings by what they keep in host memory."""


def kind(experiment: Experiment) -> str:
    """Return the kind of a setting: its strategy, unless another technique matters more."""
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
    """Yield the kinds of a setting on a measured GPU, from the narrowest to `ALL`."""
    if experiment.offload != "none":  # always limited by the CPU
        yield kind(experiment)
    else:
        limit = f"limited by the {'CPU' if by_cpu else 'GPU'}"
        on_gpus = f"{limit}, {'one GPU' if experiment.gpus == 1 else 'several GPUs'}"
        yield from (f"{kind(experiment)}, {on_gpus}", on_gpus, limit)
    yield ALL


def kinds_elsewhere(experiment: Experiment, gpu: str, nodes: int) -> Iterator[str]:
    """Yield the kinds of a setting on a GPU without measured runs, from the narrowest to `ALL`."""
    place = "one node" if nodes == 1 else "several nodes"
    if experiment.offload != "none":  # the host decides, not the GPU
        yield from (kind(experiment), ALL)
    else:
        yield from (f"{gpu}, {place}", place, ALL)


def peak_error(experiment: Experiment) -> tuple[str, PredictionError]:
    """Return the kind of settings on which the error of a predicted peak was measured, and the error."""
    return expected_error((kind(experiment), ALL), PEAK_ERRORS, MIN_PEAKS)


def host_kind(experiment: Experiment) -> str:
    """Return which of `HOST_KINDS` a setting is."""
    return HOST_KINDS[0] if experiment.offload != "none" else HOST_KINDS[1]


def host_error(experiment: Experiment) -> tuple[str, PredictionError]:
    """Return the kind of settings on which the error of predicted host memory was measured, and the error."""
    name = host_kind(experiment)
    return name, HOST_ERRORS[name]


def expected_error(
    names: Iterable[str], errors: Errors, min_settings: int = MIN_SETTINGS
) -> tuple[str, PredictionError]:
    """Return the first kind with enough measured settings, else `ALL`, and its error."""
    name = next(
        (name for name in names if name in errors and errors[name].settings >= min_settings), ALL
    )
    return name, errors[name]


def limited_by_cpu(settings: Setting, constants: Constants = DEFAULT) -> NDArray[np.bool_]:
    """Return whether the CPU limits each step, shape (settings,): whether a slower host would lengthen it.

    Hosts differ by a factor of two, so this says more about the error of a prediction than the GPU's predicted idle
    time does.
    """
    times = [
        np.asarray(parts(settings, each).step_time_s)
        for each in (constants, constants.on_host(SLOWER))
    ]
    return np.asarray(times[1] > (1 + SLOWED) * times[0])


def left_out(runs: Sequence[Measured], start: Constants = DEFAULT) -> list[float]:
    """Return the error of each run in per cent, predicted with constants fitted to the runs of all other models.

    If all runs are of one model, each setting is left out instead. With more than 20 models or settings, several are
    left out together. `start` must not depend on the runs.
    """
    is_by_model = len({run.experiment.model for run in runs}) > 1
    groups: list[object] = [run.experiment.model if is_by_model else run.setting for run in runs]
    numbers = {group: number % MAX_FITS for number, group in enumerate(dict.fromkeys(groups))}
    folds, errors = np.array([numbers[group] for group in groups]), np.zeros(len(runs))
    for fold in sorted(set(numbers.values())):
        chosen, others = (
            np.flatnonzero(is_chosen).tolist() for is_chosen in (folds == fold, folds != fold)
        )
        constants = calibrate([runs[place] for place in others], start)
        seconds = np.asarray(
            step_times([runs[place].setting for place in chosen], constants).step_time_s
        )
        errors[chosen] = 100 * (seconds / [runs[place].step_time_s for place in chosen] - 1)
    return [float(error) for error in errors]


def by_kind(
    runs: Sequence[Measured], errors: Sequence[float], constants: Constants = DEFAULT
) -> dict[str, PredictionError]:
    """Return the errors of runs by each of their kinds; the constants decide whether the CPU limits a step."""
    limits = limited_by_cpu(stack([run.setting for run in runs]), constants)
    return grouped(
        [[*kinds(run.experiment, bool(by_cpu))] for run, by_cpu in zip(runs, limits, strict=True)],
        errors,
    )


def grouped(names: Sequence[Sequence[str]], errors: Sequence[float]) -> dict[str, PredictionError]:
    """Return the errors of runs, as in `error_of`, by each of their kinds, the wider kinds last."""
    groups: dict[tuple[int, str], list[float]] = {}
    for kinds_of_run, error in zip(names, errors, strict=True):
        for place, name in enumerate(kinds_of_run):
            groups.setdefault((place - len(kinds_of_run), name), []).append(error)
    return {name: error_of(groups[width, name]) for width, name in sorted(groups)}


def error_of(errors: Sequence[float]) -> PredictionError:
    """Summarize errors of step times, in per cent above (or, negative, below) the measured ones."""
    logs = np.log1p(np.asarray(errors, dtype=float) / 100)
    sizes = np.abs(logs)
    mean, worst, bias = (
        round(100 * float(np.expm1(log)), 1) for log in (sizes.mean(), sizes.max(), logs.mean())
    )
    return PredictionError(len(errors), mean, worst, bias)


class Coverage(NamedTuple):
    """The runs of a calibration: the names of each kind, and the range of each number, by their words."""

    names: Mapping[str, frozenset[str]]
    ranges: Mapping[str, tuple[float, float]]

    @classmethod
    def of(cls, runs: Sequence[Measured], link: Link) -> "Coverage":
        """Return what one or more measured runs cover; `link` determines their number of nodes."""
        names = [_names(run.experiment, gpus.find(run.gpu_name).name) for run in runs]
        numbers = [_numbers(run.experiment, link) for run in runs]
        values = {words: [of_run[words] for of_run in numbers] for words in numbers[0]}
        return cls(
            {words: frozenset(of_run[words] for of_run in names) for words in names[0]},
            {words: (min(of_runs), max(of_runs)) for words, of_runs in values.items()},
        )


DEFAULT_COVERAGE = Coverage(
    names={words: frozenset(names) for words, names in _DATA["covered"]["names"].items()},
    ranges={words: (least, most) for words, (least, most) in _DATA["covered"]["ranges"].items()},
)
"""Coverage of `dsnb.prediction.step_time.DEFAULT`; offloaded optimizers were measured on one CPU thread only."""


def outside(experiment: Experiment, gpu: str, covered: Coverage, link: Link) -> list[str]:
    """Return a sentence for each way in which an experiment on a GPU differs from all runs of a calibration."""
    sentences = [
        f"no calibration run used {words} {name}, only {', '.join(sorted(covered.names[words]))}"
        for words, name in _names(experiment, gpu).items()
        if name not in covered.names[words]
    ]
    for words, number in _numbers(experiment, link).items():
        least, most = covered.ranges[words]
        margin = (
            1.0 if words == NODES and most == 1 else MARGIN
        )  # runs on one node say nothing about a network
        if not least / margin <= number <= most * margin:
            seen = f"{least:,}" if least == most else f"{least:,} to {most:,}"
            sentences.append(f"the {words} is {number:,}, calibration runs have {seen}")
    return sentences


def _names(experiment: Experiment, gpu: str) -> dict[str, str]:
    modes = {"off": "eager", "default": "compiled", **dict.fromkeys(CUDA_GRAPHS, "CUDA graphs")}
    strategy = (
        f"ZeRO {experiment.zero_stage}"
        if experiment.strategy == "deepspeed"
        else experiment.strategy
    )
    parallel = [
        kind for kind in ("tensor", "pipeline") if getattr(experiment, f"{kind}_parallel") > 1
    ]
    used = " and ".join(
        [f"{kind} parallel" for kind in parallel] + ["ZeRO++"] * (experiment.zeropp != "none")
    )
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
