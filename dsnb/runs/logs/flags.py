"""Settings from command lines in a log: flags of DeepSpeed-Chat, Megatron and the examples of transformers."""

import re
import shlex
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from dsnb.runs.logs.logged_run import LoggedRun
from dsnb.runs.logs.text import count, number

PRECISIONS = {
    "fp16": "fp16", "float16": "fp16", "half": "fp16", "bf16": "bf16", "bfloat16": "bf16", "fp32": "fp32",
    "float32": "fp32", "float": "fp32",
}  # fmt: skip
_WORD = re.compile(r"""'([^']*)'|"([^"]*)"|([^\s,\[\]]+)""")


def stage(text: str) -> int | None:
    """Parse a ZeRO stage."""
    return int(text) if text.strip() in {"0", "1", "2", "3"} else None


def precision(text: str) -> str | None:
    """Parse a precision, as torch or a flag names it."""
    return PRECISIONS.get(text.strip().removeprefix("torch."))


def model(text: str) -> str | None:
    """Parse a model name: the last part of a path or hub id; for a `config.json`, the name of its folder."""
    parts = [part for part in text.strip().removesuffix("/config.json").split("/") if part]
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", parts[-1]).strip(".-")[:80] if parts else ""
    return None if name in {"", "None", "model"} else name


def number_from_0(text: str) -> float | None:
    """Parse a number of at least 0."""
    value = number(text)
    return value if value is not None and value >= 0 else None


def count_from_0(text: str) -> int | None:
    """Parse a whole number of at least 0."""
    return 0 if text.strip() == "0" else count(text)


def stages(text: str) -> int | None:
    """Parse the number of pipeline stages; old versions print 0 for no pipeline."""
    return 1 if text.strip() == "0" else count(text)


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
    "model_parallel_size": ("tensor_parallel", count),
    "pipeline_model_parallel_size": ("pipeline_parallel", count),
    "pipe_parallel_size": ("pipeline_parallel", stages),
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
LONGEST_TRACE = 16 * 1024
"""Characters; longer lines are split at spaces, not by shell rules, which is much slower."""
_TRACE = re.compile(r"\++ (?!echo |printf |: )")
_CONTINUED = re.compile(r"\s+--\w")
CHAT = re.compile(r"step\d_\w{1,60}/main\.py|DeepSpeed-Chat")


def command(run: LoggedRun, line: str) -> None:
    """Read settings from `... script.py --flag value ...`: plain words, a Python list, or a trace of `set -x`.

    Only the flags listed here are kept: others may hold confidential values. A command line that follows the printed
    settings belongs to another program, such as an evaluation.
    """
    if run.configured:
        return
    if _is_continuation(run, line):
        _settings(run, [word.strip("'\"\\") for word in _words(line)])
        return
    is_command = "cmd = " in line or "with command: " in line or _TRACE.match(line)
    if not _SCRIPT.search(line) or (not is_command and _COMPLAINT.search(line)):
        return
    words = _words(line)
    script = next((place for place, word in enumerate(words) if word.endswith(".py")), len(words))
    _settings(run, words[script:])
    if CHAT.search(line):
        run.scratch["chat"] = True
        # its flags are switches: absent means off
        off = {"activation_checkpointing": False, "lora_rank": 0, "offload": "none"}
        run.set_requested(**{name: value for name, value in off.items() if name not in run.settings})


def _is_continuation(run: LoggedRun, line: str) -> bool:
    """Return whether a line continues a command that is split over several lines with backslashes."""
    before = run.scratch.get("continued", False)
    is_part = _CONTINUED.match(line) is not None
    run.scratch["continued"] = line.rstrip().endswith("\\")
    return is_part and (before or run.scratch["continued"])


def _words(line: str) -> list[str]:
    """Split a command into words, including the words of a nested command such as `bash -c '...'`."""
    words = _split_trace(line) if _TRACE.match(line) else None
    if words is None:
        words = [a or b or c for a, b, c in _WORD.findall(line)]
    return words if line.endswith("\n") else words[:-1]  # the last word may be cut off


def _split_trace(line: str) -> list[str] | None:
    """Split a line of `set -x`, which the shell has quoted; None if a quotation continues on the next line."""
    if len(line) > LONGEST_TRACE:
        return None
    try:
        words = shlex.split(line)
    except ValueError:
        return None
    return [part for word in words for part in (word.split() if _SCRIPT.search(word) else [word])]


def _settings(run: LoggedRun, words: list[str]) -> None:
    for flag, value in _pairs(words):
        if flag in VALUES and value:
            setting, read = VALUES[flag]
            run.set_requested(**{setting: read(value)})
        elif flag in SWITCHES and value.lower() != "false":
            setting, on = SWITCHES[flag]
            run.set_requested(**{setting: on})
        elif flag == "config_overrides" and "gradient_checkpointing=true" in value.lower().split(","):
            run.set_requested(activation_checkpointing=True)


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    """Yield every flag with its value, which is empty for a switch; `--flag=value` is split as well."""
    for word, after in pairwise([*words, ""]):
        if word.startswith("--"):
            flag, equals, value = word[2:].partition("=")
            yield flag.replace("-", "_"), value if equals else "" if after.startswith("--") else after


READERS = {" --": command, "'--": command}
