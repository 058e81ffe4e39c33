"""Readers of what the examples of transformers print before training: the Trainer's arguments, the sequence length."""

import re
from collections.abc import Callable
from typing import Any

from dsnb.runs.logs.flags import count_from_0, number_from_0
from dsnb.runs.logs.logged_run import LoggedRun
from dsnb.runs.logs.text import count

_ARGUMENTS = re.compile(r"TrainingArguments\((.*)", re.DOTALL)
_ARGUMENT = re.compile(r"(?:^|[\s,])(\w{1,60})=([^\s,()]{1,60}),")
_CHUNKS = re.compile(r"Grouping texts in chunks of (\d{1,9})\b")
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


def chunks(run: LoggedRun, line: str) -> None:
    """Read the sequence length from `Grouping texts in chunks of 1024: 100%|...`, of the language-modeling examples."""
    if found := _CHUNKS.search(line):
        run.set_requested(seq_len=count(found[1]))


READERS = {"TrainingArguments(": arguments, "Grouping texts in chunks of ": chunks}
READERS |= {f"{name}=": arguments for name in ARGUMENTS}
