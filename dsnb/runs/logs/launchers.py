"""Readers of what the launchers of DeepSpeed, torch and Slurm print: hosts, slots, ranks, and how the ranks ended."""

import re

from dsnb.runs.logs.logged_run import LoggedRun
from dsnb.runs.logs.text import count

_SLOTS = re.compile(r"^([A-Za-z0-9][\w.-]{0,250}) slots=(\d{1,4})\s*$")
_WORLD = re.compile(r"'([\w.-]{1,250})': \[([\d, ]{0,20000})\]")
_NODES = re.compile(r"nnodes=(\d{1,6}), num_local_procs=(\d{1,4})")
_RANKS = re.compile(r"dist_world_size=(\d{1,7})\D")
_RETURN_CODE = re.compile(r"exits with return code = (-?\d+)")
_CANCELLED = re.compile(r"\*\*\* (?:JOB|STEP) .{0,200}? (?:CANCELLED AT \S{1,40}|DUE TO [A-Z ]{1,40}[A-Z])")
_ENDED_BY_SIGNAL = re.compile(
    r"srun: error: .{0,200}|^(?:Segmentation fault|Bus error|Aborted)\b.{0,40}|Signal \d{1,2} \(\w+\) received"
)
_ERROR = re.compile(r"(?:^|[\s\]])((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception)(?:: .*|\s*$))")
_MEMORY = re.compile(
    r"(?:CUDA|HIP|GPU)(?: error:)? out of memory.*|CUBLAS_STATUS_ALLOC_FAILED.*|\b[\w.]{0,100}OutOfMemoryError.*"
)


def slots(run: LoggedRun, line: str) -> None:
    """`host slots=8`, as in DeepSpeed's hostfile."""
    if (found := _SLOTS.match(line)) and len(run.slots) < 100_000:
        run.slots[found[1]] = int(found[2])


def world(run: LoggedRun, line: str) -> None:
    """`WORLD INFO DICT: {'host': [0, 1], ...}`."""
    for host, ranks in _WORLD.findall(line):
        run.slots[host] = ranks.count(",") + 1 if ranks.strip() else 0


def nodes(run: LoggedRun, line: str) -> None:
    """`nnodes=16, num_local_procs=8, node_rank=0`; other nodes may have other numbers of processes."""
    if found := _NODES.search(line):
        run.set_used(nodes=count(found[1]))


def ranks(run: LoggedRun, line: str) -> None:
    """`dist_world_size=128`."""
    if found := _RANKS.search(line):
        run.set_used(gpus=count(found[1]))


def one_more_node(run: LoggedRun, _line: str) -> None:
    """Count the nodes: torch's launcher warns about OMP_NUM_THREADS once per node."""
    run.scratch["launchers"] = run.scratch.get("launchers", 0) + 1


def return_code(run: LoggedRun, line: str) -> None:
    """`Process N exits with return code = 1`."""
    if (found := _RETURN_CODE.search(line)) and int(found[1][:9]):
        run.fail("failed", f"a rank ended with exit code {int(found[1][:9])}")


def killed(run: LoggedRun, _line: str) -> None:
    """`Killing subprocess 123`: the launcher ends the other ranks after one has failed."""
    run.fail("failed", "the launcher ended its ranks before the training reported a result")


def traceback(run: LoggedRun, _line: str) -> None:
    """Expect the last line of a traceback, the error."""
    run.scratch["traceback"] = True


def error(run: LoggedRun, line: str) -> None:
    """Read the last line of a traceback."""
    if run.scratch.get("traceback") and (found := _ERROR.search(line)):
        run.fail("failed", found[1])


def out_of_memory(run: LoggedRun, line: str) -> None:
    """Read one of torch's messages about GPU memory."""
    if found := _MEMORY.search(line):
        run.fail("oom", found[0])


def time_limit(run: LoggedRun, _line: str) -> None:
    """Slurm's `DUE TO TIME LIMIT`."""
    run.fail("timeout", "Slurm ended it at its time limit")


def cancelled(run: LoggedRun, line: str) -> None:
    """Slurm's `*** JOB 123 ON node CANCELLED AT ... DUE TO PREEMPTION ***`, except for its time limit."""
    if "TIME LIMIT" not in line and (found := _CANCELLED.search(line)):
        run.fail("interrupted", f"Slurm ended it: {found[0].strip(' *')}")


def died(run: LoggedRun, line: str) -> None:
    """`Signal 9 (SIGKILL) received by PID 1`, or the message of a shell or srun."""
    if found := _ENDED_BY_SIGNAL.search(line):
        run.fail("failed", found[0])


def host_memory(run: LoggedRun, _line: str) -> None:
    """`srun: error: node: task 0: Out Of Memory`, or `DefaultCPUAllocator: can't allocate memory`."""
    run.fail("oom", "the host's memory was not enough")


def killed_for_memory(run: LoggedRun, _line: str) -> None:
    """Slurm's `Detected 1 oom_kill event`: the host's memory, not the GPU's."""
    run.fail("oom", "Slurm ended it for using too much of the host's memory")


def communication_timeout(run: LoggedRun, _line: str) -> None:
    """NCCL's `Watchdog caught collective operation timeout`."""
    run.fail("failed", "a collective operation timed out (NCCL watchdog)")


def fatal_error(run: LoggedRun, line: str) -> None:
    """Read an error that ends a run even without a traceback."""
    run.fail("failed", line.strip()[-200:])


def interrupted(run: LoggedRun, line: str) -> None:
    """Read Python's `KeyboardInterrupt`."""
    if line.strip().endswith("KeyboardInterrupt"):
        run.fail("interrupted", "stopped by the user")


READERS = {
    " slots=": slots,
    "WORLD INFO DICT:": world,
    "nnodes=": nodes,
    "dist_world_size=": ranks,
    "Setting OMP_NUM_THREADS environment variable": one_more_node,
    "exits with return code": return_code,
    "Killing subprocess": killed,
    "Traceback (most recent call last)": traceback,
    "Error": error,
    "Exception": error,
    "out of memory": out_of_memory,
    "OutOfMemoryError": out_of_memory,
    "CUBLAS_STATUS_ALLOC_FAILED": out_of_memory,
    ": Out Of Memory": host_memory,
    "DefaultCPUAllocator: can't allocate memory": host_memory,
    "CANCELLED AT ": cancelled,
    "srun: error: ": died,
    "Segmentation fault": died,
    "Bus error": died,
    "received by PID": died,
    "DUE TO TIME LIMIT": time_limit,
    "oom_kill event": killed_for_memory,
    "Watchdog caught collective": communication_timeout,
    "loss scale already at minimum": fatal_error,
    "DistBackendError": fatal_error,
    "bus error": fatal_error,
    "KeyboardInterrupt": interrupted,
}
