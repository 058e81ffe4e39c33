"""Readers of failures: exceptions, signals, shortages of memory, and what launchers and Slurm say at the end of ranks.

A launcher reports the end of every rank, whatever its cause, and ranks fail since others did. So
lines are weighed: the first of those that say most about the cause counts.
"""

import re
import signal

from dsnb.results.logs.reading import (
    CONSEQUENCE,
    SHORTAGE,
    LoggedRun,
    Match,
    declared,
    failure,
    reads,
)
from dsnb.settings.records.exceptions import EXCEPTION, OF_OTHERS

_OUT_OF_HOST_MEMORY = re.compile(r"(?:[\w.]{1,100}\._Array)?MemoryError\b")
_BATCH = (
    r"train_batch_size is not equal to .{0,80}? (\d{1,9}) != (\d{1,9}) \* (\d{1,9}) \* (\d{1,9})"
)
_EXIT = (
    r"(?:exits with return code =|exitcode {0,4}:|(?i:exit) code:?) {0,3}(-?\d{1,9})\b"
    r"|Signal (\d{1,2}) \(\w+\) received"
)
_HARMLESS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
"""Signals by which launchers and schedulers end ranks."""
HOST_MEMORY = "the host's memory was not enough"
KILLED = (
    "a rank was killed with return code {code}: most often the host's memory ran out; start fewer ranks on a host, "
    "offload less, or ask for more host memory"
)

reads("Traceback (most recent call last)")(lambda run, _: run.scratch.update(traceback=True))


@reads("Error", "Exception", "OutOfResources", pattern=EXCEPTION)
def error(run: LoggedRun, match: Match) -> None:
    """Read the last line of a traceback, which is enough to tell a log from other texts."""
    if not run.scratch["traceback"] and not match[1].endswith("OutOfMemoryError"):
        return
    run.launched = True
    if _OUT_OF_HOST_MEMORY.match(match[1]):
        run.fail("oom", HOST_MEMORY, SHORTAGE)
    elif OF_OTHERS.search(match[1]):
        run.fail("failed", match[1], CONSEQUENCE)
    else:
        run.fail("failed", match[1])


@reads("train_batch_size is not equal to", pattern=_BATCH)
def batch(run: LoggedRun, match: Match) -> None:
    """DeepSpeed's `... train_batch_size is not equal to micro_batch_per_gpu * ... * world_size 64 != 4 * 8 * 1`."""
    total, micro, accumulated, ranks = map(int, match.groups())
    run.program = run.program or "DeepSpeed"
    cause = (
        f"train_batch_size is {total}, but micro-batch {micro} x {accumulated} accumulated x {ranks} ranks is "
        f"{micro * accumulated * ranks}: correct one of them, or leave one out of DeepSpeed's configuration"
    )
    run.fail("failed", cause, SHORTAGE)


@reads("return code", "exitcode", "exit code", "Signal ", pattern=_EXIT)
def ended(run: LoggedRun, match: Match) -> None:
    """Read how launchers report the exit code of a rank: those of signals are negative, or 128 larger."""
    code = int(match[1] or f"-{match[2]}")
    number = 0
    if code < 0:
        number = -code
    elif 128 < code < 160:
        number = code - 128
    if number == signal.SIGKILL:
        run.fail("failed", KILLED.format(code=code))
    elif number and number not in _HARMLESS:
        run.fail("failed", f"a rank crashed with return code {code} ({_signal_name(number)})")
    elif code:
        run.fail("failed", f"a rank ended with exit code {code}", CONSEQUENCE)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@reads(
    "CANCELLED AT ",
    pattern=r"\*\*\* (?:JOB|STEP) .{0,200}? (?:CANCELLED AT \S{1,40}|DUE TO [A-Z ]{1,40}[A-Z])",
)
def cancelled(run: LoggedRun, match: Match) -> None:
    """Slurm's `*** JOB 123 ON node CANCELLED AT ... DUE TO PREEMPTION ***`, except for its time limit."""
    if "TIME LIMIT" not in match.string:
        run.fail("interrupted", f"Slurm ended it: {match[0].strip(' *')}")


declared("failures", failure)
reads("Killed", pattern=r"^(?:.{0,200}: line \d{1,6}: +\d{1,9} |srun: error: .{0,200}: )?Killed\b")(
    lambda run, _: run.fail("failed", KILLED.format(code=-9))
)
