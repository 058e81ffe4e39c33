"""Builds any causal language model of transformers, without a full copy in the host memory of every rank.

With ZeRO 0 to 2 the model is built directly on the rank's device in the training dtype; with ZeRO 3
each module is partitioned as it is created. Random weights are drawn block by block with a seed per
block, so all stages start equal.
"""

import ctypes
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.integrations.deepspeed import HfDeepSpeedConfig
from transformers.pytorch_utils import Conv1D

from dsnb.base.formulas import model_shapes
from dsnb.models import attention, parts
from dsnb.models.adapters import layers_of
from dsnb.models.logits import logit_map
from dsnb.models.parts import blocks, has_own_parameters
from dsnb.models.quantized import quantize_blocks, reveal_torchao
from dsnb.settings import checks
from dsnb.settings.experiment import Experiment

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
LINEAR = (
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._grouped_mm.default,
)
"""Operators of linear layers; the last one is of experts."""
FUSED_ATTENTION = "_scaled_dot_product"
"""In the names of its operators, one for each kernel."""
MAX_FILL_BYTES = 2**31 - 1
"""Maximum bytes that torch fills at once on a GPU, in 32-bit offsets."""
ADDED_LOGIT = -1e4
"""Logit of a column that pads the vocabulary: in fp32 its exponential adds nothing, soft-capped or not. It is finite,
because an optimizer decays a layer's own bias, and 0 x infinity is NaN."""
LARGEST_ADDED = -15.0
"""Largest logit of an added column: beside those of 50,000 tokens its exponential is below fp32's precision."""
OTHER_DROPS = ("layerdrop", "classifier", "summary", "path")
"""Fields of a configuration that drop whole layers, or belong to other heads."""


def model_config(experiment: Experiment) -> Any:
    """Return the transformers configuration of the experiment's model, with its attention implementation."""
    path = model_shapes.local_config(experiment.model)
    if path:
        settings = json.loads(path.read_text(encoding="utf-8"))
        config = AutoConfig.for_model(**settings)
    elif experiment.model in model_shapes.PRESETS and experiment.weights == "random":
        config = AutoConfig.for_model(**model_shapes.PRESETS[experiment.model].config())
    else:
        config = AutoConfig.from_pretrained(_weights_source(experiment))
    wrong = checks.not_trained(experiment.model, config.to_dict())
    if wrong:
        raise ValueError(wrong)
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise ValueError(
            f"model is {experiment.model!r}: transformers has no causal language model of type {config.model_type}; "
            f"{checks.CAUSAL}"
        )
    positions = getattr(config, "max_position_embeddings", None)
    if positions and experiment.seq_len > positions and config.model_type != "bloom":
        raise ValueError(
            f"seq_len is {experiment.seq_len}: {experiment.model} has {positions} positions; use at most {positions}"
        )
    config.use_cache = False
    set_dropout(config, experiment.dropout)
    config._attn_implementation = _attention(config, experiment.attention)
    return config


def set_dropout(config: Any, dropout: float) -> None:
    """Set every dropout probability of a configuration; raise ValueError if there is none to set."""
    was_set = False
    for name, value in config.to_dict().items():
        is_dropout = "drop" in name and not any(other in name for other in OTHER_DROPS)
        if is_dropout and isinstance(value, int | float) and not isinstance(value, bool):
            setattr(config, name, dropout)
            was_set = True
    if dropout and not was_set:
        raise ValueError(
            f"dropout is {dropout:g}: {config.model_type} models have none; set it to 0"
        )


def _attention(config: Any, wanted: str) -> str:
    """Return the fastest attention that the settings allow and transformers supports for the model."""
    model_class = AutoModelForCausalLM._model_mapping.get(type(config), None)
    if wanted != "eager" and getattr(model_class, "_supports_sdpa", False):
        return attention.fastest(config, model_class)
    if wanted == "sdpa" and config.model_type != "bloom":
        raise ValueError(
            f"attention is 'sdpa': transformers has none for {config.model_type}; set it to 'eager' or 'auto'"
        )
    return "eager"


def _weights_source(experiment: Experiment) -> str:
    """Return the folder or hub ID of a model's weights."""
    path = model_shapes.local_config(experiment.model)
    if path:
        return str(path.parent)
    preset = model_shapes.PRESETS.get(experiment.model)
    return (preset.hub_id if preset else None) or experiment.model


def build(
    experiment: Experiment, ds_config: dict[str, Any], device: torch.device
) -> PreTrainedModel:
    """Build the model on `device`, already partitioned at ZeRO stage 3."""
    make = _load_pretrained if experiment.weights == "pretrained" else _build_random
    dtype = DTYPES[experiment.numbers.built]
    model = make(experiment, ds_config, device, model_config(experiment), dtype)
    if experiment.zero_stage == 3:
        restore_buffers(experiment, model, device)
    return adapt(experiment, model)


def restore_buffers(experiment: Experiment, model: PreTrainedModel, device: torch.device) -> None:
    """Give a model of ZeRO 3 the buffers that it has at other stages.

    While DeepSpeed partitions a model, it creates every tensor in the weights' format: in bf16 the
    frequencies of rotary positions were rounded to 8 bits, which turned token 2,000 of Llama 2 by
    up to 2.4 rad.
    """
    with no_init_weights(), init_empty_weights(include_buffers=False):
        config = model_config(experiment)
        whole = AutoModelForCausalLM.from_config(config, dtype=DTYPES[experiment.numbers.built])
    for name, module in whole.named_modules():
        for key, buffer in module.named_buffers(recurse=False):
            model.get_submodule(name)._buffers[key] = buffer.to(device)


def build_stage(
    experiment: Experiment, stage: int, device: torch.device
) -> tuple[Any, parts.ForwardPath]:
    """Build a model in which only one pipeline stage has weights, those of a whole model, and trace its forward pass.

    With random weights the rest takes no memory; pretrained weights are loaded whole into host
    memory.
    """
    config = model_config(experiment)
    stages = experiment.pipeline_parallel
    parts.check_split(experiment, config)
    is_random = experiment.weights == "random"
    dtype = DTYPES[experiment.numbers.built]
    if is_random:
        with no_init_weights(), init_empty_weights(include_buffers=False):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    else:
        model = _load_pretrained(experiment, {}, torch.device("cpu"), config, dtype)
    path = parts.forward_path(model, int(experiment.micro_batch_size), experiment.seq_len, device)
    modules = list(parts.stage_modules(model, path, stage, stages))
    if is_random:
        allocate(modules)
    for module in modules:
        module.to(device)
    if is_random:
        init_weights(model, experiment.seed)
    model.tie_weights()
    return adapt(experiment, model), path


def build_on_meta(experiment: Experiment, layers: int = 0, dtype: torch.dtype | None = None) -> Any:
    """Build the model without memory on the meta device, to trace or count it, of `layers` blocks if given."""
    # Neither sees products in fp8, or weights of 4 bits.
    experiment = experiment.model_copy(update={"matmul": "auto", "frozen_weights": "auto"})
    config = model_config(experiment)
    if layers:
        config.num_hidden_layers = layers
    with torch.device("meta"):
        return adapt(experiment, AutoModelForCausalLM.from_config(config, dtype=dtype))


def adapt(experiment: Experiment, model: PreTrainedModel) -> PreTrainedModel:
    """Apply fused ALiBi, tensor parallelism, LoRA and checkpointing to a model or a pipeline stage's part of it."""
    if not hasattr(model.config, "num_hidden_layers"):
        raise ValueError(
            f"model is {experiment.model!r}: {model.config.model_type} is more than a language model; save the "
            "text_config of its configuration as a separate configuration and use that"
        )
    if model.config.model_type == "bloom" and experiment.attention != "eager":
        # FlexAttention is fast only if compiled for a GPU; as used here it has no dropout, and all
        # heads' slopes.
        has_flex = experiment.compile != "off" and experiment.device == "cuda"
        has_flex &= not experiment.dropout and experiment.tensor_parallel == 1
        attention.use_fused_alibi(model, experiment.seq_len if has_flex else 0)
    if experiment.tensor_parallel > 1:
        parts.prepare(experiment, model)
    if experiment.pad_vocab:
        pad_vocabulary(model, experiment.pad_vocab)
    if experiment.matmul == "fp8":
        multiply_in_fp8(experiment, model)
    if experiment.frozen_weights == "nf4":
        quantize_blocks(experiment, model)
    if experiment.lora_rank:
        model = add_adapters(experiment, model)
    if experiment.activation_checkpointing:
        checkpoint_activations(experiment, model)
    model.train()
    if model.config.model_type == "opt":
        # Only this module's flag: transformers 5.17 reads the layerdrop, which is 0, in a way that
        # breaks a compiled graph at every block.
        model.get_decoder().training = False
    return model


def pad_vocabulary(model: PreTrainedModel, multiple: int) -> None:
    """Add rows of zeros to the output layer, and to an embedding that shares its weight, up to a multiple.

    The layer's bias leaves the added logits out of the loss, so the rows' gradients are zero. A
    slice or a mask of the logits is slower: GPT-2, 32 x 1024, CUDA graphs, on one H200: 483,625,
    507,478 and, with a bias, 512,753 tokens/s.
    """
    check_padded(model, multiple)
    head = model.get_output_embeddings()
    embedding = model.get_input_embeddings()
    is_tied = embedding.weight is head.weight
    rows = -len(head.weight) % multiple
    has_bias = head.bias is not None
    bias = head.bias if has_bias else head.weight.new_zeros(len(head.weight))
    bias = nn.functional.pad(bias.detach(), (0, rows), value=ADDED_LOGIT)
    head.bias = nn.Parameter(bias, requires_grad=has_bias)
    head.weight = nn.Parameter(nn.functional.pad(head.weight.detach(), (0, 0, 0, rows)))
    if is_tied:
        embedding.weight = head.weight


def check_padded(model: Any, multiple: int) -> None:
    """Raise ValueError if a model does not make its logits in a way that keeps added ones out of the loss."""
    try:
        made = logit_map(model)
    except ValueError as error:
        raise ValueError(f"pad_vocab is {multiple}: {error}; set it to 0") from error
    added = float(made.logits(torch.tensor(ADDED_LOGIT, device="cpu")))
    if added > LARGEST_ADDED:
        raise ValueError(
            f"pad_vocab is {multiple}: its logits have a factor or a soft cap, which would make added ones {added:.1f} "
            "instead of negligible; set it to 0"
        )


def multiply_in_fp8(experiment: Experiment, model: PreTrainedModel) -> None:
    """Let the linear layers of blocks whose sizes are multiples of 16 multiply in fp8, on a CPU emulated."""
    if experiment.device == "cuda":
        capability = torch.cuda.get_device_capability()
        if capability < checks.FP8_CAPABILITY:
            raise ValueError(checks.no_fp8(torch.cuda.get_device_name(), capability))
    parts.use_linear_layers(model)
    check_fp8(experiment, model)
    reveal_torchao(experiment)
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig(emulate=experiment.device == "cpu")
    for block in blocks(model):
        convert_to_float8_training(
            block, config=config, module_filter_fn=lambda layer, _: _fits_fp8(layer)
        )


def check_fp8(experiment: Experiment, model: Any) -> None:
    """Raise ValueError if most weights of blocks are in no linear layers that torchao converts."""
    weights = converted = 0
    for block in blocks(model):
        weights += sum(weight.numel() for weight in block.parameters())
        for module in block.modules():
            if _fits_fp8(module):
                converted += module.weight.numel()
    if converted < weights / 2:
        share = f"{converted / weights:.0%} of the weights of {experiment.model}'s blocks"
        raise ValueError(
            f"matmul is 'fp8': torchao converts linear layers, which have {share}; use 'auto'"
        )


def _fits_fp8(layer: Any) -> bool:
    """Return whether a module is a linear layer, both sizes of which are multiples of 16."""
    if isinstance(layer, Conv1D):
        return layer.nx % 16 == 0 and layer.nf % 16 == 0
    is_linear = isinstance(layer, nn.Linear)
    return is_linear and layer.in_features % 16 == 0 and layer.out_features % 16 == 0


def add_adapters(experiment: Experiment, model: Any) -> Any:
    """Freeze a model in half precision and add trainable adapters.

    Adapters are in half precision if DeepSpeed keeps fp32 master copies of them, or if everything is,
    else in fp32. The scaling is 1 (alpha = rank), like `lora_scaling` in DeepSpeed-Chat, whose OPT-13B results this
    reproduces.
    """
    from peft import (  # takes a second to import, and only these runs need it
        LoraConfig,
        get_peft_model,
    )

    targets: Any = "all-linear"
    if experiment.lora_targets != "linear":
        targets = list(layers_of(model, experiment.lora_targets))
    torch.manual_seed(experiment.seed)
    config = LoraConfig(
        r=experiment.lora_rank,
        lora_alpha=experiment.lora_rank,
        lora_dropout=0.0,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    in_fp32 = experiment.numbers.trained == "fp32"
    return get_peft_model(model, config, autocast_adapter_dtype=in_fp32)


def checkpoint_activations(experiment: Experiment, model: Any) -> None:
    """Enable activation checkpointing, under either of the names that transformers has for it."""

    def offloaded(function: Callable[..., Any], *inputs: Any) -> Any:
        with save_on_cpu(pin_memory=experiment.device == "cuda"):
            # Only a reentrant one has such hooks.
            return checkpoint(function, *inputs, use_reentrant=True)

    if not all(hasattr(block, "gradient_checkpointing") for block in blocks(model)):
        family = model.config.model_type
        raise ValueError(
            f"activation_checkpointing is true: transformers recomputes no blocks of {family}; turn it off"
        )
    enable = (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )
    options: dict[str, Any] = {"use_reentrant": False}
    if experiment.checkpoint_ops == "cheap":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _keep_products)
    enable(options)
    for number, block in enumerate(blocks(model)):
        block.gradient_checkpointing = number % experiment.checkpoint_every == 0
        if experiment.checkpoint_offload:
            block._gradient_checkpointing_func = offloaded
    if experiment.checkpoint_offload:
        model.enable_input_require_grads()  # otherwise a reentrant checkpoint behind frozen layers trains nothing
    elif experiment.lora_rank:
        model.disable_input_require_grads()  # peft's hook for reentrant checkpoints breaks a compiled graph


def _keep_products(_: Any, operator: Any, *__: Any, **___: Any) -> CheckpointPolicy:
    """Keep results of linear layers and of fused attention, which take most of a forward pass."""
    if operator in LINEAR or FUSED_ATTENTION in str(operator):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def _build_random(
    experiment: Experiment,
    ds_config: dict[str, Any],
    device: torch.device,
    config: Any,
    dtype: torch.dtype,
) -> PreTrainedModel:
    import deepspeed  # takes a while, and tracing a model needs none of it

    shared = experiment.zero_stage == 3
    with return_freed_memory() if shared else nullcontext():
        sharding = deepspeed.zero.Init(config_dict_or_path=ds_config) if shared else nullcontext()
        with no_init_weights(), device, sharding:
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        init_weights(model, experiment.seed)
    model.tie_weights()
    return model


@contextmanager
def return_freed_memory() -> Iterator[None]:
    """Make glibc return freed tensors to the system at once, while parameters are created whole and partitioned.

    Otherwise they stay allocated between the partitions: with OPT-350M on 4 CPU ranks a rank grew
    by 600 MB, about the whole model, instead of 290 MB. Afterwards glibc keeps them again, because
    training steps reuse tensors.
    """
    trim_threshold = -1
    mmap_threshold = -3
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)
    mallopt(mmap_threshold, 2**20)
    try:
        yield
    finally:
        mallopt(mmap_threshold, 2**25)
        mallopt(trim_threshold, 2**26)


def _load_pretrained(
    experiment: Experiment,
    ds_config: dict[str, Any],
    device: torch.device,
    config: Any,
    dtype: torch.dtype,
) -> PreTrainedModel:
    # transformers partitions what it loads as long as this object lives.
    shared = HfDeepSpeedConfig(ds_config) if experiment.zero_stage == 3 else None
    model = AutoModelForCausalLM.from_pretrained(
        _weights_source(experiment),
        config=config,
        dtype=dtype,
        device_map=None if shared else {"": device},
    )
    del shared
    return model


def allocate(roots: Iterable[nn.Module]) -> None:
    """Allocate weights and buffers that are on the meta device; tied ones stay tied."""
    allocated: dict[torch.Tensor, torch.Tensor] = {}
    for module in nn.ModuleList(roots).modules():
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for name, old in own:
            if old not in allocated and old.is_meta:
                new = torch.empty_like(old, device="cpu")
                if isinstance(old, nn.Parameter):
                    new = nn.Parameter(new, old.requires_grad)
                allocated[old] = new
            setattr(module, name, allocated.get(old, old))


def init_units(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the units that are initialised one by one, with names: each block, and each layer outside of blocks."""
    children = [(f"{name}.{key}" if name else key, child) for key, child in module.named_children()]
    if isinstance(module, nn.ModuleList):
        yield from children
    elif has_own_parameters(module):
        yield name, module
    else:
        for path, child in children:
            yield from init_units(child, path)


@torch.no_grad()
def init_weights(model: PreTrainedModel, seed: int) -> None:
    """Initialise every weight by the model's rule, block by block, equally on all ZeRO stages."""
    import deepspeed

    for name, unit in init_units(model):
        parameters = list(unit.parameters())
        if any(parameter.is_meta for parameter in parameters):  # of another pipeline stage
            continue
        shared = any(hasattr(parameter, "ds_id") for parameter in parameters)
        torch.manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        with deepspeed.zero.GatheredParameters(parameters, modifier_rank=0, enabled=shared):
            if not shared or deepspeed.comm.get_rank() == 0:
                for module in unit.modules():
                    with large_weights_in_fp32(module):
                        model._init_weights(module)
    torch.manual_seed(seed)


@contextmanager
def large_weights_in_fp32(module: nn.Module) -> Iterator[None]:
    """Let a module initialise its large weights in fp32, and round them afterwards.

    On a GPU torch fills a tensor of more than 2 GiB in parts, each with different random numbers.
    The embedding of BLOOM-3B and 7B1 was therefore not the same in fp32 and half precision, and
    their losses differed by 0.1 %.
    """
    halves = {
        weight: weight.data
        for weight in module.parameters(recurse=False)
        if weight.dtype in {torch.float16, torch.bfloat16} and 4 * weight.numel() > MAX_FILL_BYTES
    }
    for weight in halves:
        weight.data = torch.empty_like(weight, dtype=torch.float32)
    try:
        yield
    finally:
        for weight, half in halves.items():
            weight.data = half.copy_(weight.data)
