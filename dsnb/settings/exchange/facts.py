"""What keys of other programs carry besides single settings: values that follow from several of them."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from dsnb.settings.experiment import Experiment
from dsnb.settings.training import ADAMW

TORCH_DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "tf32": "float32"}
OPTIMIZERS = {"adafactor": "adafactor", "adamw-8bit": "adamw_torch_8bit", "adamw": "adamw_torch"}
"""The Trainer's names."""
KEPT = ["attention", "aten::mm", "aten::addmm", "aten::_grouped_mm"]
"""Operators of attention and linear layers, as axolotl names them."""
MIB = 2**20
ACCELERATE_FILE = "deepspeed_accelerate.json"
AUTO_FILE = "deepspeed_auto.json"
"""DeepSpeed's configurations for accelerate, and for the Trainer and what is built on it."""


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
    if s.parallel_strategy.is_deepspeed:
        return _half_weights(s)
    if s.numbers.autocast:
        return s.numbers.computed
    if s.mixed_precision != "none":
        return _half_weights(s)
    return None


def _split_by_engine(s: Experiment) -> int | None:
    """Return the tensor-parallel size; in a pipeline each rank finds out how its blocks are split."""
    if s.tensor_parallel == 1:
        return None
    if s.pipeline_parallel > 1:
        return 0
    return int(s.tensor_parallel)


def _recomputed_by_fsdp(s: Experiment) -> bool | None:
    """Return whether FSDP's own recomputation, of all of every block, is what the settings ask for."""
    if s.strategy != "fsdp":
        return None
    is_whole = s.checkpoint_ops == "all" and not s.checkpoint_offload
    return s.activation_checkpointing and s.checkpoint_every == 1 and is_whole


def _kept_operators(s: Experiment) -> list[str] | None:
    """Return the operators whose results are kept where only cheap ones are recomputed.

    axolotl refuses them beside LoRA, whose layers change results in place.
    """
    is_cheap = s.activation_checkpointing and s.checkpoint_ops == "cheap"
    if is_cheap and s.lora_rank == 0:
        return KEPT
    return None


def _whole_graph(s: Experiment) -> str | None:
    """Return the mode of torch.compile if it sees the whole model."""
    if s.compile == "off" or s.compiles_blocks:
        return None
    return s.compile


def _optim(s: Experiment) -> str | None:
    """Return the Trainer's name of the optimizer; Muon is in DeepSpeed's file only."""
    if s.optimizer == "adamw" and s.device != "cpu":
        return "adamw_torch_fused"
    return OPTIMIZERS.get(s.optimizer)


def _axolotl_optimizer(s: Experiment) -> str | None:
    if s.optimizer == "adamw-8bit":
        return "ao_adamw_8bit"
    return _optim(s)


def _ddp_bucket_mib(s: Experiment) -> int | None:
    if s.strategy != "ddp" or not s.bucket_elements:
        return None
    return max(1, round(s.bucket_elements * s.numbers.trained_bytes / MIB))


def _distributed_type(s: Experiment) -> str:
    """Return accelerate's name for what shares the training.

    It starts the ranks of MULTI_CPU by mpirun only, those of MULTI_GPU by torchrun on any machine.
    """
    named = {"deepspeed": "DEEPSPEED", "fsdp": "FSDP"}
    if s.strategy in named:
        return named[s.strategy]
    if s.gpus == 1:
        return "NO"
    return "MULTI_GPU"


def _copies(s: Experiment) -> int | None:
    """Return the number of groups of ranks that hold copies of FSDP's shards."""
    if s.shard_size:
        return s.data_parallel // s.shard_size
    return None


def _file(name: str) -> Callable[[Experiment], str | None]:
    """Return the function that gives the name of a file of DeepSpeed's, if it trains."""
    return lambda s: name if s.parallel_strategy.is_deepspeed else None


DERIVED: Mapping[str, Callable[[Experiment], Any]] = {
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
    "pure": lambda s: s.mixed_precision == "none" and not s.parallel_strategy.is_deepspeed,
    "recomputed_by_fsdp": _recomputed_by_fsdp,
    "kept_operators": _kept_operators,
    "keeps_activations": lambda s: not s.activation_checkpointing,
    "whole_graph": _whole_graph,
    "optim": _optim,
    "axolotl_optimizer": _axolotl_optimizer,
    "ddp_bucket_mib": _ddp_bucket_mib,
    "has_lora": lambda s: s.lora_rank > 0,
    "distributed_type": _distributed_type,
    "copies": _copies,
    "accelerate_file": _file(ACCELERATE_FILE),
    "auto_file": _file(AUTO_FILE),
}
"""Name -> value by the settings."""
