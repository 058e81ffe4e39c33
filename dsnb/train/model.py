"""Builds any causal language model of transformers, without a full copy in the host memory of every rank.

With ZeRO 0 to 2 the model is built directly on the rank's device in the training dtype; with ZeRO 3 each module is
partitioned as it is created. Random weights are drawn block by block with a seed per block, so all stages start equal.
"""

import ctypes
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import deepspeed
import torch
from accelerate import init_empty_weights
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.integrations.deepspeed import HfDeepSpeedConfig

from dsnb.formulas import model_shapes
from dsnb.settings import checks
from dsnb.settings.experiment import Experiment
from dsnb.train import attention, model_parts
from dsnb.train.model_parts import blocks, has_own_parameters

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
PART_BYTES = 2**31 - 1
"""The most bytes that torch fills at once on a GPU, in 32-bit offsets."""
DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout", "attention_dropout", "hidden_dropout")


def weights_dtype(experiment: Experiment) -> torch.dtype:
    """Return the dtype of the weights: half precision if fp32 master weights exist or only adapters train."""
    masters = experiment.strategy == "deepspeed" and experiment.mixed_precision == "native"
    return DTYPES[experiment.precision] if masters or experiment.lora_rank else torch.float32


def model_config(experiment: Experiment) -> Any:
    """Return the transformers configuration of the experiment's model."""
    if path := model_shapes.local_config(experiment.model):
        settings = json.loads(path.read_text(encoding="utf-8"))
        config = AutoConfig.for_model(**settings)
    elif experiment.model in model_shapes.PRESETS and experiment.weights == "random":
        config = AutoConfig.for_model(**model_shapes.PRESETS[experiment.model].config())
    else:
        config = AutoConfig.from_pretrained(_weights_source(experiment))
    if wrong := checks.not_causal(experiment.model, config.to_dict()):
        raise ValueError(wrong)
    config.use_cache = False
    for name in DROPOUTS:
        if hasattr(config, name):
            setattr(config, name, experiment.dropout)
    return config


def _weights_source(experiment: Experiment) -> str:
    """Return the folder or hub ID of a model's weights."""
    if path := model_shapes.local_config(experiment.model):
        return str(path.parent)
    preset = model_shapes.PRESETS.get(experiment.model)
    return (preset.hub_id if preset else None) or experiment.model


def build(experiment: Experiment, ds_config: dict[str, Any], device: torch.device) -> PreTrainedModel:
    """Build the model on `device`, already partitioned at ZeRO stage 3."""
    make = _load_pretrained if experiment.weights == "pretrained" else _build_random
    model = _with_attention(experiment, lambda *how: make(experiment, ds_config, device, *how))
    return adapt(experiment, model)


def build_part(experiment: Experiment, device: torch.device, part: Callable[[Any], Iterable[nn.Module]]) -> Any:
    """Build one pipeline stage's part of the model on `device`, with the same weights as in a whole model.

    `part` returns its modules, given a model whose weights may be on the meta device. With random weights the rest
    takes no memory; pretrained weights are loaded whole into host memory.
    """

    def make(config: Any, name: str) -> PreTrainedModel:
        if experiment.weights == "pretrained":
            model = _load_pretrained(experiment, {}, torch.device("cpu"), config, name)
            own = list(part(model))
        else:
            with no_init_weights(), init_empty_weights(include_buffers=False):
                model = _from_config(experiment, config, name)
            own = list(part(model))
            allocate(own)
        for unit in own:
            unit.to(device)
        if experiment.weights == "random":
            init_weights(model, experiment.seed)
        model.tie_weights()
        return model

    return adapt(experiment, _with_attention(experiment, make))


def _with_attention(experiment: Experiment, make: Callable[[Any, str], PreTrainedModel]) -> PreTrainedModel:
    """Build a model with the fastest attention that the settings allow and transformers supports for it."""
    config = model_config(experiment)
    positions = getattr(config, "max_position_embeddings", None)
    if positions and experiment.seq_len > positions and config.model_type != "bloom":
        raise ValueError(
            f"seq_len is {experiment.seq_len}: {experiment.model} has {positions} positions; use at most {positions}"
        )
    if experiment.attention != "eager":
        try:
            return make(config, attention.fastest(config, experiment.seq_len))
        except ValueError as error:  # raised before anything is built
            if "scaled_dot_product_attention" not in str(error):
                raise
            if experiment.attention == "sdpa" and config.model_type != "bloom":
                raise ValueError(
                    f"attention is 'sdpa': transformers has none for {config.model_type}; set it to 'eager' or 'auto'"
                ) from error
    return make(config, "eager")


def adapt(experiment: Experiment, model: PreTrainedModel) -> PreTrainedModel:
    """Apply fused ALiBi, tensor parallelism, LoRA and checkpointing to a model or a pipeline stage's part of it."""
    if not hasattr(model.config, "num_hidden_layers"):
        raise ValueError(
            f"model is {experiment.model!r}: {model.config.model_type} is more than a language model; give the "
            "text_config of its configuration as a configuration of its own"
        )
    if model.config.model_type == "bloom" and experiment.attention != "eager":
        # FlexAttention is fast only if it is compiled for a GPU; here it has no dropout, and the slopes of all heads.
        has_flex = experiment.compile != "off" and experiment.device == "cuda"
        has_flex &= not experiment.dropout and experiment.tensor_parallel == 1
        attention.use_fused_alibi(model, experiment.seq_len if has_flex else 0)
    if experiment.tensor_parallel > 1:
        model_parts.prepare(experiment, model)
    if experiment.lora_rank:
        model = add_adapters(experiment, model)
    if experiment.activation_checkpointing:
        checkpoint_activations(experiment, model)
    model.train()
    if model.config.model_type == "opt":
        # Only this module's own flag: transformers 5.17 asks for the layerdrop, which is 0, in a way that breaks a
        # compiled graph at every block.
        model.get_decoder().training = False
    return model


def add_adapters(experiment: Experiment, model: Any) -> Any:
    """Freeze a model in half precision and add trainable adapters.

    Adapters are in half precision if DeepSpeed keeps fp32 master copies of them, else in fp32. The scaling is 1
    (alpha = rank), like `lora_scaling` in DeepSpeed-Chat, whose OPT-13B results this reproduces.
    """
    from peft import LoraConfig, get_peft_model  # takes a second to import, needed by these runs only

    torch.manual_seed(experiment.seed)
    masters = experiment.strategy == "deepspeed" and experiment.mixed_precision == "native"
    config = LoraConfig(
        r=experiment.lora_rank,
        lora_alpha=experiment.lora_rank,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config, autocast_adapter_dtype=not masters)


def checkpoint_activations(experiment: Experiment, model: Any) -> None:
    """Enable activation checkpointing, through whichever of its two names transformers has."""

    def offloaded(function: Callable[..., Any], *inputs: Any) -> Any:
        with save_on_cpu(pin_memory=experiment.device == "cuda"):
            return checkpoint(function, *inputs, use_reentrant=True)  # only a reentrant one has such hooks

    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    for number, block in enumerate(blocks(model)):
        block.gradient_checkpointing = number % experiment.checkpoint_every == 0
        if experiment.checkpoint_offload:
            block._gradient_checkpointing_func = offloaded
    if experiment.checkpoint_offload:
        model.enable_input_require_grads()  # else a reentrant checkpoint behind frozen layers trains nothing
    elif experiment.lora_rank:
        model.disable_input_require_grads()  # peft's hook for reentrant checkpoints breaks a compiled graph


def _from_config(experiment: Experiment, config: Any, attention: str) -> PreTrainedModel:
    dtype = weights_dtype(experiment)
    return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)


def _build_random(
    experiment: Experiment, ds_config: dict[str, Any], device: torch.device, config: Any, attention: str
) -> PreTrainedModel:
    shared = experiment.zero_stage == 3
    with return_freed_memory() if shared else nullcontext():
        with no_init_weights(), device, deepspeed.zero.Init(config_dict_or_path=ds_config) if shared else nullcontext():
            model = _from_config(experiment, config, attention)
        init_weights(model, experiment.seed)
    model.tie_weights()
    return model


@contextmanager
def return_freed_memory() -> Iterator[None]:
    """Make glibc return freed tensors to the system at once, while parameters are created whole and partitioned.

    Otherwise they stay allocated between the partitions: with OPT-350M on 4 CPU ranks a rank grew by 600 MB, about
    the whole model, instead of 290 MB. Afterwards glibc keeps them again, because training steps reuse tensors.
    """
    mmap_threshold, trim_threshold = -3, -1
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)
    mallopt(mmap_threshold, 2**20)
    try:
        yield
    finally:
        mallopt(mmap_threshold, 2**25)
        mallopt(trim_threshold, 2**26)


def _load_pretrained(
    experiment: Experiment, ds_config: dict[str, Any], device: torch.device, config: Any, attention: str
) -> PreTrainedModel:
    # transformers partitions what it loads as long as this object lives.
    shared = HfDeepSpeedConfig(ds_config) if experiment.zero_stage == 3 else None
    model = AutoModelForCausalLM.from_pretrained(
        _weights_source(experiment),
        config=config,
        dtype=weights_dtype(experiment),
        attn_implementation=attention,
        device_map=None if shared else {"": device},
    )
    del shared
    return model


def allocate(own: Iterable[nn.Module]) -> None:
    """Allocate weights and buffers that are on the meta device; tied ones stay tied."""
    made: dict[int, torch.Tensor] = {}
    for module in (module for unit in own for module in unit.modules()):
        for name, empty in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            if id(empty) not in made and empty.is_meta:
                new = torch.empty_like(empty, device="cpu")
                made[id(empty)] = nn.Parameter(new, empty.requires_grad) if isinstance(empty, nn.Parameter) else new
            setattr(module, name, made.get(id(empty), empty))


def init_units(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the units that are initialised one by one, with names: each block, and each layer outside of blocks."""

    def walk(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        if isinstance(module, nn.ModuleList):
            prefix = f"{name}." if name else ""
            yield from ((f"{prefix}{key}", child) for key, child in module.named_children())
        elif has_own_parameters(module):
            yield name, module
        else:
            for key, child in module.named_children():
                yield from walk(f"{name}.{key}" if name else key, child)

    yield from walk("", model)


@torch.no_grad()
def init_weights(model: PreTrainedModel, seed: int) -> None:
    """Initialise every weight by the model's own rule, block by block, equally on all ZeRO stages."""
    for name, unit in init_units(model):
        parameters = list(unit.parameters())
        if any(parameter.is_meta for parameter in parameters):  # another pipeline stage has them
            continue
        whole = any(hasattr(parameter, "ds_id") for parameter in parameters)
        torch.manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        with deepspeed.zero.GatheredParameters(parameters, modifier_rank=0, enabled=whole):
            if not whole or deepspeed.comm.get_rank() == 0:
                for module in unit.modules():
                    with large_ones_in_fp32(module):
                        model._init_weights(module)
    torch.manual_seed(seed)


@contextmanager
def large_ones_in_fp32(module: nn.Module) -> Iterator[None]:
    """Let a module initialise its large weights in fp32, and round them afterwards.

    Torch fills a tensor of more than 2 GiB on a GPU in parts, each with random numbers of its own, so the embedding of
    BLOOM-3B and 7B1 was another one in fp32 than in half precision, and their losses differed by 0.1 %.
    """
    halves = {
        own: own.data
        for own in module.parameters(recurse=False)
        if own.dtype in {torch.float16, torch.bfloat16} and 4 * own.numel() > PART_BYTES
    }
    for own in halves:
        own.data = torch.empty_like(own, dtype=torch.float32)
    try:
        yield
    finally:
        for own, half in halves.items():
            own.data = half.copy_(own.data)
