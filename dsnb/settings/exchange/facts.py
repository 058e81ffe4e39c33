"""What keys of other programs carry besides single settings: values that follow from several of them."""

import os
from collections.abc import Mapping
from typing import Any

from dsnb.settings.experiment import Experiment
from dsnb.settings.training import ADAMW

ENGINES = ("deepspeed", "fsdp", "ddp", "plain")
"""Strategies that other programs have, too."""
TORCH_DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "tf32": "float32"}
MIB = 2**20


def facts(experiment: Experiment) -> dict[str, Any]:
    """Return the settings, and what follows from them; None for what does not apply."""
    beta1, beta2 = ADAMW["betas"]
    fixed = {**ADAMW, "betas": [beta1, beta2], "beta1": beta1, "beta2": beta2}
    derived = {name: of(experiment) for name, of in DERIVED.items()}
    return {**experiment.model_dump(), **fixed, **derived}


def _autocast(s: Experiment) -> str | None:
    """Return the format in which DeepSpeed's engine computes by torch's autocast."""
    if s.numbers.autocast:
        return TORCH_DTYPES[s.numbers.computed]
    return None


def _half_weights(s: Experiment) -> str | None:
    """Return the half-precision format of the weights that the forward pass reads."""
    if s.numbers.natively_half:
        return s.numbers.computed
    return None


def _flag(s: Experiment) -> str | None:
    """Return the format that the Trainer and accelerate are told.

    DeepSpeed's autocast is in its own section, and weights in pure bf16 need nothing.
    """
    numbers = s.numbers
    if s.parallel_strategy.is_deepspeed:
        return _half_weights(s)
    if numbers.computed in {"fp16", "bf16"} and s.mixed_precision != "none":
        return numbers.computed
    return None


def _split_by_engine(s: Experiment) -> int | None:
    if s.tensor_parallel == 1:
        return None
    if s.pipeline_parallel > 1:
        return 0
    return int(s.tensor_parallel)


def _recomputes(s: Experiment) -> str | None:
    """Return who recomputes blocks: the Trainer, FSDP, or neither since it has no such choice."""
    if not s.activation_checkpointing or s.checkpoint_ops != "all":
        return None
    is_plain = s.checkpoint_every == 1 and not s.checkpoint_offload
    if s.strategy == "fsdp" and is_plain:
        return "fsdp"
    return "trainer"


def _whole_graph(s: Experiment) -> str | None:
    """Return the mode of torch.compile if it sees the whole model."""
    if s.compile == "off" or s.compiles_blocks:
        return None
    return s.compile


def _optim(s: Experiment) -> str | None:
    """Return the Trainer's name of the optimizer; Muon is in DeepSpeed's file only."""
    names = {"adafactor": "adafactor", "adamw-8bit": "adamw_torch_8bit", "adamw": "adamw_torch"}
    if s.optimizer == "adamw" and s.device != "cpu":
        return "adamw_torch_fused"
    return names.get(s.optimizer)


def _ddp_bucket_mib(s: Experiment) -> int | None:
    if s.strategy != "ddp" or not s.bucket_elements:
        return None
    return max(1, round(s.bucket_elements * s.numbers.trained_bytes / MIB))


def _distributed_type(s: Experiment) -> str:
    """Return accelerate's name for what shares the training."""
    named = {"deepspeed": "DEEPSPEED", "fsdp": "FSDP"}
    if s.strategy in named:
        return named[s.strategy]
    if s.gpus == 1:
        return "NO"
    return "MULTI_CPU" if s.device == "cpu" else "MULTI_GPU"


def _copies(s: Experiment) -> int | None:
    return s.data_parallel // s.shard_size if s.shard_size else None


DERIVED: Mapping[str, Any] = {
    "pins_memory": lambda s: s.device == "cuda",
    "nvme_path": lambda s: os.path.expanduser(s.nvme_path),
    "compiles_blocks": lambda s: s.compiles_blocks,
    "ranks_of_node": lambda s: max(1, s.gpus // s.nodes),
    "split_by_engine": _split_by_engine,
    "autocast": _autocast,
    "half_weights": _half_weights,
    "accumulates": lambda s: "fp32" if s.numbers.accumulates_in_fp32 else None,
    "flag": _flag,
    "amp": lambda s: _flag(s) or "no",
    "loaded": lambda s: TORCH_DTYPES[s.numbers.built],
    "recomputes": _recomputes,
    "whole_graph": _whole_graph,
    "optim": _optim,
    "ddp_bucket_mib": _ddp_bucket_mib,
    "has_lora": lambda s: s.lora_rank > 0,
    "distributed_type": _distributed_type,
    "deepspeed_file": lambda s: DEEPSPEED_FILE if s.parallel_strategy.is_deepspeed else None,
    "copies": _copies,
}
"""Name -> value by the settings."""
DEEPSPEED_FILE = "deepspeed_accelerate.json"
"""File that accelerate's configuration names, beside it."""
