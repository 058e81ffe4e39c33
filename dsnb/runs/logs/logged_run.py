"""A training run from another program's log, filled in line by line; its row, with figures derived by formulas."""

import re
from collections import ChainMap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from dsnb.formulas import metrics, model_shapes

LOGGED, DERIVED = PROVENANCES = ("as logged", "derived")
TFLOPS = ("tflops_per_gpu", "hardware_tflops_per_gpu")
FIELDS = (
    "step", "t_s", "step_time_s", "step_time_logged_s", "loss", "tokens", "samples", "allocated_gib", "skipped",
    *TFLOPS,
)  # fmt: skip


@dataclass
class LoggedRun:
    """A run: its settings, its figures, its steps and how it ended."""

    program: str = ""
    """The program that wrote the log, as specific as the log allows."""
    settings: ChainMap[str, Any] = field(default_factory=lambda: ChainMap({}, {}))
    """Settings that the program printed; behind them, the requested ones."""
    figures: dict[str, float] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)
    """`as logged` or `derived`, for every figure and for derived settings."""
    environment: dict[str, str] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)
    """GPUs by host."""
    shape: dict[str, int] = field(default_factory=dict)
    """Layers, hidden size and vocabulary size, if the log has them."""
    steps: list[dict[str, float]] = field(default_factory=list)
    """`step` and the logged fields, in the order of the log."""
    notes: list[str] = field(default_factory=list)
    failure: tuple[str, str] | None = None
    """Status and cause, from the first line that reports a failure."""
    failed_after_steps: int = 0
    """Number of steps before that line."""
    configured: bool = False
    """Settings or steps were printed: a launcher's line after that belongs to the next run."""
    ended: bool = False
    """The program printed its final figures."""
    scratch: dict[str, Any] = field(default_factory=dict)
    """State that readers keep from one line to the next."""

    def set_requested(self, **settings: Any) -> None:
        """Set requested settings; later command lines override them until the program has printed its settings."""
        for name, value in settings.items():
            if value is not None and not (self.configured and name in self.settings):
                self.settings.maps[1][name] = value

    def set_used(self, **settings: Any) -> None:
        """Set the settings that the program printed."""
        self.settings.update({name: value for name, value in settings.items() if value is not None})

    def record(self, origin: str = LOGGED, **figures: float | None) -> None:
        """Record figures; a later value of a figure replaces an earlier one."""
        for name, value in figures.items():
            if value is not None:
                self.figures[name] = value
                self.provenance[name] = origin

    def record_max(self, **figures: float | None) -> None:
        """Record figures, keeping the largest value of each."""
        for name, value in figures.items():
            if value is not None and value >= self.figures.get(name, 0.0):
                self.record(LOGGED, **{name: value})

    def add_step(self, step: int, **values: float | None) -> None:
        """Add a step or complete the last one; an earlier one is another rank's copy."""
        measured = {name: value for name, value in values.items() if value is not None}
        last = self.steps[-1]["step"] if self.steps else -1
        if step > last:
            self.steps.append({"step": step, **measured})
        elif step == last:
            self.steps[-1] = measured | self.steps[-1]

    def fail(self, status: str, cause: str) -> None:
        """Record a failure; the first one counts, except that running out of memory replaces any other."""
        if not self.has_failed or (self.failure and status == "oom" and self.failure[0] != "oom"):
            self.failure, self.failed_after_steps = (status, " ".join(cause.split())[:300]), len(self.steps)

    @property
    def has_failed(self) -> bool:
        """Whether it failed and did not continue; other ranks may still print one line of steps after a failure."""
        return self.failure is not None and len(self.steps) <= self.failed_after_steps + 1


Reader = Callable[[LoggedRun, str], None]
"""Records the content of a line."""
Handler = Callable[[LoggedRun, re.Match[str]], object]
"""Records the match of a pattern in a line."""
READERS: list[tuple[str, Reader]] = []
"""Search string -> reader, called only for lines that contain the string."""


def reads(*needles: str, pattern: str = "") -> Callable[[Handler], Handler]:
    """Register a function for the lines that contain one of the search strings and match a pattern."""
    compiled = re.compile(pattern)

    def register(handler: Handler) -> Handler:
        def read(run: LoggedRun, line: str) -> None:
            if match := compiled.search(line):
                handler(run, match)

        READERS.extend((needle, read) for needle in needles)
        return handler

    return register


def used(**settings: Callable[[str], Any]) -> Handler:
    """Return a handler for settings that a program printed: one per group of the match, with its parser."""
    return lambda run, match: run.set_used(**_parsed(settings, match))


def requested(**settings: Callable[[str], Any]) -> Handler:
    """Return a handler for requested settings, as `used`."""
    return lambda run, match: run.set_requested(**_parsed(settings, match))


def _parsed(settings: dict[str, Callable[[str], Any]], match: re.Match[str]) -> dict[str, Any]:
    return {name: parse(text) for (name, parse), text in zip(settings.items(), match.groups(), strict=True)}


def failure(status: str, cause: str = "") -> Handler:
    """Return a handler for the message of a failure; the `cause` is the match by default."""
    return lambda run, match: run.fail(status, cause or match[0].strip())


def row(run: LoggedRun, path: Path, names: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a run, without columns that were neither logged nor can be derived."""
    table = _table(run)
    _parallel(run)
    _throughput(run, table)
    losses = table["loss"].dropna()
    if len(losses) and "loss_last" not in run.figures:
        run.record(loss_first=float(losses.iloc[0]), loss_last=float(losses.iloc[-1]))
    first, second = ([step["step"] for step in run.steps[:2]] + [0, 0])[:2]
    skipped = run.scratch.get("skipped_by_engine", 0)  # also in a pipeline, where Megatron's own lines miss them
    if second and first in {1, second - first} and skipped > run.figures.get("skipped_steps", 0):  # not resumed
        run.record(skipped_steps=skipped)
    _flops(run)
    status, cause = _status_and_cause(run)
    by_kind = {kind: [name for name, origin in run.provenance.items() if origin == kind] for kind in PROVENANCES}
    return {
        **names,
        "status": status,
        "cause": cause,
        "source": run.program if run.program.endswith("CSV") else f"{run.program} log",
        **run.settings,
        **run.figures,
        **run.environment,
        "host": next(iter(run.slots), None),
        "note": "; ".join(dict.fromkeys(run.notes)) or None,
        "provenance": "; ".join(f"{kind}: {', '.join(names)}" for kind, names in by_kind.items() if names),
        "run_dir": str(path),
    }


def _table(run: LoggedRun) -> pd.DataFrame:
    table = pd.DataFrame(run.steps, columns=FIELDS, dtype=float)
    return table.assign(span=table["step"].diff().fillna(1.0))


def steps(run: LoggedRun) -> pd.DataFrame:
    """Return the steps of a run in the columns of `dsnb.load_steps`; tokens and memory only where they were logged."""
    table = _table(run)
    batch, length = run.settings.get("global_batch_size"), run.settings.get("seq_len")
    if batch and length:
        table["tokens"] = table["tokens"].fillna(batch * length)
    table["phase"] = "timed"
    table.loc[: _warmup_lines(run) - 1, "phase"] = "warmup"
    table["skipped"] = (table["skipped"] > 0).where(table["skipped"].notna(), None)
    return table


def _status_and_cause(run: LoggedRun) -> tuple[str, str | None]:
    """Return status and cause; a log that just stops is `ok` if it has steps, and its last step is the cause."""
    if run.scratch.get("loss_is_nan"):
        return "nan", "the last logged loss is NaN"
    if run.ended:
        return "ok", None
    if run.failure and run.has_failed:
        return run.failure
    if not run.steps and not {"samples_per_s", "tokens_per_s"} & set(run.figures):
        return "interrupted", "the log ends before the first step"
    last, planned = int(run.steps[-1]["step"]) if run.steps else None, run.settings.get("steps")
    return "ok", f"the log ends at step {last} of {planned}" if last and planned and last < planned else None


def _parallel(run: LoggedRun) -> None:
    """Derive GPUs, nodes, parallel sizes and batch sizes from each other."""
    have = run.settings
    if run.slots:
        _derive(run, nodes=len(run.slots), gpus=sum(run.slots.values()) or None)
    _derive(run, nodes=run.scratch.get("launchers"))
    model_parallel = _model_parallel(run)
    if model_parallel is None:
        return
    micro, accum, batch = (have.get(name) for name in ("micro_batch_size", "grad_accum", "global_batch_size"))
    if micro and accum and batch and batch % (micro * accum) == 0:
        _derive(run, gpus=batch // (micro * accum) * model_parallel)
    if have.get("data_parallel"):
        _derive(run, gpus=have["data_parallel"] * model_parallel)
    gpus = have.get("gpus")
    if gpus and gpus % model_parallel == 0:
        _derive(run, data_parallel=gpus // model_parallel)
    ways = have.get("data_parallel")
    if micro and ways and batch and batch % (micro * ways) == 0:
        _derive(run, grad_accum=batch // (micro * ways))
    if micro and ways and have.get("grad_accum"):
        _derive(run, global_batch_size=micro * ways * have["grad_accum"])


def _model_parallel(run: LoggedRun) -> int | None:
    """Return the GPUs of one model replica; None if a log with parallel groups lacks their sizes."""
    have = run.settings
    if "Megatron" not in run.program and not run.scratch.get("stages"):
        have.setdefault("tensor_parallel", 1)
    if "tensor_parallel" in have and not run.scratch.get("stages"):
        have.setdefault("pipeline_parallel", 1)
    sizes = have.get("tensor_parallel"), have.get("pipeline_parallel")
    return sizes[0] * sizes[1] if sizes[0] and sizes[1] else None


def _derive(run: LoggedRun, **settings: int | None) -> None:
    for name, value in settings.items():
        if value and name not in run.settings:
            run.settings[name] = value
            run.provenance[name] = DERIVED


def _warmup_lines(run: LoggedRun) -> int:
    """Return the number of warm-up lines: Megatron's first includes compilation and the setup of NCCL."""
    return int("Megatron" in run.program and len(run.steps) > 1)


def _throughput(run: LoggedRun, table: pd.DataFrame) -> None:
    """Derive samples/s, tokens/s and step time from each other: work over time, never a mean of rates."""
    have, gpus = run.figures, run.settings.get("gpus")
    batch, length = run.settings.get("global_batch_size"), run.settings.get("seq_len")
    if "samples_per_s" not in have and "Megatron" in run.program:
        _over_steps(run, table.iloc[_warmup_lines(run) :])
    if "samples_per_s" not in have and "samples_per_s_running" in have:
        run.record(samples_per_s=have["samples_per_s_running"])
    if "samples_per_s" not in have and "tokens_per_s" not in have:
        _over_steps(run, table)
    if "samples_per_s" not in have and have.get("step_time_mean_s") and batch and not length:
        run.record(DERIVED, samples_per_s=batch / have["step_time_mean_s"])
    rate = have.get("samples_per_s")
    if rate and length and "tokens_per_s" not in have:
        run.record(DERIVED, tokens_per_s=rate * length)
    runtime_s, steps = have.get("train_runtime_s"), run.settings.get("steps")
    if runtime_s and steps and run.ended:  # the last batch of an epoch may be smaller, so not from samples/s
        if (executed := steps - run.scratch.get("resumed", 0)) > 0:
            run.record(DERIVED, step_time_mean_s=runtime_s / executed)
    elif rate and batch and not runtime_s and "step_time_mean_s" not in have:
        run.record(DERIVED, step_time_mean_s=batch / rate)
    if have.get("tokens_per_s") and gpus:
        run.record(DERIVED, tokens_per_s_per_gpu=have["tokens_per_s"] / gpus)


def _over_steps(run: LoggedRun, table: pd.DataFrame) -> None:
    """Derive rates over the timed steps; a logged step time or TFLOP/s is the mean since the previous line."""
    timed = table["step_time_s"].dropna()
    spans = table["span"][timed.index]
    time_s, count = float(sum(timed * spans)), float(sum(spans))
    if time_s > 0:
        run.record(DERIVED, step_time_mean_s=time_s / count, timed_steps=count, timed_s=time_s)
        samples = table["samples"][timed.index].fillna(run.settings.get("global_batch_size") or 0.0)
        run.record(DERIVED, samples_per_s=float(sum(samples * spans)) / time_s if (samples > 0).all() else None)
        for name in TFLOPS:
            rates = table[name][timed.index].dropna()
            times_s = (timed * spans)[rates.index]
            if len(rates):
                run.record(DERIVED if len(rates) > 1 else LOGGED, **{name: float(sum(rates * times_s) / sum(times_s))})


def _flops(run: LoggedRun) -> None:
    """Derive TFLOP/s by dsnb's convention if the model's shape is known; not for LoRA, which has fewer gradients."""
    shape = _shape(run)
    if shape:
        run.record(DERIVED, parameters=shape.parameters)
    rate, length = run.figures.get("tokens_per_s_per_gpu"), run.settings.get("seq_len")
    if not shape or not rate or not length or run.settings.get("lora_rank"):
        return
    per_token = metrics.model_flops_per_token(shape.parameters, shape.layers, shape.hidden, length)
    if "tflops_per_gpu" not in run.figures:
        run.record(DERIVED, tflops_per_gpu=metrics.tflops(per_token, rate))
    if "hardware_tflops_per_gpu" not in run.figures and "activation_checkpointing" in run.settings:
        every = int(run.settings["activation_checkpointing"])
        blocks = shape.layers, shape.hidden, length, every
        again = metrics.recomputed_flops_per_token(shape.block_parameters, *blocks)
        run.record(DERIVED, hardware_tflops_per_gpu=metrics.tflops(per_token + again, rate))


def _shape(run: LoggedRun) -> model_shapes.Shape | None:
    if run.settings.get("model") in model_shapes.PRESETS:
        return model_shapes.PRESETS[run.settings["model"]]
    if run.scratch.get("experts"):
        return None  # a list of Megatron's arguments is not enough to tell how many parameters work on a token
    if {"layers", "hidden", "vocab"} <= set(run.shape):
        layers, hidden, vocab = (run.shape[name] for name in ("layers", "hidden", "vocab"))
        run.settings.setdefault("model", f"gpt-{layers}x{hidden}")
        run.provenance["model"] = DERIVED
        return model_shapes.Shape("gpt2", layers, hidden, 1, vocab, run.settings.get("seq_len"))
    return None
