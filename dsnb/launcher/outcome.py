"""How a run ended, read from what its ranks left in the run folder; a status other than ok needs a cause."""

import html
import os
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dsnb import forms, records
from dsnb.errors import DsnbError, LaunchError
from dsnb.experiment import Experiment
from dsnb.paths import RunPaths

TAIL_LINES = 15
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
ADVICE = {
    "oom": "lower micro_batch_size, raise zero_stage, or turn activation_checkpointing on",
    "nan": "lower learning_rate, or use precision bf16 or fp32",
    "untrained": "raise learning_rate, or, in fp16, warmup_steps until the loss scale has settled; use bf16 or fp32",
    "failed": "read the log; `dsnb doctor` says what this machine can run",
    "timeout": "raise the limit that it names, or lower steps or grad_accum",
    "interrupted": "start the sweep again: only unfinished runs are repeated",
}


@dataclass(frozen=True)
class Result:
    """One finished run: the content of `result.json`."""

    status: str
    cause: str | None
    exit_codes: dict[int, int]
    phases_s: dict[str, float]
    summary: dict[str, Any]
    run_dir: Path

    def write(self) -> None:
        """Write `result.json`, which makes the run a finished one.

        Raises
        ------
        LaunchError
            If the run's folder is gone: a result alone would be a run without settings.
        """
        if not self.run_dir.is_dir():
            raise LaunchError(f"{self.run_dir} was removed while the run went on: start the sweep again")
        record = asdict(self)
        del record["run_dir"]
        records.write_json(RunPaths(self.run_dir).result, record)

    def message(self) -> str:
        """Say how a run that is not ok ended, with the log's last lines and what to try next."""
        log = RunPaths(self.run_dir).console
        lines = [f"{self.status}: {self.cause}", *(f"  | {line}" for line in last_lines(log)), f"Log: {log}"]
        return "\n".join([*lines, f"Next: {ADVICE.get(self.status, '')}"])

    def raise_for_status(self) -> None:
        """Do nothing if the run is ok.

        Raises
        ------
        LaunchError
            With `message()`, if it is not.
        """
        if self.status != "ok":
            raise LaunchError(self.message(), RunPaths(self.run_dir).console)

    def _repr_html_(self) -> str:
        shown = {"status": self.status, "cause": self.cause, **self.summary}
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(key)}</th><td>{html.escape(_short(value))}</td></tr>"
            for key, value in shown.items()
            if value is not None
        )
        return f"<table><caption>{html.escape(self.run_dir.parent.name)}</caption>{rows}</table>{self._links()}"

    def _links(self) -> str:
        """Link what a profile left, from the notebook that shows this: in the run's folder, or working here."""
        run = RunPaths(self.run_dir)
        home = self.run_dir if run.notebook.exists() else Path.cwd()
        files = [(run.trace, "trace of one step, for https://ui.perfetto.dev"), (run.flops, "FLOPs by module")]
        links = []
        for path, title in files:
            if path.exists():
                target = os.path.relpath(path, home)
                links.append(f'<a href="{html.escape(quote(target))}">{html.escape(target)}</a> ({title})')
        return f"<p>{', '.join(links)}</p>" if links else ""


def _short(value: object) -> str:
    return (
        f"{value:,.4g}"
        if isinstance(value, float) and abs(value) < 1e4
        else (f"{value:,.0f}" if isinstance(value, int | float) else str(value))
    )


def broken_off(error: BaseException) -> tuple[str, str]:
    """Give the status and cause of a run that an exception ended on this side."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", "stopped by the user"
    return "failed", str(error) if isinstance(error, DsnbError) else f"{type(error).__name__}: {error}"


def last_lines(log: Path, count: int = TAIL_LINES) -> list[str]:
    """Give the last lines of a log, however large or garbled it is."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - 20_000))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    return [line[:400] for line in text.splitlines() if line.strip()][-count:]


def judge(
    experiment: Experiment,
    paths: RunPaths,
    exit_codes: dict[int, int],
    host_oom_kills: int,
    where: Callable[[int], str] = lambda rank: "",
) -> tuple[str, str | None]:
    """Give the status and cause of a run whose ranks ended by themselves.

    Parameters
    ----------
    exit_codes
        Of the ranks that ended by themselves, in the order in which they did.
    host_oom_kills
        Processes that the kernel killed for want of memory while the run went on.
    where
        Says behind a rank's number on which host it is.
    """
    worker = forms.read(paths.worker)
    failures = forms.read_lines(paths.failures)
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
    steps = forms.read_lines(paths.steps)
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
