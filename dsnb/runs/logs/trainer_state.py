"""Reader of `trainer_state.json`, the log that transformers' Trainer keeps in its checkpoints."""

import json
from pathlib import Path
from typing import Any

from dsnb.errors import LogError
from dsnb.runs.logs import trainer
from dsnb.runs.logs.lines import decode
from dsnb.runs.logs.logged_run import DERIVED, LoggedRun
from dsnb.runs.logs.text import count, number

LARGEST_BYTES = 256 * 2**20
"""JSON is read into memory as a whole; a file of this size would hold more than a million entries."""


def read(path: Path) -> list[LoggedRun]:
    """Read a `trainer_state.json`.

    Raises
    ------
    LogError
        If it is not a JSON object with a `log_history`, or too large.
    """
    if path.stat().st_size > LARGEST_BYTES:
        raise LogError(path, "is larger than 256 MiB, too large for a trainer_state.json: use the console log instead")
    try:
        state = json.loads(decode(path.read_bytes()).removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        raise LogError(path, "is cut off or damaged JSON: use the console log instead", line) from error
    if not isinstance(state, dict) or not isinstance(history := state.get("log_history"), list):
        raise LogError(path, "is not a trainer_state.json: it must have a list 'log_history'")
    run = LoggedRun(program="transformers Trainer", configured=True)
    run.set_used(micro_batch_size=_count(state.get("train_batch_size")), steps=_count(state.get("max_steps")))
    for entry in history:
        if isinstance(entry, dict):
            _entry(run, entry)
    _tokens(run, state)
    return [run]


def _entry(run: LoggedRun, entry: dict[str, Any]) -> None:
    step, loss = _count(entry.get("step")), _number(entry.get("loss"))
    run.scratch["loss_is_nan"] = "loss" in entry and loss is None and str(entry["loss"]).lower() == "nan"
    if step is not None and loss is not None:
        run.steps.add(step, loss=loss)
    if "train_runtime" in entry:
        trainer.take(run, {name: _number(value) for name, value in entry.items()})


def _tokens(run: LoggedRun, state: dict[str, Any]) -> None:
    """Derive tokens/s if the Trainer counted tokens: those of all ranks over the whole runtime."""
    tokens, runtime = _count(state.get("num_input_tokens_seen")), run.figures.get("train_runtime_s")
    if tokens and runtime:
        run.record(DERIVED, tokens_per_s=tokens / runtime)


def _number(value: Any) -> float | None:
    return number(str(value)) if isinstance(value, int | float | str) and not isinstance(value, bool) else None


def _count(value: Any) -> int | None:
    return count(str(value)) if isinstance(value, int | float) and not isinstance(value, bool) else None
