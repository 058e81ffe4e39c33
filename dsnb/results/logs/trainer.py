"""Readers of output of transformers' Trainer and its examples, and of its `trainer_state.json`."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from dsnb.base.errors import LogError
from dsnb.results.logs.launchers import FLAGS
from dsnb.results.logs.reading import CONSOLE, DERIVED, LOGGED, LoggedRun, reads, requested
from dsnb.results.logs.text import NUMBER, count, number, positive, seconds

_PAIR = re.compile(r"['\"]([\w()/.%-]{1,60})['\"]: {0,20}['\"]?" + NUMBER)
_PLACE = re.compile(r"global_step/max_steps\]?['\"]: {0,9}['\"](\d{1,9})/(\d{1,9})['\"]")
_ELAPSED = re.compile(r"['\"]elapsed_time['\"]: {0,9}['\"]([^'\"]{1,40})['\"]")
_BAR = r"^\s{0,9}(?:([\w ./()=-]{1,60}?):[\s:]{0,6})?\d{1,3}%\|[^|]{0,500}\| *(\d{1,9})/(\d{1,9}) \[([\d:]{1,20})<"
_EPOCH = re.compile(r"(?i)epoch (\d{1,6})/(\d{1,6})$")
_TRAINING = re.compile(r"(?i)(?:$|.{0,30}\b(?:train\w{0,8}|epochs?|steps?|iter\w{0,8})\b)")
"""Words before a training's bar; also none."""
_POSTFIX = re.compile(r", (?:[a-z]{1,9}_)?loss[:=] ?([-+\w.]+)(?=[],])")
_POSTFIX_NORM = re.compile(r", grad_norm[:=] ?([-+\w.]+)(?=[],])")
_ARGUMENTS = re.compile(r"\b[A-Z]\w{0,40}Arguments\(")
_ARGUMENT = re.compile(
    r"\b(per_device_train_batch_size|gradient_accumulation_steps|gradient_checkpointing)=(\w{1,20})(?=[,)])"
)
PAIRS_KEY = "rewards/accuracies"
"""Logged by trainers whose samples are pairs: how often the better sequence of a pair has the higher reward."""
OF_TRAINER = SWIFT, FACTORY = "ms-swift", "LLaMA-Factory"
"""Programs that train with transformers' Trainer."""
SETTINGS = {
    "instantaneous": "micro_batch_size",
    "total train": "global_batch_size",
    "gradient": "grad_accum",
    "total optimization": "steps",
}
MAX_PLAIN = 2**53
"""Whole numbers below this are exact as floats."""
MAX_STATE_BYTES = 256 * 2**20
"""JSON is read into memory as a whole; a file of this size would hold more than a million entries."""

reads("Grouping texts in chunks of ", pattern=r"Grouping texts in chunks of (\d{1,9})\b")(
    requested(seq_len=count)
)


@reads(
    "batch size per ",
    "train batch size",
    "ccumulation steps = ",
    "optimization steps = ",
    "trainable parameters = ",
    pattern=r"(?i)(Instantaneous batch size per (?:device|GPU)|Total train batch size[^=]{0,80}"
    r"|Gradient Accumulation steps|Total optimization steps|Number of trainable parameters) = "
    + NUMBER,
)
def settings(run: LoggedRun, match: re.Match[str]) -> None:
    """`  Total train batch size (w. parallel, distributed & accumulation) = 64`."""
    _trainer(run)
    words, value = match[1].lower(), count(match[2])
    if words.startswith("total train"):
        run.scratch["trainer_total"] = True
    if words.startswith("number of trainable"):
        run.record(trainable_parameters=value)
    run.set_used(**{name: value for key, name in SETTINGS.items() if words.startswith(key)})


def _trainer(run: LoggedRun) -> None:
    run.program = run.program if run.program in OF_TRAINER else "transformers Trainer"
    run.configured = True


@reads(
    "Arguments(", "per_device_train_batch_size=", "gradient_accumulation_steps=", "gradient_checkpointing=",
)  # fmt: skip
def arguments(run: LoggedRun, match: re.Match[str]) -> None:
    """Read `TrainingArguments(...)`, on one line or on several."""
    if _ARGUMENTS.search(match.string):
        run.launched = run.scratch["trainer_arguments"] = True
    if run.scratch.get("trainer_arguments"):
        for name, value in _ARGUMENT.findall(match.string):
            setting, parse = FLAGS[name]
            run.set_requested(**{setting: parse(value)})


@reads("[INFO:swift]", "swift/cli/")
def swift(run: LoggedRun, _match: re.Match[str]) -> None:
    """Read the marks of ms-swift, which trains with transformers' Trainer."""
    run.program = SWIFT


@reads(
    " Params (",
    "model_parameter_info",
    pattern=r"([\d.,]{1,20})M Params(?: \(([\d.,]{1,20})M Trainable)?",
)
def parameters(run: LoggedRun, match: re.Match[str]) -> None:
    """Read ms-swift's `model_parameter_info: ...: 7635.8011M Params (20.1851M Trainable [0.2643%], ...`."""
    record_parameters(run, match[1], match[2])


def record_parameters(run: LoggedRun, millions: str, trainable: str | None) -> None:
    """Record numbers of parameters in millions."""
    for name, text in (("parameters", millions), ("trainable_parameters", trainable)):
        value = positive(text)
        run.record(LOGGED, **{name: round(value * 1e6) if value else None})


@reads(
    "Continuing training from global step ",
    pattern=f"Continuing training from global step {NUMBER}",
)
def resumed(run: LoggedRun, match: re.Match[str]) -> None:
    """`  Continuing training from global step 90`: the Trainer's final rates include the steps before that."""
    if (step := count(match[1])) and "resumed" not in run.scratch:
        run.scratch["resumed"] = step
        run.notes.append(
            f"resumed from step {step}: the final rates are left out, since they include the steps before it"
        )


@reads("s/it", "it/s", pattern=_BAR)
def bar(run: LoggedRun, match: re.Match[str]) -> None:
    """Read the step from `  2%|2  | 10/500 [00:12<09:50,  1.20s/it]`, also after `Train:` or `Epoch 2/3:`.

    Bars of another length are not the training's, nor are those with other words, such as `Map:`.
    """
    words, step, steps, elapsed = match[1] or "", int(match[2]), int(match[3]), match[4]
    t_s = seconds(elapsed)
    if epoch := _EPOCH.search(words):  # a bar for each epoch
        t_s = t_s if epoch[1] == "1" else None
        step, steps = step + (int(epoch[1]) - 1) * steps, int(epoch[2]) * steps
    planned = run.settings.get("steps")
    is_training = steps == planned or (not planned and _TRAINING.match(words))
    if not is_training or steps != (planned or run.scratch.setdefault("bar_of", steps)):
        return
    run.scratch.update(bar=step, bar_t_s=t_s, reached=max(step, run.scratch.get("reached", 0)))
    if "loss" in match.string and (loss := _POSTFIX.search(match.string, match.end())):
        norm = _POSTFIX_NORM.search(match.string, match.end())
        run.program, run.configured = run.program or CONSOLE, True
        _record_loss(run, loss[1], norm[1] if norm else "")


@reads("'loss': ", pattern=r"(?:\{.{0,2000}?)?'loss': .*")
def loss(run: LoggedRun, match: re.Match[str]) -> None:
    """`{'loss': 2.1, 'grad_norm': 1.3, 'learning_rate': 5e-05, 'epoch': 0.1}`: the mean since the previous line.

    ms-swift adds the step, the time, the memory and the speed.
    """
    texts = dict(_PAIR.findall(match[0]))
    _trainer(run)
    if "max_steps" in match[0] and (place := _PLACE.search(match[0])):
        run.program = SWIFT
        run.set_used(steps=count(place[2]))
        elapsed = _ELAPSED.search(match[0])
        run.scratch.update(bar=int(place[1]), bar_t_s=seconds(elapsed[1]) if elapsed else None)
    if PAIRS_KEY in texts:
        run.scratch["pairs"] = True
    run.record_max(peak_reserved_gib=positive(texts.get("memory(GiB)")))
    _record_loss(run, texts.get("loss", ""), texts.get("grad_norm", ""))


def _record_loss(run: LoggedRun, text: str, norm: str) -> None:
    """Record a loss at the step of the last bar; several ranks may print one, and a bar is drawn more than once."""
    value, step, t_s = number(text), run.scratch.pop("bar", None), run.scratch.pop("bar_t_s", None)
    run.health.read(text, norm, step or None)
    if not step:
        run.add_loss(value)
    elif value is not None:
        run.record(loss_first=run.figures.get("loss_first", value), loss_last=value)
        run.add_step(step, loss=value, t_s=t_s)


@reads("train_runtime", "'train_s")
def final(run: LoggedRun, match: re.Match[str]) -> None:
    """`{'train_runtime': 273.0, 'train_samples_per_second': 3.663, ...}` of every rank: the slowest one counts."""
    record_final(run, {name: number(value) for name, value in _PAIR.findall(match.string)})


def record_final(run: LoggedRun, values: dict[str, float | None]) -> None:
    """Record the final figures; of several ranks', those of the slowest one."""
    runtime_s = values.get("train_runtime")
    if runtime_s is not None and runtime_s > 0:
        if runtime_s < run.figures.get("train_runtime_s", 0):
            return
        _trainer(run)
        run.ended = True
        run.record(train_runtime_s=runtime_s)
        run.set_used(steps=run.settings.get("steps") or run.scratch.get("bar_of"))
    run.record(loss_mean=values.get("train_loss"))
    tokens, runtime_s = values.get("num_input_tokens_seen"), run.figures.get("train_runtime_s")
    if (
        tokens and tokens > 0 and runtime_s and "resumed" not in run.scratch
    ):  # the tokens of all ranks
        run.record(DERIVED, tokens_per_s=tokens / runtime_s)
    # Before version 4.6, samples_per_second held the steps per second.
    if "train_steps_per_second" in values and "resumed" not in run.scratch:
        rates = {
            f"{what}_per_s": values.get(f"train_{what}_per_second")
            for what in ("samples", "steps", "tokens")
        }
        run.record(LOGGED, **{name: rate for name, rate in rates.items() if rate and rate > 0})


def read_state(path: Path) -> list[LoggedRun]:
    """Read a `trainer_state.json`; raise LogError if it is too large, or no JSON object with a `log_history`."""
    if path.stat().st_size > MAX_STATE_BYTES:
        raise LogError(
            path,
            "is larger than 256 MiB, too large for a trainer_state.json: use the console log instead",
        )
    state = _parsed(path)
    if not isinstance(state, dict) or not isinstance(history := state.get("log_history"), list):
        raise LogError(path, "is not a trainer_state.json: it must have a list 'log_history'")
    run = LoggedRun(program="transformers Trainer", configured=True)
    run.set_used(
        micro_batch_size=count(as_text(state, "train_batch_size")),
        steps=count(as_text(state, "max_steps")),
    )
    entries = [entry for entry in history if isinstance(entry, dict)]
    _read_losses(run, [entry for entry in entries if "loss" in entry])
    for entry in entries:
        if "train_runtime" in entry:
            record_final(run, {name: number(as_text(entry, name)) for name in entry})
    run.scratch["pairs"] = any(PAIRS_KEY in entry for entry in entries)
    tokens, runtime_s = (
        positive(as_text(state, "num_input_tokens_seen")),
        run.figures.get("train_runtime_s"),
    )
    if tokens and runtime_s:  # the tokens of all ranks
        run.record(DERIVED, tokens_per_s=tokens / runtime_s)
    return [run]


def _parsed(path: Path) -> Any:
    """Parse JSON; Python writes NaN, which orjson refuses."""
    raw = path.read_bytes()
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        raise LogError(
            path, "is cut off or damaged JSON: use the console log instead", line
        ) from error


def _read_losses(run: LoggedRun, entries: list[dict[str, Any]]) -> None:
    """Record the losses of a `log_history`; there may be a million, nearly always plain numbers in the right order."""
    steps: list[Any] = [entry.get("step") for entry in entries]
    losses = [entry["loss"] for entry in entries]
    norms = [entry.get("grad_norm", 0.0) for entry in entries]
    if {*map(type, steps)} == {int} and {*map(type, losses)} | {*map(type, norms)} == {float}:
        is_finite = np.isfinite(losses).all() and np.isfinite(norms).all()
        if is_finite and min(steps) > 0 and max(steps) < MAX_PLAIN and (np.diff(steps) > 0).all():
            run.steps = [
                {"step": step, "loss": loss} for step, loss in zip(steps, losses, strict=True)
            ]
            return
    for entry in entries:
        step, text = count(as_text(entry, "step")), as_text(entry, "loss")
        run.health.read(text, as_text(entry, "grad_norm"), step)
        if step is not None and (value := number(text)) is not None:
            run.add_step(step, loss=value)


def as_text(record: Mapping[str, Any], name: str) -> str:
    """Return a number in a JSON object as text."""
    value = record.get(name)
    return "" if isinstance(value, bool | dict | list) or value is None else str(value)
