"""Settings from a command line that a log shows: flags of DeepSpeed-Chat, Megatron and transformers' examples."""

import re
from collections.abc import Callable, Iterator
from typing import Any

from dsnb import models
from dsnb.logs.start import Start
from dsnb.logs.text import count, number

PRECISIONS = {
    "fp16": "fp16", "float16": "fp16", "half": "fp16", "bf16": "bf16", "bfloat16": "bf16", "fp32": "fp32",
    "float32": "fp32", "float": "fp32",
}  # fmt: skip
_WORD = re.compile(r"""'([^']*)'|"([^"]*)"|([^\s,\[\]]+)""")


def stage(text: str) -> int | None:
    """Read a ZeRO stage."""
    return int(text) if text.strip() in {"0", "1", "2", "3"} else None


def precision(text: str) -> str | None:
    """Read a number format, as torch or a flag names it."""
    return PRECISIONS.get(text.strip().removeprefix("torch."))


def model(text: str) -> str | None:
    """Read a model's name: as dsnb calls it where it is one that dsnb knows, the last part of a path else."""
    name = models.slug(text.strip().rstrip("/"))
    return None if name in {"None", "model"} else name


def number_from_0(text: str) -> float | None:
    """Read a number that may be 0 but not less."""
    value = number(text)
    return value if value is not None and value >= 0 else None


def count_from_0(text: str) -> int | None:
    """Read a whole number that may be 0."""
    return 0 if text.strip() == "0" else count(text)


VALUES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "model_name_or_path": ("model", model),
    "actor_model_name_or_path": ("model", model),
    "per_device_train_batch_size": ("micro_batch_size", count),
    "per_device_training_batch_size": ("micro_batch_size", count),
    "actor_zero_stage": ("zero_stage", stage),
    "micro_batch_size": ("micro_batch_size", count),
    "gradient_accumulation_steps": ("grad_accum", count),
    "global_batch_size": ("global_batch_size", count),
    "max_seq_len": ("seq_len", count),
    "max_seq_length": ("seq_len", count),
    "block_size": ("seq_len", count),
    "seq_length": ("seq_len", count),
    "zero_stage": ("zero_stage", stage),
    "dtype": ("precision", precision),
    "learning_rate": ("learning_rate", number_from_0),
    "lr": ("learning_rate", number_from_0),
    "seed": ("seed", count_from_0),
    "max_steps": ("steps", count),
    "train_iters": ("steps", count),
    "num_warmup_steps": ("warmup_steps", count_from_0),
    "lora_dim": ("lora_rank", count_from_0),
    "tensor_model_parallel_size": ("tensor_parallel", count),
    "pipeline_model_parallel_size": ("pipeline_parallel", count),
}
SWITCHES: dict[str, tuple[str, Any]] = {
    "gradient_checkpointing": ("activation_checkpointing", True),
    "checkpoint_activations": ("activation_checkpointing", True),
    "fp16": ("precision", "fp16"),
    "bf16": ("precision", "bf16"),
    "disable_dropout": ("dropout", 0.0),
    "offload": ("offload", "all-cpu"),
}
_SCRIPT = re.compile(r"\.py[',\s]")
_COMPLAINT = re.compile(r"\.py:\d|\.py[:'\s]{1,3}error|[Ww]arning|error:|usage:")
CHAT = re.compile(r"step\d_\w{1,60}/main\.py|DeepSpeed-Chat")


def command(start: Start, line: str) -> None:
    """Take the settings of `... script.py --flag value ...`, written as words or as Python's list of them.

    Only the flags named here are kept: the others may hold what is nobody's business.
    """
    is_command = "cmd = " in line or "with command: " in line
    if not _SCRIPT.search(line) or (not is_command and _COMPLAINT.search(line)):
        return
    words = [a or b or c for a, b, c in _WORD.findall(line)]
    if not line.endswith("\n"):
        words = words[:-1]  # it may have lost its end
    script = next((place for place, word in enumerate(words) if word.endswith(".py")), len(words))
    for flag, value in _pairs(words[script:]):
        if flag in VALUES and value:
            setting, read = VALUES[flag]
            start.say(**{setting: read(value)})
        elif flag in SWITCHES and value.lower() != "false":
            setting, on = SWITCHES[flag]
            start.say(**{setting: on})
    if CHAT.search(line):
        start.scratch["chat"] = True
        # its flags are switches: what is not asked for is off
        start.say(activation_checkpointing=False, lora_rank=0, offload="none")


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    """Give every flag with its value, empty for a switch; `--flag=value` is a flag with a value, too."""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("--"):
            flag, equals, value = word[2:].partition("=")
            yield flag.replace("-", "_"), value if equals else "" if after.startswith("--") else after


READERS = {" --": command, "'--": command}
