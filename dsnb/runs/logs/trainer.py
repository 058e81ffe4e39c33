"""Readers of what transformers' Trainer and its examples print, and of the `trainer_state.json` that it keeps."""

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

from dsnb.errors import LogError
from dsnb.runs.logs.launchers import FLAGS
from dsnb.runs.logs.logged_run import DERIVED, LOGGED, LoggedRun, reads, requested
from dsnb.runs.logs.text import NUMBER, count, number, positive

_PAIR = re.compile(r"'(\w{1,60})': {0,20}'?" + NUMBER)
_RUNTIME = re.compile(
    r"(?:^|\s)train_runtime += +(?:(\d{1,4}) days?, )?(?:(\d{1,3}):(\d\d):)?(\d{1,9}\.\d{1,9}|\d\d)\s"
)
SETTINGS = {
    "instantaneous": "micro_batch_size",
    "total train": "global_batch_size",
    "gradient": "grad_accum",
    "total optimization": "steps",
}
_ARGUMENT = re.compile(r"(?:^|[\s,])(\w{1,60})=([^\s,()]{1,60}),")
ARGUMENTS = {
    name: FLAGS[name]
    for name in (
        "per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "seed",
        "gradient_checkpointing", "fp16", "bf16",
    )
}  # fmt: skip
MEMORY = ("init_mem_gpu_alloc_delta", "train_mem_gpu_alloc_delta", "train_mem_gpu_peaked_delta")
"""Bytes before and in the training; their sum is the peak."""
MAX_STATE_BYTES = 256 * 2**20
"""JSON is read into memory as a whole; a file of this size would hold more than a million entries."""


@reads("TrainingArguments(", *(f"{name}=" for name in ARGUMENTS))
def arguments(run: LoggedRun, match: re.Match[str]) -> None:
    """Read `TrainingArguments(..., per_device_train_batch_size=4, ...)`, in one line or with one line per argument."""
    _, begin, line = match.string.rpartition("TrainingArguments(")
    if begin:
        run.scratch["trainer_arguments"] = True
    elif not run.scratch.get("trainer_arguments") or line[:1].isspace():
        return
    for name, value in _ARGUMENT.findall(line):
        if name in ARGUMENTS:
            setting, parse = ARGUMENTS[name]
            run.set_used(**{setting: parse(value)})


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
        run.notes.append(f"resumed from step {step}: the final rates as logged include the steps before it")


@reads("/it]", "it/s]", pattern=r"^\s{0,9}\d{1,3}%\|[^|]{0,500}\| *(\d{1,9})/(\d{1,9}) \[")
def bar(run: LoggedRun, match: re.Match[str]) -> None:
    """Read the step from `  2%|2  | 10/500 [00:12<09:50,  1.20s/it]`; bars of another length are of something else."""
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
    line = match.string
    values = {name: number(value) for name, value in _PAIR.findall(line) if name.startswith(("train_", "init_"))}
    if "'train_steps_per_second'" not in line:  # before version 4.6, samples_per_second held the steps per second
        values.pop("train_samples_per_second", None)
    if not values and (clock := _RUNTIME.search(line)):
        days, hours, minutes, seconds = (float(part or 0) for part in clock.groups())
        values = {"train_runtime": timedelta(days, seconds, 0, 0, minutes, hours).total_seconds()}
    take(run, values)


@reads(
    "train_samples_per_second  ",
    "train_samples_per_second = ",
    "train_steps_per_second ",
    "train_loss ",
    "mem_gpu",
    pattern=rf"(?:^|\s)(train_\w{{1,40}}|init_mem_gpu_alloc_delta) += +{NUMBER}(MB)?(?!\w)",
)
def metric(run: LoggedRun, match: re.Match[str]) -> None:
    """`  train_samples_per_second =    187.862`, in the block `***** train metrics *****`; as in `final`."""
    name, value = match[1], number(match[2])
    if name == "train_samples_per_second":
        run.scratch["rate"] = value
        return
    if name == "train_steps_per_second":
        take(run, {"train_samples_per_second": run.scratch.pop("rate", None)})
    take(run, {name: value * 2**20 if match[3] and value is not None else value})


def take(run: LoggedRun, values: dict[str, float | None]) -> None:
    """Record the Trainer's final figures, given under the Trainer's names."""
    runtime_s = values.get("train_runtime")
    if runtime_s is not None and runtime_s > 0:
        if runtime_s < run.figures.get("train_runtime_s", 0):
            return
        _trainer(run)
        run.ended = True
        run.record(train_runtime_s=runtime_s)
    rates = {f"{what}_per_s": values.get(f"train_{what}_per_second") for what in ("samples", "steps", "tokens")}
    positive_rates = {name: rate for name, rate in rates.items() if rate and rate > 0}
    run.record(LOGGED, **positive_rates, loss_mean=values.get("train_loss"))
    memory = run.scratch.setdefault("memory", {})
    memory.update({name: values[name] for name in MEMORY if values.get(name) is not None})
    if len(memory) == len(MEMORY) and sum(memory.values()) > 0:
        run.record(DERIVED, peak_allocated_gib=sum(memory.values()) / 2**30)


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
                take(run, {name: number(_text(entry, name)) for name in entry})
    tokens, runtime_s = positive(_text(state, "num_input_tokens_seen")), run.figures.get("train_runtime_s")
    if tokens and runtime_s:  # the tokens of all ranks
        run.record(DERIVED, tokens_per_s=tokens / runtime_s)
    return [run]


def _text(record: dict[str, Any], name: str) -> str:
    """Return a number in a JSON object as text."""
    value = record.get(name)
    return "" if isinstance(value, bool | dict | list) or value is None else str(value)
