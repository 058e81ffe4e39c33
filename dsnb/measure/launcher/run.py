"""Launches one run, or a test of the machine, and supervises it until it ends.

Every run ends with a `result.json` and leaves no process.
"""

import contextlib
import math
import time
from functools import partial
from pathlib import Path

from dsnb.base.errors import DsnbError, LaunchError, SettingsError
from dsnb.base.files import json_files
from dsnb.base.system import launch_clock
from dsnb.measure.launcher.environment import sampled
from dsnb.measure.launcher.folder import create_run_dir, prepare, write_description
from dsnb.measure.launcher.hosts import HostRanks
from dsnb.measure.launcher.local import ForkedRanks
from dsnb.measure.launcher.outcome import run_status, settled, summarize_run
from dsnb.measure.launcher.progress import Progress
from dsnb.settings import checks
from dsnb.settings.experiment import Experiment
from dsnb.settings.records import paths, record_schema
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.result import Result

WORKER = "dsnb.measure.train.worker"
POLL_S = 0.05
Ranks = HostRanks | ForkedRanks
GRACE_PERIOD_S = 5.0
"""Time until the other ranks are killed after one has failed; they may wait for it forever."""


def launch(
    experiment: Experiment,
    run_dir: str | Path | None = None,
    *,
    progress: bool = True,
    worker: str = WORKER,
) -> Result:
    """Run one experiment once.

    Parameters
    ----------
    experiment
        The settings.
    run_dir
        The run folder, new or of an unfinished run; by default the next free one under `outputs/single`.
    progress
        Whether to show a progress bar with loss and tokens/s.
    worker
        Module whose `main(run_dir)` each rank calls; tests pass a fake.

    Returns
    -------
    Result
        The result, whatever its status; `Result.raise_for_status()` raises unless it is `ok`.

    Raises
    ------
    SettingsError
        If this machine cannot run the settings, or the folder holds a finished run.
    LaunchError
        If the ranks could not be started.
    """
    if problems := checks.unsupported(experiment.model_dump()):
        raise SettingsError(problems)
    if run_dir is None:
        run_dir = create_run_dir(paths.outputs_root() / "single", experiment.name_with_model)
    run = RunPaths(Path(run_dir).absolute())
    prepare(run, experiment)
    began_s = launch_clock.now_s()
    ranks: Ranks | None = None
    try:
        ranks = (HostRanks if experiment.hostfile else ForkedRanks)(experiment, run)
        experiment = ranks.experiment
        if isinstance(ranks, HostRanks):  # only now are the device and the machine known
            write_description(run, experiment, ranks.environment)
        samples = sampled(ranks.gpus, partial(json_files.append_line, run.gpu), began_s)
        with Progress(experiment, run, progress) as shown, samples:
            ranks.start(worker, began_s)
            ended_by = watch(run, ranks, began_s, shown)
        codes = ranks.exit_codes()  # of the ranks that ended by themselves
        ranks.end()
    except BaseException as error:
        if ranks:
            with contextlib.suppress(OSError, LaunchError):  # report the first error
                ranks.end()
        finish(
            experiment,
            run,
            ranks.exit_codes() if ranks else {},
            began_s,
            cut_short(experiment, error),
        )
        raise
    return finish(
        experiment, run, ranks.exit_codes(), began_s, outcome_of(run, ranks, codes, ended_by)
    )


def cut_short(experiment: Experiment, error: BaseException) -> tuple[str, str]:
    """Return status and cause of a run that an error in this process has ended, not one in its ranks.

    It says nothing about the settings, unless it refuses them. A host that cannot take part is a result: a sweep over
    groups of hosts looks for it.
    """
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", "stopped by the user"
    if isinstance(error, SettingsError) or (isinstance(error, LaunchError) and experiment.hostfile):
        return "failed", str(error)
    return "interrupted", str(error) if isinstance(
        error, DsnbError
    ) else f"{type(error).__name__}: {error}"


def outcome_of(
    run: RunPaths, ranks: Ranks, exit_codes: dict[int, int], ended_by: tuple[str, str] | None
) -> tuple[str, str | None]:
    """Return status and cause of a run whose ranks have ended, or were ended for the reason `ended_by`.

    A lost host or fork server is the cause unless memory ran out before, or all steps were recorded.
    """
    lost = ranks.external_failure
    if ended_by and not lost:
        return ended_by
    status, cause = run_status(ranks.experiment, run, exit_codes, ranks.oom_kills(), ranks.host_of)
    if lost is None or status != "failed":
        return status, cause
    if isinstance(ranks, HostRanks):
        return ended_by or ("failed", lost if lost in str(cause) else f"{lost}; {cause}")
    if ranks.oom_kills():
        return "oom", f"{lost}: the machine's memory ran out"
    return "interrupted", lost


def watch(
    run: RunPaths, ranks: Ranks, began_s: float, progress: Progress
) -> tuple[str, str] | None:
    """Wait until the ranks end; return status and cause if their records do not contain them."""
    limits, state = ranks.experiment, progress.state
    last_step_s, failed_s = began_s, math.inf
    while not ranks.ended():
        time.sleep(POLL_S)
        if not run.dir.is_dir():
            raise LaunchError(f"{run.dir} was removed during the run: start the sweep again")
        now_s = launch_clock.now_s()
        last_step_s = now_s if state.read() else last_step_s
        progress.refresh()
        exceeded = None
        if now_s > began_s + limits.time_limit_s:
            exceeded = f"no end within the time limit of {limits.time_limit_s:g} s"
        elif state.step < state.total and now_s > last_step_s + limits.step_timeout_s:
            exceeded = f"no step within step_timeout_s of {limits.step_timeout_s:g} s"
        if exceeded and failed_s == math.inf and not ranks.ended():
            return "timeout", f"{exceeded}, {state.step} of {state.total} steps done"
        if failure := ranks.external_failure:
            return "failed", failure
        if any(ranks.exit_codes().values()):
            failed_s = min(failed_s, now_s)
        if now_s > failed_s + GRACE_PERIOD_S:
            break
    state.read()
    progress.refresh(at_once=True)
    return None


def finish(
    experiment: Experiment,
    run: RunPaths,
    exit_codes: dict[int, int],
    began_s: float,
    outcome: tuple[str, str | None],
) -> Result:
    """Write and return the result of a launch; `outcome` is status and cause."""
    worker = record_schema.read(run.worker) or {}
    wall_s, ended_s = launch_clock.now_s() - began_s, worker.get("ended_s")
    phases_s = dict(worker.get("phases_s") or {})
    if ended_s is not None:
        profile_ended_s = (record_schema.read(run.profile) or {}).get("ended_s")
        if profile_ended_s is not None:
            phases_s["profile"], ended_s = profile_ended_s - ended_s, profile_ended_s
        phases_s["stop"] = wall_s - ended_s
    phases_s["wall"] = wall_s
    phases_s = {
        phase: seconds for phase, seconds in phases_s.items() if seconds >= 0
    }  # clocks of hosts may jump
    return write_result(experiment, run, exit_codes, phases_s, outcome)


def write_result(
    experiment: Experiment,
    run: RunPaths,
    exit_codes: dict[int, int],
    phases_s: dict[str, float],
    outcome: tuple[str, str | None],
) -> Result:
    """Write and return the result of a run from its records; `outcome` is status and cause of its processes."""
    worker = record_schema.read(run.worker) or {}
    if versions := worker.get("versions"):
        machine = json_files.read_json(run.environment) or {}
        json_files.write_json(
            run.environment, {**machine, **versions, "power_source": worker.get("power_source")}
        )
    status, cause = settled(experiment, run, *outcome)
    result = Result(status, cause, exit_codes, phases_s, summarize_run(experiment, run), run.dir)
    result.write()
    return result
