"""Readers of output of transformers' Trainer and its examples, and of its `trainer_state.json`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dsnb.base.errors import LogError
from dsnb.results.logs.launchers import FLAGS
from dsnb.results.logs.reading import CONSOLE, DERIVED, LoggedRun, Match, reads
from dsnb.results.logs.values import (
    NUMBER,
    count,
    first_group,
    millions,
    names,
    number,
    parse_json,
    positive,
    seconds,
    value_of,
)

SETTINGS = names("trainer")
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
_PARAMETERS = re.compile(r"([\d.,]{1,20})M Params(?: \(([\d.,]{1,20})M Trainable)?")
PAIRS_KEY = "rewards/accuracies"
"""Logged by trainers whose samples are pairs: how often the better sequence of a pair has the
higher reward."""
TRAINER = "transformers Trainer"
OF_TRAINER = SWIFT, FACTORY = "ms-swift", "LLaMA-Factory"
"""Programs that train with transformers' Trainer."""
MAX_PLAIN = 2**53
"""Whole numbers below this are exact as floats."""
MAX_STATE_BYTES = 256 * 2**20
"""JSON is read into memory as a whole; a file of this size would hold more than a million
entries."""


@reads(
    "batch size per ",
    "train batch size",
    "ccumulation steps = ",
    "optimization steps = ",
    pattern=rf"(?i)({'|'.join(SETTINGS)})(?: \([^=]{{0,80}})? = {NUMBER}",
)
def settings(run: LoggedRun, match: Match) -> None:
    """`  Total train batch size (w. parallel, distributed & accumulation) = 64`."""
    _trainer(run)
    printed = value_of(SETTINGS, match[1].lower(), match[2])
    run.set_used(**printed)
    run.has_trainer_total |= "global_batch_size" in printed


def _trainer(run: LoggedRun) -> None:
    if run.program not in OF_TRAINER:
        run.program = TRAINER
    run.configured = True


@reads(
    "Arguments(", "per_device_train_batch_size=", "gradient_accumulation_steps=", "gradient_checkpointing=",
)  # fmt: skip
def arguments(run: LoggedRun, match: Match) -> None:
    """Read `TrainingArguments(...)`, on one line or on several."""
    if _ARGUMENTS.search(match.string):
        run.launched = True
        run.scratch["trainer_arguments"] = True
    if run.scratch["trainer_arguments"]:
        for name, value in _ARGUMENT.findall(match.string):
            run.set_requested(**value_of(FLAGS, name, value))


@reads("[INFO:swift]", "swift/cli/")
def swift(run: LoggedRun, _match: Match) -> None:
    """Read the marks of ms-swift, which trains with transformers' Trainer."""
    run.program = SWIFT


@reads(" Params (", "model_parameter_info")
def parameters(run: LoggedRun, match: Match) -> None:
    """Read ms-swift's `model_parameter_info: ...: 7635.8011M Params (20.1851M Trainable [0.2643%], ...`."""
    record_parameters(run, match.string)


def record_parameters(run: LoggedRun, text: str) -> None:
    """Record numbers of parameters, which ms-swift gives in millions."""
    match = _PARAMETERS.search(text)
    if match:
        run.record(parameters=millions(match[1]), trainable_parameters=millions(match[2]))


@reads(
    "Continuing training from global step ",
    pattern=f"Continuing training from global step {NUMBER}",
)
def resumed(run: LoggedRun, match: Match) -> None:
    """`  Continuing training from global step 90`: the Trainer's final rates include the steps before that."""
    step = count(match[1])
    if step and not run.resumed_from:
        run.resumed_from = step
        run.notes.append(
            f"resumed from step {step}: the final rates are left out, since they include the steps before it"
        )


@reads("s/it", "it/s", pattern=_BAR)
def bar(run: LoggedRun, match: Match) -> None:
    """Read the step from `  2%|2  | 10/500 [00:12<09:50,  1.20s/it]`, also after `Train:` or `Epoch 2/3:`.

    Bars of another length are not the training's, nor are those with other words, such as `Map:`.
    """
    words = match[1] or ""
    step = int(match[2])
    steps = int(match[3])
    t_s = seconds(match[4])
    epoch = _EPOCH.search(words)  # a bar for each epoch
    if epoch:
        if epoch[1] != "1":
            t_s = None
        step += (int(epoch[1]) - 1) * steps
        steps *= int(epoch[2])
    planned = run.settings["steps"]
    if not planned and _TRAINING.match(words):
        run.planned_by_bar = planned = run.planned_by_bar or steps
    if steps != planned:
        return
    run.scratch.update(bar=step, bar_t_s=t_s)
    run.reached = max(step, run.reached)
    loss = first_group(_POSTFIX, match.string, match.end())
    if loss:
        run.program = run.program or CONSOLE
        run.configured = True
        _record_loss(run, loss, first_group(_POSTFIX_NORM, match.string, match.end()))


@reads("'loss': ", pattern=r"(?:\{.{0,2000}?)?'loss': .*")
def loss(run: LoggedRun, match: Match) -> None:
    """`{'loss': 2.1, 'grad_norm': 1.3, 'learning_rate': 5e-05, 'epoch': 0.1}`: the mean since the previous line.

    ms-swift adds the step, the time, the memory and the speed.
    """
    texts = dict(_PAIR.findall(match[0]))
    _trainer(run)
    place = None
    if "max_steps" in match[0]:
        place = _PLACE.search(match[0])
    if place:
        run.program = SWIFT
        run.set_used(steps=count(place[2]))
        texts["elapsed_time"] = first_group(_ELAPSED, match[0])
        run.scratch.update(bar=int(place[1]), bar_t_s=time_of(texts, int(place[1])))
    run.has_pairs |= PAIRS_KEY in texts
    run.record(peak_reserved_gib=positive(texts.get("memory(GiB)")))
    if "train_runtime" in texts:
        run.scratch["bar_t_s"] = positive(texts["train_runtime"])
    _record_loss(run, texts.get("loss", ""), texts.get("grad_norm", ""))


def _record_loss(run: LoggedRun, text: str, norm: str) -> None:
    """Record a loss at the step of the last bar; several ranks may print one, and a bar is drawn more than once."""
    value = number(text)
    step = run.scratch.pop("bar", None)
    t_s = run.scratch.pop("bar_t_s", None)
    run.health.read(text, norm, step or None)
    if value is None:
        return
    run.add_loss(value)
    if step:
        run.add_step(step, loss=value, t_s=t_s)
    else:
        run.unnumbered += 1


@reads("train_runtime", "'train_s")
def final(run: LoggedRun, match: Match) -> None:
    """`{'train_runtime': 273.0, 'train_samples_per_second': 3.663, ...}` of every rank: the slowest one counts."""
    pairs = _PAIR.findall(match.string)
    values = {name: number(value) for name, value in pairs}
    if is_final(values):
        record_final(run, values)


def is_final(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry has the final figures; one with a loss has the time since the start."""
    return "train_runtime" in entry and "loss" not in entry


def record_final(run: LoggedRun, values: Mapping[str, float | None]) -> None:
    """Record the final figures; of several ranks', those of the slowest one."""
    runtime_s = values.get("train_runtime") or 0
    if runtime_s > 0:
        if runtime_s < run.figures.get("train_runtime_s", 0):
            return
        _trainer(run)
        run.ended = True
        run.record(train_runtime_s=runtime_s)
        run.set_used(steps=run.settings["steps"] or run.planned_by_bar or None)
    run.record(loss_mean=values.get("train_loss"))
    if run.resumed_from:
        return
    record_tokens(run, values.get("num_input_tokens_seen"))
    # Before version 4.6, samples_per_second held the steps per second.
    if "train_steps_per_second" in values:
        for what in ("samples", "steps", "tokens"):
            rate = values.get(f"train_{what}_per_second") or 0
            if rate > 0:
                run.record(**{f"{what}_per_s": rate})
    # LLaMA-Factory's, without padding
    run.record(tokens_per_s_per_gpu=values.get("effective_tokens_per_sec"))


def record_tokens(run: LoggedRun, tokens: float | None) -> None:
    """Derive tokens/s from the tokens of all ranks."""
    runtime_s = run.figures["train_runtime_s"]
    if tokens and tokens > 0 and runtime_s:
        run.record(DERIVED, tokens_per_s=tokens / runtime_s)


def read_state(path: Path) -> list[LoggedRun]:
    """Read a `trainer_state.json`; raise LogError if it is too large, or no JSON object with a `log_history`."""
    state = _json(path)
    history = None
    if isinstance(state, dict):
        history = state.get("log_history")
    if not isinstance(history, list):
        raise LogError(path, "is not a trainer_state.json: it must have a list 'log_history'")
    run = LoggedRun(program=TRAINER, configured=True)
    micro_batch_size = count(as_text(state, "train_batch_size"))
    run.set_used(micro_batch_size=micro_batch_size, steps=count(as_text(state, "max_steps")))
    entries = [entry for entry in history if isinstance(entry, dict)]
    _read_losses(run, [entry for entry in entries if "loss" in entry])
    for entry in entries:
        run.has_pairs |= PAIRS_KEY in entry
        if is_final(entry):
            record_final(run, numbers(entry))
    run.reached = count(as_text(state, "global_step")) or 0
    record_tokens(run, positive(as_text(state, "num_input_tokens_seen")))
    return [run]


def read_results(path: Path) -> list[LoggedRun]:
    """Read the final figures in a `train_results.json` or `all_results.json`; no runs without any."""
    results = _json(path)
    if not isinstance(results, dict) or not is_final(results):
        return []
    run = LoggedRun()
    record_final(run, numbers(results))
    return [run]


def _json(path: Path) -> Any:
    """Return the content of a record; raise LogError if it is too large or no JSON."""
    if path.stat().st_size > MAX_STATE_BYTES:
        raise LogError(
            path,
            "is larger than 256 MiB, too large for a trainer_state.json: use the console log instead",
        )
    try:
        return parse_json(path.read_bytes())
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        what = "is cut off or damaged JSON: use the console log instead"
        raise LogError(path, what, line) from error


def _read_losses(run: LoggedRun, entries: list[dict[str, Any]]) -> None:
    """Record the losses of a `log_history`; there may be a million, nearly always plain numbers in the right order."""
    steps: list[Any] = [entry.get("step") for entry in entries]
    losses = [entry["loss"] for entry in entries]
    norms = [entry.get("grad_norm", 0.0) for entry in entries]
    is_timed = any("train_runtime" in entry for entry in entries[:1])
    if (
        not is_timed
        and {*map(type, steps)} == {int}
        and {*map(type, losses)} | {*map(type, norms)} == {float}
    ):
        is_finite = np.isfinite(losses).all() and np.isfinite(norms).all()
        if is_finite and min(steps) > 0 and max(steps) < MAX_PLAIN and (np.diff(steps) > 0).all():
            run.steps = [
                {"step": step, "loss": loss} for step, loss in zip(steps, losses, strict=True)
            ]
            return
    for entry in entries:
        add_entry(run, entry)


def add_entry(run: LoggedRun, entry: Mapping[str, Any]) -> None:
    """Add the step of an entry of a `log_history`, with the time and the tokens since the start if it has them."""
    step = count(as_text(entry, "step"))
    loss = as_text(entry, "loss")
    value = number(loss)
    run.health.read(loss, as_text(entry, "grad_norm"), step)
    if step is not None and value is not None:
        t_s = positive(as_text(entry, "train_runtime"))
        tokens = tokens_of_each(run, step, positive(as_text(entry, "num_input_tokens_seen")))
        run.add_step(step, loss=value, t_s=t_s, tokens=tokens)


def time_of(texts: Mapping[str, str], step: int) -> float | None:
    """Return the time since the start at an entry of LLaMA-Factory or ms-swift.

    They print whole seconds, and beside them a mean rate that tells the same time in more digits.
    """
    elapsed_s = seconds(texts.get("elapsed_time"))
    tokens = positive(texts.get("total_tokens"))
    rates = {
        "throughput": tokens,
        "train_speed(iter/s)": step,
    }
    finer = []
    for name, done in rates.items():
        rate = positive(texts.get(name))
        if rate and done:
            finer.append(done / rate)
    of_one_s = positive(texts.get("train_speed(s/it)"))
    if of_one_s:
        finer.append(step * of_one_s)
    for time_s in finer:
        if elapsed_s is None or abs(time_s - elapsed_s) <= 1:
            return time_s
    return elapsed_s


def tokens_of_each(run: LoggedRun, step: int, total: float | None) -> float | None:
    """Return the tokens of each step since the entry before, from the total of all ranks; None if unknown."""
    before = run.scratch.setdefault("totals", (0, 0.0))
    run.scratch["totals"] = (step, total or before[1])
    steps = step - before[0]
    tokens = (total or 0.0) - before[1]
    if steps > 0 and tokens > 0:
        return tokens / steps
    return None


def numbers(entry: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the numbers in a JSON object; None for other values."""
    return {name: number(as_text(entry, name)) for name in entry}


def as_text(record: Mapping[str, Any], name: str) -> str:
    """Return a number in a JSON object as text."""
    value = record.get(name)
    if isinstance(value, bool | dict | list) or value is None:
        return ""
    return str(value)
