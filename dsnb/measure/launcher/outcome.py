"""How a run ended, from the records in its folder. A status other than ok has a cause."""

import shutil
import signal
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from dsnb.base.errors import DsnbError, LaunchError, SettingsError
from dsnb.base.system import signals
from dsnb.settings.experiment import Experiment
from dsnb.settings.records import exceptions, observed
from dsnb.settings.records.advice import MACHINE_FAULTS, PHASES
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.result import last_lines
from dsnb.settings.records.run_record import RunRecord

FROM_OUTSIDE = (*signals.STOPPING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""Signals from users, schedulers and limits of the machine, never from the settings of a run."""
FULL_BYTES = 2**20
"""A disk with less room than this takes no record of a failure."""
LINES = 200
"""Lines at the end of the console log in which errors are looked for."""


class Outcome(NamedTuple):
    """Status and cause of a run."""

    status: str
    cause: str | None


def stopped_by(error: BaseException, experiment: Experiment) -> Outcome:
    """Return the outcome of a run that an error in this process has ended, not one in its ranks.

    It says nothing about the settings, unless it refuses them. A host that cannot take part is a
    result: a sweep over groups of hosts looks for it.
    """
    if isinstance(error, KeyboardInterrupt):
        return Outcome("interrupted", "stopped by the user")
    if isinstance(error, SettingsError) or (isinstance(error, LaunchError) and experiment.hostfile):
        return Outcome("failed", str(error))
    if isinstance(error, DsnbError):
        return Outcome("interrupted", str(error))
    return Outcome("interrupted", f"{type(error).__name__}: {error}")


def without_machine_faults(outcome: Outcome) -> Outcome:
    """Return the outcome; a failure caused by the machine becomes an interruption, which the next call repeats."""
    cause = str(outcome.cause)
    fault = machine_fault(cause)
    if outcome.status not in {"failed", "interrupted"} or fault is None:
        return outcome
    advice = MACHINE_FAULTS[fault]
    if advice not in cause:
        cause = f"{cause}; {advice} and start the sweep again"
    return Outcome("interrupted", cause)


def machine_fault(text: str) -> str | None:
    """Return the words of `MACHINE_FAULTS` in a text; None if there are none."""
    lowered = text.lower()
    return next((words for words in MACHINE_FAULTS if words.lower() in lowered), None)


def settled(record: RunRecord, outcome: Outcome) -> Outcome:
    """Return the final outcome of a run.

    A run that was cut short by the machine, by dsnb or by the user says nothing about its settings:
    it is interrupted. If all of its steps are recorded, it is finished, even if its processes had
    to be ended.
    """
    outcome = without_machine_faults(outcome)
    if outcome.status not in {"interrupted", "timeout"}:
        return outcome
    is_profiled = "ended_s" in record.profile or not record.experiment.profile
    if record.worker and is_profiled and record.has_all_steps:
        return _of_training(record)
    return outcome


def of_ranks(
    record: RunRecord,
    exit_codes: Mapping[int, int],
    host_oom_kills: int,
    host_of: Mapping[int, str] = MappingProxyType({}),
) -> Outcome:
    """Return the outcome of a run from its ranks' exit codes, in the order in which the ranks ended.

    `host_oom_kills` is the number of out-of-memory kills by the hosts' kernels; `host_of` names
    each rank's host.
    """
    if record.experiment.profile and record.worker:  # only the profile can have failed
        return _of_training(record)
    nonzero = {rank: code for rank, code in exit_codes.items() if code != 0}
    failures = record.failures
    killed = _killed(nonzero, failures)
    if killed is None and failures:
        own = [failure for failure in failures if failure.get("in_communication") is False]
        first = next(iter(own or failures))
        name = _name(first.get("rank"), host_of)
        cause = f"{name}: {_out_of_memory(first)}{first.get('cause')}"
        return Outcome(first.get("status") or "failed", cause)
    if nonzero:
        rank = next(iter(nonzero)) if killed is None else killed
        name = _name(rank, host_of)
        return _of_exit_code(name, nonzero[rank], record.paths, host_oom_kills)
    return _of_training(record)


def _killed(nonzero: dict[int, int], failures: list[dict[str, Any]]) -> int | None:
    """Return the rank whose death by a signal is the cause of a failed run; None if there is none.

    The errors of its peers, which lose their connections to it, are consequences. SIGKILL always
    comes from outside. Another signal may be a consequence itself: NCCL, for instance, aborts a
    process whose peer is gone.
    """
    from_outside = [rank for rank, code in nonzero.items() if code == -signal.SIGKILL]
    if from_outside:
        return from_outside[0]
    raised = {failure.get("rank") for failure in failures}
    signalled = [rank for rank, code in nonzero.items() if code < 0 and rank not in raised]
    if not signalled or any(failure.get("in_communication") is False for failure in failures):
        return None
    is_first = signalled[0] == next(iter(nonzero))
    lost_a_peer = bool(failures) and all(failure.get("in_communication") for failure in failures)
    return signalled[0] if is_first or lost_a_peer else None


def _name(rank: Any, host_of: Mapping[int, str]) -> str:
    if rank in host_of:
        return f"rank {rank} on {host_of[rank]}"
    return f"rank {rank}"


def _out_of_memory(failure: dict[str, Any]) -> str:
    """Return where memory ran out, and how much was allocated and requested; empty if unknown."""
    allocated_gib = failure.get("allocated_gib")
    reserved_gib = failure.get("reserved_gib")
    requested_gib = failure.get("requested_gib")
    step = failure.get("step")
    if failure.get("status") != "oom" or allocated_gib is None:
        return ""
    text = f"out of memory in {PHASES.get(str(failure.get('phase')), 'an unknown phase')}"
    if step is not None:
        text += f" of step {step}"
    text += f", with {allocated_gib:.2f} GiB allocated"
    if reserved_gib is not None:
        text += f" ({reserved_gib:.2f} GiB reserved)"
    if requested_gib is not None:
        needed_gib = allocated_gib + requested_gib
        text += (
            f" and {requested_gib:.2f} GiB more requested ({needed_gib:.2f} GiB needed at least)"
        )
    return f"{text}: "


def of_command(
    record: RunRecord, exit_code: int | None, host_oom_kills: int, ended_by: Outcome | None = None
) -> Outcome:
    """Return the outcome of a user's program, of which only the steps and the settings have to be right.

    `exit_code` is None for a program that went on after its last step, and `ended_by` is why it had
    to be ended before.
    """
    if record.worker and record.has_all_steps:
        return _of_training(record)
    instead = _as_other_setting(record) or ended_by
    if instead:
        return instead
    if not exit_code:
        return _of_missing_steps(record)
    lines = last_lines(record.paths.console, LINES)
    ranks = exceptions.exit_codes(lines)
    if record.failures or any(code < 0 for code in ranks.values()):
        return of_ranks(record, ranks or {0: exit_code}, host_oom_kills)
    stopped_by_signal = exceptions.stopped_by(lines)
    if stopped_by_signal:
        exit_code = -stopped_by_signal
    outcome = _of_exit_code("the command", exit_code, record.paths, host_oom_kills)
    said = exceptions.last_said(lines)
    if outcome.status == "failed" and said:
        return Outcome("failed", f"{outcome.cause}: {said}")
    return outcome


def _of_missing_steps(record: RunRecord) -> Outcome:
    """Return the outcome of a user's program that has ended without an error before its last step."""
    if not record.steps:
        advice = "add dsnb.TrainerCallback to its Trainer, or dsnb.record to its loop"
        return Outcome("failed", f"the command ended without a recorded step: {advice}")
    done = f"{len(record.timed_steps)} of {record.expected_steps} timed steps"
    total = record.experiment.warmup_steps + record.experiment.steps
    return Outcome(
        "failed", f"the command ended after {done}: let it train {total} steps ({{total_steps}})"
    )


def _as_other_setting(record: RunRecord) -> Outcome | None:
    """Return the outcome of a script that ran with other settings than it was asked for; None if it did not."""
    found = list(observed.differences(record.settings, observed.read(record.paths)))
    if found:
        return Outcome("failed", f"the script ran with {'; '.join(found)}")
    return None


def _of_exit_code(name: str, code: int, paths: RunPaths, host_oom_kills: int) -> Outcome:
    """Return the outcome of a run whose rank ended with this code and without a recorded exception."""
    if host_oom_kills and code == -signal.SIGKILL:
        return Outcome("oom", f"{name} was killed by the kernel: the machine's memory ran out")
    ended = f"{name} ended with exit code {code}"
    killed = f"{name} was {signals.killed_by(-code)}"
    if -code in FROM_OUTSIDE:
        return Outcome("interrupted", killed)
    lines = last_lines(paths.console, LINES)
    if any("out of memory" in line.lower() for line in lines):
        return Outcome("oom", f"{ended} after an out-of-memory error")
    faults = filter(None, map(machine_fault, lines))
    fault = next(faults, None)
    if fault:
        return Outcome("failed", f"{ended} after '{fault}'")
    if code < 0:
        ended = killed
    elif shutil.disk_usage(paths.dir).free < FULL_BYTES:  # it could not write why it failed
        ended += " after 'No space left on device'"
    return Outcome("failed", ended)


def _of_training(record: RunRecord) -> Outcome:
    """Return the outcome of a run whose ranks all succeeded."""
    worker = record.worker
    other = _as_other_setting(record)
    if other:
        return other
    if not worker or not record.has_all_steps:
        steps = str(len(record.timed_steps))
        if record.expected_steps is not None:
            steps += f" of {record.expected_steps}"
        return Outcome(
            "failed", f"the ranks ended after {steps} timed steps without an error message"
        )
    if worker.get("first_bad_step") is not None:
        step = worker["first_bad_step"]
        return Outcome("nan", f"the loss was not a finite number at step {step}")
    if worker.get("compiled_graphs") == 0:
        return Outcome(
            "failed",
            f"compile is {record.experiment.compile!r}: torch.compile captured no graph, so nothing was compiled",
        )
    if worker.get("weights_moved") is False:
        reason = "no gradient changed them beyond weight decay"
        if all(step.get("skipped") for step in record.steps):
            reason = "all updates were skipped"
        moved = f"the weights did not move in {len(record.steps)} steps"
        return Outcome("untrained", f"{moved}: {reason}")
    return Outcome("ok", None)
