"""Readers of what the launchers of DeepSpeed, torch and Slurm print: hosts, slots, ranks, and how the ranks ended."""

import re

from dsnb.runs.logs.logged_run import LoggedRun, failure, reads, used
from dsnb.runs.logs.text import count


@reads(" slots=", pattern=r"^([A-Za-z0-9][\w.-]{0,250}) slots=(\d{1,4})\s*$")
def slots(run: LoggedRun, match: re.Match[str]) -> None:
    """`host slots=8`, as in DeepSpeed's hostfile."""
    run.slots[match[1]] = int(match[2])


@reads("WORLD INFO DICT:")
def world(run: LoggedRun, match: re.Match[str]) -> None:
    """`WORLD INFO DICT: {'host': [0, 1], ...}`."""
    for host, ranks in re.findall(r"'([\w.-]{1,250})': \[([\d, ]{0,20000})\]", match.string):
        run.slots[host] = ranks.count(",") + 1 if ranks.strip() else 0


@reads("Setting OMP_NUM_THREADS environment variable")
def one_more_node(run: LoggedRun, _match: re.Match[str]) -> None:
    """Count the nodes: torch's launcher warns about OMP_NUM_THREADS once per node."""
    run.scratch["launchers"] = run.scratch.get("launchers", 0) + 1


@reads("exits with return code", pattern=r"exits with return code = (-?\d{1,9})")
def return_code(run: LoggedRun, match: re.Match[str]) -> None:
    """`Process N exits with return code = 1`."""
    if int(match[1]):
        run.fail("failed", f"a rank ended with exit code {int(match[1])}")


@reads("Traceback (most recent call last)")
def traceback(run: LoggedRun, _match: re.Match[str]) -> None:
    """Expect the last line of a traceback, the error."""
    run.scratch["traceback"] = True


@reads("Error", "Exception", pattern=r"(?:^|[\s\]])((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception)(?:: .*|\s*$))")
def error(run: LoggedRun, match: re.Match[str]) -> None:
    """Read the last line of a traceback."""
    if run.scratch.get("traceback"):
        run.fail("failed", match[1])


@reads("CANCELLED AT ", pattern=r"\*\*\* (?:JOB|STEP) .{0,200}? (?:CANCELLED AT \S{1,40}|DUE TO [A-Z ]{1,40}[A-Z])")
def cancelled(run: LoggedRun, match: re.Match[str]) -> None:
    """Slurm's `*** JOB 123 ON node CANCELLED AT ... DUE TO PREEMPTION ***`, except for its time limit."""
    if "TIME LIMIT" not in match.string:
        run.fail("interrupted", f"Slurm ended it: {match[0].strip(' *')}")


reads("nnodes=", pattern=r"nnodes=(\d{1,6}), num_local_procs=\d{1,4}")(used(nodes=count))
reads("dist_world_size=", pattern=r"dist_world_size=(\d{1,7})\D")(used(gpus=count))
reads(
    "out of memory",
    "OutOfMemoryError",
    "CUBLAS_STATUS_ALLOC_FAILED",
    pattern=r"(?:CUDA|HIP|GPU)(?: error:)? out of memory.*|CUBLAS_STATUS_ALLOC_FAILED.*"
    r"|\b[\w.]{0,100}OutOfMemoryError.*",
)(failure("oom"))
reads(
    "srun: error: ",
    "Segmentation fault",
    "Bus error",
    "received by PID",
    pattern=r"srun: error: .{0,200}|^(?:Segmentation fault|Bus error|Aborted)\b.{0,40}|Signal \d{1,2} \(\w+\) received",
)(failure("failed"))
reads("loss scale already at minimum", "DistBackendError", "bus error", pattern=r".{0,200}$")(failure("failed"))
reads("KeyboardInterrupt", pattern=r"KeyboardInterrupt\s*$")(failure("interrupted", "stopped by the user"))
for needle, status, cause in (
    ("Killing subprocess", "failed", "the launcher ended its ranks before the training reported a result"),
    (": Out Of Memory", "oom", "the host's memory was not enough"),
    ("DefaultCPUAllocator: can't allocate memory", "oom", "the host's memory was not enough"),
    ("oom_kill event", "oom", "Slurm ended it for using too much of the host's memory"),
    ("DUE TO TIME LIMIT", "timeout", "Slurm ended it at its time limit"),
    ("Watchdog caught collective", "failed", "a collective operation timed out (NCCL watchdog)"),
):
    reads(needle)(failure(status, cause))
