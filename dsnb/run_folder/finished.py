"""Whether a run is finished: its records are complete and valid, with as many timed steps as its settings say.

Sweeps, probes, Slurm jobs and the tables of runs share this definition. An unfinished run is executed again.
"""

from pathlib import Path
from typing import Any

from dsnb.files import records
from dsnb.run_folder import record_schema
from dsnb.run_folder.declarations import STATUSES
from dsnb.run_folder.paths import RunPaths
from dsnb.settings.experiment import DEFAULTS, with_current_names

_RUN = RunPaths(Path())
EXPERIMENT, MACHINE, STEPS = _RUN.experiment.name, _RUN.environment.name, _RUN.steps.name
ENDED = tuple(status for status in STATUSES if status != "interrupted")
"""Statuses of runs that do not have to be executed again."""
CUT_OFF = "it was cut off before its end"
AGAIN = "start the sweep again"


def missing_record(
    settings: dict[str, Any] | None,
    environment: dict[str, Any] | None,
    result: dict[str, Any] | None,
    has_steps: bool,
) -> str | None:
    """Return what a run lacks to be finished, in words; None if nothing.

    A run that is not `ok` needs only settings and a status.

    Parameters
    ----------
    settings, environment, result
        Its records; None for one that is missing or cannot be read.
    has_steps
        Whether the run has a file of steps.
    """
    status = result.get("status") if result else None
    if status is None:
        return CUT_OFF
    if not settings or ("model" not in settings and settings.keys().isdisjoint(DEFAULTS)):
        return f"{EXPERIMENT} is missing or empty"
    if status != "ok":
        return None
    if not environment:
        return f"{MACHINE} is missing or empty"
    return None if has_steps else f"{STEPS} is missing"


def problem(run: RunPaths) -> str | None:
    """Return why a run that has ended has to be executed again, in words; None if it is finished.

    In addition to the checks of `missing_record`, the timed steps of an `ok` run are counted.
    """
    settings, environment, result = (records.read_json(path) for path in (run.experiment, run.environment, run.result))
    settings = settings and with_current_names(settings)
    for name, record in ((EXPERIMENT, settings), (MACHINE, environment), (run.result.name, result)):
        if record and (invalid := record_schema.wrong_values(name, record)[1]):
            return invalid
    if (missing := missing_record(settings, environment, result, run.steps.is_file())) or not (settings and result):
        return missing or CUT_OFF
    if result["status"] != "ok":
        return None
    timed = sum(step.get("phase") == "timed" for step in record_schema.read_lines(run.steps))
    wanted = settings.get("steps") or DEFAULTS["steps"]
    return None if timed >= wanted else f"{run.steps.name} has {timed} of {wanted} timed steps"
