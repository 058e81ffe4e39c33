"""`micro_batch_size: auto`: the largest micro-batch that fits, found by short runs that stay in the outputs.

Doubled until memory runs out, then halved in between. A probe is a run of its own, in a folder beside that of the run
that it is for, and is not made again if it is there already.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsnb.files import records
from dsnb.launcher.folder import prepare, remove_leftovers
from dsnb.launcher.outcome import exception_status
from dsnb.run_folder import finished, record_schema
from dsnb.run_folder.paths import PROBE, RunPaths
from dsnb.run_folder.result import Result
from dsnb.settings.experiment import SUPERVISION, Experiment
from dsnb.system import launch_clock

MAX_MICRO_BATCH_SIZE = 2**16
WARMUP_STEPS, STEPS = 1, 2
"""The first step makes the optimizer's states, so memory is at its peak in the second."""
FITS = {"ok": True, "nan": True, "untrained": True, "oom": False}
LENGTH_SETTINGS = {"warmup_steps", "steps", "grad_accum", "profile"}
"""Settings in which a whole run differs from its probe."""


def largest_that_fits(fits: Callable[[int], bool], most: int = MAX_MICRO_BATCH_SIZE) -> int:
    """Return the largest number from 1 to `most` that fits, 0 if none does.

    Parameters
    ----------
    fits
        Says whether a number fits; if one does, all below it do.
    """
    low, high = 0, 1
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


RunOnce = Callable[[Experiment, RunPaths, Experiment], Result]
"""Makes one run: the settings, its folder, and the settings that were asked for."""


def launch(experiment: Experiment, run: RunPaths, run_once: RunOnce) -> Result:
    """Find the largest micro-batch that fits, and make the run with it.

    A probe of a few steps may fit where the whole run does not, for memory is fragmented as it goes on: then that run
    takes the probe's place in the outputs, and the next smaller micro-batch is tried.

    Raises
    ------
    LaunchError
        If a probe could not even be started.
    """
    began = launch_clock.now_s()
    prepare(run, experiment)  # a row, whatever happens to the probes
    try:
        found, cause = _search(experiment, run, run_once)
    except BaseException as error:
        _write_result(run, began, *exception_status(error))
        raise
    if cause:
        return _write_result(run, began, "failed", cause)
    while found:
        settings = experiment.model_copy(update={"micro_batch_size": found})
        result = run_once(settings, run, experiment)
        if result.status != "oom":
            return result
        replace_probe(run, RunPaths(probe_dir(run, found)))
        found -= 1
    prepare(run, experiment)
    return _write_result(run, began, "oom", "not even micro_batch_size 1 fits")


def _search(experiment: Experiment, run: RunPaths, run_once: RunOnce) -> tuple[int, str | None]:
    """Return the largest micro-batch that fits, or why the search ended before."""
    odd: list[str] = []

    def fits(micro_batch_size: int) -> bool:
        probe, folder = probe_settings(experiment, micro_batch_size), probe_dir(run, micro_batch_size)
        status, cause = _recorded_status(probe, RunPaths(folder))
        if status not in FITS and not odd:
            result = run_once(probe, RunPaths(folder), probe)
            status, cause = result.status, result.cause
        if status not in FITS:
            odd.append(f"the probe of micro_batch_size {micro_batch_size} is {status}: {cause}")
        return FITS.get(status, False)

    return largest_that_fits(fits), odd[0] if odd else None


def _write_result(run: RunPaths, began: float, status: str, cause: str) -> Result:
    result = Result(status, cause, {}, {"wall": launch_clock.now_s() - began}, {}, run.dir)
    result.write()
    return result


def replace_probe(run: RunPaths, probe: RunPaths) -> None:
    """Let a run that ran out of memory take the place of its probe; the notebook, which goes on, stays."""
    probe.dir.mkdir(parents=True, exist_ok=True)
    remove_leftovers(probe)
    for path in run.dir.iterdir():
        if path != run.notebook:
            os.replace(path, probe.dir / path.name)


def probe_settings(experiment: Experiment, micro_batch_size: int) -> Experiment:
    """Return the settings of a probe: as few steps and micro-batches as reach the same peak of memory."""
    in_flight = max(2, experiment.pipeline_parallel)
    changes: dict[str, Any] = {"micro_batch_size": micro_batch_size, "warmup_steps": WARMUP_STEPS, "steps": STEPS}
    changes |= {"grad_accum": min(experiment.grad_accum, in_flight), "profile": False}
    return experiment.model_copy(update=changes)


def probe_dir(run: RunPaths, micro_batch_size: int) -> Path:
    """Return a probe's folder: its experiment is a neighbour of the run's, and serves every repeat."""
    experiment = run.dir.parent
    return experiment.with_name(f"{experiment.name}{PROBE}{micro_batch_size}") / "run1"


def _recorded_status(probe: Experiment, folder: RunPaths) -> tuple[str, str | None]:
    """Return how a probe with these very settings ended, if it was made before; one that tells nothing makes way.

    A whole run that was set aside tells that its micro-batch does not fit.
    """
    known = {**finished.DEFAULTS, **(record_schema.read(folder.experiment) or {})}
    result = record_schema.read(folder.result) or {}
    free = {*SUPERVISION, *(["device"] if probe.device == "auto" else [])}  # which one it is, the hosts said
    free |= LENGTH_SETTINGS if result.get("status") == "oom" and known.get("asked") else set()
    other = any(known.get(name) != value for name, value in probe.model_dump().items() if name not in free)
    if told := finished.trouble(folder) if result.get("status") in FITS and not other else None:
        records.warn(f"{folder.dir}: {told}; the probe is made again")
        other = True
    if other or result.get("status") not in FITS:
        folder.result.unlink(missing_ok=True)
        return "", None
    return str(result.get("status")), result.get("cause")
