"""Executes runs as Slurm jobs, one for each run or one for the whole sweep: `sbatch`, `squeue`, `scancel`.

`slurm.json` records a submission before it is made, so a later call follows the jobs that still wait or run instead of
submitting them again. A job is found by its name, which holds a random token: Slurm uses job ids again.
"""

import contextlib
import os
import secrets
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dsnb.errors import LaunchError, SettingsError
from dsnb.files import records
from dsnb.launcher.outcome import summarize_run
from dsnb.run_folder import record_schema
from dsnb.run_folder.paths import RunPaths, SweepPaths
from dsnb.run_folder.result import Result, last_lines
from dsnb.settings.experiment import Experiment
from dsnb.sweep import job
from dsnb.sweep.allocation import Allocation
from dsnb.sweep.params import Run, Sweep
from dsnb.system import interpreter, launch_clock

POLL_S = 3.0
SETTLE_S = 30.0
"""Longest delay until a file that a node wrote is visible here."""
RETRY_S = 30.0
"""Delay until the next submission after Slurm has rejected one."""
WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"}
INTERRUPTED = {"PREEMPTED", "CANCELLED"}
ENDED_FROM_OUTSIDE = {"TIMEOUT", "DEADLINE", "OUT_OF_MEMORY", "NODE_FAIL", *INTERRUPTED}
ENDED = {"BOOT_FAIL", "COMPLETED", "FAILED", "REVOKED", *ENDED_FROM_OUTSIDE}
"""Final states of a job; every other state, known or not, is waited for."""
USUAL_REASONS = {"", "None", "Priority", "Resources", "BeginTime", "Prolog"}
"""Ordinary reasons for a pending job, which are not reported."""
KILLED = {-15, -9}
"""Exit codes of ranks that were killed by a signal."""
SHARED = "is the outputs folder on a file system that the nodes share?"
FORMAT = "%i|%j|%T|%r|%N|%l"
# srun gives its steps one CPU each unless it is told.
PROLOGUE = '[ -z "$SLURM_CPUS_PER_TASK" ] || export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"; exec '


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
    time_limit: str = ""

    @property
    def ended(self) -> bool:
        """Whether the job has ended."""
        return self.state in ENDED

    @property
    def running(self) -> bool:
        """Whether the job has begun and not ended."""
        return self.state not in WAITING | ENDED


def sbatch_command(name: str, log: Path, options: Mapping[str, str], command: Sequence[str]) -> list[str]:
    """Return the command that submits a job; options on the command line precede environment variables."""
    # A requeued job would silently start its run again; the failure of a node has to be reported.
    own = {"job-name": name, "output": str(log).replace("%", "%%"), "open-mode": "truncate", "no-requeue": ""}
    words = [f"--{key}={value}" if value else f"--{key}" for key, value in {**options, **own}.items()]
    return ["sbatch", *words, "--parsable", f"--wrap={PROLOGUE}{shlex.join(command)}"]


def queue() -> dict[str, Record]:
    """Return this user's jobs by name, ended ones included as long as Slurm lists them (minutes)."""
    return parse_queue(_output("squeue", "--noheader", "--states=all", f"--user={os.geteuid()}", f"--format={FORMAT}"))


def parse_queue(text: str) -> dict[str, Record]:
    """Parse the output of `squeue` in `FORMAT`; return the jobs by name."""
    rows = [row.split("|") for row in text.splitlines()]
    return {row[1]: Record(*row) for row in rows if len(row) == 6}


def _output(*command: str) -> str:
    """Run one of Slurm's commands, without the variables of this allocation and its fork servers."""
    keep, foreign = {"SLURM_CONF", "SLURM_CLUSTERS"}, ("SLURM_", "DSNB_FORK_SERVER")
    try:
        # In a session of its own: Ctrl-C is handled by the sweep, which then cancels its jobs.
        done = subprocess.run(
            command,
            env={name: value for name, value in os.environ.items() if name in keep or not name.startswith(foreign)},
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
        raise SlurmError(error_sentence(done.stderr) or f"{command[0]} ended with exit code {done.returncode}")
    return done.stdout


def error_sentence(stderr: str) -> str:
    """Return the last error in what a command of Slurm printed, without its prefix."""
    rows = [row.strip() for row in stderr.splitlines() if row.strip()]
    message = [row.partition("error: ")[2] for row in rows if "error: " in row][-1:] or rows[:1] or [""]
    return message[0].removeprefix("Batch job submission failed: ")


class SlurmExecutor:
    """Executes each run in a Slurm job of its own; asks Slurm at most every `poll_s` seconds.

    `sweep` becomes part of the jobs' names; tests pass a fake `module`. Runs that a job of an earlier call is executing
    with other settings are refused.
    """

    def __init__(
        self,
        allocation: Allocation,
        sweep: str,
        todo: Sequence[Run],
        say: Callable[[str], None],
        poll_s: float = POLL_S,
        settle_s: float = SETTLE_S,
        module: str = "dsnb.sweep.job",
    ) -> None:
        self.allocation, self.sweep, self._say = allocation, sweep, say
        self.poll_s, self.settle_s, self.module = poll_s, settle_s, module
        self.cancelled = False
        self._names: set[str] = set()
        self._started: list[SlurmJob] = []
        self._said: set[str] = set()
        self._polled_at, self._retry_at, self._answers = time.monotonic(), 0.0, True
        try:
            self.records = queue()
        except SlurmError as error:
            raise LaunchError(f"Slurm does not answer ({error}): start the sweep again when it does") from error
        problems = [
            f"{run.paths.dir} is being executed by job {record.id} with other settings ({differences}): "
            f"wait for it, cancel it with `scancel {record.id}`, or choose another --output"
            for run in todo
            if (record := self.find(run.paths)) and not record.ended and (differences := job.changed_settings(run))
        ]
        if problems:
            raise SettingsError(problems)

    def poll(self, anew: bool = False) -> bool:
        """Ask Slurm if its last answer is too old; return whether it answers."""
        if anew or time.monotonic() > self._polled_at + self.poll_s:
            try:
                self.records, self._answers = queue(), True
            except SlurmError as error:
                self._answers = False
                self._say_once(f"Slurm does not answer, asking again: {error}")
            self._polled_at = time.monotonic()
        return self._answers

    def find(self, paths: RunPaths | SweepPaths) -> Record | None:
        """Return the job that was submitted last for a run or a sweep; None if Slurm does not know it."""
        name = (record_schema.read(paths.slurm) or {}).get("name")
        self._names |= {name} if name else set()
        return self.records.get(name) if name else None

    def submit(self, paths: RunPaths | SweepPaths, options: Mapping[str, str], command: Sequence[str]) -> Record:
        """Submit a job that runs `command`; after a SlurmError, it may have been accepted all the same."""
        name = f"dsnb-{self.sweep}-{secrets.token_hex(6)}"
        self._names.add(name)
        records.write_json(paths.slurm, {"name": name, "job": None})
        paths.job_log.unlink(missing_ok=True)
        printed = _output(*sbatch_command(name, paths.job_log.absolute(), options, command))
        record = self.records[name] = Record(printed.strip().partition(";")[0], name, "PENDING")
        records.write_json(paths.slurm, {"name": name, "job": record.id})
        return record

    def start(self, run: Run) -> "SlurmJob | None":
        """Follow the job that already executes a run, or submit one; None if Slurm takes no more jobs for now."""
        if time.monotonic() < self._retry_at or not self.poll():
            return None
        record = self.find(run.paths)
        if not record or (record.ended and (record.state in INTERRUPTED or job.read_result(run.paths))):
            job.initialize(run)
            command = interpreter.command("-m", self.module, str(run.paths.dir.absolute()))
            try:
                record = self.submit(run.paths, self.allocation.options_of_run(run.experiment), command)
            except SlurmError as error:
                if not any(started.is_active for started in self._started):
                    run.paths.slurm.unlink()
                    raise LaunchError(f"Slurm rejects {run.name} run{run.repeat}: {error}") from error
                self._say_once(f"Slurm takes no more jobs for now, the others wait: {error}")
                self._retry_at = time.monotonic() + RETRY_S
                return None
        self._started.append(SlurmJob(self, run, record))
        return self._started[-1]

    def cancel(self, _: object = None) -> None:
        """Cancel all jobs that this call submitted or found, also one whose submission has just been interrupted."""
        self.cancelled = True
        self.poll(anew=True)
        if ids := [record.id for record in self.records.values() if record.name in self._names and not record.ended]:
            with contextlib.suppress(SlurmError):  # of those that have ended since; the queue shows the others
                _output("scancel", *ids)

    def look(self, name: str) -> Record | None:
        """Return what Slurm knows of a job; say why it waits, once, if that is unusual."""
        record = self.records.get(name)
        if record and record.state == "PENDING" and record.reason not in USUAL_REASONS:
            self._say_once(f"job {record.id} waits: {record.reason}")
        return record

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say(text)


class SlurmJob:
    """A run that is executed by a Slurm job."""

    running = False

    def __init__(self, executor: SlurmExecutor, run: Run, record: Record) -> None:
        self.run, self.id, self.location = run, record.id, f"in job {record.id}"
        self.is_active = True
        """False once its end has been seen."""
        self._executor, self._name = executor, record.name
        self._began, self._settled_at = launch_clock.now_s(), 0.0
        self._end: Record | None = None

    def poll(self) -> Result | None:
        """Return the result; None before the run has ended, or while Slurm does not answer."""
        if not self._executor.poll():
            return None
        record = self._executor.look(self._name)
        if record and not record.ended:
            self.running = record.running
            return None
        if self.is_active:
            self.is_active, self._end = False, record
            self._settled_at = time.monotonic() + self._executor.settle_s
        if self._executor.cancelled:
            return job.finish(self.run.paths, "interrupted", "stopped by the user", self._began)
        has_result = (self._end and self._end.state == "CANCELLED") or job.read_result(self.run.paths)
        if not has_result and time.monotonic() < self._settled_at:
            return None
        return final_result(self.run.paths, self.id, self._end)


def find_active(runs: Sequence[RunPaths]) -> str:
    """Return the first job of these runs that Slurm has not ended, in words; empty if there is none.

    If Slurm cannot be asked, a SettingsError says so: the jobs may be active then.
    """
    names = {name: run for run in runs if (name := (record_schema.read(run.slurm) or {}).get("name"))}
    try:
        known = queue() if names else {}
    except (SlurmError, SettingsError) as error:
        run = next(iter(names.values()))
        raise SettingsError(
            f"{run.dir} was submitted to Slurm, and its job may still be active ({error}); if it has ended, delete "
            f"{run.slurm}"
        ) from error
    for name in names.keys() & known.keys():
        if not known[name].ended:
            state = "executed" if known[name].running else "queued"
            return f"{names[name].dir} is still {state} by Slurm as job {known[name].id}"
    return ""


def run_in_one_job(
    sweep: Sweep, allocation: Allocation, command: Sequence[str], say: Callable[[str], None], poll_s: float = POLL_S
) -> None:
    """Execute a sweep by `command`, which is `dsnb sweep` itself, in one job; or follow the job that already does.

    The lines about runs in the job's log are printed as they arrive. An interrupt is raised after the job has ended.
    """
    slurm, shown = SlurmExecutor(allocation, sweep.name, [], say, poll_s), 0
    try:
        record = slurm.find(sweep.paths)
        if not record or record.ended:
            device = "cpu" if all(run.experiment.device == "cpu" for run in sweep.runs) else "cuda"
            options = allocation.options(allocation.nodes, allocation.gpus_per_node, device)
            try:
                record = slurm.submit(sweep.paths, options, command)
            except SlurmError as error:
                raise LaunchError(f"Slurm rejects the job of the sweep: {error}") from error
        name, job_id = record.name, record.id
        say(f"job {job_id} executes the sweep; its log is {sweep.paths.job_log}")
        while (record := slurm.look(name)) and not record.ended:
            time.sleep(poll_s)
            slurm.poll()
            log = sweep.paths.job_log
            lines = log.read_text("utf-8", "replace").split("\n")[:-1] if log.exists() else []
            for line in lines[shown:]:
                if line.startswith("run "):
                    say(line)
            shown = len(lines)
    except BaseException:
        slurm.cancel()
        while (record := slurm.find(sweep.paths)) and not record.ended:
            time.sleep(poll_s)
            slurm.poll()
        raise
    results = [job.read_result(run.paths) for run in sweep.runs]
    if left := sum(result is None or result.status == "interrupted" for result in results):
        _, cause = job_status(sweep.paths, job_id, record)
        raise LaunchError(f"{cause} ({left} of {len(sweep.runs)} runs are left: start the sweep again)")


def final_result(run: RunPaths, job_id: str, record: Record | None) -> Result:
    """Return the result of the run of a job that has ended, and write it if the job could not.

    The result that a run wrote counts, unless it was interrupted or killed and Slurm knows the cause.
    """
    written = job.read_result(run)
    by_slurm = record is not None and record.state in ENDED_FROM_OUTSIDE
    cut_short = written and (written.status == "interrupted" or KILLED & set(written.exit_codes.values()))
    if written and not (by_slurm and cut_short):
        return written
    status, cause = job_status(run, job_id, record)
    result = replace(written or Result("", None, {}, {}, {}, run.dir), status=status, cause=cause)
    settings = record_schema.read(run.experiment)
    if not result.summary and settings:
        result = replace(result, summary=summarize_run(Experiment.recorded(settings), run))
    result.write()
    return result


def job_status(paths: RunPaths | SweepPaths, job_id: str, record: Record | None) -> tuple[str, str]:
    """Return status and cause of an ended job by Slurm's record of it."""
    if record is None:
        return "interrupted", f"Slurm no longer knows job {job_id}, and it left no result in {paths.dir}: {SHARED}"
    nodes = record.nodes or "its nodes"
    failed = f"failed: {[*last_lines(paths.job_log, 1), 'it printed nothing'][0]}"
    if not paths.job_log.exists():
        failed = f"failed, and {nodes} wrote no {paths.job_log}: {SHARED}"
    limit = f" of {record.time_limit}" if record.time_limit else ""
    outcomes = {
        "COMPLETED": ("failed", f"completed but left no result in {paths.dir}: {SHARED}"),
        "FAILED": ("failed", failed),
        "NODE_FAIL": ("failed", f"ended because a node failed (of {nodes}; `sinfo -R` lists failed nodes)"),
        "OUT_OF_MEMORY": ("oom", f"used more host memory on {nodes} than requested: set --sbatch-option mem=..."),
        "TIMEOUT": ("timeout", f"was ended by Slurm at its time limit{limit}: raise --time, or lower steps"),
        "DEADLINE": ("timeout", "was ended by Slurm at its deadline"),
        "PREEMPTED": ("interrupted", "was preempted by another job"),
        "CANCELLED": ("interrupted", "was cancelled"),
    }
    status, cause = outcomes.get(record.state, ("failed", f"ended as {record.state}"))
    return status, f"job {job_id} {cause}"
