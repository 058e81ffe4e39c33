"""Prepares models for DeepSpeed's AutoTP, and splits the blocks of pipeline stages.

AutoTP takes the rules of `dsnb.launcher.config`: which linear layers are split by rows and which by columns. It divides
head counts itself, but handles neither transformers' Conv1D nor what GPT-2 and BLOOM derive from these counts.
"""

from typing import Any

import torch
from deepspeed.module_inject.auto_tp import AutoTP
from deepspeed.module_inject.autotp_config import AutoTPConfig
from deepspeed.module_inject.layers import set_autotp_mode
from deepspeed.utils import groups
from torch import nn
from transformers.pytorch_utils import Conv1D

from dsnb.formulas import model_shapes
from dsnb.settings.experiment import Experiment
from dsnb.train.model_parts import blocks


def prepare(experiment: Experiment, model: Any) -> None:
    """Prepare a model, or a pipeline stage's part of it, for AutoTP.

    Raises
    ------
    ValueError
        If AutoTP is not tested for the model's family, or its heads cannot be divided evenly.
    """
    ranks, config = experiment.tensor_parallel, model.config
    if config.model_type not in model_shapes.SPLIT:
        raise ValueError(model_shapes.not_split("tensor_parallel", ranks, config.model_type))
    if config.num_attention_heads % ranks:
        raise ValueError(f"tensor_parallel is {ranks}: it must divide the model's {config.num_attention_heads} heads")
    use_linear_layers(model)
    # Marks the model as done: AutoTP would also divide the model's own head count, from which ALiBi's slopes are made.
    model.base_model.replaced = True
    rank = torch.distributed.get_rank() % ranks
    for block in blocks(model):
        if config.model_type == "gpt2":
            block.attn.split_size //= ranks
        elif config.model_type == "bloom":
            heads = config.num_attention_heads // ranks
            slice_alibi(block.self_attention, first_head=rank * heads, heads=heads, of=config.num_attention_heads)


def use_linear_layers(model: nn.Module) -> None:
    """Replace every Conv1D by a linear layer: its weight is transposed, so AutoTP would split the wrong dimension."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, Conv1D):
                setattr(parent, name, _linear(child))


def _linear(layer: Conv1D) -> nn.Linear:
    inputs, outputs = layer.weight.shape
    linear = nn.Linear(inputs, outputs, device="meta")
    linear.weight = nn.Parameter(layer.weight.data.t().contiguous())
    linear.bias = layer.bias
    return linear


def slice_alibi(attention: nn.Module, first_head: int, heads: int, of: int) -> None:
    """Pass an attention layer the ALiBi slopes of its own heads only, out of (batch x all heads, 1, length)."""

    def own(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        alibi = named["alibi"]
        shares = alibi.unflatten(0, (-1, of))[:, first_head : first_head + heads]
        return inputs, {**named, "alibi": shares.flatten(0, 1)}

    attention.register_forward_pre_hook(own, with_kwargs=True)


def split_stage(experiment: Experiment, stage: nn.Module, config: Any, rules: dict[str, Any]) -> None:
    """Split the blocks of a pipeline stage; DeepSpeed does this itself only without a pipeline.

    Parameters
    ----------
    stage
        The stage with its prepared blocks, which are replaced in place.
    config
        transformers' configuration of the model.
    rules
        AutoTP's `partition_config`.
    """
    groups._init_tp_mesh_device(tensor_model_parallel_size=experiment.tensor_parallel)
    set_autotp_mode(training=True)
    partition = AutoTPConfig.from_dict({**rules, "tp_size": experiment.tensor_parallel})
    auto = AutoTP(
        module=stage,
        all_reduce_linears=(),
        prefix="",
        state_dict=None,
        linear_layer_setting=(nn.Linear, nn.Embedding),
        orig_layer_impl=None,
        partition_config=partition,
        model_config=config,
        training_mode=True,
    )
    auto.set_tensor_parallel_config(experiment.tensor_parallel, groups.get_tensor_model_parallel_group())
    auto.update_linear_policies()
    auto._replace_module(stage)
