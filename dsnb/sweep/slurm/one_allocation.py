"""A whole sweep as one Slurm job: submitted, followed, and found again by a later call.

The job runs `dsnb sweep` itself on the nodes of its allocation; this process shows its results as they arrive.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from dsnb.errors import LaunchError
from dsnb.run_folder.result import Result
from dsnb.sweep import job
from dsnb.sweep.params import Run, Sweep
from dsnb.sweep.slurm import client
from dsnb.sweep.slurm.allocation import Allocation
from dsnb.sweep.slurm.client import Queue, Record, SubmitError
from dsnb.sweep.slurm.jobs import POLL_S, USUAL_REASONS
from dsnb.sweep.slurm.outcome import job_status
from dsnb.sweep.slurm.submissions import find_job, job_record, new_job_name, read_submission, submit

if TYPE_CHECKING:
    from dsnb.sweep.progress import Progress

NOT_ALL_OK = 3
"""Exit code of a sweep that is finished, but not every run is ok."""


def run_in_allocation(
    sweep: Sweep,
    todo: list[Run],
    allocation: Allocation,
    command: list[str],
    progress: "Progress",
    poll_s: float = POLL_S,
) -> int:
    """Execute a sweep by `command` in one job, or follow the job that already does; return its exit code.

    Raises
    ------
    LaunchError
        If Slurm rejects the job, or it ended before the sweep.
    KeyboardInterrupt
        After the job has ended.
    """
    queue = Queue(poll_s)
    job_id, name = _running_job(sweep, queue) or _submit(sweep, allocation, command)
    queue.add(job_id, name)
    progress.say(f"job {job_id} executes the sweep; its log is {sweep.paths.job_log}")
    follower = _Follower(todo, progress)
    try:
        record = _wait(queue, job_id, name, follower.update, progress)
    except BaseException:
        client.cancel({name})
        _wait(queue, job_id, name, lambda _: None, progress)
        raise
    follower.update(record)
    if record and record.state in {"COMPLETED", "FAILED"} and record.exit_code in {0, NOT_ALL_OK} and not record.signal:
        return record.exit_code
    results = [job.read_result(run.paths) for run in sweep.runs]
    left = sum(result is None or result.status == "interrupted" for result in results)
    if left or record is None:
        _, cause = job_status(sweep.paths, job_id, record, client.failed_nodes)
        raise LaunchError(f"{cause} ({left} of {len(sweep.runs)} runs are left: start the sweep again)")
    return 0


def _running_job(sweep: Sweep, queue: Queue) -> tuple[str, str] | None:
    submission = read_submission(sweep.paths.slurm)
    if not submission:
        return None
    queue.names.add(submission["name"])
    answer = queue.poll()
    if answer is None:
        raise LaunchError(f"Slurm does not answer ({queue.error}): start the sweep again when it does")
    record = find_job(answer, submission)
    return (record.id, record.name) if record and not record.ended else None


def _submit(sweep: Sweep, allocation: Allocation, command: list[str]) -> tuple[str, str]:
    name = new_job_name(sweep.name)
    on_cpu = all(run.experiment.device == "cpu" for run in sweep.runs)
    options = allocation.options(allocation.nodes, allocation.gpus_per_node, "cpu" if on_cpu else "cuda")
    try:
        return submit(name, sweep.paths, options, command), name
    except SubmitError as error:
        raise LaunchError(f"Slurm rejects the job of the sweep: {error}") from error


def _wait(
    queue: Queue, job_id: str, name: str, update: Callable[[Record | None], None], progress: "Progress"
) -> Record | None:
    """Wait until a job has ended; return its record."""
    reasons: set[str] = set()
    while True:
        answer = queue.poll()
        record = answer.get(job_id) if answer is not None else None
        if answer is not None and (record is None or record.ended):
            last = job_record(job_id, name)
            if last is None or last.ended:
                return last
        update(record)
        if record and record.state == "PENDING" and record.reason not in {*USUAL_REASONS, *reasons}:
            reasons.add(record.reason)
            progress.say(f"job {job_id} waits: {record.reason}")
        time.sleep(queue.poll_s)


class _Follower:
    """Shows the runs that end while the job goes on."""

    def __init__(self, todo: list[Run], progress: "Progress") -> None:
        self.progress = progress
        self.before = {run.paths.dir: _written_at(run) for run in todo}
        self.left = list(todo)

    def update(self, record: Record | None) -> None:
        """Show the runs that have ended since the last call."""
        for run in list(self.left):
            result: Result | None = None
            if _written_at(run) not in {None, self.before[run.paths.dir]}:
                result = job.read_result(run.paths)
            if result and result.status != "interrupted":
                self.left.remove(run)
                self.progress.end(run, result)
        running = bool(record and record.state in client.RUNNING)
        self.progress.count(int(running), int(not running))


def _written_at(run: Run) -> int | None:
    try:
        return run.paths.result.stat().st_mtime_ns
    except OSError:
        return None
