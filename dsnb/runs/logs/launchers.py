"""Readers of what the launchers of DeepSpeed, torch and Slurm print: hosts, slots, ranks, and how the ranks ended."""

import re

from dsnb.runs.logs.logged_run import LoggedRun, failure, used
from dsnb.runs.logs.text import count

_SLOTS = re.compile(r"^([A-Za-z0-9][\w.-]{0,250}) slots=(\d{1,4})\s*$")
_WORLD = re.compile(r"'([\w.-]{1,250})': \[([\d, ]{0,20000})\]")
_RETURN_CODE = re.compile(r"exits with return code = (-?\d{1,9})")
_CANCELLED = re.compile(r"\*\*\* (?:JOB|STEP) .{0,200}? (?:CANCELLED AT \S{1,40}|DUE TO [A-Z ]{1,40}[A-Z])")
_ERROR = re.compile(r"(?:^|[\s\]])((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception)(?:: .*|\s*$))")


def slots(run: LoggedRun, line: str) -> None:
    """`host slots=8`, as in DeepSpeed's hostfile."""
    if match := _SLOTS.match(line):
        run.slots[match[1]] = int(match[2])


def world(run: LoggedRun, line: str) -> None:
    """`WORLD INFO DICT: {'host': [0, 1], ...}`."""
    for host, ranks in _WORLD.findall(line):
        run.slots[host] = ranks.count(",") + 1 if ranks.strip() else 0


def one_more_node(run: LoggedRun, _line: str) -> None:
    """Count the nodes: torch's launcher warns about OMP_NUM_THREADS once per node."""
    run.scratch["launchers"] = run.scratch.get("launchers", 0) + 1


def return_code(run: LoggedRun, line: str) -> None:
    """`Process N exits with return code = 1`."""
    if (match := _RETURN_CODE.search(line)) and int(match[1]):
        run.fail("failed", f"a rank ended with exit code {int(match[1])}")


def traceback(run: LoggedRun, _line: str) -> None:
    """Expect the last line of a traceback, the error."""
    run.scratch["traceback"] = True


def error(run: LoggedRun, line: str) -> None:
    """Read the last line of a traceback."""
    if run.scratch.get("traceback") and (match := _ERROR.search(line)):
        run.fail("failed", match[1])


def cancelled(run: LoggedRun, line: str) -> None:
    """Slurm's `*** JOB 123 ON node CANCELLED AT ... DUE TO PREEMPTION ***`, except for its time limit."""
    if "TIME LIMIT" not in line and (match := _CANCELLED.search(line)):
        run.fail("interrupted", f"Slurm ended it: {match[0].strip(' *')}")


_OUT_OF_MEMORY = failure(
    "oom",
    r"(?:CUDA|HIP|GPU)(?: error:)? out of memory.*|CUBLAS_STATUS_ALLOC_FAILED.*|\b[\w.]{0,100}OutOfMemoryError.*",
)
_HOST_MEMORY = failure("oom", "", "the host's memory was not enough")
_DIED = failure(
    "failed",
    r"srun: error: .{0,200}|^(?:Segmentation fault|Bus error|Aborted)\b.{0,40}|Signal \d{1,2} \(\w+\) received",
)
_FATAL = failure("failed", r".{0,200}$")
READERS = {
    " slots=": slots,
    "WORLD INFO DICT:": world,
    "nnodes=": used(r"nnodes=(\d{1,6}), num_local_procs=\d{1,4}", nodes=count),
    "dist_world_size=": used(r"dist_world_size=(\d{1,7})\D", gpus=count),
    "Setting OMP_NUM_THREADS environment variable": one_more_node,
    "exits with return code": return_code,
    "Killing subprocess": failure("failed", "", "the launcher ended its ranks before the training reported a result"),
    "Traceback (most recent call last)": traceback,
    "Error": error,
    "Exception": error,
    "out of memory": _OUT_OF_MEMORY,
    "OutOfMemoryError": _OUT_OF_MEMORY,
    "CUBLAS_STATUS_ALLOC_FAILED": _OUT_OF_MEMORY,
    ": Out Of Memory": _HOST_MEMORY,
    "DefaultCPUAllocator: can't allocate memory": _HOST_MEMORY,
    "CANCELLED AT ": cancelled,
    "srun: error: ": _DIED,
    "Segmentation fault": _DIED,
    "Bus error": _DIED,
    "received by PID": _DIED,
    "DUE TO TIME LIMIT": failure("timeout", "", "Slurm ended it at its time limit"),
    "oom_kill event": failure("oom", "", "Slurm ended it for using too much of the host's memory"),
    "Watchdog caught collective": failure("failed", "", "a collective operation timed out (NCCL watchdog)"),
    "loss scale already at minimum": _FATAL,
    "DistBackendError": _FATAL,
    "bus error": _FATAL,
    "KeyboardInterrupt": failure("interrupted", r"KeyboardInterrupt\s*$", "stopped by the user"),
}
