"""Reader of logs with a JSON object on every line: ms-swift's `logging.jsonl`, LLaMA-Factory's `trainer_log.jsonl`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dsnb.results.logs import trainer
from dsnb.results.logs.reading import LoggedRun
from dsnb.results.logs.text import MAX_LINE, open_text
from dsnb.results.logs.trainer import as_text
from dsnb.results.logs.values import DECLARED, count, number, parse_json, positive

KEYS = DECLARED["json"]
FIRST_LINES = 4
"""Lines that are looked at to recognise a log."""


def is_log(head: str) -> bool:
    """Return whether one of the first lines is an entry of a training: a step, and what only trainings log."""
    return any(_is_entry(line) for line in head[:MAX_LINE].split("\n")[:FIRST_LINES])


def _is_entry(line: str) -> bool:
    entry = None
    if line.lstrip().startswith("{") and line.rstrip().endswith("}"):
        entry = _parsed(line)
    if entry is None or "log_history" in entry:
        return False
    further = _first(entry, "loss") or _first(entry, "others")
    return bool(_first(entry, "step") and further)


def _first(entry: Mapping[str, Any], kind: str) -> str:
    """Return the first key of a kind that an entry has."""
    return next((key for key in KEYS[kind] if key in entry), "")


def read(path: Path) -> list[LoggedRun]:
    """Read all entries; a line that is cut off is passed over."""
    run = LoggedRun(program="JSON lines", configured=True)
    for entry in _entries(path):
        _program(run, entry)
        place = str(entry.get(_first(entry, "step"), ""))
        step, _, planned = place.partition("/")
        number_of_step = count(step) or 0
        if not planned:
            planned = str(entry.get(_first(entry, "planned"), ""))
        run.set_used(steps=count(planned))
        run.reached = max(run.reached, number_of_step)
        loss = entry.get(_first(entry, "loss"))
        if trainer.is_final(entry) or "log_history" in entry:
            _final(run, entry)
        elif number_of_step and loss is not None:
            _add(run, entry, number_of_step, str(loss))
    run.ended |= 0 < run.settings.get("steps", 0) <= run.reached
    return [run]


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    with open_text(path) as file:
        while line := file.readline(MAX_LINE):
            entry = _parsed(line)
            if entry is not None:
                yield entry


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        value = parse_json(line)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict):
        return value
    return None


def _program(run: LoggedRun, entry: Mapping[str, Any]) -> None:
    if any("global_step/max_steps" in name for name in entry):
        run.program = trainer.SWIFT
    elif "current_steps" in entry and "total_steps" in entry:
        run.program = trainer.FACTORY
    run.has_pairs |= trainer.PAIRS_KEY in entry or {"accuracy", "reward"} <= entry.keys()


def _add(run: LoggedRun, entry: Mapping[str, Any], step: int, loss: str) -> None:
    """Add a step, with the tokens of each of the steps since the entry before."""
    run.health.read(loss, str(entry.get("grad_norm", "")), step)
    total = positive(as_text(entry, "total_tokens"))
    tokens = trainer.tokens_of_each(run, step, total)
    texts = {name: as_text(entry, name) for name in entry}
    run.add_step(step, loss=number(loss), t_s=trainer.time_of(texts, step), tokens=tokens)
    run.record(
        peak_reserved_gib=positive(as_text(entry, "memory(GiB)")),
        tokens_per_s=positive(as_text(entry, "throughput")),
    )


def _final(run: LoggedRun, entry: Mapping[str, Any]) -> None:
    """Record the last entry: the Trainer's final figures, or ms-swift's summary."""
    run.ended = True
    if trainer.is_final(entry):
        trainer.record_final(run, trainer.numbers(entry))
    trainer.record_parameters(run, str(entry.get("model_parameter_info", "")))
    history = entry.get("log_history")
    if not run.steps and isinstance(history, list):
        for item in history:
            if isinstance(item, dict) and "loss" in item and count(as_text(item, "step")):
                trainer.add_entry(run, item)
