"""Executes runs as jobs: stages one after the other, lanes in parallel, the runs of a lane one after the other.

Jobs are abstract: a local process or a Slurm job. A failure does not stop the others; an interrupt ends all of them and
waits until they are gone.
"""

import subprocess
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from dsnb.errors import DsnbWarning
from dsnb.run_folder.result import Result, last_lines
from dsnb.sweep import job
from dsnb.sweep.params import Run
from dsnb.sweep.progress import Progress
from dsnb.sweep.slurm import SlurmJob
from dsnb.system import interpreter, launch_clock, signals

POLL_S = 0.2
CANCEL_TIMEOUT_S = 180.0
"""How long an interrupt waits for cancelled jobs to end."""
KILL_AFTER_S = 30.0
"""A cancelled process that has not ended by then is killed; its kernel and ranks end with it."""


class LocalJob:
    """A run in a process of this machine, which starts the ranks on the hosts of the run's lane.

    It ends with this process, however that ends. `module` is what it executes, with the run's folder as its argument;
    tests pass a fake.
    """

    running = True

    def __init__(self, run: Run, module: str = "dsnb.sweep.job") -> None:
        job.initialize(run)
        self.run, self.location = run, f"on {_hosts(run.lane)}"
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
        status, cause = "failed", f"the job ended with exit code {code}: "
        if self._cancelled_at:
            status, cause = "interrupted", "stopped by the user"
        elif code < 0 and not job.was_launched(self.run.paths):
            status, cause = "interrupted", f"the job was {signals.killed_by(-code)} before its run began"
        else:
            cause += [*last_lines(self.run.paths.job_log, 1), "it printed nothing"][0]
        return job.finish(self.run.paths, status, cause, self._began)

    def cancel(self) -> None:
        """Send SIGTERM to the process."""
        self._cancelled_at = self._cancelled_at or time.monotonic()
        self._process.terminate()


def _hosts(lane: str) -> str:
    names = lane.split("@")
    return ", ".join(names) if len(names) <= 4 else f"{names[0]}, ... {names[-1]} ({len(names)} hosts)"


def cancel_each(jobs: list[LocalJob]) -> None:
    """Send SIGTERM to all jobs."""
    for started in jobs:
        started.cancel()


def run_all(
    todo: Sequence[Run],
    start: Callable[[Run], LocalJob | SlurmJob | None],
    progress: Progress,
    cancel: Callable[[list[Any]], None] = cancel_each,
    poll_s: float = POLL_S,
) -> None:
    """Execute all runs, stage by stage.

    Parameters
    ----------
    start
        Starts the job of a run, or returns None if no job can be started for now.
    cancel
        Cancels the jobs that were started.

    Raises
    ------
    KeyboardInterrupt
        After all jobs have ended.
    LaunchError
        After all jobs have ended, if a job could not be started for a reason that holds for the others as well.
    """
    for stage in sorted({run.stage for run in todo}):
        waiting = [run for run in todo if run.stage == stage]
        jobs: list[LocalJob | SlurmJob] = []
        tuned: set[str] = set()
        try:
            while waiting or jobs:
                for run in [*waiting]:
                    if any(_excludes(active.run, run, tuned) for active in jobs):
                        continue
                    if not (started := start(run)):
                        break
                    jobs.append(started)
                    waiting.remove(run)
                for active in [*jobs]:
                    if result := active.poll():
                        jobs.remove(active)
                        if result.status == "ok":
                            tuned.add(active.run.name)
                        progress.end(active.run, result, active.location)
                    elif active.running:
                        progress.begin(active.run)
                progress.queued = sum(not active.running for active in jobs)
                time.sleep(poll_s)
        except BaseException:
            cancel(jobs)
            _wait(jobs, poll_s)
            raise


def _excludes(active: Run, run: Run, tuned: set[str]) -> bool:
    """Return whether a run has to wait for another: for its hosts, or for the micro-batch size that both need."""
    searches = run.experiment.micro_batch_size == "auto" and run.name not in tuned
    return (bool(run.lane) and run.lane == active.lane) or (searches and run.name == active.name)


def _wait(jobs: list[LocalJob | SlurmJob], poll_s: float) -> None:
    """Wait until cancelled jobs have ended."""
    deadline = time.monotonic() + CANCEL_TIMEOUT_S
    while jobs and time.monotonic() < deadline:
        jobs = [active for active in jobs if active.poll() is None]
        time.sleep(poll_s)
    for active in jobs:
        warning = f"the run {active.location} has not ended {CANCEL_TIMEOUT_S:.0f} s after it was cancelled"
        warnings.warn(warning, DsnbWarning, stacklevel=2)
