"""What a training shows of its settings, under dsnb's names; a setting that it does not show is left out.

Everything is read from attributes and structure, so that wrappers and engines of other versions,
and models of any origin, say what they have.
"""

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from dsnb.measure.record.batches import Batches, accelerator_state
from dsnb.measure.record.ranks import Ranks
from dsnb.settings.framework_defaults import DDP_BUCKET_BYTES
from dsnb.settings.strategies import strategy

Settings = dict[str, Any]
HALF = {torch.float16: "fp16", torch.bfloat16: "bf16"}
MIXED = {"fp16": "fp16", "bf16": "bf16"}
"""Names of number formats in accelerate's state."""
ZERO_BUCKET = 500_000_000
"""DeepSpeed's default bucket, dsnb's 0."""
WHOLE = {"tensor_parallel": 1, "pipeline_parallel": 1}
"""Settings of ranks that each have all layers of the model."""
OTHER_DROPS = ("layerdrop", "classifier", "summary", "path")
"""Fields of a configuration that drop whole layers, or belong to other heads."""


def layers_of(model: Any) -> list[Any]:
    """Return a model with what its wrappers hold, the outermost first."""
    layers = []
    while model is not None and model not in layers:
        layers.append(model)
        inner = vars(model).get("_modules", {})
        model = inner.get("module", inner.get("_orig_mod", inner.get("_fsdp_wrapped_module")))
    return layers


def is_engine(model: Any) -> bool:
    """Return whether a model is an engine of DeepSpeed."""
    return callable(getattr(model, "zero_optimization_stage", None)) and hasattr(
        model, "global_steps"
    )


def settings(
    model: Any,
    ranks: Ranks,
    batches: Batches,
    device: torch.device,
    arguments: Settings | None = None,
) -> Settings:
    """Return all settings that a training shows; `arguments` are those of its trainer, if it has one."""
    seen: Settings = {"gpus": ranks.count, "nodes": ranks.nodes, "device": device.type}
    if model is None:
        return seen | (arguments or {})
    layers = layers_of(model)
    inner = layers[-1]
    if not (dist.is_available() and dist.is_initialized()):
        seen |= {"strategy": "plain", **WHOLE}
    of_passes = _of_batches(batches)
    if arguments is None and batches.passes:
        of_passes["grad_accum"] = batches.passes
    parts = [arguments or {}, _of_weights(inner)]
    if arguments is not None or any(hasattr(each, "_is_accelerate_prepared") for each in layers):
        parts.append(_of_accelerate())
    parts += [of_passes, _of_config(getattr(inner, "config", None)), _of_modules(inner)]
    parts += [_of_sharding(inner), *map(_of_wrapper, reversed(layers))]
    for part in parts:
        seen |= _without_autocast(part) if seen.get("precision") in MIXED else part
    if "compile" not in seen and is_uncompiled():
        seen["compile"] = "off"
    return _agreed(seen)


def _without_autocast(part: Settings) -> Settings:
    """Return settings without autocast, which changes nothing where weights are in half precision."""
    if part.get("mixed_precision") != "autocast":
        return part
    formats = {"precision", "mixed_precision"}
    return {name: value for name, value in part.items() if name not in formats}


def _of_wrapper(layer: Any) -> Settings:
    if is_engine(layer):
        return of_deepspeed(_engine_config(layer)) | _of_optimizer_of(layer)
    if isinstance(layer, DistributedDataParallel):
        return _of_ddp(layer)
    if isinstance(layer, FullyShardedDataParallel):
        return _of_fsdp1(layer)
    if isinstance(layer, nn.DataParallel):
        return {"strategy": "data-parallel", "gpus": len(layer.device_ids)}
    return _of_compiler(layer)


def _of_ddp(layer: DistributedDataParallel) -> Settings:
    size = int(getattr(layer, "bucket_bytes_cap", DDP_BUCKET_BYTES))
    bucket = 0
    if size != DDP_BUCKET_BYTES:
        bucket = size // 4
    seen = {"strategy": "ddp", "bucket_elements": bucket}
    if layer.process_group.size() == dist.get_world_size():
        seen |= WHOLE
    return seen


def _of_fsdp1(layer: FullyShardedDataParallel) -> Settings:
    seen: Settings = {"strategy": "fsdp1"}
    dtype = getattr(layer.mixed_precision, "param_dtype", None)
    if dtype in HALF:
        seen |= {"precision": HALF[dtype], "mixed_precision": "native"}
    return seen


def _of_compiler(layer: Any) -> Settings:
    """Return how torch.compile compiles a module, around it or in place."""
    context = getattr(layer, "dynamo_ctx", None)
    in_place = getattr(layer, "_compiled_call_impl", None)
    if context is None and in_place is None:
        return {}
    asked = getattr(in_place or layer, "get_compiler_config", None)
    mode = "default"
    with contextlib.suppress(Exception):
        mode = _compile_mode(asked())  # type: ignore[misc]
    return {"compile": mode, "compile_unit": "model"}


def _compile_mode(config: Mapping[str, Any]) -> str:
    """Return the mode of torch.compile from its options: the two with CUDA graphs set them."""
    if not config.get("triton.cudagraphs"):
        return "default"
    if config.get("max_autotune"):
        return "max-autotune"
    return "reduce-overhead"


def _of_config(config: Any) -> Settings:
    """Return what the configuration of a transformers model shows."""
    if config is None:
        return {}
    seen: Settings = {}
    attention = getattr(config, "_attn_implementation", None)
    if isinstance(attention, str):
        seen["attention"] = attention
    dropouts = [value for name, value in _numbers(config) if _is_dropout(name)]
    if dropouts:
        seen["dropout"] = float(max(dropouts))
    return seen


def _numbers(config: Any) -> Iterator[tuple[str, float]]:
    fields = config.to_dict() if hasattr(config, "to_dict") else {}
    for name, value in fields.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield name, value


def _is_dropout(name: str) -> bool:
    return "drop" in name and not any(other in name for other in OTHER_DROPS)


def _of_modules(model: Any) -> Settings:
    """Return what the parts of a model show: recomputation, compiled blocks, adapters."""
    seen: Settings = {}
    modules = list(model.modules())
    recomputes = any(
        getattr(module, "gradient_checkpointing", False)
        or hasattr(module, "_checkpoint_wrapped_module")
        for module in modules
    )
    if recomputes or hasattr(model, "gradient_checkpointing_enable"):
        seen["activation_checkpointing"] = recomputes
    compiled = [part for part in modules if part is not model and _of_compiler(part)]
    if compiled:
        seen |= _of_compiler(compiled[0]) | {"compile_unit": "block"}
    adapters = getattr(model, "peft_config", None)
    if isinstance(adapters, Mapping):
        rank = getattr(next(iter(adapters.values()), None), "r", None)
        if rank:
            seen["lora_rank"] = rank
    elif hasattr(model, "config"):
        seen["lora_rank"] = 0
    return seen


def _of_weights(model: Any) -> Settings:
    """Return the number format of weights that are not trained in mixed precision, and ZeRO's partition of them."""
    seen: Settings = {}
    weights = list(model.parameters())
    trained = [weight for weight in weights if weight.requires_grad] or weights
    formats = {weight.dtype for weight in trained if weight.is_floating_point()}
    if len(formats) == 1:
        seen |= _precision_of(formats.pop(), trained[0].device)
    if any(hasattr(weight, "ds_id") for weight in weights):
        seen |= {"strategy": "deepspeed", "zero_stage": 3}
    formats_4bit = {getattr(_quantized(weight), "quant_type", None) for weight in weights}
    if "nf4" in formats_4bit:
        seen["frozen_weights"] = "nf4"
    return seen


def _precision_of(dtype: torch.dtype, device: torch.device) -> Settings:
    if dtype in HALF:
        return {"precision": HALF[dtype], "mixed_precision": "none"}
    is_tf32 = device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
    return {"precision": "tf32" if is_tf32 else "fp32", "mixed_precision": "native"}


def _quantized(weight: Any) -> Any:
    return getattr(weight, "quant_state", None)


def _of_sharding(model: Any) -> Settings:
    """Return how FSDP2 shards a model: its parameters are DTensors over a mesh of ranks."""
    fsdp2 = getattr(dist.fsdp, "FSDPModule", ())
    sharded = [module for module in model.modules() if isinstance(module, fsdp2)]
    if not sharded:
        return {}
    seen: Settings = {"strategy": "fsdp", "shard_size": 0}
    weight: Any = next((p for p in model.parameters() if hasattr(p, "placements")), None)
    if weight is not None:
        sizes = zip(weight.placements, weight.device_mesh.shape, strict=True)
        shards = 1
        copies = 1
        for placement, size in sizes:
            if placement.is_replicate():
                copies *= size
            else:
                shards *= size
        if copies > 1:
            seen["shard_size"] = shards
        if copies * shards == dist.get_world_size():
            seen |= WHOLE
    with contextlib.suppress(Exception):  # torch has no public name for the policy
        policy = sharded[0]._get_fsdp_state()._mp_policy
        if policy.param_dtype in HALF:
            seen |= {"precision": HALF[policy.param_dtype], "mixed_precision": "native"}
    return seen


def _engine_config(engine: Any) -> Mapping[str, Any]:
    """Return the configuration of an engine, with every value as DeepSpeed has resolved it."""
    given = getattr(getattr(engine, "_config", None), "_param_dict", None)
    config = dict(given) if isinstance(given, Mapping) else {}
    config["train_micro_batch_size_per_gpu"] = engine.train_micro_batch_size_per_gpu()
    config["gradient_accumulation_steps"] = engine.gradient_accumulation_steps()
    config["gradient_clipping"] = engine.gradient_clipping()
    zero = dict(config.get("zero_optimization") or {})
    config["zero_optimization"] = zero | {"stage": engine.zero_optimization_stage()}
    return config


def of_deepspeed(config: Mapping[str, Any]) -> Settings:
    """Return what a configuration of DeepSpeed shows; values that are still `auto` are unknown."""
    zero = config.get("zero_optimization") or {}
    seen: Settings = {
        "strategy": "deepspeed",
        "zero_stage": zero.get("stage", 0),
        "offload": _offload(zero),
        "micro_batch_size": config.get("train_micro_batch_size_per_gpu"),
        "grad_accum": config.get("gradient_accumulation_steps", 1),
        "gradient_clipping": config.get("gradient_clipping", 0.0),
        **_deepspeed_precision(config),
        **_bucket(zero),
    }
    if isinstance(zero.get("overlap_comm"), bool):
        seen["overlap_comm"] = {True: "on", False: "off"}[zero["overlap_comm"]]
    accumulated = (config.get("data_types") or {}).get("grad_accum_dtype")
    if accumulated in {"fp32", "bf16", "fp16"}:
        seen["grad_accum_dtype"] = accumulated
    split = (config.get("tensor_parallel") or {}).get("autotp_size")
    if isinstance(split, int) and split > 1:
        seen["tensor_parallel"] = split
    if (config.get("compile") or {}).get("deepcompile") is True:
        seen["compile"] = "deepcompile"
    return {name: value for name, value in seen.items() if value not in (None, "auto")}


def _offload(zero: Mapping[str, Any]) -> str:
    parameters = _place(zero.get("offload_param"))
    optimizer = _place(zero.get("offload_optimizer"))
    if parameters != "none":
        return f"all-{parameters}"
    return "none" if optimizer == "none" else f"optimizer-{optimizer}"


def _place(offload: Any) -> str:
    if not isinstance(offload, Mapping):
        return "none"
    return str(offload.get("device") or "none")


def _bucket(zero: Mapping[str, Any]) -> Settings:
    size = zero.get("reduce_bucket_size", ZERO_BUCKET)
    if not isinstance(size, int | float):
        return {}
    return {"bucket_elements": 0 if size == ZERO_BUCKET else int(size)}


def _deepspeed_precision(config: Mapping[str, Any]) -> Settings:
    autocast = config.get("torch_autocast") or {}
    if autocast.get("enabled") is True:
        dtype = str(autocast.get("dtype", "bfloat16")).removeprefix("torch.")
        precision = {"bfloat16": "bf16", "float16": "fp16"}.get(dtype, dtype)
        return {"precision": precision, "mixed_precision": "autocast"}
    for name in ("bf16", "fp16"):
        section = config.get(name) or {}
        if section.get("enabled") is True:
            is_pure = section.get("bf16_master_weights_and_grads") is True
            return {"precision": name, "mixed_precision": "none" if is_pure else "native"}
    return {}


def _of_optimizer_of(engine: Any) -> Settings:
    seen = of_optimizer(getattr(engine, "optimizer", None))
    if getattr(engine, "dp_world_size", None) == dist.get_world_size():
        return seen | WHOLE
    return seen | {"pipeline_parallel": int(getattr(engine, "num_stages", 1))}


def of_optimizer(optimizer: Any) -> Settings:
    """Return the name of an optimizer inside of its wrappers, and its learning rate."""
    inner = optimizer
    while getattr(inner, "optimizer", None) is not None:
        inner = inner.optimizer
    groups = getattr(inner, "param_groups", None)
    if not groups:
        return {}
    seen: Settings = {"optimizer": _optimizer_name(inner)}
    initial = groups[0].get("initial_lr", groups[0].get("lr"))  # before a scheduler changed it
    if isinstance(initial, int | float) and initial > 0:
        seen["learning_rate"] = float(initial)
    return seen


def _optimizer_name(optimizer: Any) -> str:
    name = type(optimizer).__name__.lower()
    bits = getattr(getattr(optimizer, "args", None), "optim_bits", None)
    is_decoupled = "adamw" in name or getattr(optimizer, "adam_w_mode", False)
    if "adam" not in name or not is_decoupled:
        return name
    return "adamw-8bit" if bits == 8 or "8bit" in name else "adamw"


def _of_accelerate() -> Settings:
    """Return what accelerate's state of this process shows."""
    state = accelerator_state()
    if state is None:
        return {}
    seen: Settings = {}
    kind = str(getattr(state.distributed_type, "value", state.distributed_type))
    precision = MIXED.get(str(state.mixed_precision))
    if kind == "NO":
        seen["strategy"] = "plain"
    elif kind.startswith("MULTI_"):
        seen["strategy"] = "ddp"
    if precision:
        seen |= {"precision": precision, "mixed_precision": "autocast"}
    plugin = getattr(state, "deepspeed_plugin", None)
    if kind == "DEEPSPEED" and plugin is not None:
        seen |= of_deepspeed(plugin.deepspeed_config)
    return seen | _of_dynamo(getattr(state, "dynamo_plugin", None)) | _of_parallelism(state)


def _of_dynamo(plugin: Any) -> Settings:
    backend = str(getattr(getattr(plugin, "backend", None), "value", "NO")).upper()
    if backend == "NO":
        return {}
    unit = "block" if getattr(plugin, "use_regional_compilation", False) else "model"
    return {"compile": str(getattr(plugin, "mode", None) or "default"), "compile_unit": unit}


def _of_parallelism(state: Any) -> Settings:
    size = getattr(getattr(state, "parallelism_config", None), "tp_size", 1)
    return WHOLE | {"tensor_parallel": int(size or 1)}


def of_arguments(arguments: Any, state: Any) -> Settings:
    """Return what the arguments of transformers' Trainer show, and its state."""
    cards = max(1, getattr(arguments, "n_gpu", 1))
    batch = getattr(state, "train_batch_size", None) or arguments.train_batch_size
    seen: Settings = {
        "micro_batch_size": max(1, batch // cards),
        "grad_accum": arguments.gradient_accumulation_steps,
        "learning_rate": arguments.learning_rate,
        "gradient_clipping": float(arguments.max_grad_norm or 0.0),
        "seed": arguments.seed,
    }
    if cards > 1:
        seen |= {"strategy": "data-parallel", "gpus": cards}
    return seen


def _of_batches(batches: Batches) -> Settings:
    """Return what the first passes of a model showed."""
    seen: Settings = {}
    if batches.sequences:
        seen["micro_batch_size"] = batches.sequences
    if len(batches.lengths) == 1:
        seen["seq_len"] = min(batches.lengths)
    if batches.autocast in HALF:
        seen |= {"precision": HALF[batches.autocast], "mixed_precision": "autocast"}
    if batches.is_in_ddp:
        seen["strategy"] = "ddp"
    return seen


def is_uncompiled() -> bool:
    """Return whether torch has compiled nothing in this process."""
    return not compiled_graphs()


def compiled_graphs() -> int:
    """Return the number of graphs that torch has compiled so far in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["stats"].get("unique_graphs", 0)) if dynamo else 0


def _agreed(seen: Settings) -> Settings:
    """Return settings in dsnb's terms: autocast is what a strategy without native half precision does anyway."""
    if seen.get("mixed_precision") != "autocast" or not seen.get("strategy"):
        return seen
    if strategy(seen["strategy"]).has_native_half:
        return seen
    return seen | {"mixed_precision": "native"}


def parameters_of(model: Any) -> dict[str, int]:
    """Return the numbers of parameters and of trained ones, also of those that other ranks hold."""
    weights = list(model.parameters()) if model is not None else []
    if not weights or any(
        isinstance(layer, FullyShardedDataParallel) for layer in layers_of(model)
    ):
        return {}  # FSDP1 has shards of unknown parameters
    return {
        "parameters": sum(map(_size, weights)),
        "trainable_parameters": sum(_size(weight) for weight in weights if weight.requires_grad),
    }


def _size(weight: Any) -> int:
    quantized = getattr(_quantized(weight), "shape", None)
    if quantized is not None:
        return int(torch.Size(quantized).numel())
    return int(getattr(weight, "ds_numel", weight.numel()))


def config_of(model: Any) -> dict[str, Any] | None:
    """Return the configuration of a transformers model; None for another model."""
    config = getattr(layers_of(model)[-1], "config", None) if model is not None else None
    if config is None or not hasattr(config, "to_json_string"):
        return None
    content: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return content


def model_name(model: Any) -> str | None:
    """Return the name of a model: where its configuration came from, or its kind and size."""
    config = getattr(layers_of(model)[-1], "config", None) if model is not None else None
    name = getattr(config, "_name_or_path", "")
    if isinstance(name, str) and name:
        return name
    kind = getattr(config, "model_type", None)
    if kind is None:
        kind = type(layers_of(model)[-1]).__name__ if model is not None else None
    size = parameters_of(model).get("parameters")
    return f"{kind}-{_short(size)}" if kind and size else kind


def _short(count: int) -> str:
    """Return a number of parameters in three digits, such as `141k`."""
    for unit, factor in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g}{unit}"
    return str(count)
