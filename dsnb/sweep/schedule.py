"""Executes runs as jobs: stages one after the other, lanes in parallel, the runs of a lane one after the other.

Jobs are abstract: a local process or a Slurm job. A failure does not stop the others; an interrupt ends all of them and
waits until they are gone.
"""

import collections
import subprocess
import time
import warnings
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from dsnb.errors import DsnbWarning
from dsnb.run_folder.result import Result, last_lines
from dsnb.sweep import job
from dsnb.sweep.params import Run
from dsnb.system import interpreter, launch_clock, signals

if TYPE_CHECKING:
    from dsnb.sweep.progress import Progress

POLL_S = 0.2
CANCEL_TIMEOUT_S = 180.0
"""How long an interrupt waits for cancelled jobs to end."""
KILL_AFTER_S = 30.0
"""A cancelled process that has not ended by then is killed; its kernel and ranks end with it."""


class Job(Protocol):
    """A run that is being executed."""

    run: Run
    running: bool
    """False while it waits in a queue."""
    location: str
    """Where it runs, in words, such as `in job 7`."""

    def poll(self) -> Result | None:
        """Return the result, None before the run has ended."""


class Executor(Protocol):
    """Starts and cancels jobs."""

    def lane(self, run: Run) -> str:
        """Return the lane of a run: runs of one lane are executed one after the other."""

    def start(self, run: Run) -> Job | None:
        """Start a run; None if it has to be tried again later."""

    def cancel(self, jobs: Collection[Job]) -> None:
        """Cancel jobs."""


def run_all(todo: Sequence[Run], executor: Executor, progress: "Progress", poll_s: float = POLL_S) -> None:
    """Execute all runs, stage by stage.

    Raises
    ------
    KeyboardInterrupt
        After all jobs have ended.
    LaunchError
        After all jobs have ended, if a job could not be started for a reason that holds for the others as well.
    """
    for stage in sorted({run.stage for run in todo}):
        _StageRunner([run for run in todo if run.stage == stage], executor, progress).run(poll_s)


class _StageRunner:
    def __init__(self, todo: list[Run], executor: Executor, progress: "Progress") -> None:
        self.executor, self.progress = executor, progress
        self.waiting: dict[str, collections.deque[Run]] = collections.defaultdict(collections.deque)
        self.jobs: dict[str, Job] = {}
        self.tuned: set[str] = set()
        for run in todo:
            self.waiting[executor.lane(run)].append(run)

    def run(self, poll_s: float) -> None:
        try:
            while self.waiting or self.jobs:
                self._start()
                self._poll()
                time.sleep(poll_s)
        except BaseException:
            self._stop(poll_s)
            raise

    def _start(self) -> None:
        for lane in [lane for lane in self.waiting if lane not in self.jobs]:
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
        """Return whether another run of the experiment is still searching for the micro-batch size of both."""
        if run.experiment.micro_batch_size != "auto" or run.name in self.tuned:
            return False
        return any(one.run.name == run.name for one in self.jobs.values())

    def _poll(self) -> None:
        for lane, one in list(self.jobs.items()):
            result = one.poll()
            if one.running and not result:
                self.progress.begin(one.run)
            if result:
                del self.jobs[lane]
                if result.status == "ok":
                    self.tuned.add(one.run.name)
                self.progress.end(one.run, result, one.location)
        running = sum(one.running for one in self.jobs.values())
        self.progress.count(running, len(self.jobs) - running)

    def _stop(self, poll_s: float) -> None:
        deadline = time.monotonic() + CANCEL_TIMEOUT_S
        self.executor.cancel(self.jobs.values())
        while self.jobs and time.monotonic() < deadline:
            self.jobs = {lane: one for lane, one in self.jobs.items() if one.poll() is None}
            time.sleep(poll_s)
        for one in self.jobs.values():
            warning = f"the run {one.location} has not ended {CANCEL_TIMEOUT_S:.0f} s after it was cancelled"
            warnings.warn(warning, DsnbWarning, stacklevel=2)


class LocalExecutor:
    """Executes runs in processes of this machine, which end with this process, however it ends.

    Parameters
    ----------
    module
        The module that a job runs, with the run's folder as its argument; tests pass a fake.
    """

    def __init__(self, module: str = "dsnb.sweep.job") -> None:
        self.module = module

    def lane(self, run: Run) -> str:
        """Return the hosts of a run."""
        return run.lane

    def start(self, run: Run) -> "LocalJob":
        """Start a process for a run."""
        return LocalJob(run, self.module)

    def cancel(self, jobs: Collection[Job]) -> None:
        """Send SIGTERM to all jobs."""
        for one in jobs:
            if isinstance(one, LocalJob):
                one.cancel()


class LocalJob:
    """A run in a process of this machine, which starts the ranks on the hosts of the run's lane."""

    running = True

    def __init__(self, run: Run, module: str) -> None:
        job.initialize(run)
        self.run, self.location = run, f"on {lane_label(run.lane)}" if run.lane else ""
        self._began = launch_clock.now_s()
        self._cancelled_at: float | None = None
        # The job ends when the pipe closes. It has a session of its own, so Ctrl-C reaches it only through `cancel`.
        with open(run.paths.job_log, "wb") as log:
            self._process = subprocess.Popen(
                interpreter.command("-m", module, str(run.paths.dir.absolute()), "--owned"),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def poll(self) -> Result | None:
        """Return the result, None before the run has ended."""
        code = self._process.poll()
        if code is None:
            if self._cancelled_at and time.monotonic() > self._cancelled_at + KILL_AFTER_S:
                self._process.kill()
            return None
        if self._process.stdin:
            self._process.stdin.close()
        if self._cancelled_at:
            return job.finish(self.run.paths, "interrupted", "stopped by the user", self._began)
        if code < 0 and not job.was_launched(self.run.paths):
            how = f"the job was {signals.killed_by(-code)} before its run began"
            return job.finish(self.run.paths, "interrupted", how, self._began)
        message = [*last_lines(self.run.paths.job_log, 1), "it printed nothing"][0]
        return job.finish(self.run.paths, "failed", f"the job ended with exit code {code}: {message}", self._began)

    def cancel(self) -> None:
        """Send SIGTERM to the process."""
        self._cancelled_at = self._cancelled_at or time.monotonic()
        self._process.terminate()


def lane_label(lane: str, most: int = 4) -> str:
    """Return the hosts of a lane as a short text."""
    names = lane.split("@")
    return ", ".join(names) if len(names) <= most else f"{names[0]}, ... {names[-1]} ({len(names)} hosts)"
