"""torch.compile: its modes, CUDA graphs, and what it did in this process."""

import sys
from collections.abc import Iterable
from typing import Any

import torch

from dsnb.settings.compile_rules import CUDA_GRAPHS
from dsnb.settings.experiment import Experiment
from dsnb.train.causal_loss import CausalLoss


def compile_options(experiment: Experiment) -> dict[str, Any]:
    """Return the arguments of torch.compile for the mode of the settings."""
    return {"mode": experiment.compile} if experiment.compile in CUDA_GRAPHS else {}


def compile_model(experiment: Experiment, model: CausalLoss) -> None:
    """Compile the model and its loss, if the settings ask for it, inside of whatever an engine hooks to it."""
    if experiment.compile != "off":
        model.compile_inside(**compile_options(experiment))


def compile_blocks(experiment: Experiment, model: CausalLoss, blocks: Iterable[Any]) -> None:
    """Compile transformer blocks one by one, and the loss, if the settings ask for it.

    The forward method is compiled, not the module: FSDP's hooks, which gather the weights, stay outside of the graph.
    Compiled with them, blocks were slower than eager ones (OPT-350M, 24 x 512, on one H200: 158 ms instead of 130).
    """
    if experiment.compile == "off":
        return
    for block in blocks:
        block.forward = torch.compile(block.forward, **compile_options(experiment))
    model.compile_loss(**compile_options(experiment))


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
