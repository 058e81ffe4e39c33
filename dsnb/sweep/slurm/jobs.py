"""Executes runs as Slurm jobs, one for each run or one for the whole sweep: submits, follows and cancels them.

`slurm.json` records a submission before it is made, so a later call follows the jobs that still wait or run instead of
submitting them again. A job is found by its name as well, which holds a random token: Slurm uses job ids again.
"""

import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dsnb.errors import LaunchError, SettingsError
from dsnb.files import records
from dsnb.launcher.figures import summarize_run
from dsnb.run_folder import record_schema
from dsnb.run_folder.paths import RunPaths, SweepPaths
from dsnb.run_folder.result import Result, last_lines
from dsnb.settings.experiment import Experiment
from dsnb.sweep import job, schedule
from dsnb.sweep.params import Run, Sweep
from dsnb.sweep.slurm import client
from dsnb.sweep.slurm.allocation import Allocation
from dsnb.sweep.slurm.client import Record, SlurmError
from dsnb.system import interpreter, launch_clock

POLL_S = 3.0
SETTLE_S = 30.0
"""Longest delay until a file that a node wrote is visible here."""
RETRY_S = 30.0
"""Delay until the next submission after Slurm has rejected one."""
USUAL_REASONS = {"", "None", "Priority", "Resources", "BeginTime", "Prolog"}
"""Ordinary reasons for a pending job, which are not reported."""
INTERRUPTED = {"PREEMPTED", "CANCELLED"}
ENDED_FROM_OUTSIDE = {"TIMEOUT", "DEADLINE", "OUT_OF_MEMORY", "NODE_FAIL", *INTERRUPTED}
KILLED = {-15, -9}
"""Exit codes of ranks that were killed by a signal."""
SHARED = "is the outputs folder on a file system that the nodes share?"


class SlurmJobs:
    """The Slurm jobs of a sweep: what Slurm knows of them, asked at most every `poll_s` seconds.

    Raises
    ------
    LaunchError
        If Slurm does not answer.
    """

    def __init__(self, sweep: str, say: Callable[[str], None], poll_s: float = POLL_S) -> None:
        self.sweep, self.say, self.poll_s = sweep, say, poll_s
        self.cancelled = False
        self._names: set[str] = set()
        self._jobs: dict[str, Record] = {}
        self._polled_at, self._answers = time.monotonic(), True
        self._said: set[str] = set()
        try:
            self._jobs = client.jobs()
        except SlurmError as error:
            raise LaunchError(f"Slurm does not answer ({error}): start the sweep again when it does") from error

    def poll(self, anew: bool = False) -> bool:
        """Ask Slurm if its last answer is too old; return whether it answers."""
        if anew or time.monotonic() > self._polled_at + self.poll_s:
            try:
                self._jobs, self._answers = client.jobs(), True
            except SlurmError as error:
                self._answers = False
                self.say_once(f"Slurm does not answer, asking again: {error}")
            self._polled_at = time.monotonic()
        return self._answers

    def find(self, paths: RunPaths | SweepPaths) -> Record | None:
        """Return the job that was submitted last for a run or a sweep; None if Slurm does not know it."""
        submission = read_submission(paths.slurm)
        if submission is None:
            return None
        self._names.add(submission["name"])
        return find_job(self._jobs, submission)

    def get(self, job_id: str) -> Record | None:
        """Return a job of this call; None if Slurm does not know it any more."""
        return self._jobs.get(job_id)

    def submit(self, paths: RunPaths | SweepPaths, options: Mapping[str, str], command: Sequence[str]) -> str:
        """Submit a job that runs `command` and return its id.

        Raises
        ------
        SlurmError
            If Slurm rejects it or does not answer; it may have accepted the job all the same.
        """
        name = f"dsnb-{self.sweep}-{secrets.token_hex(6)}"
        self._names.add(name)
        submission = {"name": name, "job": None, "submitted_utc": datetime.now(UTC).isoformat(timespec="seconds")}
        records.write_json(paths.slurm, submission)
        paths.job_log.unlink(missing_ok=True)
        job_id = client.submit(name, paths.job_log.absolute(), options, command)
        records.write_json(paths.slurm, {**submission, "job": job_id})
        self._jobs[job_id] = Record(job_id, name, "PENDING")
        return job_id

    def cancel(self) -> None:
        """Cancel all jobs that this call submitted or found, also one whose submission has just been interrupted."""
        self.cancelled = True
        self.poll(anew=True)
        ids = [record.id for record in self._jobs.values() if record.name in self._names and not record.ended]
        if ids:
            client.cancel(ids)

    def say_reason(self, record: Record) -> None:
        """Say why a job waits, once, if that is unusual."""
        if record.state == "PENDING" and record.reason not in USUAL_REASONS:
            self.say_once(f"job {record.id} waits: {record.reason}")

    def say_once(self, text: str) -> None:
        """Print a line, once."""
        if text not in self._said:
            self._said.add(text)
            self.say(text)


def read_submission(path: Path) -> dict[str, Any] | None:
    """Read the record of a submitted job; None if there is none, or if it is not a valid one."""
    submission = record_schema.read(path)
    return submission if submission and isinstance(submission.get("name"), str) else None


def find_job(jobs: Mapping[str, Record], submission: Mapping[str, Any]) -> Record | None:
    """Return a submitted job, found by its name alone if it is not known whether Slurm accepted it."""
    job_id = submission.get("job")
    same = [record for record in ([jobs.get(job_id)] if job_id else jobs.values()) if record]
    return next((record for record in same if record.name == submission["name"]), None)


def find_active(runs: Sequence[RunPaths]) -> str:
    """Return the first job of these runs that Slurm has not ended, in words; empty if there is none.

    A job counts as active if Slurm cannot be asked.
    """
    submissions = [(run, submission) for run in runs if (submission := read_submission(run.slurm))]
    if not submissions:
        return ""
    try:
        known = client.jobs()
    except (SlurmError, SettingsError) as error:
        run, submission = submissions[0]
        return (
            f"{run.dir} was submitted to Slurm as job {submission.get('job') or submission['name']}, which may still "
            f"be active ({error}); if it has ended, delete {run.slurm}"
        )
    for run, submission in submissions:
        if (record := find_job(known, submission)) and not record.ended:
            return f"{run.dir} is still {'executed' if record.running else 'queued'} by Slurm as job {record.id}"
    return ""


class SlurmExecutor:
    """Executes each run in a Slurm job of its own.

    Parameters
    ----------
    allocation
        What every job may use.
    sweep
        Name of the sweep, which becomes part of the jobs' names.
    todo
        The runs that will be started.
    say
        Prints a line.
    module
        The module that a job runs, with the run's folder as its argument; tests pass a fake.

    Raises
    ------
    LaunchError
        If Slurm does not answer.
    SettingsError
        If a job of an earlier call is executing one of the runs with other settings.
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
        self.allocation, self.settle_s, self.module = allocation, settle_s, module
        self.jobs = SlurmJobs(sweep, say, poll_s)
        self._started: list[SlurmJob] = []
        self._retry_at = 0.0
        problems = [
            f"{run.paths.dir} is being executed by job {record.id} with other settings ({differences}): "
            f"wait for it, cancel it with `scancel {record.id}`, or choose another --output"
            for run in todo
            if (record := self.jobs.find(run.paths)) and not record.ended and (differences := job.changed_settings(run))
        ]
        if problems:
            raise SettingsError(problems)

    def lane(self, run: Run) -> str:
        """Return a lane of its own for every run: Slurm schedules them."""
        return str(run.paths.dir)

    def start(self, run: Run) -> "SlurmJob | None":
        """Follow the job that already executes a run, or submit one; None if Slurm takes no more jobs for now.

        Raises
        ------
        LaunchError
            If Slurm rejects it although no other job of this sweep waits or runs.
        """
        if time.monotonic() < self._retry_at or not self.jobs.poll():
            return None
        record = self.jobs.find(run.paths)
        to_repeat = record and record.ended and (record.state in INTERRUPTED or job.read_result(run.paths))
        try:
            job_id = record.id if record and not to_repeat else self._submit(run)
        except SlurmError as error:
            if not any(started.is_active for started in self._started):
                run.paths.slurm.unlink()
                raise LaunchError(f"Slurm rejects {run.name} run{run.repeat}: {error}") from error
            self.jobs.say_once(f"Slurm takes no more jobs for now, the others wait: {error}")
            self._retry_at = time.monotonic() + RETRY_S
            return None
        self._started.append(SlurmJob(self, run, job_id))
        return self._started[-1]

    def _submit(self, run: Run) -> str:
        job.initialize(run)
        command = interpreter.command("-m", self.module, str(run.paths.dir.absolute()))
        return self.jobs.submit(run.paths, self.allocation.options_of_run(run.experiment), command)

    def cancel(self, jobs: Collection[schedule.Job]) -> None:
        """Cancel all jobs."""
        self.jobs.cancel()


class SlurmJob:
    """A run that is executed by a Slurm job."""

    def __init__(self, executor: SlurmExecutor, run: Run, job_id: str) -> None:
        self.executor, self.run, self.id = executor, run, job_id
        self.location = f"in job {job_id}"
        self.running = False
        self.is_active = True
        """False once its end has been seen."""
        self._began = launch_clock.now_s()
        self._last: Record | None = None
        self._settled_at = 0.0

    def poll(self) -> Result | None:
        """Return the result; None before the run has ended, or while Slurm does not answer."""
        if not self.executor.jobs.poll():
            return None
        record = self.executor.jobs.get(self.id)
        if record and not record.ended:
            self.running, self._last = record.running, record
            self.executor.jobs.say_reason(record)
            return None
        if self.is_active:
            self.is_active, self._last = False, record
            self._settled_at = time.monotonic() + self.executor.settle_s
        cancelled = self.executor.jobs.cancelled or (record and record.state == "CANCELLED")
        if not (cancelled or job.read_result(self.run.paths)) and time.monotonic() < self._settled_at:
            return None
        if self.executor.jobs.cancelled:
            return job.finish(self.run.paths, "interrupted", "stopped by the user", self._began)
        return final_result(self.run.paths, self.id, self._last)


def run_in_one_job(
    sweep: Sweep, allocation: Allocation, command: Sequence[str], say: Callable[[str], None], poll_s: float = POLL_S
) -> None:
    """Execute a sweep by `command`, which is `dsnb sweep` itself, in one job; or follow the job that already does.

    The lines about runs in the job's log are printed as they arrive.

    Raises
    ------
    LaunchError
        If Slurm rejects the job, or it ended before the sweep.
    KeyboardInterrupt
        After the job has ended.
    """
    jobs, log, shown = SlurmJobs(sweep.name, say, poll_s), sweep.paths.job_log, 0
    try:
        record = jobs.find(sweep.paths)
        job_id = record.id if record and not record.ended else _submit_sweep(jobs, sweep, allocation, command)
        say(f"job {job_id} executes the sweep; its log is {log}")
        while (record := jobs.get(job_id)) and not record.ended:
            jobs.say_reason(record)
            time.sleep(poll_s)
            jobs.poll()
            shown = _show_runs(log, shown, say)
    except BaseException:
        jobs.cancel()
        while (record := jobs.find(sweep.paths)) and not record.ended:
            time.sleep(poll_s)
            jobs.poll()
        raise
    results = [job.read_result(run.paths) for run in sweep.runs]
    if left := sum(result is None or result.status == "interrupted" for result in results):
        _, cause = job_status(sweep.paths, job_id, record)
        raise LaunchError(f"{cause} ({left} of {len(sweep.runs)} runs are left: start the sweep again)")


def _submit_sweep(jobs: SlurmJobs, sweep: Sweep, allocation: Allocation, command: Sequence[str]) -> str:
    device = "cpu" if all(run.experiment.device == "cpu" for run in sweep.runs) else "cuda"
    options = allocation.options(allocation.nodes, allocation.gpus_per_node, device)
    try:
        return jobs.submit(sweep.paths, options, command)
    except SlurmError as error:
        raise LaunchError(f"Slurm rejects the job of the sweep: {error}") from error


def _show_runs(log: Path, shown: int, say: Callable[[str], None]) -> int:
    """Print the lines about runs that the log of a sweep has since `shown` lines; return how many it has."""
    lines = log.read_text("utf-8", "replace").split("\n")[:-1] if log.exists() else []
    for line in lines[shown:]:
        if line.startswith("run "):
            say(line)
    return len(lines)


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
    before = written or Result("", None, {}, {}, {}, run.dir)
    summary = before.summary or _partial_summary(run)
    result = Result(status, cause, before.exit_codes, before.phases_s, summary, run.dir)
    result.write()
    return result


def job_status(paths: RunPaths | SweepPaths, job_id: str, record: Record | None) -> tuple[str, str]:
    """Return status and cause of an ended job by Slurm's record of it."""
    if record is None:
        return "interrupted", f"Slurm no longer knows job {job_id}, and it left no result in {paths.dir}: {SHARED}"
    nodes = record.nodes or "its nodes"
    lines = last_lines(paths.job_log, 1) or ["it printed nothing"]
    failed = (
        f"failed: {lines[0]}" if paths.job_log.exists() else f"failed, and {nodes} wrote no {paths.job_log}: {SHARED}"
    )
    limit = f" of {record.time_limit}" if record.time_limit else ""
    outcomes = {
        "COMPLETED": ("failed", f"completed but left no result in {paths.dir}: {SHARED}"),
        "FAILED": ("failed", failed),
        "NODE_FAIL": ("failed", f"ended because a node failed (of {nodes}; `sinfo -R` lists failed nodes)"),
        "BOOT_FAIL": ("failed", f"did not start: a node of {nodes} did not boot"),
        "OUT_OF_MEMORY": ("oom", f"used more host memory on {nodes} than requested: set --sbatch-option mem=..."),
        "TIMEOUT": ("timeout", f"was ended by Slurm at its time limit{limit}: raise --time, or lower steps"),
        "DEADLINE": ("timeout", "was ended by Slurm at its deadline"),
        "PREEMPTED": ("interrupted", "was preempted by another job"),
        "CANCELLED": ("interrupted", "was cancelled"),
    }
    status, cause = outcomes.get(record.state, ("failed", f"ended as {record.state}"))
    return status, f"job {job_id} {cause}"


def _partial_summary(run: RunPaths) -> dict[str, object]:
    """Return the figures of the steps before a run was killed."""
    settings = record_schema.read(run.experiment) or {}
    if not isinstance(settings.get("micro_batch_size"), int):  # the search for it had not ended
        return {}
    return summarize_run(Experiment.recorded(settings), run)
