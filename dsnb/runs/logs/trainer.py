"""Readers of output of transformers' Trainer and its examples, and of its `trainer_state.json`."""

import json
import re
from pathlib import Path
from typing import Any

from dsnb.errors import LogError
from dsnb.runs.logs.logged_run import DERIVED, LOGGED, LoggedRun, reads, requested
from dsnb.runs.logs.text import NUMBER, count, number, positive

_PAIR = re.compile(r"'(\w{1,60})': {0,20}'?" + NUMBER)
SETTINGS = {
    "instantaneous": "micro_batch_size",
    "total train": "global_batch_size",
    "gradient": "grad_accum",
    "total optimization": "steps",
}
MAX_STATE_BYTES = 256 * 2**20
"""JSON is read into memory as a whole; a file of this size would hold more than a million entries."""

reads("Grouping texts in chunks of ", pattern=r"Grouping texts in chunks of (\d{1,9})\b")(requested(seq_len=count))


@reads(
    "batch size per ",
    "train batch size",
    "ccumulation steps = ",
    "optimization steps = ",
    "trainable parameters = ",
    pattern=r"(?i)(Instantaneous batch size per (?:device|GPU)|Total train batch size[^=]{0,80}"
    r"|Gradient Accumulation steps|Total optimization steps|Number of trainable parameters) = " + NUMBER,
)
def settings(run: LoggedRun, match: re.Match[str]) -> None:
    """`  Total train batch size (w. parallel, distributed & accumulation) = 64`."""
    _trainer(run)
    words, value = match[1].lower(), count(match[2])
    if words.startswith("number of trainable"):
        run.record(trainable_parameters=value)
    run.set_used(**{name: value for key, name in SETTINGS.items() if words.startswith(key)})


def _trainer(run: LoggedRun) -> None:
    run.program = "transformers Trainer"
    run.configured = True


@reads("Continuing training from global step ", pattern=f"Continuing training from global step {NUMBER}")
def resumed(run: LoggedRun, match: re.Match[str]) -> None:
    """`  Continuing training from global step 90`: the Trainer's final rates include the steps before that."""
    if (step := count(match[1])) and "resumed" not in run.scratch:
        run.scratch["resumed"] = step
        run.notes.append(
            f"resumed from step {step}: the final rates are left out, since they include the steps before it"
        )


@reads("/it]", "it/s]", pattern=r"^\s{0,9}\d{1,3}%\|[^|]{0,500}\| *(\d{1,9})/(\d{1,9}) \[")
def bar(run: LoggedRun, match: re.Match[str]) -> None:
    """Read the step from `  2%|2  | 10/500 [00:12<09:50,  1.20s/it]`; bars of another length are not the training's."""
    step, steps = map(int, match.groups())
    if steps == (run.settings.get("steps") or run.scratch.setdefault("bar_of", steps)):
        run.scratch["bar"] = step


@reads("'loss': ", pattern="'loss': .*")
def loss(run: LoggedRun, match: re.Match[str]) -> None:
    """`{'loss': 2.1, 'grad_norm': 1.3, 'learning_rate': 5e-05, 'epoch': 0.1}`: the mean since the previous line."""
    text = dict(_PAIR.findall(match.string, match.start())).get("loss", "")
    value = number(text)
    _trainer(run)
    run.scratch["loss_is_nan"] = value is None and "nan" in text.lower()
    if value is not None:
        run.record(loss_first=run.figures.get("loss_first", value), loss_last=value)
        if (step := run.scratch.pop("bar", None)) is not None:
            run.add_step(step, loss=value)


@reads("train_runtime", "'train_s")
def final(run: LoggedRun, match: re.Match[str]) -> None:
    """`{'train_runtime': 273.0, 'train_samples_per_second': 3.663, ...}` of every rank: the slowest one counts."""
    _record_final(run, {name: number(value) for name, value in _PAIR.findall(match.string)})


def _record_final(run: LoggedRun, values: dict[str, float | None]) -> None:
    runtime_s = values.get("train_runtime")
    if runtime_s is not None and runtime_s > 0:
        if runtime_s < run.figures.get("train_runtime_s", 0):
            return
        _trainer(run)
        run.ended = True
        run.record(train_runtime_s=runtime_s)
    run.record(loss_mean=values.get("train_loss"))
    # Before version 4.6, samples_per_second held the steps per second.
    if "train_steps_per_second" in values and "resumed" not in run.scratch:
        rates = {f"{what}_per_s": values.get(f"train_{what}_per_second") for what in ("samples", "steps", "tokens")}
        run.record(LOGGED, **{name: rate for name, rate in rates.items() if rate and rate > 0})


def read_state(path: Path) -> list[LoggedRun]:
    """Read a `trainer_state.json`; raise LogError if it is too large, or no JSON object with a `log_history`."""
    if path.stat().st_size > MAX_STATE_BYTES:
        raise LogError(path, "is larger than 256 MiB, too large for a trainer_state.json: use the console log instead")
    try:
        state = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        raise LogError(path, "is cut off or damaged JSON: use the console log instead", line) from error
    if not isinstance(state, dict) or not isinstance(history := state.get("log_history"), list):
        raise LogError(path, "is not a trainer_state.json: it must have a list 'log_history'")
    run = LoggedRun(program="transformers Trainer", configured=True)
    run.set_used(micro_batch_size=count(_text(state, "train_batch_size")), steps=count(_text(state, "max_steps")))
    for entry in history:
        if isinstance(entry, dict):
            step, loss = count(_text(entry, "step")), number(_text(entry, "loss"))
            run.scratch["loss_is_nan"] = _text(entry, "loss").lower() == "nan"
            if step is not None and loss is not None:
                run.add_step(step, loss=loss)
            if "train_runtime" in entry:
                _record_final(run, {name: number(_text(entry, name)) for name in entry})
    tokens, runtime_s = positive(_text(state, "num_input_tokens_seen")), run.figures.get("train_runtime_s")
    if tokens and runtime_s:  # the tokens of all ranks
        run.record(DERIVED, tokens_per_s=tokens / runtime_s)
    return [run]


def _text(record: dict[str, Any], name: str) -> str:
    """Return a number in a JSON object as text."""
    value = record.get(name)
    return "" if isinstance(value, bool | dict | list) or value is None else str(value)
