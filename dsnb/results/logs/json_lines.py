"""Reader of logs with a JSON object on every line: ms-swift's `logging.jsonl`, LLaMA-Factory's `trainer_log.jsonl`."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from dsnb.results.logs import trainer
from dsnb.results.logs.reading import LOGGED, LoggedRun
from dsnb.results.logs.text import MAX_LINE, count, number, open_text, positive, seconds
from dsnb.results.logs.trainer import as_text

STEPS = (
    "global_step/max_steps",
    "steps[global_step/max_steps]",
    "current_steps",
    "step",
    "global_step",
    "iteration",
)
"""Keys of the number of a step, the most specific first."""
TOTALS = ("total_steps", "max_steps")
LOSSES = ("loss", "lm_loss", "train_loss")
TIMES = (
    "elapsed_time",
    "train_runtime",
    "current_steps",
    "throughput",
    "learning_rate",
    "lr",
    "grad_norm",
    "epoch",
)
"""Keys that a training's entry has beside its step and loss."""
FIRST_LINES = 4
"""Lines that are looked at to recognise a log."""
_PARAMETERS = re.compile(r"([\d.,]{1,20})M Params(?: \(([\d.,]{1,20})M Trainable)?")


def is_log(head: str) -> bool:
    """Return whether one of the first lines is an entry of a training: a step, and what only trainings log."""
    return any(_is_entry(line) for line in head[:MAX_LINE].split("\n")[:FIRST_LINES])


def _is_entry(line: str) -> bool:
    entry = _parsed(line) if line.lstrip().startswith("{") and line.rstrip().endswith("}") else None
    if entry is None or "log_history" in entry:
        return False
    return any(name in entry for name in STEPS) and any(name in entry for name in (*TIMES, *LOSSES))


def read(path: Path) -> list[LoggedRun]:
    """Read all entries; a line that is cut off is passed over."""
    run = LoggedRun(program="JSON lines", configured=True)
    before: dict[str, float] = {"step": 0, "tokens": 0.0}
    reached = 0
    for entry in _entries(path):
        _program(run, entry)
        step, planned = _step(entry)
        run.set_used(steps=planned)
        reached = max(reached, step or 0)
        if "train_runtime" in entry or "log_history" in entry:
            _final(run, entry)
        elif (
            step
            and (loss := next((entry[name] for name in LOSSES if name in entry), None)) is not None
        ):
            _add(run, entry, step, str(loss), before)
    run.scratch["reached"] = reached
    run.ended = run.ended or 0 < run.settings.get("steps", 0) <= reached
    return [run]


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    with open_text(path) as file:
        while line := file.readline(MAX_LINE):
            if (entry := _parsed(line)) is not None:
                yield entry


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:  # also NaN, which Python writes
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def _program(run: LoggedRun, entry: Mapping[str, Any]) -> None:
    if any("global_step/max_steps" in name for name in entry):
        run.program = trainer.SWIFT
    elif "current_steps" in entry and "total_steps" in entry:
        run.program = trainer.FACTORY
    if trainer.PAIRS_KEY in entry or ("accuracy" in entry and "reward" in entry):
        run.scratch["pairs"] = True


def _step(entry: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the number of the step and of all steps."""
    text = next((str(entry[name]) for name in STEPS if name in entry), "")
    step, _, planned = text.partition("/")
    total = planned or next((str(entry[name]) for name in TOTALS if name in entry), "")
    return count(step), count(total)


def _add(
    run: LoggedRun, entry: Mapping[str, Any], step: int, loss: str, before: dict[str, float]
) -> None:
    """Add a step, with the tokens of each of the steps since the entry before; times are in whole seconds."""
    run.health.read(loss, str(entry.get("grad_norm", "")), step)
    t_s, tokens = seconds(as_text(entry, "elapsed_time")), positive(as_text(entry, "total_tokens"))
    steps = step - before["step"]
    run.add_step(step, loss=number(loss), t_s=t_s, tokens=_share(tokens, before["tokens"], steps))
    before.update(step=step, tokens=tokens or before["tokens"])
    run.record_max(peak_reserved_gib=positive(as_text(entry, "memory(GiB)")))
    run.record(LOGGED, tokens_per_s=positive(as_text(entry, "throughput")))


def _share(value: float | None, before: float, steps: float) -> float | None:
    return (value - before) / steps if value is not None and value > before and steps > 0 else None


def _final(run: LoggedRun, entry: Mapping[str, Any]) -> None:
    """Record the last entry: the Trainer's final figures, or ms-swift's summary."""
    run.ended = True
    if "train_runtime" in entry:
        trainer.record_final(run, {name: number(as_text(entry, name)) for name in entry})
    if match := _PARAMETERS.search(str(entry.get("model_parameter_info", ""))):
        trainer.record_parameters(run, match[1], match[2])
    if not run.steps and isinstance(history := entry.get("log_history"), list):
        for item in history:
            step = count(as_text(item, "step")) if isinstance(item, dict) else None
            if step and "loss" in item:
                run.health.read(as_text(item, "loss"), as_text(item, "grad_norm"), step)
                run.add_step(step, loss=number(as_text(item, "loss")))
