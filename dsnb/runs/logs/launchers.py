"""Readers of command lines with settings, and of launchers, which print hosts, ranks and failures."""

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from dsnb.runs.logs.logged_run import LoggedRun, failure, reads, used
from dsnb.runs.logs.text import count, count_from_0, number_from_0

PRECISIONS = {
    "fp16": "fp16", "float16": "fp16", "half": "fp16", "bf16": "bf16", "bfloat16": "bf16", "fp32": "fp32",
    "float32": "fp32", "float": "fp32",
}  # fmt: skip


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
}
_COMPLAINT = re.compile(r"\.py:\d|\.py[:'\s]{1,3}error|[Ww]arning|error:|usage:")
_TRACE = re.compile(r"\++ (?!echo |printf |: )")
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
    words = re.split(r"[\s,\[\]'\"\\]+", line)[:-1]  # the last word may be cut off
    script = next((place for place, word in enumerate(words) if word.endswith(".py")), None)
    is_command = "cmd = " in line or "with command: " in line or _TRACE.match(line)
    if script is None or (not is_command and _COMPLAINT.search(line)):
        return
    _settings(run, words[script:])
    if CHAT.search(line):
        run.scratch["chat"] = True
        run.set_requested(**{name: value for name, value in CHAT_OFF.items() if name not in run.settings})


def _settings(run: LoggedRun, words: list[str]) -> None:
    for word, after in pairwise([*words, ""]):
        flag, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and flag.replace("-", "_") in FLAGS:
            setting, parse = FLAGS[flag.replace("-", "_")]
            run.set_requested(**{setting: parse(value if equals else "" if after.startswith("--") else after)})


@reads("WORLD INFO DICT:")
def world(run: LoggedRun, match: re.Match[str]) -> None:
    """`WORLD INFO DICT: {'host': [0, 1], ...}`."""
    for host, ranks in re.findall(r"'([\w.-]{1,250})': \[([\d, ]{0,20000})\]", match.string):
        run.slots[host] = ranks.count(",") + 1 if ranks.strip() else 0


reads("Traceback (most recent call last)")(lambda run, _: run.scratch.update(traceback=True))


@reads("Error", "Exception", pattern=r"(?:^|[\s\]])((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception)(?:: .*|\s*$))")
def error(run: LoggedRun, match: re.Match[str]) -> None:
    """Read the last line of a traceback."""
    if run.scratch.get("traceback"):
        run.fail("failed", match[1])


@reads("CANCELLED AT ", pattern=r"\*\*\* (?:JOB|STEP) .{0,200}? (?:CANCELLED AT \S{1,40}|DUE TO [A-Z ]{1,40}[A-Z])")
def cancelled(run: LoggedRun, match: re.Match[str]) -> None:
    """Slurm's `*** JOB 123 ON node CANCELLED AT ... DUE TO PREEMPTION ***`, except for its time limit."""
    if "TIME LIMIT" not in match.string:
        run.fail("interrupted", f"Slurm ended it: {match[0].strip(' *')}")


# `host slots=8`, as in DeepSpeed's hostfile.
reads(" slots=", pattern=r"^([A-Za-z0-9][\w.-]{0,250}) slots=(\d{1,4})\s*$")(
    lambda run, match: run.slots.update({match[1]: int(match[2])})
)
# Torch's launcher warns about OMP_NUM_THREADS once per node.
reads("Setting OMP_NUM_THREADS environment variable")(
    lambda run, _: run.scratch.update(launchers=run.scratch.get("launchers", 0) + 1)
)
reads("exits with return code", pattern=r"exits with return code = (-?0*[1-9]\d{0,8})")(
    lambda run, match: run.fail("failed", f"a rank ended with exit code {int(match[1])}")
)
reads("nnodes=", pattern=r"nnodes=(\d{1,6}), num_local_procs=\d{1,4}")(used(nodes=count))
reads("dist_world_size=", pattern=r"dist_world_size=(\d{1,7})\D")(used(gpus=count))
reads(
    "out of memory",
    "OutOfMemoryError",
    "CUBLAS_STATUS_ALLOC_FAILED",
    pattern=r"(?:CUDA|HIP|GPU)(?: error:)? out of memory.*|CUBLAS_STATUS_ALLOC_FAILED.*"
    r"|\b[\w.]{0,100}OutOfMemoryError.*",
)(failure("oom"))
reads(
    "srun: error: ",
    "Segmentation fault",
    "Bus error",
    "received by PID",
    pattern=r"srun: error: .{0,200}|^(?:Segmentation fault|Bus error|Aborted)\b.{0,40}|Signal \d{1,2} \(\w+\) received",
)(failure("failed"))
reads("loss scale already at minimum", "DistBackendError", "bus error", pattern=r".{0,200}$")(failure("failed"))
reads("KeyboardInterrupt", pattern=r"KeyboardInterrupt\s*$")(failure("interrupted", "stopped by the user"))
for needle, status, cause in (
    ("Killing subprocess", "failed", "the launcher ended its ranks before the training reported a result"),
    (": Out Of Memory", "oom", "the host's memory was not enough"),
    ("DefaultCPUAllocator: can't allocate memory", "oom", "the host's memory was not enough"),
    ("oom_kill event", "oom", "Slurm ended it for using too much of the host's memory"),
    ("DUE TO TIME LIMIT", "timeout", "Slurm ended it at its time limit"),
    ("Watchdog caught collective", "failed", "a collective operation timed out (NCCL watchdog)"),
):
    reads(needle)(failure(status, cause))
