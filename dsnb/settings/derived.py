"""What follows from several settings at once, for everything that acts on it or predicts it."""

from collections.abc import Mapping
from typing import Any

Settings = Mapping[str, Any]
CUDA_GRAPHS = ("reduce-overhead", "max-autotune")
"""Modes of `compile` that use CUDA graphs on a GPU."""
CHUNK_TOKENS = 2048
"""The most tokens of a chunk of the loss. The output layer's gradient is read and written once for each chunk: with
half as many, the layer and its loss took 4 to 15 % longer, compiled (docs/LOG.md)."""


def compiles_blocks(s: Settings) -> bool:
    """Return whether torch.compile sees the blocks one by one.

    By itself it does where weights are gathered block by block, and where blocks are recomputed: in a graph of the
    whole model the backward pass would compute all of them again at once.
    """
    if s["compile"] in {"off", "deepcompile"}:
        return False
    if s["compile_unit"] != "auto":
        return bool(s["compile_unit"] == "block")
    gathers = s["strategy"] == "fsdp" or (s["strategy"] == "deepspeed" and s["zero_stage"] == 3)
    return bool(gathers or (s["activation_checkpointing"] and s["compile"] not in CUDA_GRAPHS))


def gathers_blocks(s: Settings) -> bool:
    """Return whether blocks are gathered whole where weights are gathered at all: hooks are then outside of graphs."""
    return bool(s["leaf_modules"] == "blocks" or (s["leaf_modules"] == "auto" and compiles_blocks(s)))


def accumulates_in_fp32(s: Settings) -> bool:
    """Return whether ZeRO accumulates the gradients of native bf16 in fp32: asked for, or where it matters."""
    native_bf16 = s["precision"] == "bf16" and s["mixed_precision"] == "native" and s["strategy"] == "deepspeed"
    if s["grad_accum_dtype"] != "auto" or not native_bf16:
        return bool(s["grad_accum_dtype"] == "fp32")
    return bool(s["grad_accum"] > 1 and s["zero_stage"] > 0 and s["pipeline_parallel"] == 1)
