"""How a run ended, read from what its ranks left in the run folder; a status other than ok needs a cause."""

import signal
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from dsnb.errors import DsnbError
from dsnb.run_folder import record_schema
from dsnb.run_folder.paths import RunPaths
from dsnb.run_folder.result import last_lines
from dsnb.settings.experiment import Experiment
from dsnb.system import signals

SOME_RANK = -1
"""The key of an exit code whose rank the launcher does not report."""
SEARCHED_LINES = 200
"""Lines at the end of the console that are searched for an out-of-memory error."""
PHASES = {
    "build": "building the model",
    "forward": "the forward pass",
    "loss": "the loss",
    "backward": "the backward pass",
    "optimizer": "the optimizer step",
    "communication": "communication between pipeline stages",
}
"""Phase of a failed rank -> its name in a sentence."""

MACHINE_FAULTS = {
    "Too many open files": "raise the limit of open files (`ulimit -n`)",
    "can't start new thread": "raise the limit of processes (`ulimit -u`)",
    "Resource temporarily unavailable": "raise the limit of processes (`ulimit -u`)",
    "No space left on device": "make room on the disk",
    "Disk quota exceeded": "make room on the disk",
    "Stale file handle": "check the file system",
    "devices are busy or unavailable": "end the program that holds the GPU (`nvidia-smi` shows it)",
    "uncorrectable ECC error": "check the GPU (`nvidia-smi -q -d ECC`)",
    "CUDA driver initialization failed": "check the driver (`nvidia-smi`)",
}
"""Words of errors that come from the machine, not from the settings, and what to do."""


def without_machine_faults(status: str, cause: str | None) -> tuple[str, str | None]:
    """Return status and cause; a failure by the machine's fault is an interruption, which the next call repeats."""
    if status not in {"failed", "interrupted"}:
        return status, cause
    advice = next((advice for words, advice in MACHINE_FAULTS.items() if words in str(cause)), None)
    if advice is None:
        return status, cause
    return "interrupted", cause if advice in str(cause) else f"{cause}; {advice} and start the sweep again"


def exception_status(error: BaseException) -> tuple[str, str]:
    """Return the status and cause of a run that ended with an exception in the launching process."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", "stopped by the user"
    return "failed", str(error) if isinstance(error, DsnbError) else f"{type(error).__name__}: {error}"


def run_status(
    experiment: Experiment,
    paths: RunPaths,
    exit_codes: dict[int, int],
    host_oom_kills: int,
    host_of: Mapping[int, str] = MappingProxyType({}),
) -> tuple[str, str | None]:
    """Return the status and cause of a run whose ranks ended by themselves.

    Parameters
    ----------
    exit_codes
        Rank -> exit code, in the order in which the ranks ended.
    host_oom_kills
        Number of processes that the kernels of the hosts killed for lack of memory during the run.
    host_of
        Rank -> name of its host; empty where there is only one host.
    """
    worker = record_schema.read(paths.worker)
    if experiment.profile and worker is not None:  # the record was complete: only the profile can have failed since
        return _training_status(experiment, paths, worker)
    nonzero = {rank: code for rank, code in exit_codes.items() if code != 0}
    killed = {rank: code for rank, code in nonzero.items() if code == -signal.SIGKILL}
    failures = record_schema.read_lines(paths.failures)
    if failures and not killed:  # if a rank was killed, the others' errors only say that it is gone
        return _failure_status(failures[0], host_of)
    if nonzero:
        return _exit_status(killed or nonzero, paths, host_oom_kills, host_of)
    return _training_status(experiment, paths, worker)


def _failure_status(failure: dict[str, Any], host_of: Mapping[int, str]) -> tuple[str, str]:
    """Return the status and cause of a run in which a rank raised an exception."""
    name = _name(failure.get("rank"), host_of)
    return failure.get("status") or "failed", f"{name}: {_out_of_memory(failure)}{failure.get('cause')}"


def _name(rank: int | None, host_of: Mapping[int, str]) -> str:
    if rank == SOME_RANK:
        return "a rank"
    return f"rank {rank} on {host_of[rank]}" if rank is not None and rank in host_of else f"rank {rank}"


def _out_of_memory(failure: dict[str, Any]) -> str:
    """Return where memory ran out and how much was allocated and requested; empty where that is unknown."""
    allocated_gib = failure.get("allocated_gib")
    if failure.get("status") != "oom" or allocated_gib is None:
        return ""
    text = f"out of memory in {PHASES.get(str(failure.get('phase')), 'an unknown phase')}"
    if (step := failure.get("step")) is not None:
        text += f" of step {step}"
    text += f", with {allocated_gib:.2f} GiB allocated"
    if (reserved_gib := failure.get("reserved_gib")) is not None:
        text += f" ({reserved_gib:.2f} GiB reserved)"
    if (requested_gib := failure.get("requested_gib")) is not None:
        needed_gib = allocated_gib + requested_gib
        text += f" and {requested_gib:.2f} GiB more requested ({needed_gib:.2f} GiB needed at least)"
    return f"{text}: "


def _exit_status(
    exit_codes: dict[int, int], paths: RunPaths, host_oom_kills: int, host_of: Mapping[int, str]
) -> tuple[str, str]:
    """Return the status and cause of a run whose ranks ended with an exit code and without a recorded exception."""
    rank, code = next(iter(exit_codes.items()))
    name = _name(rank, host_of)
    if host_oom_kills and code == -signal.SIGKILL:
        return "oom", f"{name} was killed by the kernel: the machine's memory ran out"
    if any("out of memory" in line.lower() for line in last_lines(paths.console, SEARCHED_LINES)):
        return "oom", f"{name} ended with exit code {code} after an out-of-memory error"
    if fault := _machine_fault(last_lines(paths.console, SEARCHED_LINES)):
        return "failed", f"{name} ended with exit code {code} after '{fault}'"
    if code < 0:
        return "failed", f"{name} was {signals.killed_by(-code)}"
    return "failed", f"{name} ended with exit code {code}"


def _machine_fault(lines: Iterable[str]) -> str | None:
    return next((words for line in lines for words in MACHINE_FAULTS if words in line), None)


def _training_status(experiment: Experiment, paths: RunPaths, worker: dict[str, Any] | None) -> tuple[str, str | None]:
    """Return the status and cause of a run whose ranks all succeeded, from what they trained."""
    steps = record_schema.read_lines(paths.steps)
    timed = sum(step.get("phase") == "timed" for step in steps)
    expected = 0 if paths.bandwidth_plan.exists() else experiment.steps  # an all-reduce test has no steps
    if worker is None or timed != expected:
        return "failed", f"the ranks ended after {timed} of {expected} timed steps without an error message"
    if worker.get("first_bad_step") is not None:
        return "nan", f"the loss was not a finite number at step {worker['first_bad_step']}"
    if worker.get("compiled_graphs") == 0:
        return "failed", f"compile is {experiment.compile!r}: torch.compile captured no graph, so nothing was compiled"
    if worker.get("weights_moved") is False:
        return "untrained", _unchanged_weights(steps)
    return "ok", None


def _unchanged_weights(steps: list[dict[str, Any]]) -> str:
    if all(step.get("skipped") for step in steps):
        reason = "all updates were skipped"
    else:
        reason = "no gradient changed them beyond weight decay"
    return f"the weights did not move in {len(steps)} steps: {reason}"
