"""Compares the engine that DeepSpeed built with the settings: it accepts some settings and silently ignores them."""

from typing import Any

import deepspeed
import torch
from deepspeed.module_inject.layers import TensorParallel_Layer

from dsnb.settings.experiment import Experiment
from dsnb.train.data import data_rank

HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}


def check(experiment: Experiment, engine: Any) -> None:
    """Compare an engine with the settings.

    Raises
    ------
    RuntimeError
        If they differ; the message names every difference.
    """
    asked, found = expected(experiment), actual(engine)
    if differing := [name for name in asked if asked[name] != found[name]]:
        built = ", ".join(f"{name} {found[name]} instead of {asked[name]}" for name in differing)
        raise RuntimeError(f"DeepSpeed built {built}; choose settings that it supports")


def expected(experiment: Experiment) -> dict[str, Any]:
    """Return the properties that an engine must have for these settings."""
    what, _, where = experiment.offload.partition("-")
    half = HALF.get(experiment.precision)
    native = experiment.mixed_precision == "native"
    return {
        "ZeRO stage": experiment.zero_stage,
        "accumulation": experiment.grad_accum,
        "micro-batch": experiment.micro_batch_size,
        "data-parallel ranks": experiment.data_parallel,
        "data-parallel place": data_rank(experiment, deepspeed.comm.get_rank()),
        "tensor-parallel ranks": experiment.tensor_parallel,
        "pipeline stages": experiment.pipeline_parallel,
        "weights": _dtype(half if half and native else torch.float32),
        "autocast": _dtype(half) if half and not native else None,
        "optimizer offloaded to": where or "none",
        "parameters offloaded to": where if what == "all" else "none",
        "optimizer": "Adafactor" if experiment.optimizer == "adafactor" else "Adam",
        "compiled": experiment.compile,
    }


def actual(engine: Any) -> dict[str, Any]:
    """Return the properties of an engine."""
    return {
        "ZeRO stage": engine.zero_optimization_stage(),
        "accumulation": engine.gradient_accumulation_steps(),
        "micro-batch": engine.train_micro_batch_size_per_gpu(),
        "data-parallel ranks": engine.dp_world_size,
        "data-parallel place": deepspeed.comm.get_rank(group=engine.data_parallel_group),
        "tensor-parallel ranks": _tensor_parallel_size(engine.module),
        "pipeline stages": getattr(engine, "num_stages", 1),
        "weights": _dtype(next(p.dtype for p in engine.module.parameters() if p.requires_grad)),
        "autocast": _dtype(engine.torch_autocast_dtype()) if engine.torch_autocast_enabled() else None,
        "optimizer offloaded to": _place(engine.zero_offload_optimizer()),
        "parameters offloaded to": _place(engine.zero_offload_param()),
        "optimizer": "Adafactor" if "Adafactor" in optimizers(engine.optimizer) else "Adam",
        "compiled": engine.is_compiled,
    }


def describe(engine: Any) -> dict[str, Any]:
    """Return the properties of an engine under the names of `worker.json`."""
    found = {name.lower().replace(" ", "_").replace("-", "_"): value for name, value in actual(engine).items()}
    return {
        **found,
        "optimizer": " over ".join(optimizers(engine.optimizer)),
        "parameter_dtype": found["weights"],
        "communication": deepspeed.comm.get_world_size() > 1 and torch.distributed.get_backend(),
    }


def optimizers(optimizer: Any) -> list[str]:
    """Return the class names of an optimizer and of the one that it wraps."""
    inner = getattr(optimizer, "optimizer", None)
    return [type(part).__name__ for part in (optimizer, inner) if part is not None]


def _tensor_parallel_size(module: torch.nn.Module) -> int:
    """Return the number of ranks among which the layers of a module are split."""
    split = next((layer for layer in module.modules() if isinstance(layer, TensorParallel_Layer)), None)
    return deepspeed.comm.get_world_size(group=split.mp_group) if split is not None else 1


def _place(offload: Any) -> str:
    device = getattr(offload, "device", None)
    return str(getattr(device, "value", device) or "none")


def _dtype(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")
