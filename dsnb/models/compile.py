"""torch.compile of a model and its loss: what is compiled, by block or as a whole, and how many graphs it made."""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from dsnb.models.loss import CausalLoss
from dsnb.models.parts import blocks, output_layer
from dsnb.settings.experiment import Experiment
from dsnb.settings.training import CUDA_GRAPHS


def compile_options(experiment: Experiment) -> dict[str, Any]:
    """Return the arguments of torch.compile for the settings."""
    if experiment.compile in CUDA_GRAPHS:
        return {"mode": experiment.compile}
    return {}


def compile_model(experiment: Experiment, model: CausalLoss) -> None:
    """Compile the model and its loss, if the settings ask for it, without the hooks that an engine adds later."""
    if experiment.compile == "off":
        return
    separate_caches(experiment.precision)
    if experiment.compiles_blocks:
        # The output layer is compiled too, because only a compiled product pads its odd width:
        # GPT-2's vocabulary of 50,257 rules out fast kernels in eager mode (108 ms of a 600 ms step
        # of GPT-2 XL, 24 x 1024, on two H200). Compiling the forward method, not the module, keeps
        # hooks that gather weights or reduce gradients outside of the graph. With FSDP's in it,
        # blocks were slower than eager ones (OPT-350M, 24 x 512, on one H200: 158 ms instead of
        # 130).
        for block in blocks(model):
            compile_block(block)
        if not model.chunked:
            layer = output_layer(model)
            layer.forward = torch.compile(layer.forward)
        model.compile_loss()
    else:
        model.compile_inside(**compile_options(experiment))


def compile_block(block: Any) -> None:
    """Compile a block's computation; if it is recomputed, around the graph and inside of the block's hooks."""
    recompute_around(block, torch.compile(block.forward))


def recompute_around(block: Any, computation: Callable[..., Any]) -> None:
    """Make a computation that of a block; if the block is recomputed, around it and inside of the block's hooks.

    transformers recomputes a block inside of its hooks since 5.23, in the graph: FSDP2 then
    recomputed nothing, because it changes the block's class, and checkpoints in host memory broke
    the graph. Before 5.23 hooks ran a second time.
    """
    if not getattr(block, "gradient_checkpointing", False):
        block.forward = computation
        return
    block.gradient_checkpointing = False
    checkpoint = block._gradient_checkpointing_func

    def forward(*inputs: Any, **named: Any) -> Any:
        return checkpoint(functools.partial(computation, **named), *inputs)

    block.forward = forward


def separate_caches(precision: str) -> None:
    """Keep a separate cache of compiled graphs for each precision.

    The key of torch 2.11's cache says whether autocast is on, but not its dtype (pytorch#181564):
    on H200, GPT-2 in bf16 ran the fp16 graph of an earlier run, without loss scaling, and its loss
    after 50 steps was 4.4 % higher.
    """
    torch.compiler.config.cache_key_tag = precision


def begin_graphs(experiment: Experiment) -> None:
    """Mark the start of a step: CUDA graphs may overwrite what they returned in the last one."""
    if experiment.compile in CUDA_GRAPHS and experiment.device == "cuda":
        torch.compiler.cudagraph_mark_step_begin()


def compiled_graphs() -> int:
    """Return the number of graphs that torch.compile has compiled so far in this process."""
    return int(_counters("stats").get("unique_graphs", 0))


def graph_breaks() -> int:
    """Return the number of different reasons for graph breaks in torch.compile so far in this process."""
    return len(_counters("graph_break"))


def _counters(kind: str) -> dict[str, int]:
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dict(dynamo.counters[kind]) if dynamo else {}
