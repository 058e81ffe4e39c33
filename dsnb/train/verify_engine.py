"""Compares the engine that DeepSpeed built with the settings: it accepts some settings and silently ignores them."""

from collections.abc import Iterable
from typing import Any

import deepspeed
import torch
from deepspeed.module_inject.layers import TensorParallel_Layer

from dsnb.settings import deepspeed_keys
from dsnb.settings.experiment import Experiment
from dsnb.train.data import data_rank
from dsnb.train.model import DTYPES

MODELS = {
    "zero_optimization": "zero_config",
    "bf16": "bfloat16_config",
    "fp16": "float16_config",
    "compile": "compile_config",
}
"""Sections of DeepSpeed's configuration -> the attribute of its configuration object that holds their model."""


def check(experiment: Experiment, engine: Any) -> None:
    """Raise RuntimeError with every difference of an engine from the settings."""
    asked, found = expected(experiment), actual(engine, experiment.deepspeed)
    if differing := [name for name in asked if asked[name] != found[name]]:
        built = ", ".join(f"{name} {found[name]} instead of {asked[name]}" for name in differing)
        raise RuntimeError(f"DeepSpeed built {built}; choose settings that it supports")


def expected(experiment: Experiment) -> dict[str, Any]:
    """Return the properties that an engine must have for these settings."""
    what, _, where = experiment.offload.partition("-")
    computed, native = DTYPES[experiment.precision], experiment.mixed_precision == "native"
    return {
        "ZeRO stage": experiment.zero_stage,
        "accumulation": experiment.grad_accum,
        "micro-batch": experiment.micro_batch_size,
        "data-parallel ranks": experiment.data_parallel,
        "data-parallel place": data_rank(experiment, deepspeed.comm.get_rank()),
        "tensor-parallel ranks": experiment.tensor_parallel,
        "pipeline stages": experiment.pipeline_parallel,
        "weights": _dtype(computed if native else torch.float32),
        "autocast": _dtype(computed) if computed is not torch.float32 and not native else None,
        "optimizer offloaded to": where or "none",
        "parameters offloaded to": where if what == "all" else "none",
        "optimizer": {"adafactor": "Adafactor", "muon": "Muon"}.get(experiment.optimizer, "Adam"),
        "compiled": experiment.compile != "off",
        **{deepspeed_keys.PREFIX + path: value for path, value in experiment.deepspeed.items()},
    }


def actual(engine: Any, keys: Iterable[str] = ()) -> dict[str, Any]:
    """Return the properties of an engine, with those of some keys of DeepSpeed's configuration."""
    wrapped = " ".join(_optimizers(engine.optimizer))
    split = next((layer for layer in engine.module.modules() if isinstance(layer, TensorParallel_Layer)), None)
    return {
        **{deepspeed_keys.PREFIX + path: configured(engine, path) for path in keys},
        "ZeRO stage": engine.zero_optimization_stage(),
        "accumulation": engine.gradient_accumulation_steps(),
        "micro-batch": engine.train_micro_batch_size_per_gpu(),
        "data-parallel ranks": engine.dp_world_size,
        "data-parallel place": deepspeed.comm.get_rank(group=engine.data_parallel_group),
        "tensor-parallel ranks": deepspeed.comm.get_world_size(group=split.mp_group) if split is not None else 1,
        "pipeline stages": getattr(engine, "num_stages", 1),
        "weights": _dtype(next(p.dtype for p in engine.module.parameters() if p.requires_grad)),
        "autocast": _dtype(engine.torch_autocast_dtype()) if engine.torch_autocast_enabled() else None,
        "optimizer offloaded to": _place(engine.zero_offload_optimizer()),
        "parameters offloaded to": _place(engine.zero_offload_param()),
        "optimizer": next((kind for kind in ("Adafactor", "Muon") if kind in wrapped), "Adam"),
        "compiled": engine.is_compiled or getattr(engine.module, "is_compiled", False),
    }


def describe(engine: Any) -> dict[str, Any]:
    """Return the properties of an engine under the names of `worker.json`."""
    found = {name.lower().replace(" ", "_").replace("-", "_"): value for name, value in actual(engine).items()}
    return {
        **found,
        "optimizer": " over ".join(_optimizers(engine.optimizer)),
        "parameter_dtype": found["weights"],
        "communication": deepspeed.comm.get_world_size() > 1 and torch.distributed.get_backend(),
    }


def configured(engine: Any, path: str) -> Any:
    """Return the value that an engine uses for a key of DeepSpeed's configuration.

    DeepSpeed's models hold what it made of the key; for the sections without one it is the key as it was read.
    """
    section, *names = path.split(".")
    place = getattr(engine._config, MODELS.get(section, ""), None)
    for name in names:
        fields = getattr(type(place), "model_fields", {})
        field = next((field for field, about in fields.items() if about.alias == name), name)
        place = place.get(name) if isinstance(place, dict) else getattr(place, field, None)
    return place if section in MODELS else deepspeed_keys.lookup(engine._config._param_dict, path)


def _optimizers(optimizer: Any) -> list[str]:
    """Return the class names of an optimizer and of the one that it wraps."""
    inner = getattr(optimizer, "optimizer", None)
    return [type(part).__name__ for part in (optimizer, inner) if part is not None]


def _place(offload: Any) -> str:
    device = getattr(offload, "device", None)
    return str(getattr(device, "value", device) or "none")


def _dtype(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")
