"""Readers of command lines with settings, and of launchers, which print hosts and ranks."""

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from dsnb.results.logs.reading import LoggedRun, reads, used
from dsnb.results.logs.text import count, count_from_0, number_from_0

PRECISIONS = {
    "fp16": "fp16", "float16": "fp16", "half": "fp16", "bf16": "bf16", "bfloat16": "bf16", "fp32": "fp32",
    "float32": "fp32", "float": "fp32",
}  # fmt: skip


def stage(text: str) -> int | None:
    """Parse a ZeRO stage."""
    return int(text) if text.strip() in {"0", "1", "2", "3"} else None


def all_weights(text: str) -> int | None:
    """Parse what is trained: without adapters, their rank is 0."""
    return 0 if text.strip() == "full" else None


def builtin(text: str) -> int | None:
    """Parse the name of a configuration that ms-swift contains, such as `zero3` or `zero2_offload`."""
    match = re.fullmatch(r"zero([0-3])(?:_offload)?", text.strip())
    return int(match[1]) if match else None


def precision(text: str) -> str | None:
    """Parse a precision, as torch or a flag names it."""
    return PRECISIONS.get(text.strip().removeprefix("torch."))


def model(text: str) -> str | None:
    """Parse a model name: the last part of a path or hub id; for a `config.json`, the name of its folder."""
    parts = [part for part in text.strip().removesuffix("/config.json").split("/") if part]
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", parts[-1]).strip(".-")[:80] if parts else ""
    return None if name in {"", "None", "model"} else name


def stages(text: str) -> int | None:
    """Parse the number of pipeline stages; old versions print 0 for no pipeline."""
    return 1 if text.strip() == "0" else count(text)


def switch(on: Any, off: Any = None) -> Callable[[str], Any]:
    """Return the parser of a flag that needs no value."""
    return lambda text: off if text.lower() == "false" else on


FLAGS: dict[str, tuple[str, Callable[[str], Any]]] = {
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
    "gradient_checkpointing": ("activation_checkpointing", switch(True, False)),
    "checkpoint_activations": ("activation_checkpointing", switch(True)),
    "fp16": ("precision", switch("fp16")),
    "bf16": ("precision", switch("bf16")),
    "disable_dropout": ("dropout", switch(0.0)),
    "offload": ("offload", switch("all-cpu")),
    # ms-swift and LLaMA-Factory
    "train_type": ("lora_rank", all_weights),
    "tuner_type": ("lora_rank", all_weights),
    "finetuning_type": ("lora_rank", all_weights),
    "model": ("model", model),
    "deepspeed": ("zero_stage", builtin),
    "max_length": ("seq_len", count),
    "cutoff_len": ("seq_len", count),
    "torch_dtype": ("precision", precision),
    "lora_rank": ("lora_rank", count_from_0),
}
_COMPLAINT = re.compile(r"\.py:\d|\.py[:'\s]{1,3}error|[Ww]arning|error:|usage:")
_TRACE = re.compile(r"\++ (?!echo |printf |: )")
SPLITS = {
    "context_parallel_size": "context",
    "sequence_parallel_size": "sequence",
    "ds_sequence_parallel_size": "sequence",
}
"""Flags and arguments of how many ranks share a sequence."""
COMMANDS = ("cmd = ", "with command: ", "run sh: ")
"""What launchers print before a command line."""
PAIRED = re.compile(
    r"(?i)(?:^|[/_-])(?:dpo|step2_reward|reward_model(?:l?ing|l?ing_finetuning)?)(?:[/_.-]|$)"
)
"""Scripts whose samples are pairs of a better and a worse sequence."""
CHAT = re.compile(r"step\d_\w{1,60}/main\.py|DeepSpeed-Chat")
CHAT_OFF = {"activation_checkpointing": False, "lora_rank": 0, "offload": "none"}
"""DeepSpeed-Chat's flags are switches: absent means off."""


@reads(" --", "'--")
def command(run: LoggedRun, match: re.Match[str]) -> None:
    """Read settings from `... script.py --flag value ...`: plain words, a Python list, or a trace of `set -x`.

    Only the flags listed here are kept: others may hold confidential values. A command line that follows the printed
    settings belongs to another program, such as an evaluation.
    """
    if run.configured:
        return
    line = match.string
    words = re.split(r"[\s,\[\]'\"`\\]+", line)[:-1]  # the last word may be cut off
    script = next((place for place, word in enumerate(words) if word.endswith(".py")), None)
    is_command = any(said in line for said in COMMANDS) or _TRACE.match(line)
    if script is None or (not is_command and _COMPLAINT.search(line)):
        return
    run.launched = run.launched or bool(is_command)
    _settings(run, words[script:])
    if (
        "--critic_model_name_or_path" in line
    ):  # a second engine, whose rate is no more that of whole steps
        run.scratch["parts"] = True
    if PAIRED.search(words[script]):
        run.scratch["pairs"] = True
    if CHAT.search(line):
        run.scratch["chat"] = True
        run.set_requested(
            **{name: value for name, value in CHAT_OFF.items() if name not in run.settings}
        )


def _settings(run: LoggedRun, words: list[str]) -> None:
    for word, after in pairwise([*words, ""]):
        flag, equals, value = word.removeprefix("--").partition("=")
        flag = flag.replace("-", "_") if word.startswith("--") else ""
        if not equals:
            value = "" if after.startswith("--") else after
        if flag in FLAGS:
            setting, parse = FLAGS[flag]
            run.set_requested(**{setting: parse(value)})
        elif flag in SPLITS and (ranks := count(value)):
            run.splits[SPLITS[flag]] = ranks


@reads("WORLD INFO DICT:")
def world(run: LoggedRun, match: re.Match[str]) -> None:
    """`WORLD INFO DICT: {'host': [0, 1], ...}`."""
    run.launched = True
    for host, ranks in re.findall(r"'([\w.-]{1,250})': \[([\d, ]{0,20000})\]", match.string):
        run.slots[host] = ranks.count(",") + 1 if ranks.strip() else 0


# `host slots=8`, as in DeepSpeed's hostfile.
reads(" slots=", pattern=r"^([A-Za-z0-9][\w.-]{0,250}) slots=(\d{1,4})\s*$")(
    lambda run, match: run.slots.update({match[1]: int(match[2])})
)


@reads("Setting OMP_NUM_THREADS environment variable")
def launcher(run: LoggedRun, _match: re.Match[str]) -> None:
    """Count the warnings of torch's launcher, one on every node."""
    run.launched = True
    run.scratch["launchers"] = run.scratch.get("launchers", 0) + 1


reads(
    "local_world_size: ",
    pattern=r"rank: \d{1,6}, local_rank: \d{1,6}, world_size: (\d{1,6}), local_world_size: \d",
)(used(gpus=count))
reads("Num processes: ", pattern=r"^Num processes: (\d{1,7})\s*\n")(
    used(gpus=count)
)  # accelerate's
reads("nnodes=", pattern=r"nnodes=(\d{1,6}), num_local_procs=\d{1,4}")(used(nodes=count))
reads("dist_world_size=", pattern=r"dist_world_size=(\d{1,7})\D")(used(gpus=count))
