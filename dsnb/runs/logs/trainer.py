"""Readers of what transformers' Trainer and its examples print: arguments, settings, losses and final figures."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from dsnb.runs.logs.flags import count_from_0, number_from_0
from dsnb.runs.logs.logged_run import DERIVED, LOGGED, LoggedRun, requested
from dsnb.runs.logs.text import NUMBER, count, number

_PAIR = re.compile(r"'(\w{1,60})': {0,20}'?" + NUMBER)
_BAR = re.compile(r"^\s{0,9}\d{1,3}%\|[^|]{0,500}\| *(\d{1,9})/(\d{1,9}) \[")
_SETTING = re.compile(
    r"(Instantaneous batch size per (?:device|GPU)|Total train batch size[^=]{0,80}|Gradient Accumulation steps"
    r"|Total optimization steps|Number of trainable parameters) = " + NUMBER,
    re.I,
)
_METRIC = re.compile(r"(?:^|\s)(train_\w{1,40}|init_mem_gpu_alloc_delta) += +" + NUMBER + r"(MB)?(?!\w)")
_RUNTIME = re.compile(r"(?:^|\s)train_runtime += +(?:(\d{1,4}) days?, )?(\d{1,3}):(\d\d):(\d\d(?:\.\d{1,6})?)\s")
_RESUMED = re.compile(r"Continuing training from global step " + NUMBER)
_SECONDS = re.compile(r"(?:^|\s)train_runtime += +(\d{1,9}\.\d{1,9})\s")
BYTES_PER_GIB = 2**30
SETTINGS = {
    "instantaneous": "micro_batch_size",
    "total train": "global_batch_size",
    "gradient": "grad_accum",
    "total optimization": "steps",
}
_ARGUMENTS = re.compile(r"TrainingArguments\((.*)", re.DOTALL)
_ARGUMENT = re.compile(r"(?:^|[\s,])(\w{1,60})=([^\s,()]{1,60}),")
ARGUMENTS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "per_device_train_batch_size": ("micro_batch_size", count),
    "gradient_accumulation_steps": ("grad_accum", count),
    "learning_rate": ("learning_rate", number_from_0),
    "seed": ("seed", count_from_0),
    "gradient_checkpointing": ("activation_checkpointing", {"True": True, "False": False}.get),
    "fp16": ("precision", {"True": "fp16"}.get),
    "bf16": ("precision", {"True": "bf16"}.get),
}


def arguments(run: LoggedRun, line: str) -> None:
    """Read `TrainingArguments(..., per_device_train_batch_size=4, ...)`, in one line or with one line per argument."""
    found = _ARGUMENTS.search(line)
    if found:
        run.scratch["trainer_arguments"] = True
    elif not run.scratch.get("trainer_arguments") or line[:1].isspace():
        return
    for name, value in _ARGUMENT.findall(found[1] if found else line):
        if name in ARGUMENTS:
            setting, read = ARGUMENTS[name]
            run.set_used(**{setting: read(value)})


def settings(run: LoggedRun, line: str) -> None:
    """`  Total train batch size (w. parallel, distributed & accumulation) = 64`."""
    if not (found := _SETTING.search(line)):
        return
    _trainer(run)
    words, value = found[1].lower(), count(found[2])
    if words.startswith("number of trainable"):
        run.record(trainable_parameters=value)
        return
    run.set_used(**{name: value for key, name in SETTINGS.items() if words.startswith(key)})


def _trainer(run: LoggedRun) -> None:
    run.program = "transformers Trainer"
    run.configured = True


def resumed(run: LoggedRun, line: str) -> None:
    """`  Continuing training from global step 90`: the Trainer's final rates include the steps before that."""
    if (found := _RESUMED.search(line)) and (step := count(found[1])) and "resumed" not in run.scratch:
        run.scratch["resumed"] = step
        run.notes.append(f"resumed from step {step}: the final rates as logged include the steps before it")


def bar(run: LoggedRun, line: str) -> None:
    """Read the optimizer step from a progress bar, `  2%|2  | 10/500 [00:12<09:50,  1.20s/it]`.

    Bars with a title or another length belong to something else, such as loading shards or an evaluation.
    """
    if not (found := _BAR.search(line)):
        return
    if int(found[2]) == (run.settings.get("steps") or run.scratch.setdefault("bar_of", int(found[2]))):
        run.scratch["bar"] = int(found[1])


def loss(run: LoggedRun, line: str) -> None:
    """`{'loss': 2.1, 'grad_norm': 1.3, 'learning_rate': 5e-05, 'epoch': 0.1}`: the mean since the previous line."""
    values = dict(_PAIR.findall(line[line.index("'loss': ") :]))
    value = number(values.get("loss"))
    _trainer(run)
    run.scratch["loss_is_nan"] = value is None and "nan" in (values.get("loss") or "").lower()
    if value is None:
        return
    if "loss_first" not in run.figures:
        run.record(loss_first=value)
    run.record(loss_last=value)
    if (step := run.scratch.pop("bar", None)) is not None:
        run.steps.add(step, loss=value)


def final(run: LoggedRun, line: str) -> None:
    """`{'train_runtime': 273.0, 'train_samples_per_second': 3.663, 'train_steps_per_second': 0.007, ...}`.

    Every rank may print such a line; the slowest rank counts.
    """
    values = {name: number(value) for name, value in _PAIR.findall(line) if name.startswith(("train_", "init_"))}
    if not line.endswith("\n") and "}" not in line:
        values.pop("train_samples_per_second", None)  # its meaning depends on the field that would follow
    if (
        {"train_runtime", "train_samples_per_second"} <= set(values)
        and "'train_steps_per_second'" not in line
        and "}" in line
    ):
        # before version 4.6, this field held the steps per second
        values["train_steps_per_second"] = values.pop("train_samples_per_second")
        run.notes.append("train_samples_per_second without train_steps_per_second: taken as steps per second")
    if not values and (clock := _RUNTIME.search(line)):
        days, hours, minutes, seconds = clock.groups()
        span = timedelta(days=int(days or 0), hours=int(hours), minutes=int(minutes), seconds=float(seconds))
        values = {"train_runtime": span.total_seconds()}
    elif not values and (seconds_only := _SECONDS.search(line)):
        values = {"train_runtime": number(seconds_only[1])}
    take(run, values)


def metric(run: LoggedRun, line: str) -> None:
    """`  train_samples_per_second =    187.862`, in the block `***** train metrics *****`.

    It counts only if steps per second follow: before version 4.6, this field held the steps per second.
    """
    if found := _METRIC.search(line):
        value = number(found[2])
        if found[1] == "train_samples_per_second":
            run.scratch["rate"] = value
            return
        if found[1] == "train_steps_per_second":
            take(run, {"train_samples_per_second": run.scratch.pop("rate", None)})
        take(run, {found[1]: value * 2**20 if found[3] and value is not None else value})


def take(run: LoggedRun, values: dict[str, float | None], origin: str = LOGGED) -> None:
    """Record the Trainer's final figures, given under the Trainer's names."""
    runtime = values.get("train_runtime")
    if runtime is not None and runtime > 0:
        if runtime < run.figures.get("train_runtime_s", 0):
            return
        _trainer(run)
        run.ended = True
        run.record(origin, train_runtime_s=runtime)
    rate, steps = (values.get(f"train_{name}_per_second") for name in ("samples", "steps"))
    run.record(
        origin,
        samples_per_s=rate if rate and rate > 0 else None,
        steps_per_s=steps if steps and steps > 0 else None,
        loss_mean=values.get("train_loss"),
    )
    if (tokens := values.get("train_tokens_per_second")) and tokens > 0:
        run.record(origin, tokens_per_s=tokens)
    memory = run.scratch.setdefault("memory", {})
    names = ("init_mem_gpu_alloc_delta", "train_mem_gpu_alloc_delta", "train_mem_gpu_peaked_delta")
    memory.update({name: value for name in names if (value := values.get(name)) is not None})
    if len(memory) == len(names) and sum(memory.values()) > 0:
        run.record(DERIVED, peak_allocated_gib=sum(memory.values()) / BYTES_PER_GIB)


READERS = {
    "TrainingArguments(": arguments,
    **{f"{name}=": arguments for name in ARGUMENTS},
    "Grouping texts in chunks of ": requested(r"Grouping texts in chunks of (\d{1,9})\b", seq_len=count),
    "batch size per ": settings,
    "train batch size": settings,
    "ccumulation steps = ": settings,
    "optimization steps = ": settings,
    "trainable parameters = ": settings,
    "Continuing training from global step ": resumed,
    "/it]": bar,
    "it/s]": bar,
    "'loss': ": loss,
    "train_runtime": final,
    "'train_s": final,
    "train_samples_per_second  ": metric,
    "train_samples_per_second = ": metric,
    "train_steps_per_second ": metric,
    "train_loss ": metric,
    "mem_gpu": metric,
}
