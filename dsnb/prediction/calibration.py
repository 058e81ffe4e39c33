"""Measured runs as the time model sees them, and the constants of the time model that fit them.

Constants are fitted robustly and with priors, so that a few runs are enough: least squares of the logarithm of the step
time, in the logarithms of the constants, by Gauss-Newton steps of `numpy.linalg.lstsq`. Huber's weights keep single odd
runs from deciding (Huber 1964), and each constant is drawn to where it starts from, so that one of which the runs tell
nothing stays as it is.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dsnb.errors import SettingsError
from dsnb.prediction import gpus
from dsnb.prediction.gpus import Link
from dsnb.prediction.step_time import DEFAULT, Constants, Setting, parts, setting, stack
from dsnb.settings import deepspeed_keys
from dsnb.settings.experiment import DEFAULTS, Experiment
from dsnb.settings.training import compile_mode

if TYPE_CHECKING:
    import pandas as pd

NOISE = 0.08
"""Relative error of a step time that the model is expected to leave: measured settings vary by about as much."""
SPREADS = {"host_link_": 0.35, "host_": 0.7, "link_": 0.7, "network_": 0.7, "": 0.35}
"""Standard deviation of the logarithm of a constant around its start, by the beginning of its name: hosts and networks
differ by a factor of two, what GPUs reach of their nominal rates by less."""
MIN_SETTINGS = 3
"""Settings that constants are fitted to; fewer tell too little of a host and a GPU."""
STEPS = 12
MAX_CHANGE = 0.5
"""Of the logarithm of a constant in one step."""
NAMES = tuple(field.name for field in fields(Constants))
SPREAD = np.array([next(spread for start, spread in SPREADS.items() if name.startswith(start)) for name in NAMES])
LOG_MAX = np.array([0.0 if name.endswith("efficiency") or name == "overlap" else np.inf for name in NAMES])
"""The logarithms of the largest values: shares are at most 1."""


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
