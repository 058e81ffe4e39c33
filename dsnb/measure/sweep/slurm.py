"""Executes runs as Slurm jobs, one per run, with `sbatch`, `squeue` and `scancel`.

`slurm.json` is written before the submission, so a later call follows queued and running jobs
instead of submitting them again. A job is found by its name, which contains a random token, because
Slurm reuses job ids.
"""

import contextlib
import os
import secrets
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from dsnb.base.errors import LaunchError, SettingsError
from dsnb.base.files import json_files
from dsnb.base.system import interpreter, launch_clock
from dsnb.measure.launcher.figures import summarize_run
from dsnb.measure.launcher.outcome import Outcome, settled
from dsnb.measure.sweep import job
from dsnb.measure.sweep.allocation import Allocation
from dsnb.measure.sweep.params import Run
from dsnb.settings.records.advice import SLURM_STATES
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.result import Result, last_line
from dsnb.settings.records.run_record import RunRecord

POLL_S = 3.0
SETTLE_S = 30.0
"""Maximum delay before a file written on a node is visible here."""
RETRY_S = 30.0
"""Delay before the next submission after a rejected one."""
RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "STAGE_OUT"}
USUAL_REASONS = {"", "None", "Priority", "Resources", "BeginTime", "Prolog"}
"""Ordinary reasons for a pending job, which are not reported."""
KILLED = {-15, -9}
"""Exit codes of ranks that were killed by a signal."""
SHARED = "is the outputs folder on a file system that the nodes share?"
ENDED_BY_ITSELF = {"BOOT_FAIL", "COMPLETED", "FAILED", "REVOKED"}
KEPT = {"SLURM_CONF", "SLURM_CLUSTERS"}
FOREIGN = ("SLURM_", "DSNB_FORK_SERVER")
"""Beginnings of environment variables that belong to the current process; Slurm's commands receive
only `KEPT`."""
FORMAT = "%i|%j|%T|%r|%N"


class SlurmError(Exception):
    """A command of Slurm failed; the message is the last error that it printed."""


@dataclass(frozen=True)
class Record:
    """What Slurm knows of a job."""

    id: str
    name: str
    state: str
    reason: str = ""
    nodes: str = ""

    @property
    def ended(self) -> bool:
        """Whether the job has ended."""
        return self.state in SLURM_STATES

    @property
    def ended_from_outside(self) -> bool:
        """Whether something other than the job itself ended it."""
        return self.ended and self.state not in ENDED_BY_ITSELF

    @property
    def cut_short(self) -> bool:
        """Whether the job was ended from outside, and another one has to be submitted."""
        return self.ended_from_outside and SLURM_STATES[self.state][0] == "interrupted"


def sbatch_command(
    name: str, log: Path, options: Mapping[str, str], command: Sequence[str]
) -> list[str]:
    """Return the command that submits a job; options on the command line override environment variables."""
    # A requeued job would silently repeat its run, and the failure of a node would not be reported.
    fixed = {
        "job-name": name,
        "output": str(log).replace("%", "%%"),
        "open-mode": "truncate",
        "no-requeue": "",
    }
    words = ["sbatch"]
    for key, value in {**options, **fixed}.items():
        words.append(f"--{key}={value}" if value else f"--{key}")
    return [*words, "--parsable", f"--wrap=exec {shlex.join(command)}"]


def queue() -> dict[str, Record]:
    """Return this user's jobs by name, including those that ended in the last minutes."""
    text = _output(
        "squeue", "--noheader", "--states=all", f"--user={os.geteuid()}", f"--format={FORMAT}"
    )
    rows = [row.split("|") for row in text.splitlines()]
    return {row[1]: Record(*row) for row in rows if len(row) == 5}


def _output(*command: str) -> str:
    """Run a command of Slurm without the variables of the current allocation and fork servers."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT or not name.startswith(FOREIGN)
    }
    try:
        # In a separate session, because Ctrl-C must reach the sweep only, which then cancels its
        # jobs.
        done = subprocess.run(
            command,
            env=variables,
            capture_output=True,
            check=False,
            start_new_session=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise SettingsError(
            f"{command[0]} is not found: --slurm needs Slurm's commands; start it on a login node of the cluster"
        ) from None
    if done.returncode:
        ended = f"{command[0]} ended with exit code {done.returncode}"
        raise SlurmError(error_sentence(done.stderr) or ended)
    return done.stdout


def error_sentence(stderr: str) -> str:
    """Return the last error that a command of Slurm printed, without its prefix; empty if it printed nothing."""
    rows = [row.strip() for row in stderr.splitlines() if row.strip()]
    errors = [row.partition("error: ")[2] for row in rows if "error: " in row]
    message = next(chain(reversed(errors), rows), "")
    return message.removeprefix("Batch job submission failed: ")


@dataclass
class SlurmExecutor:
    """Executes each run in a separate Slurm job; polls Slurm at most every `poll_s` seconds.

    `sweep` becomes part of the jobs' names; tests pass a fake `module`. A SettingsError names the
    runs that a job of an earlier call is executing with other settings.
    """

    allocation: Allocation
    sweep: str
    todo: Sequence[Run]
    say: Callable[[str], None]
    poll_s: float = POLL_S
    settle_s: float = SETTLE_S
    module: str = job.MODULE
    cancelled: bool = False
    _names: set[str] = field(default_factory=set)
    """Names of the jobs of this sweep."""
    _printed: set[str] = field(default_factory=set)
    _retry_at: float = 0.0
    _answers: bool = True

    def __post_init__(self) -> None:
        self._polled_at = time.monotonic()
        try:
            self.records = queue()
        except SlurmError as error:
            raise LaunchError(
                f"Slurm does not answer ({error}): start the sweep again when it does"
            ) from error
        problems = list(filter(None, map(self._conflict, self.todo)))
        if problems:
            raise SettingsError(problems)

    def _conflict(self, run: Run) -> str | None:
        """Return what is wrong if a job is executing a run with other settings."""
        record = self.find(run.paths)
        if record is None or record.ended:
            return None
        differences = job.changed_settings(run, RunRecord(run.paths))
        if not differences:
            return None
        return (
            f"{run.paths.dir} is being executed by job {record.id} with other settings ({differences}): "
            f"wait for it, cancel it with `scancel {record.id}`, or choose another --output"
        )

    def poll(self, anew: bool = False) -> bool:
        """Ask Slurm again if its last answer is too old; return whether it answers."""
        if anew or time.monotonic() > self._polled_at + self.poll_s:
            try:
                self.records = queue()
                self._answers = True
            except SlurmError as error:
                self._answers = False
                self.say_once(f"Slurm does not answer, asking again: {error}")
            self._polled_at = time.monotonic()
        return self._answers

    def find(self, run: RunPaths) -> Record | None:
        """Return the last job that was submitted for a run; None if Slurm does not list it."""
        name = RunRecord(run).job.get("name")
        if name:
            self._names.add(name)
        return self.records.get(name)

    def start(self, run: Run) -> "SlurmJob | None":
        """Follow the job that already executes a run, or submit one; None if Slurm takes no more jobs for now."""
        if time.monotonic() < self._retry_at or not self.poll():
            return None
        record = self.find(run.paths)
        if record is None or record.cut_short or (record.ended and _result(run.paths)):
            job.begin(run)
            try:
                record = self._submit(run)
            except SlurmError as error:
                if not self._active():
                    run.paths.slurm.unlink()
                    raise LaunchError(
                        f"Slurm rejects {run.name} run{run.repeat}: {error}"
                    ) from error
                self.say_once(f"Slurm takes no more jobs for now, the others wait: {error}")
                self._retry_at = time.monotonic() + RETRY_S
                return None
        return SlurmJob(self, run, record)

    def _submit(self, run: Run) -> Record:
        """Submit the job of a run; Slurm may have accepted it even if this raises a SlurmError."""
        paths = run.paths
        name = f"dsnb-{self.sweep}-{secrets.token_hex(6)}"
        self._names.add(name)
        json_files.write_json(paths.slurm, {"name": name, "job": None})
        paths.job_log.unlink(missing_ok=True)
        command = interpreter.command("-m", self.module, str(paths.dir.absolute()))
        options = self.allocation.options(run.experiment)
        printed = _output(*sbatch_command(name, paths.job_log.absolute(), options, command))
        record = Record(printed.strip().partition(";")[0], name, "PENDING")
        self.records[name] = record
        json_files.write_json(paths.slurm, {"name": name, "job": record.id})
        return record

    def _active(self) -> list[str]:
        """Return the ids of the jobs of this sweep that Slurm lists and that have not ended."""
        return [
            record.id
            for record in self.records.values()
            if record.name in self._names and not record.ended
        ]

    def cancel(self, _: object = None) -> None:
        """Cancel all jobs of this sweep, including one whose submission has just been interrupted."""
        self.cancelled = True
        self.poll(anew=True)
        ids = self._active()
        if ids:
            with contextlib.suppress(
                SlurmError
            ):  # some have ended since; the queue shows the others
                _output("scancel", *ids)

    def say_once(self, text: str) -> None:
        """Print a line unless it has been printed before."""
        if text not in self._printed:
            self._printed.add(text)
            self.say(text)


class SlurmJob:
    """The Slurm job of a run."""

    running = False
    _settled_at: float | None = None
    """When a result must be visible here; None before the job has ended."""
    _end: Record | None = None

    def __init__(self, executor: SlurmExecutor, run: Run, record: Record) -> None:
        self.run = run
        self.id = record.id
        self.location = f"in job {record.id}"
        self._executor = executor
        self._name = record.name
        self._began_s = launch_clock.now_s()

    def poll(self) -> Result | None:
        """Return the result; None before the run has ended, or while Slurm does not answer."""
        if not self._executor.poll():
            return None
        record = self._executor.records.get(self._name)
        if record and not record.ended:
            self.running = record.state in RUNNING
            if record.state == "PENDING" and record.reason not in USUAL_REASONS:
                self._executor.say_once(f"job {record.id} waits: {record.reason}")
            return None
        if self._settled_at is None:
            self._end = record
            self._settled_at = time.monotonic() + self._executor.settle_s
        if self._executor.cancelled:
            return job.finish(self.run.paths, job.STOPPED, self._began_s)
        leaves_none = self._end is not None and self._end.state == "CANCELLED"
        is_late = time.monotonic() >= self._settled_at
        if leaves_none or is_late or _result(self.run.paths):
            return final_result(self.run.paths, self.id, self._end)
        return None


def _result(run: RunPaths) -> Result | None:
    return Result.of(RunRecord(run))


def find_active(runs: Iterable[RunPaths]) -> str:
    """Return the first of these runs whose job is queued or running, in words; empty if there is none.

    Raises SettingsError if Slurm does not answer: the jobs may be active then.
    """
    submitted = {RunRecord(run).job.get("name"): run for run in runs}
    submitted.pop(None, None)
    try:
        jobs = queue() if submitted else {}
    except (SlurmError, SettingsError) as error:
        run = next(iter(submitted.values()))
        raise SettingsError(
            f"{run.dir} was submitted to Slurm, and its job may still be active ({error}); if it has ended, delete "
            f"{run.slurm}"
        ) from error
    for name, run in submitted.items():
        if name in jobs and not jobs[name].ended:
            return f"{run.dir} is still queued or running as Slurm job {jobs[name].id}"
    return ""


def final_result(run: RunPaths, job_id: str, record: Record | None) -> Result:
    """Return the result of a run whose job has ended, and write it if the job could not.

    A result that the run wrote takes precedence, unless it was interrupted or killed and Slurm
    knows the cause.
    """
    recorded = RunRecord(run)
    written = Result.of(recorded)
    if written:
        was_killed = KILLED & set(written.exit_codes.values())
        was_cut_short = written.status == "interrupted" or was_killed
        if not (was_cut_short and record and record.ended_from_outside):
            return written
    status, cause = settled(recorded, job_outcome(run, job_id, record))
    result = replace(written or Result("", None, {}, {}, {}, run.dir), status=status, cause=cause)
    if not result.summary:
        result = replace(result, summary=summarize_run(recorded))
    result.write()
    return result


def job_outcome(run: RunPaths, job_id: str, record: Record | None) -> Outcome:
    """Return the outcome of a run whose job has ended, from Slurm's record of the job."""
    if record is None:
        cause = f"Slurm no longer lists job {job_id}, and {run.dir} has no result: {SHARED}"
        return Outcome("interrupted", cause)
    status, advice = SLURM_STATES[record.state]
    cause = f"job {job_id} ended as {record.state}"
    if record.nodes:
        cause += f" on {record.nodes}"
    if record.state == "FAILED" and run.job_log.exists():
        advice = last_line(run.job_log)
    if advice:
        cause += f": {advice}"
    return Outcome(status, cause)
