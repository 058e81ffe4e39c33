"""Runs made as Slurm jobs: submitted, followed, cancelled; and found again by a sweep that is started anew.

Which job makes a run stands in the run's folder before anybody waits for it. A job is this run's if its name is the
one written there, which holds a random word, for Slurm uses numbers again.
"""

import secrets
import sys
import time
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dsnb import allocation, job, records, slurm
from dsnb.allocation import Allocation
from dsnb.errors import LaunchError, SettingsError
from dsnb.launcher.outcome import Result
from dsnb.params import Run
from dsnb.slurm import Queue, Record, Refused
from dsnb.slurm_outcome import settled

POLL_S = 3.0
SETTLE_S = 30.0
"""How long a file that a node wrote may take to be seen here."""
STUCK_S = 300.0
"""How long a job may be ending before it counts as ended."""
ORDINARY = {"", "None", "Priority", "Resources", "BeginTime", "Prolog"}
"""Reasons for waiting that everybody has."""


def new_name(sweep: str) -> str:
    """Name the jobs of one call."""
    return f"dsnb-{sweep}-{secrets.token_hex(4)}"


class SlurmJobs:
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
        todo: Iterable[Run],
        say: Callable[[str], None],
        poll_s: float = POLL_S,
        settle_s: float = SETTLE_S,
        module: str = "dsnb.job",
    ) -> None:
        self.asked, self.say, self.settle_s, self.module = asked, say, settle_s, module
        self.name = new_name(sweep)
        self.queue = Queue(poll_s)
        self._told: set[str] = set()
        self._before = {run.paths.dir: note for run in todo if (note := submitted(run.paths.slurm))}
        self.queue.names = {self.name, *(note["name"] for note in self._before.values())}
        if self.queue.look() is None:
            raise LaunchError(f"Slurm does not answer ({self.queue.trouble}): start the sweep again when it does")

    def lane(self, run: Run) -> str:
        """Give every run a lane of its own: Slurm says what comes when."""
        return str(run.paths.dir)

    def start(self, run: Run) -> "SlurmJob | None":
        """Follow the job that makes a run already, or submit one; None if Slurm would rather have it later.

        Raises
        ------
        LaunchError
            If Slurm refuses it.
        SettingsError
            If a job makes the run already, with other settings.
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
            if told := job.changed(run):
                raise SettingsError(
                    f"{run.paths.dir} is being made by job {record.id} with other settings ({told}): "
                    f"wait for it, end it with `scancel {record.id}`, or choose another --output"
                )
            write_note(run.paths.slurm, {**note, "job": record.id})
            return SlurmJob(self, run, record.id, note["name"])
        number = record.id if record else note.get("job")
        if not number or job.recorded(run.paths):
            return None
        known = record_of(number, note["name"])
        if known is None or settled(run.paths, number, known, slurm.failed_nodes).status == "interrupted":
            return None
        return SlurmJob(self, run, number, note["name"])

    def _submitted(self, run: Run) -> "SlurmJob | None":
        experiment = run.experiment
        share = experiment.gpus // experiment.nodes
        options = self.asked.options(experiment.nodes, share, experiment.device)
        words = [sys.executable, "-m", self.module, str(run.paths.dir.absolute())]
        job.describe(run)
        try:
            number = submit(self.name, run.paths, options, words)
        except Refused as error:
            if not error.later:
                raise LaunchError(f"Slurm refuses {run.name} run{run.repeat}: {error}") from error
            self.tell(f"Slurm takes no more jobs now, further ones wait: {error}")
            if note := submitted(run.paths.slurm):  # it may have taken this one all the same
                self._before[run.paths.dir] = note
                self.queue.look(anew=True)
            return None
        self.queue.expect(number, self.name)
        return SlurmJob(self, run, number, self.name)

    def cancel(self, jobs: Collection[Any]) -> None:
        """Cancel all jobs, those included that were submitted in this moment."""
        for one in jobs:
            one.cancelled = True
        slurm.cancel({self.name, *(one.name for one in jobs)})

    def tell(self, text: str) -> None:
        """Print a line, once."""
        if text not in self._told:
            self._told.add(text)
            self.say(text)


class SlurmJob:
    """One run that a Slurm job makes."""

    def __init__(self, jobs: SlurmJobs, run: Run, number: str, name: str) -> None:
        self.jobs, self.run, self.number, self.name = jobs, run, number, name
        self.where = f"in job {number}"
        self.running = False
        self.cancelled = False
        self._began = time.time()
        self._since: dict[str, float] = {}

    def poll(self) -> Result | None:
        """Give how the run ended, None while it has not, or while Slurm does not answer."""
        answer = self.jobs.queue.look()
        if answer is None:
            self.jobs.tell(f"Slurm does not answer, asking again: {self.jobs.queue.trouble}")
            return None
        record = answer.get(self.number)
        if record and record.name == self.name and not record.ended:
            return self._goes_on(record)
        ended = record_of(self.number, self.name)
        if ended and not ended.ended:
            return self._goes_on(ended)
        return self._ended(ended)

    def _goes_on(self, record: Record) -> Result | None:
        self.running = record.state in slurm.RUNNING
        if record.state == "PENDING" and record.reason not in ORDINARY:
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
            result = settled(self.run.paths, self.number, record, slurm.failed_nodes)
        note = submitted(self.run.paths.slurm) or {"name": self.name, "job": self.number}
        write_note(self.run.paths.slurm, {**note, "state": record.state if record else "unknown"})
        return result

    def _passed(self, what: str, limit_s: float) -> bool:
        return time.monotonic() >= self._since.setdefault(what, time.monotonic()) + limit_s


def submit(name: str, paths: Any, options: dict[str, str], words: list[str]) -> str:
    """Submit a job that runs `words`; its name stands in the folder before, its number right after.

    Raises
    ------
    Refused
        If Slurm does not take it.
    """
    script: Path = paths.job_script.absolute()
    note = {"name": name, "job": None, "submitted_utc": datetime.now(UTC).isoformat(timespec="seconds")}
    note |= {"state": "submitting", "script": str(script)}
    records.write_text(script, allocation.script(name, paths.job_log.absolute(), options, words))
    write_note(paths.slurm, note)
    number = slurm.submit(script, allocation.environment(options))
    write_note(paths.slurm, {**note, "job": number, "state": "submitted"})
    return number


def submitted(path: Path) -> dict[str, Any] | None:
    """Read which job was submitted; None if none was, or if the file was written by nobody who knows how."""
    note = records.read_json(path)
    if not note or not isinstance(note.get("name"), str) or not allocation.is_name(note["name"]):
        return None
    number = note.get("job")
    return {**note, "job": number if isinstance(number, str) and number.isdecimal() else None}


def write_note(path: Path, note: dict[str, Any]) -> None:
    """Write which job was submitted."""
    records.write_json(path, note)


def find(answer: dict[str, Record], note: dict[str, Any]) -> Record | None:
    """Find a submitted job in the queue, by its number, or by its script where only that is known."""
    if number := note.get("job"):
        record = answer.get(number)
        return record if record and record.name == note["name"] else None
    same = [one for one in answer.values() if one.name == note["name"] and one.command == note.get("script")]
    return same[-1] if same else None


def record_of(number: str, name: str) -> Record | None:
    """Give what Slurm knows of a job; None if that is another job by now."""
    record = slurm.details(number)
    return record if record and record.name == name else None
