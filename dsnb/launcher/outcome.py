"""How a run ended, read from what its ranks left in the run folder; a status other than ok needs a cause."""

import signal
from collections.abc import Callable
from typing import Any

from dsnb.errors import DsnbError
from dsnb.run_folder import record_schema
from dsnb.run_folder.paths import RunPaths
from dsnb.run_folder.result import last_lines
from dsnb.settings.experiment import Experiment

SOME_RANK = -1
"""Stands for the rank in exit codes where the launcher does not say which one it was."""
PHASES = {
    "build": "building the model",
    "forward": "the forward pass",
    "loss": "the loss",
    "backward": "the backward pass",
    "optimizer": "the optimizer step",
    "communication": "communication between pipeline stages",
}
"""The phases of a rank's work as sentences name them."""


def exception_status(error: BaseException) -> tuple[str, str]:
    """Return the status and cause of a run that an exception ended on this side."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", "stopped by the user"
    return "failed", str(error) if isinstance(error, DsnbError) else f"{type(error).__name__}: {error}"


def run_status(
    experiment: Experiment,
    paths: RunPaths,
    exit_codes: dict[int, int],
    host_oom_kills: int,
    where: Callable[[int], str] = lambda rank: "",
) -> tuple[str, str | None]:
    """Return the status and cause of a run whose ranks ended by themselves.

    Parameters
    ----------
    exit_codes
        Of the ranks that ended by themselves, in the order in which they did.
    host_oom_kills
        Processes that the kernel killed for want of memory while the run went on.
    where
        Says behind a rank's number on which host it is.
    """
    worker = record_schema.read(paths.worker)
    failures = record_schema.read_lines(paths.failures)
    bad = {rank: code for rank, code in exit_codes.items() if code != 0}
    if experiment.profile and worker is not None:  # the run was over: what failed since then is the profile
        failures, bad = [], {}
    if -signal.SIGKILL in bad.values():  # its neighbours' errors are only that it is gone
        killed = {rank: code for rank, code in bad.items() if code == -signal.SIGKILL}
        return _died(killed, paths, host_oom_kills, where)
    if failures:
        first = failures[0]
        rank = first.get("rank")
        there = where(rank) if isinstance(rank, int) and 0 <= rank < experiment.gpus else ""
        status = first.get("status") or "failed"
        return status, f"rank {rank}{there}: {_shortage(first)}{first.get('cause')}"
    if bad:
        return _died(bad, paths, host_oom_kills, where)
    return _trained(experiment, paths, worker)


def _trained(experiment: Experiment, paths: RunPaths, worker: dict[str, Any] | None) -> tuple[str, str | None]:
    """Return the status and cause of a run whose ranks all ended well, by what they trained."""
    steps = record_schema.read_lines(paths.steps)
    timed = sum(step.get("phase") == "timed" for step in steps)
    wanted = 0 if paths.bandwidth_plan.exists() else experiment.steps  # an all-reduce test has no steps
    if worker is None or timed != wanted:
        return "failed", f"the ranks ended after {timed} of {wanted} timed steps without saying why"
    if worker.get("first_bad_step") is not None:
        return "nan", f"the loss was not a finite number at step {worker['first_bad_step']}"
    if worker.get("weights_moved") is False:
        return "untrained", _unmoved(steps)
    return "ok", None


def _unmoved(steps: list[dict[str, Any]]) -> str:
    skipped = sum(bool(step.get("skipped")) for step in steps)
    why = "all updates were skipped" if skipped == len(steps) else "no gradient changed them beyond weight decay"
    return f"the weights did not move in {len(steps)} steps: {why}"


def _shortage(failure: dict[str, Any]) -> str:
    """Say where memory ran out, how much was allocated then and how much requested; empty where that is unknown."""
    allocated, requested = failure.get("allocated_gib"), failure.get("requested_gib")
    if failure.get("status") != "oom" or not isinstance(allocated, int | float):
        return ""
    where = f"in {PHASES.get(str(failure.get('phase')), 'an unknown phase')}"
    step = f" of step {failure['step']}" if isinstance(failure.get("step"), int) else ""
    needed = ""
    if isinstance(requested, int | float):
        needed = f" and {requested:.2f} GiB more requested ({allocated + requested:.2f} GiB needed at least)"
    reserved = failure.get("reserved_gib")
    held = f" ({reserved:.2f} GiB reserved)" if isinstance(reserved, int | float) else ""
    return f"out of memory {where}{step}, with {allocated:.2f} GiB allocated{held}{needed}: "


def _died(bad: dict[int, int], paths: RunPaths, host_oom_kills: int, where: Callable[[int], str]) -> tuple[str, str]:
    rank, code = next(iter(bad.items()))
    who = f"rank {rank}{where(rank)}" if rank >= 0 else f"a rank{where(rank)}"
    if host_oom_kills and code == -signal.SIGKILL:
        return "oom", f"{who} was killed by the kernel: the machine's memory ran out"
    if any("out of memory" in line.lower() for line in last_lines(paths.console, 200)):
        return "oom", f"{who} ended with exit code {code} after an out-of-memory error"
    if code < 0:
        return "failed", f"{who} was killed by signal {-code} ({signal.Signals(-code).name})"
    return "failed", f"{who} ended with exit code {code}"
