"""How a run ended, and what it measured, read from what its ranks left in the run folder.

A status needs a cause, and a figure needs a measurement: what is not there stays missing.
"""

import html
import os
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any
from urllib.parse import quote

from dsnb import forms, hardware, metrics, records
from dsnb.errors import DsnbError, LaunchError
from dsnb.experiment import Experiment
from dsnb.launcher.gpu_figures import gpu_figures
from dsnb.paths import RunPaths

TAIL_LINES = 15
STEP_PARTS = ("forward_s", "backward_s", "optimizer_s", "communication_s")
SOME_RANK = -1
"""Stands for the rank in exit codes where the launcher does not say which one it was."""
ADVICE = {
    "oom": "lower micro_batch_size, raise zero_stage, or turn activation_checkpointing on",
    "nan": "lower learning_rate, or use precision bf16 or fp32",
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
        return first.get("status") or "failed", f"rank {rank}{there}: {first.get('cause')}"
    if bad:
        return _died(bad, paths, host_oom_kills, where)
    timed = [step for step in forms.read_lines(paths.steps) if step.get("phase") == "timed"]
    wanted = 0 if paths.bandwidth_plan.exists() else experiment.steps  # an all-reduce test has no steps
    if worker is None or len(timed) != wanted:
        return "failed", f"the ranks ended after {len(timed)} of {wanted} timed steps without saying why"
    if worker.get("first_bad_step") is not None:
        return "nan", f"the loss was not a finite number at step {worker['first_bad_step']}"
    return "ok", None


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


def summarize_run(experiment: Experiment, paths: RunPaths) -> dict[str, Any]:
    """Give the figures of one run; the README says how each is measured."""
    if paths.bandwidth_plan.exists():
        return {}
    worker = forms.read(paths.worker) or {}
    steps = forms.read_lines(paths.steps)
    samples = [sample for sample in forms.read_lines(paths.gpu) if sample.get("t_s") is not None]
    timed = [step for step in steps if step.get("phase") == "timed"]
    times_s = [step["step_time_s"] for step in timed if isinstance(step.get("step_time_s"), int | float)]
    rate = metrics.tokens_per_s(experiment.tokens_per_step, times_s)
    per_gpu = rate / experiment.gpus if rate is not None else None
    losses = [step.get("loss") for step in steps]
    return {
        "tokens_per_s": rate,
        "tokens_per_s_per_gpu": per_gpu,
        "step_time_s": fmean(times_s) if times_s else None,
        "step_time_median_s": median(times_s) if times_s else None,
        "step_skew": worker.get("step_skew"),
        "forward_skew": worker.get("forward_skew"),
        **_flops(experiment, worker, per_gpu),
        "peak_allocated_gib": worker.get("peak_allocated_gib", _peak(steps, "allocated_gib")),
        "peak_reserved_gib": worker.get("peak_reserved_gib", _peak(steps, "reserved_gib")),
        "host_memory_gib": worker.get("host_memory_gib"),
        **gpu_figures(samples, worker),
        "loss_first": losses[0] if losses else None,
        "loss_last": losses[-1] if losses else None,
        "skipped_steps": sum(bool(step.get("skipped")) for step in steps),
        "timed_steps": len(timed),
        "timed_wall_s": worker.get("timed_wall_s"),
        "parameters": worker.get("parameters"),
        "trainable_parameters": worker.get("trainable_parameters"),
        "attention_used": worker.get("attention"),
        **(_profile(paths) if experiment.profile else {}),
    }


def _profile(paths: RunPaths) -> dict[str, Any]:
    profile = forms.read(paths.profile) or {"missing": {"profile": "the ranks ended before it"}}
    missing = "; ".join(f"{part}: {why}" for part, why in (profile.get("missing") or {}).items())
    return {**{name: profile.get(name) for name in STEP_PARTS}, "profile_missing": missing or None}


def _flops(experiment: Experiment, worker: dict[str, Any], per_gpu: float | None) -> dict[str, float | None]:
    parameters, layers, hidden = (worker.get(key) for key in ("parameters", "layers", "hidden"))
    if parameters is None or layers is None or hidden is None:
        return {"tflops_per_gpu": None, "hardware_tflops_per_gpu": None, "mfu": None}
    trained = worker.get("trainable_parameters", parameters)
    flops = metrics.model_flops_per_token(parameters, layers, hidden, experiment.seq_len, trained)
    every = experiment.checkpoint_every if experiment.activation_checkpointing else 0
    again = metrics.recomputed_flops_per_token(parameters, layers, hidden, experiment.seq_len, every)
    model = metrics.tflops(flops, per_gpu)
    peak = hardware.peak_tflops(worker.get("gpu_name"), experiment.precision)
    return {
        "tflops_per_gpu": model,
        "hardware_tflops_per_gpu": metrics.tflops(flops + again, per_gpu),
        "mfu": metrics.mfu(model, peak),
    }


def _peak(rows: list[dict[str, Any]], key: str) -> float | None:
    return max((row[key] for row in rows if row.get(key) is not None), default=None)
