"""torch.compile: its modes, CUDA graphs, and what it did in this process."""

import sys
from typing import Any

import torch

from dsnb.settings.experiment import Experiment
from dsnb.settings.training import CUDA_GRAPHS, compiles_blocks
from dsnb.train.causal_loss import CausalLoss
from dsnb.train.model_parts import blocks, output_layer


def compile_options(experiment: Experiment) -> dict[str, Any]:
    """Return the arguments of torch.compile for the mode of the settings."""
    return {"mode": experiment.compile} if experiment.compile in CUDA_GRAPHS else {}


def compile_model(experiment: Experiment, model: CausalLoss) -> None:
    """Compile the model and its loss, if the settings ask for it, inside of whatever an engine hooks to it."""
    if experiment.compile == "off":
        return
    separate_caches(experiment)
    if compiles_blocks(experiment.model_dump()):
        # The blocks, and the output layer, whose odd width only a compiled product pads: GPT-2's vocabulary of 50,257
        # keeps an eager product off the fast kernels (108 ms of the 600 ms that a step of GPT-2 XL, 24 x 1024, took on
        # two H200). The forward method is compiled, not the module: hooks that gather weights or reduce gradients stay
        # outside of the graph. With FSDP's in it, blocks were slower than eager ones (OPT-350M, 24 x 512, on one H200:
        # 158 ms instead of 130).
        for module in [*blocks(model), *([] if model.chunked else [output_layer(model)])]:
            module.forward = torch.compile(module.forward)
        model.compile_loss()
    else:
        model.compile_inside(**compile_options(experiment))


def separate_caches(experiment: Experiment) -> None:
    """Keep what torch has compiled and stored for one precision from runs in another.

    Torch 2.11 stores whether autocast is on, but not its format (pytorch#181564): on H200, GPT-2 in bf16 ran the graph
    of an earlier run in fp16, without its loss scaling, and its loss after 50 steps was 4.4 % higher.
    """
    torch.compiler.config.cache_key_tag = experiment.precision


def begin_graphs(experiment: Experiment) -> None:
    """Say that a step begins: what CUDA graphs returned in the one before may be overwritten."""
    if experiment.compile in CUDA_GRAPHS and experiment.device == "cuda":
        torch.compiler.cudagraph_mark_step_begin()


def compiled_graphs() -> int:
    """Return the number of graphs that torch.compile has compiled so far in this process."""
    return int(_counters("stats").get("unique_graphs", 0))


def graph_breaks() -> int:
    """Return the number of different reasons for which torch.compile left a graph so far in this process."""
    return len(_counters("graph_break"))


def _counters(kind: str) -> dict[str, int]:
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dict(dynamo.counters[kind]) if dynamo else {}
