"""Runs made as jobs: lanes side by side, the runs of a lane one after the other, stages one after the other.

What a job is, is for others: a process here, or a Slurm job. A job that fails stops no other one; an interrupt ends
them all and waits until they are gone.
"""

import collections
import subprocess
import time
import warnings
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from dsnb.errors import DsnbWarning, LaunchError
from dsnb.run_folder.result import Result, last_lines
from dsnb.sweep import job
from dsnb.sweep.params import Run
from dsnb.system import interpreter, launch_clock, signals

if TYPE_CHECKING:
    from dsnb.sweep.progress import Progress

POLL_S = 0.2
CANCEL_TIMEOUT_S = 180.0
"""How long an interrupt waits for jobs that were told to end."""
KILL_AFTER_S = 30.0
"""A process that was told to end and has not done so is killed; its kernel and ranks end when it is gone."""
STARTS_PER_POLL = 20
"""Starts between two looks at what goes on."""


class Job(Protocol):
    """One run under way."""

    run: Run
    running: bool
    """False while it waits for its turn elsewhere."""
    where: str
    """In words, for the line about its end."""

    def poll(self) -> Result | None:
        """Give how the run ended, None while it has not."""


class Executor(Protocol):
    """What makes jobs."""

    def lane(self, run: Run) -> str:
        """Name the lane of a run."""

    def start(self, run: Run) -> Job | None:
        """Start a run; None if there is no room for it now."""

    def cancel(self, jobs: Collection[Job]) -> None:
        """Tell all jobs to end."""


def run_all(todo: Sequence[Run], executor: Executor, shown: "Progress", poll_s: float = POLL_S) -> None:
    """Make all runs, stage by stage.

    Raises
    ------
    KeyboardInterrupt
        After all jobs have ended.
    LaunchError
        If a job could not be started for a reason that the next one shares; likewise.
    """
    for stage in sorted({run.stage for run in todo}):
        _Stage([run for run in todo if run.stage == stage], executor, shown).make(poll_s)


class _Stage:
    def __init__(self, todo: list[Run], executor: Executor, shown: "Progress") -> None:
        self.executor, self.shown = executor, shown
        self.waiting: dict[str, collections.deque[Run]] = collections.defaultdict(collections.deque)
        self.jobs: dict[str, Job] = {}
        self.found: set[str] = set()
        for run in todo:
            self.waiting[executor.lane(run)].append(run)

    def make(self, poll_s: float) -> None:
        try:
            while self.waiting or self.jobs:
                self._start()
                self._look()
                time.sleep(poll_s)
        except BaseException:
            self._stop(poll_s)
            raise

    def _start(self) -> None:
        idle = [lane for lane in self.waiting if lane not in self.jobs]
        for lane in idle[:STARTS_PER_POLL]:
            run = next((run for run in self.waiting[lane] if not self._must_wait(run)), None)
            if run is None:
                continue
            started = self.executor.start(run)
            if started is None:
                return
            self.jobs[lane] = started
            self.waiting[lane].remove(run)
            if not self.waiting[lane]:
                del self.waiting[lane]

    def _must_wait(self, run: Run) -> bool:
        """Keep apart runs that share probes: the first one finds the micro-batch for all."""
        if run.experiment.micro_batch_size != "auto" or run.name in self.found:
            return False
        return any(one.run.name == run.name for one in self.jobs.values())

    def _look(self) -> None:
        for lane, one in list(self.jobs.items()):
            result = one.poll()
            if one.running and not result:
                self.shown.begin(one.run)
            if result:
                del self.jobs[lane]
                if result.status == "ok":
                    self.found.add(one.run.name)
                self.shown.end(one.run, result, one.where)
        running = sum(one.running for one in self.jobs.values())
        self.shown.count(running, len(self.jobs) - running)

    def _stop(self, poll_s: float) -> None:
        deadline = time.monotonic() + CANCEL_TIMEOUT_S
        self.executor.cancel(self.jobs.values())
        while self.jobs and time.monotonic() < deadline:
            self.jobs = {lane: one for lane, one in self.jobs.items() if _goes_on(one)}
            time.sleep(poll_s)
        for one in self.jobs.values():
            told = f"{one.where} has not ended {CANCEL_TIMEOUT_S:.0f} s after it was told to"
            warnings.warn(told, DsnbWarning, stacklevel=2)


def _goes_on(one: Job) -> bool:
    """Say whether a job that is ended is still there; where its folder is gone, there is no result to write."""
    try:
        return one.poll() is None
    except LaunchError:
        return False


class LocalExecutor:
    """Jobs that are processes of this machine; they end when this one does, however that ends.

    Parameters
    ----------
    module
        What a job runs with its folder as argument; tests put a fake here.
    """

    def __init__(self, module: str = "dsnb.sweep.job") -> None:
        self.module = module

    def lane(self, run: Run) -> str:
        """Give the hosts of a run."""
        return run.lane

    def start(self, run: Run) -> "LocalJob":
        """Start a process."""
        return LocalJob(run, self.module)

    def cancel(self, jobs: Collection[Job]) -> None:
        """Tell all to end, with SIGTERM."""
        for one in jobs:
            if isinstance(one, LocalJob):
                one.cancel()


class LocalJob:
    """One run made by a process of this machine, which works on the hosts of the run's lane."""

    running = True

    def __init__(self, run: Run, module: str) -> None:
        job.describe(run)
        self.run, self.where = run, f"on {hosts(run.lane)}" if run.lane else ""
        self._began = launch_clock.now_s()
        self._cancelled_at: float | None = None
        # The pipe is what the job watches. In a session of its own, Ctrl-C reaches it through `cancel` alone.
        with open(run.paths.job_log, "wb") as log:
            self._process = subprocess.Popen(
                interpreter.command("-m", module, str(run.paths.dir.absolute()), "--owned"),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def poll(self) -> Result | None:
        """Give how the run ended, None while it has not."""
        code = self._process.poll()
        if code is None:
            if self._cancelled_at and time.monotonic() > self._cancelled_at + KILL_AFTER_S:
                self._process.kill()
            return None
        if self._process.stdin:
            self._process.stdin.close()
        if self._cancelled_at:
            return job.close(self.run.paths, "interrupted", "stopped by the user", self._began)
        if code < 0 and not job.was_launched(self.run.paths):
            how = f"the job was {signals.killed_by(-code)} before its run began"
            return job.close(self.run.paths, "interrupted", how, self._began)
        said = [*last_lines(self.run.paths.job_log, 1), "it said nothing"][0]
        return job.close(self.run.paths, "failed", f"the job ended with exit code {code}: {said}", self._began)

    def cancel(self) -> None:
        """Tell the process to end."""
        self._cancelled_at = self._cancelled_at or time.monotonic()
        self._process.terminate()


def hosts(lane: str, most: int = 4) -> str:
    """Name the hosts of a lane in a few words."""
    names = lane.split("@")
    return ", ".join(names) if len(names) <= most else f"{names[0]}, ... {names[-1]} ({len(names)} hosts)"
