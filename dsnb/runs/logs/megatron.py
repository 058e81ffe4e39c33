"""Readers of what Megatron-LM, Megatron-DeepSpeed, GPT-NeoX and their forks print before training: arguments, sizes."""

import re
from collections.abc import Callable
from typing import Any

from dsnb.runs.logs.flags import count_from_0, number_from_0, precision, stage, stages
from dsnb.runs.logs.logged_run import LoggedRun
from dsnb.runs.logs.text import count

_ARGUMENT = re.compile(r"(?:^|[\s:])([A-Za-z_]\w{1,60}) \.{3,} (.*\n)")
_NEOX = re.compile(r"\.*(?:updated|default)$")
"""GPT-NeoX appends to each value whether it is the default: `4...........updated`."""
_WORLD = re.compile(r"using world size: (\d{1,7})\D")
_PARALLEL = re.compile(r"(?<!encoder-)(data|tensor-model|pipeline-model)-parallel[ -]size: (\d{1,6})(?!\d|\Z)")
_MODEL_PARALLEL = re.compile(r"and model-parallel size: (\d{1,6})\D")
_RANK = re.compile(r"number of parameters on (?:\([\w, ]+\) )?model parallel rank \(?([\d, ]{1,30})\)?: (\d{1,15})\D")
_VOCABULARY = re.compile(r"padded vocab .{0,100}\(new size: (\d{1,9})\)")

ARGUMENTS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "micro_batch_size": ("micro_batch_size", count),
    "batch_size": ("micro_batch_size", count),  # the old name, before global_batch_size existed
    "global_batch_size": ("global_batch_size", count),
    "seq_length": ("seq_len", count),
    "tensor_model_parallel_size": ("tensor_parallel", count),
    "pipeline_model_parallel_size": ("pipeline_parallel", count),
    "model_parallel_size": ("tensor_parallel", count),
    "pipe_parallel_size": ("pipeline_parallel", stages),
    "data_parallel_size": ("data_parallel", count),
    "world_size": ("gpus", count),
    "global_num_gpus": ("gpus", count),
    "gas": ("grad_accum", count),  # the old name, before global_batch_size existed
    "train_iters": ("steps", count),
    "precision": ("precision", precision),
    "params_dtype": ("precision", precision),
    "zero_stage": ("zero_stage", stage),
    "lr": ("learning_rate", number_from_0),
    "clip_grad": ("gradient_clipping", number_from_0),
    "seed": ("seed", count_from_0),
    "hidden_dropout": ("dropout", number_from_0),
    "optimizer": ("optimizer", str),
}
SHAPE = {"num_layers": "layers", "hidden_size": "hidden", "padded_vocab_size": "vocab"}
PARALLEL = {name for name, (setting, _) in ARGUMENTS.items() if setting in {"tensor_parallel", "pipeline_parallel"}}
"""Arguments that are read even outside the argument list."""
CHECKPOINTING = ("checkpoint_activations", "recompute_granularity", "recompute_activations")


def arguments(run: LoggedRun, line: str) -> None:
    """`------------ arguments ------------`: starts Megatron's list of arguments; `end of arguments` ends it."""
    if "end of" in line:
        run.scratch["arguments"] = False
        if not run.scratch.get("checkpoints"):
            run.set_used(activation_checkpointing=False)
    else:
        run.scratch["arguments"] = True
        set_megatron(run)


def argument(run: LoggedRun, line: str) -> None:
    """`  micro_batch_size ................................ 4`."""
    found = _ARGUMENT.search(line)
    if not found or not (run.scratch.get("arguments") or found[1] in PARALLEL):
        return
    name, value = found[1], _NEOX.sub("", found[2].strip())
    if name in ARGUMENTS and value != "None":
        setting, read = ARGUMENTS[name]
        run.set_used(**{setting: read(value[:60])})
    elif name == "num_experts" and (numbers := re.findall(r"\d+", value[:60])):
        run.scratch["experts"] = max(map(int, numbers)) > 1
    elif name in SHAPE and (size := count(value)):
        run.shape[SHAPE[name]] = size
    elif name in CHECKPOINTING and value in {"True", "full", "selective"}:
        run.scratch["checkpoints"] = True
        run.set_used(activation_checkpointing=value != "selective")
    elif name == "deepspeed" and value == "True":
        run.program = "Megatron-DeepSpeed"
        run.set_used(strategy="megatron-deepspeed")


def set_megatron(run: LoggedRun) -> None:
    """Record that a program of the Megatron family wrote the log."""
    if "Megatron" not in run.program:
        deepspeed = "deepspeed" in run.environment
        run.program = "Megatron-DeepSpeed" if deepspeed else "Megatron-LM"
        run.set_used(strategy=run.program.lower() if deepspeed else "megatron")


def world(run: LoggedRun, line: str) -> None:
    """Read `using world size: 64, data-parallel-size: 1, tensor-model-parallel size: 4, ...`."""
    if not line.endswith("\n"):
        return  # in a line that is cut off, a missing size would count as 1
    if found := _WORLD.search(line):
        set_megatron(run)
        run.set_used(gpus=count(found[1]))
    if found := _MODEL_PARALLEL.search(line):  # old format, before pipelines and micro-batches
        run.set_used(tensor_parallel=count(found[1]), pipeline_parallel=1, grad_accum=1)
    names = {"data": "data_parallel", "tensor-model": "tensor_parallel", "pipeline-model": "pipeline_parallel"}
    for kind, size in _PARALLEL.findall(line):
        run.set_used(**{names[kind]: count(size)})


def parameters(run: LoggedRun, line: str) -> None:
    """Read the parameters of one model-parallel rank; the model has the sum over these ranks."""
    if found := _RANK.search(line):
        ranks = run.scratch.setdefault("parameters", {})
        if len(ranks) < 100_000:
            ranks[found[1].replace(" ", "")] = int(found[2])


def vocabulary(run: LoggedRun, line: str) -> None:
    """`> padded vocab (size: 50257) with 431 dummy tokens (new size: 50688)`."""
    if found := _VOCABULARY.search(line):
        run.shape["vocab"] = int(found[1])


READERS = {
    " arguments -": arguments,
    "end of arguments": arguments,
    " ...": argument,
    "using world size: ": world,
    "number of parameters on": parameters,
    "padded vocab": vocabulary,
}
