"""Fits the constants of the time model to measured runs, robustly and with priors, so that a few runs are enough.

Least squares of the logarithm of the step time, in the logarithms of the constants: Gauss-Newton steps of
`numpy.linalg.lstsq`. Huber's weights keep single odd runs from deciding (Huber 1964), and each constant is drawn to
where it starts from, so that one of which the runs tell nothing stays as it is.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from dsnb.prediction.constants import DEFAULT, Constants
from dsnb.prediction.measured import Measured
from dsnb.prediction.step_time import Setting, parts, stack

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


def calibrate(runs: Sequence[Measured], start: Constants = DEFAULT) -> Constants:
    """Return the constants that fit measured runs.

    Parameters
    ----------
    runs
        Of any models and settings; repeats of a setting count as one together.
    start
        What is known without these runs: the constants of another GPU, or the default ones.
    """
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
