"""Fit the constants of the time model to measured runs.

Constants are fitted by robust least squares on the logarithm of the step time, with Gauss-Newton
steps in the logarithms of the constants. Huber weights limit the influence of outliers (Huber
1964), and a prior keeps each constant near its start unless the runs say otherwise, so a few runs
are enough.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dsnb.base.errors import SettingsError
from dsnb.base.formulas.model_shapes import facts
from dsnb.prediction import gpus, tuned
from dsnb.prediction.alike import usual_names
from dsnb.prediction.gpus import Link
from dsnb.prediction.step_time import (
    DEFAULT,
    HOST_COUNTS,
    Constants,
    StepCounts,
    count_step,
    parts,
    stack,
    step_times,
)
from dsnb.settings import known, programs
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.columns import MASKED
from dsnb.settings.training import text

if TYPE_CHECKING:
    import pandas as pd

MODEL = "model.json"
"""The configuration of a recorded script's model, in its run folder."""
MIN_CALIBRATED = 3
"""Minimum number of settings to fit constants to."""
STEPS = 12
"""Gauss-Newton steps, which converge before."""
MAX_FITS = 20
"""Maximum number of fits for the errors of some runs; one takes 20 to 40 ms, more with thousands of
runs."""
FIT = tuned.numbers("fit")
LIMITS = tuned.numbers("limits")
SPREAD = np.array(tuned.column("constants", "spread"))
"""Standard deviation of the logarithm of each constant around its start."""
LOG_MAX = np.log(tuned.column("constants", "most", math.inf))
"""The logarithms of the largest values: shares are at most 1."""


@dataclass(frozen=True)
class Measured:
    """One measured run: what was run, on what, how long a step took, and its counts.

    The host's counts are multiplied by `launch_ratio`, the launch time that was measured with the
    run over the usual one, so that runs of fast and slow hosts have the same constants.
    """

    experiment: Experiment
    gpu_name: str
    step_time_s: float
    counts: StepCounts
    launch_ratio: float = 1.0
    loop: str = programs.DSNB
    """The program that trained, without its version."""
    peak_gib: float | None = None
    """Peak of memory, where it was measured."""


def measured(runs: "pd.DataFrame", link: Link | str = "nvlink") -> list[Measured]:
    """Return the successful runs of a table in the columns of `load_runs`, without unknown GPUs and models.

    Missing settings have their defaults, unless another program was recorded: its runs are left out
    if a setting is unknown that predictions need. A missing step time is derived from tokens per
    second.
    """
    path = gpus.link(link) if isinstance(link, str) else link
    found = (of_record(record, path) for record in runs.to_dict("records"))
    return [run for run in found if run]


def of_record(record: dict[Any, Any], link: Link) -> Measured | None:
    """Return the measured run of one row; None if it failed, or its GPU, model or settings are unknown.

    A run whose allocator returned memory while it was timed is None as well: its speed is not that
    of its setting.
    """
    values = {name: value for name, value in record.items() if text(value) != "-"}
    if values.get("status", "ok") != "ok" or values.get("alloc_retries", 0) > 0:
        return None
    gpu = gpus.known_gpu(str(values.get("gpu_name")))
    values["model"] = model_of(values)
    try:
        experiment = known.completed(Experiment.of_row(usual_names(values)))
    except SettingsError:
        return None
    step_time_s = values.get("step_time_mean_s")
    if step_time_s is None and "tokens_per_s" in values:
        step_time_s = experiment.tokens_per_step / float(values["tokens_per_s"])
    if gpu is None or not step_time_s or step_time_s <= 0:
        return None
    try:
        counts = count_step(experiment, gpu, link, had_mask(values))
    except SettingsError:
        return None
    ratio = 1.0
    launch_us = values.get("launch_us")
    if isinstance(launch_us, float) and FIT.least_launch_us < launch_us < FIT.most_launch_us:
        ratio = launch_us / DEFAULT.host_launch_us
    host = {name: ratio * getattr(counts, name) for name in HOST_COUNTS}
    of_host = replace(counts, **host)
    loop = programs.loop(programs.of_record(values))
    peak_gib = values.get("peak_allocated_gib")
    return Measured(
        experiment, str(values["gpu_name"]), float(step_time_s), of_host, ratio, loop, peak_gib
    )


def model_of(values: Mapping[str, Any]) -> str | None:
    """Return the model of a run's row: one that can be counted, or the configuration that its folder keeps.

    A recorded script names its model as it likes.
    """
    model = values.get("model")
    if isinstance(model, str) and facts(model):
        return model
    folder = values.get("run_dir")
    if isinstance(folder, str):
        kept = Path(folder) / MODEL
        if kept.is_file():
            return str(kept)
    return model


def of_one_loop(runs: Sequence[Measured]) -> list[Measured]:
    """Return the runs of dsnb's loop or, without any, of another one; refuse to pool several others."""
    loops = {run.loop for run in runs}
    if programs.DSNB in loops:
        return [run for run in runs if run.loop == programs.DSNB]
    if len(loops) > 1:
        raise SettingsError(
            f"runs of several programs ({', '.join(sorted(loops))}) cannot calibrate one loop: give "
            "those of one"
        )
    return [*runs]


def unknown_settings(runs: "pd.DataFrame") -> list[str]:
    """Return what is unknown of the settings of successful runs that predictions need, in words."""
    found: dict[str, None] = {}
    for row in runs.to_dict("records"):
        if row.get("status", "ok") == "ok":
            found |= dict.fromkeys(known.unknown(Experiment.of_row(row)))
    return list(found)


def had_mask(record: Mapping[str, Any]) -> bool:
    """Return whether all attention of a measured run was given a mask.

    transformers gives its own fused attention one in every compiled model. Runs on older versions
    of dsnb, which did not record it, had that attention in all but a few families.
    """
    if str(record.get("attention_kernel")).endswith(MASKED):
        return True
    is_compiled = record.get("compile", "off") != "off"
    return is_compiled and record.get("attention_used") == "sdpa"


def calibrate(runs: Sequence[Measured], start: Constants = DEFAULT) -> Constants:
    """Return the constants that fit the runs, with repeats of a setting weighted as one; `start` is the prior."""
    if not runs:
        return start
    counts = stack([run.counts for run in runs])
    targets = np.log([run.step_time_s for run in runs])
    repeats = Counter(run.counts for run in runs)
    shares = np.array([1 / repeats[run.counts] for run in runs])

    def log_times(logarithms: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.log(parts(counts, _constants(logarithms)).step_time_s))

    prior = np.log(list(vars(start).values()))
    fitted = prior
    half_step = 1e-4  # of the central differences
    for _ in range(STEPS):
        error = log_times(fitted) - targets
        usual = FIT.outlier * max(FIT.noise, float(np.median(np.abs(error))))
        huber = np.minimum(1, usual / np.maximum(np.abs(error), 1e-12))
        weights = np.sqrt(shares * huber) / FIT.noise
        steps = half_step * np.eye(len(prior))
        changes = [log_times(fitted + step) - log_times(fitted - step) for step in steps]
        slopes = np.array(changes).T / (2 * half_step) * weights[:, None]
        system = np.vstack([slopes, np.diag(1 / SPREAD)])
        goal = np.concatenate([-error * weights, (prior - fitted) / SPREAD])
        change = np.linalg.lstsq(system, goal, rcond=None)[0]
        limited = np.clip(change, -FIT.max_change, FIT.max_change)
        fitted = np.minimum(fitted + limited, LOG_MAX)
    return _constants(fitted)


Method = Callable[[Sequence[Measured], Constants], Constants]
"""What makes constants of runs and of constants to start from."""


def _constants(logarithms: NDArray[np.float64]) -> Constants:
    return Constants(*np.exp(logarithms).tolist())


def limited_by_cpu(counts: StepCounts, constants: Constants = DEFAULT) -> NDArray[np.bool_]:
    """Return whether the CPU limits each step, shape (settings,): whether a slower host would lengthen it.

    Hosts differ by a factor of two, so this says more about the error of a prediction than the
    GPU's predicted idle time does.
    """
    times_s = np.asarray(parts(counts, constants).step_time_s)
    slower_host = constants.on_host(LIMITS.slower_host)
    slowed_s = np.asarray(parts(counts, slower_host).step_time_s)
    return slowed_s > (1 + LIMITS.slowed_step) * times_s


def left_out(
    runs: Sequence[Measured], start: Constants = DEFAULT, method: Method = calibrate
) -> list[float]:
    """Return the error of each run in per cent, predicted with constants fitted to the runs of all other models.

    If all runs are of one model, each setting is left out instead. With more than 20 models or
    settings, several are left out together. `start` must not depend on the runs; `method` makes
    constants of runs and these.
    """
    groups: list[object] = [run.experiment.model for run in runs]
    if len(set(groups)) == 1:
        groups = [run.counts for run in runs]
    fold_of = {group: number % MAX_FITS for number, group in enumerate(dict.fromkeys(groups))}
    folds = [fold_of[group] for group in groups]
    errors_pct = np.zeros(len(runs))
    for fold in sorted(set(folds)):
        chosen = [place for place, other in enumerate(folds) if other == fold]
        others = [run for run, other in zip(runs, folds, strict=True) if other != fold]
        constants = method(others, start)
        predicted_s = step_times([runs[place].counts for place in chosen], constants).step_time_s
        measured_s = [runs[place].step_time_s for place in chosen]
        errors_pct[chosen] = 100 * (np.asarray(predicted_s) / measured_s - 1)
    return [float(error) for error in errors_pct]
