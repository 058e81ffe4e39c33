"""Tensor-parallel ranks: DeepSpeed's AutoTP splits the blocks, also for FSDP, which then shards each rank's part.

FSDP replaces parameters, and with them the hooks that add up what ranks compute of a gradient. A
norm over all parameters counts whole ones once and adds up the parts of the others.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.module_inject.auto_tp import AutoTP
from deepspeed.module_inject.autotp_config import AutoTPConfig
from deepspeed.module_inject.layers import DS_TENSOR_MODEL_PARALLEL, LinearLayer, set_autotp_mode
from deepspeed.utils import groups
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dsnb.models import layout, split
from dsnb.settings.experiment import Experiment


def split_blocks(
    experiment: Experiment,
    model: nn.Module,
    of_model: Sequence[nn.Module],
    given: Sequence[layout.Arguments],
) -> list[nn.Parameter]:
    """Split the blocks of a model, or of a pipeline's stage, in place.

    Returns the whole parameters of whose gradients each rank computes a part.
    """
    groups._init_tp_mesh_device(tensor_model_parallel_size=experiment.tensor_parallel)
    set_autotp_mode(training=True)
    group = groups.get_tensor_model_parallel_group()

    def cut(rules: list[dict[str, Any]]) -> None:
        described = {"use_default_specs": False, "layer_specs": rules}
        auto = AutoTP(
            module=model,
            all_reduce_linears=(),
            prefix="",
            state_dict=None,
            linear_layer_setting=(torch.nn.Linear, torch.nn.Embedding),
            orig_layer_impl=None,
            partition_config=AutoTPConfig.from_dict(
                {**described, "tp_size": experiment.tensor_parallel}
            ),
            training_mode=True,
        )
        auto.set_tensor_parallel_config(experiment.tensor_parallel, group)
        auto.update_linear_policies()
        auto._replace_module(model)

    return split.split(of_model, given, group, cut)


def copy_inputs(model: nn.Module) -> None:
    """Let layers that are split by columns read copies of their inputs, inside compiled blocks.

    Where such a layer reads a block's input (OLMo 2), torch's compiler fails: FSDP's hook returns
    the input as it is, and so does AutoTP's autograd function.
    """

    def copied(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return inputs[0].clone(), *inputs[1:]

    for module in model.modules():
        if isinstance(module, LinearLayer):
            module.register_forward_pre_hook(copied)


class ShardedParts:
    """The parameters of a split model by what tensor-parallel ranks have of them, while FSDP shards them."""

    def __init__(self, model: nn.Module, partial: Sequence[nn.Parameter]) -> None:
        """Note the names of a model's parameters before FSDP replaces them."""
        self._group = groups.get_tensor_model_parallel_group()
        self.ranks: int = dist.get_world_size(self._group)
        summed = {id(parameter) for parameter in partial}
        self._summed: list[str] = []
        self._divided: list[str] = []
        for name, parameter in model.named_parameters():
            if id(parameter) in summed:
                self._summed.append(name)
            elif hasattr(parameter, DS_TENSOR_MODEL_PARALLEL):
                self._divided.append(name)
        self._parameters: dict[str, nn.Parameter] = {}

    def find(self, sharded: nn.Module) -> None:
        """Take the parameters that FSDP has put in their places."""
        self._parameters = dict(sharded.named_parameters())

    def add_up(self) -> None:
        """Add up the gradients of which each rank has computed a part, in one message."""
        shards = [_of_rank(gradient) for gradient in self._gradients(self._summed)]
        if not shards:
            return
        message = torch.cat([shard.flatten() for shard in shards])
        dist.all_reduce(message, group=self._group)
        sizes = [shard.numel() for shard in shards]
        for shard, total in zip(shards, message.split(sizes), strict=True):
            shard.copy_(total.view_as(shard))

    def clip(self, limit: float) -> Tensor:
        """Scale all gradients down to a norm of at most `limit`; return the norm before, shape ()."""
        divided = set(self._divided)
        others = [name for name in self._parameters if name not in divided]
        of_parts = _norm(self._gradients(self._divided)) ** 2
        dist.all_reduce(of_parts, group=self._group)
        norm = (of_parts + _norm(self._gradients(others)) ** 2).sqrt()
        torch.nn.utils.clip_grads_with_norm_(self._parameters.values(), limit, norm)
        return norm

    def _gradients(self, names: Iterable[str]) -> list[Tensor]:
        gradients = [self._parameters[name].grad for name in names]
        return [gradient for gradient in gradients if gradient is not None]


def _of_rank(tensor: Tensor) -> Tensor:
    """Return this rank's share of a tensor, which shares its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _norm(gradients: list[Tensor]) -> Tensor:
    """Return the norm of gradients over the ranks that share them."""
    norm = torch.nn.utils.get_total_norm(gradients)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
