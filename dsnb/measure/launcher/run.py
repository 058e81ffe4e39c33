"""Launches one run, or a test of the machine, and supervises it until it ends.

Every run ends with a `result.json` and leaves no process.
"""

import contextlib
import math
import time
from functools import partial
from pathlib import Path

from dsnb.base.errors import LaunchError, SettingsError
from dsnb.base.files import json_files
from dsnb.base.system import launch_clock
from dsnb.measure.launcher.command_ranks import CommandRanks
from dsnb.measure.launcher.environment import sampled
from dsnb.measure.launcher.figures import summarize_run
from dsnb.measure.launcher.folder import create_run_dir, prepare, writing
from dsnb.measure.launcher.hosts import HostRanks
from dsnb.measure.launcher.local import ForkedRanks
from dsnb.measure.launcher.outcome import Outcome, of_command, of_ranks, settled, stopped_by
from dsnb.measure.launcher.progress import Progress
from dsnb.settings import checks
from dsnb.settings.exchange import deepspeed_config
from dsnb.settings.experiment import Experiment
from dsnb.settings.records import paths
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.result import Result
from dsnb.settings.records.run_record import RunRecord

WORKER = "dsnb.measure.train.worker"
POLL_S = 0.05
Ranks = HostRanks | ForkedRanks | CommandRanks
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

    Examples
    --------
    One warm-up step and two timed ones, which take seconds on a CPU:

    >>> experiment = dsnb.Experiment(
    ...     model="gpt2-tiny", device="cpu", precision="fp32", seq_len=32, warmup_steps=1, steps=2
    ... )
    >>> result = dsnb.launch(experiment, "tiny/run1", progress=False)
    >>> result.status
    'ok'
    >>> len(dsnb.load_steps("tiny/run1"))
    3
    """
    problems = checks.unsupported(experiment)
    if problems:
        raise SettingsError(problems)
    if run_dir is None:
        run_dir = create_run_dir(paths.outputs_root() / "single", experiment.name_with_model)
    run = RunPaths(Path(run_dir).absolute())
    prepare(run, experiment)
    if not experiment.command:
        with writing(run.dir):
            json_files.write_json(run.deepspeed, deepspeed_config(experiment))
    began_s = launch_clock.now_s()
    ranks: Ranks | None = None
    exit_codes: dict[int, int] = {}
    try:
        if experiment.command:
            ranks = CommandRanks(experiment, run, began_s)
        elif experiment.hostfile:
            ranks = HostRanks(experiment, run, began_s)
            record_hosts(run, ranks)
            experiment = ranks.experiment
        else:
            ranks = ForkedRanks(experiment, run, began_s)
        samples = sampled(ranks.gpus, partial(json_files.append_line, run.gpu), began_s)
        with Progress(experiment, run, progress) as shown, samples:
            ranks.start(worker)
            ended_by = watch(run, experiment, ranks, began_s, shown)
        codes = ranks.exit_codes()  # of the ranks that ended by themselves
        ranks.end()
    except BaseException as error:
        if ranks:
            with contextlib.suppress(OSError, LaunchError):  # report the first error
                ranks.end()
            exit_codes = ranks.exit_codes()
        finish(RunRecord(run), exit_codes, began_s, stopped_by(error, experiment))
        raise
    record = RunRecord(run)
    outcome = outcome_of(record, ranks, codes, ended_by)
    return finish(record, ranks.exit_codes(), began_s, outcome)


def record_hosts(run: RunPaths, ranks: HostRanks) -> None:
    """Record the device that the hosts have resolved, and the environment of the first one."""
    experiment = ranks.experiment
    settings = json_files.read_json(run.experiment) or {}
    if settings.get("device") != experiment.device:
        json_files.write_json(run.experiment, settings | {"device": experiment.device})
    json_files.write_json(run.deepspeed, deepspeed_config(experiment))
    json_files.write_json(run.environment, ranks.environment)


def outcome_of(
    record: RunRecord, ranks: Ranks, exit_codes: dict[int, int], ended_by: Outcome | None
) -> Outcome:
    """Return the outcome of a run whose ranks have ended, or were ended for the reason `ended_by`.

    A lost host or fork server is the cause unless memory ran out before, or all steps were
    recorded.
    """
    lost = ranks.external_failure
    if isinstance(ranks, CommandRanks) and not lost:
        return of_command(record, exit_codes.get(0), ranks.oom_kills(), ended_by)
    if ended_by and not lost:
        return ended_by
    outcome = of_ranks(record, exit_codes, ranks.oom_kills(), ranks.host_of)
    if lost is None or outcome.status != "failed":
        return outcome
    if isinstance(ranks, HostRanks):
        cause = str(outcome.cause)
        return ended_by or Outcome("failed", lost if lost in cause else f"{lost}; {cause}")
    if ranks.oom_kills():
        return Outcome("oom", f"{lost}: the machine's memory ran out")
    return Outcome("interrupted", lost)


def watch(
    run: RunPaths, limits: Experiment, ranks: Ranks, began_s: float, progress: Progress
) -> Outcome | None:
    """Wait until the ranks end; return the outcome if their records do not contain it."""
    state = progress.state
    last_step_s = began_s
    failed_s = math.inf
    while not ranks.ended():
        time.sleep(POLL_S)
        if not run.dir.is_dir():
            raise LaunchError(f"{run.dir} was removed during the run: start the sweep again")
        now_s = launch_clock.now_s()
        if state.read():
            last_step_s = now_s
        progress.refresh()
        exceeded = None
        if now_s > began_s + limits.time_limit_s:
            exceeded = f"no end within the time limit of {limits.time_limit_s:g} s"
        elif state.step < state.total and now_s > last_step_s + limits.step_timeout_s:
            exceeded = f"no step within step_timeout_s of {limits.step_timeout_s:g} s"
        if exceeded and failed_s == math.inf and not ranks.ended():
            done = f"{state.step} of {state.total} steps done"
            return Outcome("timeout", f"{exceeded}, {done}")
        failure = ranks.external_failure
        if failure:
            return Outcome("failed", failure)
        if any(ranks.exit_codes().values()):
            failed_s = min(failed_s, now_s)
        if now_s > failed_s + GRACE_PERIOD_S:
            break
    state.read()
    progress.refresh(at_once=True)
    return None


def finish(
    record: RunRecord, exit_codes: dict[int, int], began_s: float, outcome: Outcome
) -> Result:
    """Write and return the result of a launch."""
    wall_s = launch_clock.now_s() - began_s
    phases_s = {}
    ended_s = record.worker.get("ended_s")
    profile_ended_s = record.profile.get("ended_s")
    if ended_s is not None and profile_ended_s is not None:
        phases_s["profile"] = profile_ended_s - ended_s
        ended_s = profile_ended_s
    if ended_s is not None:
        phases_s["stop"] = wall_s - ended_s
    phases_s["wall"] = wall_s
    return write_result(record, exit_codes, phases_s, outcome)


def write_result(
    record: RunRecord, exit_codes: dict[int, int], phases_s: dict[str, float], outcome: Outcome
) -> Result:
    """Write and return the result of a run; `phases_s` adds to the phases that its worker has recorded."""
    worker = record.worker
    versions = worker.get("versions")
    if versions:
        machine = json_files.read_json(record.paths.environment) or {}
        source = {"power_source": worker.get("power_source")}
        json_files.write_json(record.paths.environment, {**machine, **versions, **source})
    status, cause = settled(record, outcome)
    # Clocks of hosts may jump.
    phases = {**worker.get("phases_s", {}), **phases_s}
    phases = {phase: seconds for phase, seconds in phases.items() if seconds >= 0}
    summary = summarize_run(record)
    result = Result(status, cause, exit_codes, phases, summary, record.paths.dir)
    result.write()
    return result
