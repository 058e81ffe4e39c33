"""Executes the runs of a sweep through papermill, one notebook per run; continues after failures; resumes.

Every run that is not finished (`dsnb.settings.records.result`) is executed again: here one by one,
or as jobs, which are Slurm jobs or local processes. Jobs run stage by stage, lanes in parallel, the
runs of a lane one by one.
"""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from dsnb.base.errors import LaunchError, SettingsError
from dsnb.base.files import json_files, plain_text
from dsnb.base.system import interpreter, launch_clock, signals
from dsnb.measure.execute import notebook
from dsnb.measure.launcher import local
from dsnb.measure.launcher.folder import check_free_space, check_writable
from dsnb.measure.launcher.outcome import Outcome
from dsnb.measure.sweep import allocation, job
from dsnb.measure.sweep import slurm as slurm_jobs
from dsnb.measure.sweep.allocation import Allocation
from dsnb.measure.sweep.params import Run, Sweep, load_sweep
from dsnb.measure.sweep.progress import Progress
from dsnb.measure.sweep.slurm import SlurmJob
from dsnb.settings import built_models, checks, inputs
from dsnb.settings.records import paths
from dsnb.settings.records.columns import ENDED
from dsnb.settings.records.paths import SweepPaths
from dsnb.settings.records.result import Result, last_line
from dsnb.settings.records.run_record import RunRecord

POLL_S = 0.2
CANCEL_TIMEOUT_S = 180.0
"""Time for cancelled jobs to end."""
KILL_AFTER_S = 30.0
"""Time until a cancelled process is killed; its kernel and ranks end with it."""
MAX_NAMED_HOSTS = 4


def run_sweep(
    sweep: Sweep | str | Path,
    *,
    overrides: Mapping[str, Any] | None = None,
    only: str | None = None,
    output: str | Path | None = None,
    retry: bool = False,
    progress: bool = True,
    slurm: Allocation | None = None,
) -> list[Result]:
    """Execute all runs of a sweep that are not finished yet.

    Parameters
    ----------
    sweep
        A sweep, or a params file, which is loaded with `overrides`, `only` and `output`.
    retry
        Repeat finished runs that are not `ok` as well.
    progress
        Show which run of how many, loss, tokens/s and the time left.
    slurm
        Submit every run as a Slurm job with at most this allocation; a `Sweep` then has to come from
        `dsnb.measure.sweep.allocation.load`.

    Returns
    -------
    list of Result
        One per run of the sweep, including those that were finished before.

    Raises
    ------
    SettingsError
        If this machine cannot run it, a finished run has other settings, or another sweep uses the folder.
    LaunchError
        If the disk is full. Finished runs are kept.

    Examples
    --------
    One run; a second call starts none, since the first one finished it:

    >>> params = '''
    ... name: tiny
    ... defaults: {model: gpt2-tiny, device: cpu, precision: fp32, seq_len: 32}
    ... grid: {warmup_steps: [1], steps: [2]}
    ... '''
    >>> _ = Path("tiny.yaml").write_text(params)
    >>> for _ in range(2):
    ...     dsnb.run_sweep("tiny.yaml", output="outputs/tiny", progress=False)
    [<Result ok: outputs/tiny/zs0_fp32_gpus1_bs8_sl32/run1>]
    [<Result ok: outputs/tiny/zs0_fp32_gpus1_bs8_sl32/run1>]
    """
    if not isinstance(sweep, Sweep):
        selection = (overrides, only, output)
        sweep = (
            allocation.load(sweep, slurm, *selection) if slurm else load_sweep(sweep, *selection)
        )
    check_notebook()
    if not slurm:
        problems = unsupported(sweep)
        if problems:
            raise SettingsError(problems)
        check_models(sweep)
    sweep = with_inputs(sweep)
    with locked(sweep.paths):
        check_free_space(sweep.paths.dir)  # before the servers, which take seconds to start
        todo = [run for run in sweep.runs if not is_finished(run, retry)]
        for run in todo:
            check_writable(run.paths.dir)
        _write_plan(sweep)
        servers = contextlib.nullcontext() if slurm else _servers(todo)
        with Progress(len(sweep.runs), todo, progress, show_eta=slurm is None) as display, servers:
            if slurm:
                executor = slurm_jobs.SlurmExecutor(slurm, sweep.name, todo, display.say)
                run_all(todo, executor.start, display, executor.cancel)
            elif any(run.lane for run in todo):
                run_all(todo, LocalJob, display)
            else:
                for run in todo:
                    display.begin(run)
                    display.end(run, job.execute(run))
    results = [Result.of(RunRecord(run.paths)) for run in sweep.runs]
    return [result for result in results if result]


def _write_plan(sweep: Sweep) -> None:
    """Write the params file, and the repeats of each experiment."""
    params = yaml.safe_dump(sweep.params, sort_keys=False, allow_unicode=True)
    json_files.write_text(sweep.paths.params, params)
    repeats: dict[str, list[int]] = {}
    for run in sweep.runs:
        repeats.setdefault(run.name, []).append(run.repeat)
    json_files.write_json(sweep.paths.planned, {"runs": repeats})


@contextlib.contextmanager
def _servers(todo: list[Run]) -> Iterator[None]:
    """Hold the fork servers of runs on this machine; a SettingsError names one that a Slurm job executes."""
    active = slurm_jobs.find_active(run.paths for run in todo if not run.paths.result.exists())
    if active:
        raise SettingsError(f"{active}: continue with --slurm, or cancel it with scancel")
    for run in todo:
        run.paths.slurm.unlink(missing_ok=True)
    alone = [run.experiment for run in todo if not run.experiment.hostfile]
    devices: set[str] = {each.device for each in alone if not each.command}
    with local.shared_servers(devices):
        yield


@contextlib.contextmanager
def locked(sweep: SweepPaths) -> Iterator[None]:
    """Hold the lock of a sweep's folder; the folder is created if necessary.

    The operating system releases it when the process ends. File systems without `flock` are
    refused, because a lock file would outlive a killed process.
    """
    lock = FileLock(sweep.lock, timeout=0, thread_local=False, fallback_to_soft=False)
    try:
        sweep.dir.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        sweep.lock.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
    except Timeout:
        holder = plain_text.line(sweep.lock.read_text("utf-8", "replace")) or "another process"
        raise SettingsError(
            f"{sweep.dir} is in use by another sweep ({holder}): wait for it, or choose another --output"
        ) from None
    except OSError as error:
        raise LaunchError(
            f"{sweep.dir} cannot be written: {error.strerror}; choose another --output"
        ) from error
    try:
        yield
    finally:
        lock.release()


def with_inputs(sweep: Sweep) -> Sweep:
    """Return the sweep with the digests of each run's input files."""
    read: dict[tuple[str, ...], dict[str, str]] = {}
    runs = []
    for run in sweep.runs:
        key = tuple(getattr(run.experiment, name) for name in inputs.READ)
        if key not in read:
            read[key] = inputs.digests(run.experiment)
        runs.append(replace(run, inputs=read[key]))
    return replace(sweep, runs=tuple(runs))


def check_notebook() -> None:
    """Raise a SettingsError if the run notebook has no tagged parameters cell: it would run with its defaults."""
    template = paths.notebook_template(job.NOTEBOOK)
    if not template.is_file() or "run_dir" not in notebook.parameters(template):
        raise SettingsError(
            f"notebook {str(template)!r} has no cell tagged 'parameters' with 'run_dir': restore the tag, or the cell"
        )


def unsupported(sweep: Sweep) -> list[str]:
    """Return why this machine cannot run a sweep, each reason once."""
    problems = [problem for run in sweep.runs for problem in checks.unsupported(run.experiment)]
    return list(dict.fromkeys(problems))


def check_programs(sweep: Sweep) -> None:
    """Raise a SettingsError if the program of a command is not found."""
    commands = [run.experiment for run in sweep.runs if run.experiment.command]
    problems = [problem for each in commands for problem in checks.missing_program(each)]
    if problems:
        raise SettingsError(list(dict.fromkeys(problems)))


def check_models(sweep: Sweep) -> None:
    """Raise a SettingsError with what every run would refuse of its model or text; hosts read theirs themselves."""
    alone = [run.experiment for run in sweep.runs if not run.experiment.hostfile]
    here = [each for each in alone if not each.command]
    problems = built_models.problems(here)
    if problems:
        raise SettingsError(problems)


def is_finished(run: Run, retry: bool = False) -> bool:
    """Return whether a run is finished; with `retry`, only if it is `ok`.

    A run with an incomplete record is repeated, with a warning that says what is wrong. A
    SettingsError is raised if it was finished with other settings or with input files that have
    changed.
    """
    record = RunRecord(run.paths)
    record.check_readable()
    record.check_repeatable()
    if record.status in ENDED:
        differences = job.changed_settings(run, record)
        if differences:
            raise SettingsError(
                f"{run.paths.dir} is finished with other settings ({differences}): choose another --output"
            )
    if record.status == "interrupted" or (retry and record.status != "ok"):
        return False
    files = inputs.changed(record.settings.get("inputs"), run.inputs)
    if files:
        raise SettingsError(
            f"{files[0]} has changed since {run.paths.dir} was measured with it: {job.CHANGED}"
        )
    message = record.unfinished()
    if message:
        json_files.warn(f"{run.paths.dir}: {message}; the run is repeated")
    return not message


class LocalJob:
    """A run in a local process, which ends when this process ends; tests pass a fake `module`."""

    running = True
    _cancelled_at: float | None = None

    def __init__(self, run: Run, module: str = job.MODULE) -> None:
        job.begin(run)
        self.run = run
        self.location = f"on {_some(run.lane.split('@'))}"
        self._began_s = launch_clock.now_s()
        # The job ends when the pipe closes. It has a separate session, so Ctrl-C reaches it only
        # through `cancel`.
        with open(run.paths.job_log, "wb") as log:
            self._process = subprocess.Popen(
                interpreter.command("-m", module, str(run.paths.dir.absolute()), "--owned"),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def poll(self) -> Result | None:
        """Return the result; None before the run has ended."""
        code = self._process.poll()
        if code is None:
            if self._cancelled_at and time.monotonic() > self._cancelled_at + KILL_AFTER_S:
                self._process.kill()
            return None
        if self._process.stdin:
            self._process.stdin.close()
        return job.finish(self.run.paths, self._outcome(code), self._began_s)

    def _outcome(self, code: int) -> Outcome:
        """Return how the run ended if it has no result."""
        if self._cancelled_at:
            return job.STOPPED
        if code < 0:
            when = "before its run began"
            if self.run.paths.console.exists():
                when = "during its run"
            return Outcome("interrupted", f"the job was {signals.killed_by(-code)} {when}")
        cause = f"the job ended with exit code {code}: {last_line(self.run.paths.job_log)}"
        return Outcome("interrupted", cause)

    def cancel(self) -> None:
        """Send SIGTERM to the process."""
        self._cancelled_at = self._cancelled_at or time.monotonic()
        self._process.terminate()


def _some(hosts: list[str]) -> str:
    """Return a list of hosts in words."""
    if len(hosts) <= MAX_NAMED_HOSTS:
        return ", ".join(hosts)
    return f"{hosts[0]}, ... {hosts[-1]} ({len(hosts)} hosts)"


Job = LocalJob | SlurmJob


def cancel_each(jobs: Iterable[LocalJob]) -> None:
    """Send SIGTERM to all jobs."""
    for started in jobs:
        started.cancel()


def run_all(
    todo: Sequence[Run],
    start: Callable[[Run], Job | None],
    progress: Progress,
    cancel: Callable[[list[Any]], None] = cancel_each,
    poll_s: float = POLL_S,
) -> None:
    """Execute all runs, stage by stage; one failure does not stop the others, an exception cancels all jobs.

    `start` returns None if no job can be started for now, and raises if none ever can.
    """
    for stage in sorted({run.stage for run in todo}):
        waiting = [run for run in todo if run.stage == stage]
        jobs: list[Job] = []
        try:
            while waiting or jobs:
                _start_jobs(waiting, jobs, start)
                for active in [*jobs]:
                    result = active.poll()
                    if result:
                        jobs.remove(active)
                        progress.end(active.run, result, active.location)
                    elif active.running:
                        progress.begin(active.run)
                progress.queued = sum(not active.running for active in jobs)
                time.sleep(poll_s)
        except BaseException:
            cancel(jobs)
            deadline = time.monotonic() + CANCEL_TIMEOUT_S
            while jobs and time.monotonic() < deadline:
                jobs = [active for active in jobs if active.poll() is None]
                time.sleep(poll_s)
            raise


def _start_jobs(waiting: list[Run], jobs: list[Job], start: Callable[[Run], Job | None]) -> None:
    """Start the waiting runs whose hosts are free, until no more jobs can be started for now."""
    for run in [*waiting]:
        busy_lanes = {active.run.lane for active in jobs if active.run.lane}
        if run.lane in busy_lanes:
            continue
        started = start(run)
        if started is None:
            return
        jobs.append(started)
        waiting.remove(run)
