"""A whole sweep as one Slurm job: submitted, followed, and found again by a second call.

In the job runs `dsnb sweep` itself, over the nodes of the allocation; here its results are read as they come.
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
from dsnb.sweep.slurm.submissions import find, job_record, new_job_name, submit, submitted

if TYPE_CHECKING:
    from dsnb.sweep.progress import Progress

NOT_ALL_OK = 3
"""Exit code of a sweep that was made to its end."""


def run_in_allocation(
    sweep: Sweep, todo: list[Run], asked: Allocation, words: list[str], shown: "Progress", poll_s: float = POLL_S
) -> int:
    """Make a sweep by `words` in one job, or go on with the one that makes it already; give its exit code.

    Raises
    ------
    LaunchError
        If Slurm refuses the job, or it ended before the sweep did.
    KeyboardInterrupt
        After the job has ended.
    """
    queue = Queue(poll_s)
    number, name = _going_on(sweep, queue) or _submitted(sweep, asked, words)
    queue.expect(number, name)
    shown.say(f"job {number} makes the sweep, and says in {sweep.paths.job_log} how")
    following = _Follower(todo, shown)
    try:
        record = _wait(queue, number, name, following.look, shown)
    except BaseException:
        client.cancel({name})
        _wait(queue, number, name, lambda _: None, shown)
        raise
    following.look(record)
    if record and record.state in {"COMPLETED", "FAILED"} and record.exit_code in {0, NOT_ALL_OK} and not record.signal:
        return record.exit_code
    results = [job.recorded(run.paths) for run in sweep.runs]
    left = sum(result is None or result.status == "interrupted" for result in results)
    if left or record is None:
        _, cause = job_status(sweep.paths, number, record, client.failed_nodes)
        raise LaunchError(f"{cause} ({left} of {len(sweep.runs)} runs are left: start the sweep again)")
    return 0


def _going_on(sweep: Sweep, queue: Queue) -> tuple[str, str] | None:
    note = submitted(sweep.paths.slurm)
    if not note:
        return None
    queue.names.add(note["name"])
    answer = queue.look()
    if answer is None:
        raise LaunchError(f"Slurm does not answer ({queue.trouble}): start the sweep again when it does")
    record = find(answer, note)
    return (record.id, record.name) if record and not record.ended else None


def _submitted(sweep: Sweep, asked: Allocation, words: list[str]) -> tuple[str, str]:
    name = new_job_name(sweep.name)
    on_cpu = all(run.experiment.device == "cpu" for run in sweep.runs)
    options = asked.options(asked.nodes, asked.gpus_per_node, "cpu" if on_cpu else "cuda")
    try:
        return submit(name, sweep.paths, options, words), name
    except SubmitError as error:
        raise LaunchError(f"Slurm refuses the sweep's job: {error}") from error


def _wait(
    queue: Queue, number: str, name: str, look: Callable[[Record | None], None], shown: "Progress"
) -> Record | None:
    """Wait until a job has ended; give what Slurm knows of it then."""
    told: set[str] = set()
    while True:
        answer = queue.look()
        record = answer.get(number) if answer is not None else None
        if answer is not None and (record is None or record.ended):
            last = job_record(number, name)
            if last is None or last.ended:
                return last
        look(record)
        if record and record.state == "PENDING" and record.reason not in {*USUAL_REASONS, *told}:
            told.add(record.reason)
            shown.say(f"job {number} waits: {record.reason}")
        time.sleep(queue.poll_s)


class _Follower:
    """The runs that the job has to make."""

    def __init__(self, todo: list[Run], shown: "Progress") -> None:
        self.shown = shown
        self.before = {run.paths.dir: _written_at(run) for run in todo}
        self.left = list(todo)

    def look(self, record: Record | None) -> None:
        """Show which runs go on and which have ended."""
        for run in list(self.left):
            result: Result | None = None
            if _written_at(run) not in {None, self.before[run.paths.dir]}:
                result = job.recorded(run.paths)
            if result and result.status != "interrupted":
                self.left.remove(run)
                self.shown.end(run, result)
        running = bool(record and record.state in client.RUNNING)
        self.shown.count(int(running), int(not running))


def _written_at(run: Run) -> int | None:
    try:
        return run.paths.result.stat().st_mtime_ns
    except OSError:
        return None
