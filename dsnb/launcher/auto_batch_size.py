"""`micro_batch_size: auto`: finds the largest micro-batch that fits in memory, by short probe runs.

The first size is the predicted one, if there is a prediction. From there the distance is doubled until memory runs out,
or suffices, then bisected. Each probe is a run in a folder of its own beside the run that it serves; a probe that is
already recorded there is not repeated.
"""

from collections.abc import Callable
from typing import Any

from dsnb.launcher.folder import prepare
from dsnb.launcher.outcome import exception_status, record_end
from dsnb.run_folder import record_schema
from dsnb.run_folder.paths import PROBE, RunPaths
from dsnb.run_folder.result import Result, unfinished
from dsnb.settings import inputs
from dsnb.settings.experiment import DEFAULTS, SUPERVISION, Experiment
from dsnb.system import launch_clock

MAX_MICRO_BATCH_SIZE = 2**16
WARMUP_STEPS, STEPS = 1, 2
"""The first step allocates the optimizer states, so memory peaks in the second."""
FITS = {"ok": True, "nan": True, "untrained": True, "oom": False}
"""Status of a probe -> whether its micro-batch fits; any other status leaves that open."""
RunOnce = Callable[[Experiment, RunPaths, Experiment], Result]
"""Runs one experiment, given its settings, its folder and the requested settings."""


class ProbeError(Exception):
    """A probe that ended for another reason than its memory."""


def largest_that_fits(fits: Callable[[int], bool], most: int = MAX_MICRO_BATCH_SIZE, guess: int = 0) -> int:
    """Return the largest number from 1 to `most` that fits, 0 if none does; with a number, all smaller ones fit.

    With the right guess, two numbers are tried: the guess and the next one. The further off it is, the more are tried.
    """
    guess = min(guess, most)
    size, distance = (guess, 1) if guess else (1, 2)
    largest_fit, smallest_misfit = 0, most + 1
    while smallest_misfit - largest_fit > 1:
        if fits(size):
            largest_fit = size
        else:
            smallest_misfit = size
        if smallest_misfit > most:
            size, distance = min(guess + distance, most), 2 * distance
        elif not largest_fit:
            size, distance = max(guess - distance, 1), 2 * distance
        else:
            size = (largest_fit + smallest_misfit) // 2
    return largest_fit


def launch(experiment: Experiment, run: RunPaths, run_once: RunOnce, guess: int = 0) -> Result:
    """Find the largest micro-batch that fits, starting from a guess, and run the experiment with it.

    Where a probe of a few steps fits and the whole run does not, because memory fragments over time, the next smaller
    micro-batch is tried.
    """
    began_s = launch_clock.now_s()
    prepare(run, experiment)  # the run has a row in the tables even if its probes fail
    try:
        size = largest_that_fits(lambda size: probe_fits(experiment, run, size, run_once), guess=guess)
    except ProbeError as error:
        return record_end(run, began_s, "failed", str(error))
    except BaseException as error:
        record_end(run, began_s, *exception_status(error))
        raise
    result = None
    for smaller in range(size, 0, -1):
        run.result.unlink(missing_ok=True)
        result = run_once(experiment.model_copy(update={"micro_batch_size": smaller}), run, experiment)
        if result.status != "oom":
            break
    return result or record_end(run, began_s, "oom", "not even micro_batch_size 1 fits")


def probe_fits(experiment: Experiment, run: RunPaths, micro_batch_size: int, run_once: RunOnce) -> bool:
    """Return whether a micro-batch fits, from the record of its probe or by running it; raise ProbeError if unknown."""
    # The fewest steps and micro-batches that reach the same memory peak.
    changes: dict[str, Any] = {"micro_batch_size": micro_batch_size, "warmup_steps": WARMUP_STEPS, "steps": STEPS}
    changes |= {"grad_accum": min(experiment.grad_accum, max(2, experiment.pipeline_parallel)), "profile": False}
    probe, experiment_dir = experiment.model_copy(update=changes), run.dir.parent
    name = f"{experiment_dir.name}{PROBE}{micro_batch_size}"
    paths = RunPaths(experiment_dir.with_name(name) / "run1")  # shared by all repeats of the experiment
    status = recorded_status(probe, paths)
    if status is None:
        paths.result.unlink(missing_ok=True)
        result = run_once(probe, paths, probe)
        status = result.status
        if status not in FITS:
            raise ProbeError(f"the probe of micro_batch_size {micro_batch_size} is {status}: {result.cause}")
    return FITS[status]


def recorded_status(probe: Experiment, paths: RunPaths) -> str | None:
    """Return the status of a complete probe with the same settings that shows whether they fit; None without one."""
    status = (record_schema.read(paths.result) or {}).get("status")
    recorded = {**DEFAULTS, **(record_schema.read(paths.experiment) or {})}
    settings, ignored = probe.model_dump(), set(SUPERVISION)
    if probe.device == "auto":  # resolved on the hosts
        ignored.add("device")
    is_same = all(recorded.get(name) == value for name, value in settings.items() if name not in ignored)
    if status not in FITS or not is_same or unfinished(paths):
        return None
    return None if inputs.changed(recorded.get("inputs"), inputs.digests(settings)) else status
