"""Runs made as Slurm jobs: submitted, followed, cancelled; and found again by a sweep that is started anew."""

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
from dsnb.sweep.slurm.submissions import find, job_record, new_job_name, submit, submitted, write_note
from dsnb.system import interpreter, launch_clock

POLL_S = 3.0
SETTLE_S = 30.0
"""How long a file that a node wrote may take to be seen here."""
STUCK_S = 300.0
"""How long a job may be ending before it counts as ended."""
USUAL_REASONS = {"", "None", "Priority", "Resources", "BeginTime", "Prolog"}
"""Reasons for waiting that everybody has."""


class SlurmExecutor:
    """What makes runs as Slurm jobs.

    Parameters
    ----------
    asked
        What every job may have.
    sweep
        The sweep's name, of which the jobs' is made.
    todo
        The runs that will be asked for.
    say
        Prints a line.
    module
        What a job runs with the run's folder as argument; tests put a fake here.
    """

    def __init__(
        self,
        asked: Allocation,
        sweep: str,
        todo: Sequence[Run],
        say: Callable[[str], None],
        poll_s: float = POLL_S,
        settle_s: float = SETTLE_S,
        module: str = "dsnb.sweep.job",
    ) -> None:
        self.asked, self.say, self.settle_s, self.module = asked, say, settle_s, module
        self.name = new_job_name(sweep)
        self.queue = Queue(poll_s)
        self._told: set[str] = set()
        self._before = {run.paths.dir: note for run in todo if (note := submitted(run.paths.slurm))}
        self.queue.names = {self.name, *(note["name"] for note in self._before.values())}
        if self.queue.look() is None:
            raise LaunchError(f"Slurm does not answer ({self.queue.trouble}): start the sweep again when it does")
        self._refuse_changed(todo)

    def _refuse_changed(self, todo: Sequence[Run]) -> None:
        """Make sure, before any job is touched, that those that make runs already make them as they are now asked for.

        Raises
        ------
        SettingsError
            If one does not.
        """
        problems = []
        for run in todo:
            note = self._before.get(run.paths.dir)
            record = find(self.queue.answer or {}, note) if note else None
            if record and not record.ended and (told := job.changed(run)):
                problems.append(
                    f"{run.paths.dir} is being made by job {record.id} with other settings ({told}): "
                    f"wait for it, end it with `scancel {record.id}`, or choose another --output"
                )
        if problems:
            raise SettingsError(problems)

    def lane(self, run: Run) -> str:
        """Give every run a lane of its own: Slurm says what comes when."""
        return str(run.paths.dir)

    def start(self, run: Run) -> "SlurmJob | None":
        """Follow the job that makes a run already, or submit one; None if Slurm would rather have it later.

        Raises
        ------
        LaunchError
            If Slurm refuses it.
        """
        if run.paths.dir in self._before and self.queue.look() is None:
            return None
        return self._found(run) or self._submitted(run)

    def _found(self, run: Run) -> "SlurmJob | None":
        note = self._before.pop(run.paths.dir, None)
        if not note:
            return None
        record = find(self.queue.answer or {}, note)
        if record and not record.ended:
            write_note(run.paths.slurm, {**note, "job": record.id})
            return SlurmJob(self, run, record.id, note["name"])
        number = record.id if record else note.get("job")
        if not number or job.recorded(run.paths):
            return None
        known = job_record(number, note["name"])
        if known is None or final_result(run.paths, number, known, client.failed_nodes).status == "interrupted":
            return None
        return SlurmJob(self, run, number, note["name"])

    def _submitted(self, run: Run) -> "SlurmJob | None":
        experiment = run.experiment
        share = experiment.gpus // experiment.nodes
        options = self.asked.options(experiment.nodes, share, experiment.device)
        words = interpreter.command("-m", self.module, str(run.paths.dir.absolute()))
        job.describe(run)
        try:
            number = submit(self.name, run.paths, options, words)
        except SubmitError as error:
            if not (error.silent or (error.full and self._going_on())):
                raise LaunchError(f"Slurm refuses {run.name} run{run.repeat}: {error}") from error
            self.tell(f"Slurm takes no more jobs now, further ones wait: {error}")
            if note := submitted(run.paths.slurm):  # it may have taken this one all the same
                self._before[run.paths.dir] = note
                self.queue.look(anew=True)
            return None
        self.queue.expect(number, self.name)
        return SlurmJob(self, run, number, self.name)

    def _going_on(self) -> bool:
        return any(not record.ended for record in (self.queue.answer or {}).values())

    def cancel(self, jobs: Collection[Any]) -> None:
        """Cancel all jobs, those included that were submitted in this moment."""
        for one in jobs:
            one.cancelled = True
        client.cancel({self.name, *(one.name for one in jobs)})

    def tell(self, text: str) -> None:
        """Print a line, once."""
        if text not in self._told:
            self._told.add(text)
            self.say(text)


class SlurmJob:
    """One run that a Slurm job makes."""

    def __init__(self, jobs: SlurmExecutor, run: Run, number: str, name: str) -> None:
        self.jobs, self.run, self.number, self.name = jobs, run, number, name
        self.where = f"in job {number}"
        self.running = False
        self.cancelled = False
        self._began = launch_clock.now_s()
        self._since: dict[str, float] = {}
        self._last: Record | None = None
        self._asked_at = 0.0

    def poll(self) -> Result | None:
        """Give how the run ended, None while it has not, or while Slurm does not answer."""
        answer = self.jobs.queue.look()
        if answer is None:
            self.jobs.tell(f"Slurm does not answer, asking again: {self.jobs.queue.trouble}")
            return None
        record = find(answer, {"job": self.number, "name": self.name})
        if record and not record.ended:
            return self._goes_on(record)
        if self._asked_at != self.jobs.queue.asked_at and not (self._last and self._last.ended):
            self._asked_at = self.jobs.queue.asked_at
            self._last = job_record(self.number, self.name) or record
        if self._last and not self._last.ended:
            return self._goes_on(self._last)
        return self._ended(self._last)

    def _goes_on(self, record: Record) -> Result | None:
        self.running = record.state in client.RUNNING
        if record.state == "PENDING" and record.reason not in USUAL_REASONS:
            self.jobs.tell(f"{self.where.removeprefix('in ')} waits: {record.reason}")
        if record.state == "COMPLETING" and self._passed("COMPLETING", STUCK_S):
            return self._ended(record)
        return None

    def _ended(self, record: Record | None) -> Result | None:
        cut_short = self.cancelled or (record and record.state == "CANCELLED")
        if not (cut_short or job.recorded(self.run.paths) or self._passed("no result", self.jobs.settle_s)):
            return None
        if self.cancelled:
            result = job.close(self.run.paths, "interrupted", "stopped by the user", self._began)
        else:
            result = final_result(self.run.paths, self.number, record, client.failed_nodes)
        note = submitted(self.run.paths.slurm) or {"name": self.name, "job": self.number}
        write_note(self.run.paths.slurm, {**note, "state": record.state if record else "unknown"})
        return result

    def _passed(self, what: str, limit_s: float) -> bool:
        return time.monotonic() >= self._since.setdefault(what, time.monotonic()) + limit_s
