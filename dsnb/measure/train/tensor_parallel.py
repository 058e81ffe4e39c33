"""Tensor-parallel ranks: DeepSpeed's AutoTP splits the blocks, also for the plain loop and for FSDP.

FSDP then shards each rank's part. It replaces parameters, and with them the hooks that add up what
ranks compute of a gradient. A norm over all parameters counts whole ones once and adds up the parts
of the others.
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
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


def share_inputs(
    of_model: Sequence[nn.Module], given: Sequence[layout.Arguments], compiled: bool
) -> None:
    """Let split layers that read one input, such as queries, keys and values, add up its gradient once.

    AutoTP adds it up for each of them: five times in a block of Llama, where twice is enough
    (Shoeybi et al. 2019).
    """
    for first, *others in layout.kinds(of_model).values():
        readers = list(_readers(of_model[first], given[first]))
        for number in (first, *others):
            for names in readers:
                _share([of_model[number].get_submodule(name) for name in names], compiled)


def _readers(block: nn.Module, arguments: layout.Arguments) -> Iterable[list[str]]:
    """Return the names of a block's layers that are split by columns, those that read one tensor together."""
    inputs: list[Tensor] = []  # also keeps them alive, so that no two are at one address
    names: dict[int, list[str]] = {}
    positional, named = arguments
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(layout.evaluating(block))
        for name, module in block.named_modules():
            if not isinstance(module, LinearLayer):
                continue

            def note(_: nn.Module, given: tuple[Tensor, ...], name: str = name) -> None:
                inputs.append(given[0])
                names.setdefault(id(given[0]), []).append(name)

            stack.callback(module.register_forward_pre_hook(note).remove)
        block(*positional, **named)
    return names.values()


def _share(layers: Sequence[Any], compiled: bool) -> None:
    """Let layers that are called one after the other read one tensor, whose gradient is added up.

    Compiled blocks read a copy, which the compiler drops: it fails where an autograd function
    returns a block's input as it is (OLMo 2), because FSDP's hook has done the same.
    """
    group = layers[0].mp_group
    shared: list[Tensor] = []

    def take(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        whole = inputs[0].clone() if compiled else inputs[0]
        shared[:] = [_AddGradients.apply(whole, group)]  # type: ignore[no-untyped-call]

    def read(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return shared[0], *inputs[1:]

    def leave(*_: Any) -> None:
        shared.clear()

    layers[0].register_forward_pre_hook(take)
    for layer in layers:
        layer.mp_group = None
        layer.register_forward_pre_hook(read)
    layers[-1].register_forward_hook(leave)


class _AddGradients(torch.autograd.Function):
    """Return a tensor as it is; its gradient is the sum of those of all ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Any) -> Tensor:  # type: ignore[override]
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class ShardedParts:
    """The parameters of a split model by what tensor-parallel ranks have of them; FSDP may shard them."""

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
