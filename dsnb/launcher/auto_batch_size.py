"""`micro_batch_size: auto`: finds the largest micro-batch that fits in memory, by short probe runs.

The first size is the predicted one, if there is a prediction. From there the distance is doubled until memory runs out,
or suffices, then bisected. Each probe is a run in a folder of its own beside the run that it serves; a probe that is
already recorded there is not repeated.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsnb.files import records
from dsnb.launcher.folder import prepare, remove_leftovers
from dsnb.launcher.outcome import exception_status, without_machine_faults
from dsnb.run_folder import finished, record_schema
from dsnb.run_folder.paths import PROBE, RunPaths
from dsnb.run_folder.result import Result
from dsnb.settings import inputs
from dsnb.settings.experiment import DEFAULTS, SUPERVISION, Experiment
from dsnb.system import launch_clock

MAX_MICRO_BATCH_SIZE = 2**16
WARMUP_STEPS, STEPS = 1, 2
"""The first step allocates the optimizer states, so memory peaks in the second."""
FITS = {"ok": True, "nan": True, "untrained": True, "oom": False}
"""Status of a probe -> whether its micro-batch fits; any other status leaves that open."""
LENGTH_SETTINGS = {"warmup_steps", "steps", "grad_accum", "profile"}
"""The settings in which a probe differs from the run that it serves."""
RunOnce = Callable[[Experiment, RunPaths, Experiment], Result]
"""Runs one experiment, given its settings, its folder and the requested settings."""
Predicted = Callable[[Experiment, int], int | None]
"""Predicts the largest micro-batch that fits, given the settings and the most; None if it cannot."""


class ProbeError(Exception):
    """A probe that ended for another reason than its memory."""


def largest_that_fits(fits: Callable[[int], bool], most: int = MAX_MICRO_BATCH_SIZE, guess: int = 0) -> int:
    """Return the largest number from 1 to `most` that fits, 0 if none does.

    With the right guess, two numbers are tried: the guess and the next one. The further off it is, the more are tried.

    Parameters
    ----------
    fits
        Returns whether a number fits; if it does, all smaller ones do, too.
    guess
        The number that is expected; 0 for none.
    """
    guess = min(guess, most)
    if guess and not fits(guess):
        low, high = _below(fits, guess)
    else:
        low, high = _above(fits, guess, most)
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def _above(fits: Callable[[int], bool], start: int, most: int) -> tuple[int, int]:
    """Return a number that fits and a larger one that does not, by doubling the distance from one that fits."""
    low, distance = start, 1
    while start + distance <= most and fits(start + distance):
        low, distance = start + distance, 2 * distance
    return low, min(start + distance, most + 1)


def _below(fits: Callable[[int], bool], limit: int) -> tuple[int, int]:
    """Return the same below one that does not fit."""
    high, distance = limit, 1
    while high > 1:
        size = max(limit - distance, 1)
        if fits(size):
            return size, high
        high, distance = size, 2 * distance
    return 0, high


def launch(experiment: Experiment, run: RunPaths, run_once: RunOnce, predicted: Predicted = lambda *_: None) -> Result:
    """Find the largest micro-batch that fits, and run the experiment with it.

    A probe of a few steps may fit where the whole run does not, because memory fragments over time. Such a run replaces
    its probe in the outputs, and the next smaller micro-batch is tried.

    Raises
    ------
    LaunchError
        If a probe could not be started.
    """
    began = launch_clock.now_s()
    prepare(run, experiment)  # the run has a row in the tables even if its probes fail
    try:
        guess = predicted(experiment, MAX_MICRO_BATCH_SIZE) or 0
        size = largest_that_fits(lambda size: probe_fits(experiment, run, size, run_once), guess=guess)
    except ProbeError as error:
        return _write_result(run, began, "failed", str(error))
    except BaseException as error:
        _write_result(run, began, *exception_status(error))
        raise
    for smaller in range(size, 0, -1):
        result = run_once(experiment.model_copy(update={"micro_batch_size": smaller}), run, experiment)
        if result.status != "oom":
            return result
        replace_probe(run, RunPaths(probe_dir(run, smaller)))
    prepare(run, experiment)
    return _write_result(run, began, "oom", "not even micro_batch_size 1 fits")


def probe_fits(experiment: Experiment, run: RunPaths, micro_batch_size: int, run_once: RunOnce) -> bool:
    """Return whether a micro-batch fits, from the record of its probe or by running it.

    Raises
    ------
    ProbeError
        If the probe ended for another reason.
    """
    probe, paths = probe_settings(experiment, micro_batch_size), RunPaths(probe_dir(run, micro_batch_size))
    status, cause = _recorded_status(probe, paths)
    if status not in FITS:
        result = run_once(probe, paths, probe)
        status, cause = result.status, result.cause
    if status not in FITS:
        raise ProbeError(f"the probe of micro_batch_size {micro_batch_size} is {status}: {cause}")
    return FITS[status]


def _write_result(run: RunPaths, began: float, status: str, cause: str) -> Result:
    result = Result(*without_machine_faults(status, cause), {}, {"wall": launch_clock.now_s() - began}, {}, run.dir)
    result.write()
    return result


def replace_probe(run: RunPaths, probe: RunPaths) -> None:
    """Move a run that ran out of memory to the folder of its probe; the notebook, still executing, stays."""
    probe.dir.mkdir(parents=True, exist_ok=True)
    remove_leftovers(probe)
    for path in run.dir.iterdir():
        if path != run.notebook:
            os.replace(path, probe.dir / path.name)


def probe_settings(experiment: Experiment, micro_batch_size: int) -> Experiment:
    """Return the settings of a probe: the fewest steps and micro-batches that reach the same memory peak."""
    in_flight = max(2, experiment.pipeline_parallel)
    changes: dict[str, Any] = {"micro_batch_size": micro_batch_size, "warmup_steps": WARMUP_STEPS, "steps": STEPS}
    changes |= {"grad_accum": min(experiment.grad_accum, in_flight), "profile": False}
    return experiment.model_copy(update=changes)


def probe_dir(run: RunPaths, micro_batch_size: int) -> Path:
    """Return the folder of a probe, beside the run's experiment and shared by all of its repeats."""
    experiment = run.dir.parent
    return experiment.with_name(f"{experiment.name}{PROBE}{micro_batch_size}") / "run1"


def _recorded_status(probe: Experiment, paths: RunPaths) -> tuple[str, str | None]:
    """Return the recorded status and cause of a probe with the same settings; remove a result of no use.

    A whole run that ran out of memory, moved there by `replace_probe`, shows that its micro-batch does not fit.
    """
    result = record_schema.read(paths.result) or {}
    status = result.get("status")
    usable = status in FITS and _has_settings_of(probe, paths, status)
    if usable and (problem := finished.problem(paths)):
        records.warn(f"{paths.dir}: {problem}; the probe is repeated")
        usable = False
    if not usable:
        paths.result.unlink(missing_ok=True)
        return "", None
    return str(status), result.get("cause")


def _has_settings_of(probe: Experiment, paths: RunPaths, status: str) -> bool:
    """Return whether a recorded run has the settings of a probe, or is the whole run that it would serve."""
    recorded = {**DEFAULTS, **(record_schema.read(paths.experiment) or {})}
    ignored = set(SUPERVISION)
    if probe.device == "auto":  # resolved on the hosts
        ignored.add("device")
    if status == "oom" and recorded.get("asked"):
        ignored |= LENGTH_SETTINGS
    settings = probe.model_dump()
    if inputs.changed(recorded.get("inputs"), inputs.digests(settings)):
        return False
    return all(recorded.get(name) == value for name, value in settings.items() if name not in ignored)
