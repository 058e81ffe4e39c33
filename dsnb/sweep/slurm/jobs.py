"""Executes each run in a Slurm job: submits it, follows it, cancels it, and finds it again when a sweep is resumed."""

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from dsnb.errors import LaunchError, SettingsError
from dsnb.run_folder.result import Result
from dsnb.sweep import job
from dsnb.sweep.params import Run
from dsnb.sweep.slurm import client
from dsnb.sweep.slurm.allocation import Allocation
from dsnb.sweep.slurm.client import Queue, Record, SubmitError
from dsnb.sweep.slurm.outcome import final_result
from dsnb.sweep.slurm.submissions import find_job, job_record, new_job_name, read_submission, submit, write_submission
from dsnb.system import interpreter, launch_clock

POLL_S = 3.0
SETTLE_S = 30.0
"""Longest delay until a file that a node wrote is visible here."""
STUCK_S = 300.0
"""A job that has been COMPLETING for longer counts as ended."""
USUAL_REASONS = {"", "None", "Priority", "Resources", "BeginTime", "Prolog"}
"""Ordinary reasons for a pending job, which are not reported."""


class SlurmExecutor:
    """Executes runs as Slurm jobs.

    Parameters
    ----------
    allocation
        What every job may use.
    sweep
        Name of the sweep, which becomes part of the jobs' name.
    todo
        The runs that will be started.
    say
        Prints a line.
    module
        The module that a job runs, with the run's folder as its argument; tests pass a fake.
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
        self.allocation, self.say, self.settle_s, self.module = allocation, say, settle_s, module
        self.name = new_job_name(sweep)
        self.queue = Queue(poll_s)
        self._said: set[str] = set()
        self._before = {run.paths.dir: submission for run in todo if (submission := read_submission(run.paths.slurm))}
        self.queue.names = {self.name, *(submission["name"] for submission in self._before.values())}
        if self.queue.poll() is None:
            raise LaunchError(f"Slurm does not answer ({self.queue.error}): start the sweep again when it does")
        self._refuse_changed(todo)

    def _refuse_changed(self, todo: Sequence[Run]) -> None:
        """Make sure, before any job is submitted, that the jobs of earlier calls have the current settings.

        Raises
        ------
        SettingsError
            If one does not.
        """
        problems = []
        for run in todo:
            submission = self._before.get(run.paths.dir)
            record = find_job(self.queue.answer or {}, submission) if submission else None
            if record and not record.ended and (differences := job.changed_settings(run)):
                problems.append(
                    f"{run.paths.dir} is being executed by job {record.id} with other settings ({differences}): "
                    f"wait for it, cancel it with `scancel {record.id}`, or choose another --output"
                )
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
            If Slurm rejects it.
        """
        if run.paths.dir in self._before and self.queue.poll() is None:
            return None
        return self._find_submitted(run) or self._submit(run)

    def _find_submitted(self, run: Run) -> "SlurmJob | None":
        submission = self._before.pop(run.paths.dir, None)
        if not submission:
            return None
        record = find_job(self.queue.answer or {}, submission)
        if record and not record.ended:
            write_submission(run.paths.slurm, {**submission, "job": record.id})
            return SlurmJob(self, run, record.id, submission["name"])
        job_id = record.id if record else submission.get("job")
        if not job_id or job.read_result(run.paths):
            return None
        known = job_record(job_id, submission["name"])
        if known is None or final_result(run.paths, job_id, known, client.failed_nodes).status == "interrupted":
            return None
        return SlurmJob(self, run, job_id, submission["name"])

    def _submit(self, run: Run) -> "SlurmJob | None":
        experiment = run.experiment
        share = experiment.gpus // experiment.nodes
        options = self.allocation.options(experiment.nodes, share, experiment.device)
        command = interpreter.command("-m", self.module, str(run.paths.dir.absolute()))
        job.initialize(run)
        try:
            job_id = submit(self.name, run.paths, options, command)
        except SubmitError as error:
            if not (error.unanswered or (error.too_many_jobs and self._any_job_left())):
                raise LaunchError(f"Slurm rejects {run.name} run{run.repeat}: {error}") from error
            self.say_once(f"Slurm takes no more jobs for now, the others wait: {error}")
            if submission := read_submission(run.paths.slurm):  # Slurm may have accepted the job all the same
                self._before[run.paths.dir] = submission
                self.queue.poll(anew=True)
            return None
        self.queue.add(job_id, self.name)
        return SlurmJob(self, run, job_id, self.name)

    def _any_job_left(self) -> bool:
        return any(not record.ended for record in (self.queue.answer or {}).values())

    def cancel(self, jobs: Collection[Any]) -> None:
        """Cancel all jobs, including one whose submission has just been interrupted."""
        for one in jobs:
            one.cancelled = True
        client.cancel({self.name, *(one.name for one in jobs)})

    def say_once(self, text: str) -> None:
        """Print a line, once."""
        if text not in self._said:
            self._said.add(text)
            self.say(text)


class SlurmJob:
    """A run that is executed by a Slurm job."""

    def __init__(self, jobs: SlurmExecutor, run: Run, job_id: str, name: str) -> None:
        self.jobs, self.run, self.job_id, self.name = jobs, run, job_id, name
        self.location = f"in job {job_id}"
        self.running = False
        self.cancelled = False
        self._began = launch_clock.now_s()
        self._since: dict[str, float] = {}
        self._last: Record | None = None
        self._polled_at = 0.0

    def poll(self) -> Result | None:
        """Return the result; None before the run has ended, or while Slurm does not answer."""
        answer = self.jobs.queue.poll()
        if answer is None:
            self.jobs.say_once(f"Slurm does not answer, asking again: {self.jobs.queue.error}")
            return None
        record = find_job(answer, {"job": self.job_id, "name": self.name})
        if record and not record.ended:
            return self._update(record)
        if self._polled_at != self.jobs.queue.polled_at and not (self._last and self._last.ended):
            self._polled_at = self.jobs.queue.polled_at
            self._last = job_record(self.job_id, self.name) or record
        if self._last and not self._last.ended:
            return self._update(self._last)
        return self._finish(self._last)

    def _update(self, record: Record) -> Result | None:
        self.running = record.state in client.RUNNING
        if record.state == "PENDING" and record.reason not in USUAL_REASONS:
            self.jobs.say_once(f"{self.location.removeprefix('in ')} waits: {record.reason}")
        if record.state == "COMPLETING" and self._has_lasted("COMPLETING", STUCK_S):
            return self._finish(record)
        return None

    def _finish(self, record: Record | None) -> Result | None:
        cut_short = self.cancelled or (record and record.state == "CANCELLED")
        if not (cut_short or job.read_result(self.run.paths) or self._has_lasted("no result", self.jobs.settle_s)):
            return None
        if self.cancelled:
            result = job.finish(self.run.paths, "interrupted", "stopped by the user", self._began)
        else:
            result = final_result(self.run.paths, self.job_id, record, client.failed_nodes)
        submission = read_submission(self.run.paths.slurm) or {"name": self.name, "job": self.job_id}
        write_submission(self.run.paths.slurm, {**submission, "state": record.state if record else "unknown"})
        return result

    def _has_lasted(self, what: str, limit_s: float) -> bool:
        return time.monotonic() >= self._since.setdefault(what, time.monotonic()) + limit_s
