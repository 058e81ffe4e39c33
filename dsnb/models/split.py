"""Splits the blocks of a model among tensor-parallel ranks, as `dsnb.models.layout` finds out.

DeepSpeed's AutoTP cuts the weights and communicates. It does not handle transformers' Conv1D,
head counts in configurations, a norm over the heads of all ranks, and what GPT-2 and BLOOM derive
from head counts. After the split each kind of block must compute what it computed before.
"""

import copy
import inspect
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dsnb.models.layout import (
    Arguments,
    Layout,
    block_arguments,
    evaluating,
    first_of,
    kinds,
    layout_of,
    random_like,
    refusal,
)
from dsnb.models.parts import blocks

TOLERANCES = {torch.float32: 0.02, torch.bfloat16: 0.05, torch.float16: 0.05}
"""Largest relative difference of a split block's results and gradients (fp32: as of products in TF32). A wrong split is
off by about 1."""
SMALL = 2.0**-6
"""Scale of the hidden state for this: a norm undoes it, so that what layers add outweighs the hidden state itself."""
HEAD_COUNTS = ("num_attention_heads", "num_key_value_heads", "num_kv_heads")
"""Fields of configurations that blocks read."""
COUNTS_OF_MODULES = (
    "num_heads", "num_attention_heads", "num_key_value_heads", "num_kv_heads", "hidden_size", "embed_dim",
)  # fmt: skip
"""Attributes of modules that AutoTP divides (its `update_mp_params`)."""


def split(
    model_blocks: Sequence[nn.Module],
    given: Sequence[Arguments],
    group: Any,
    cut: Callable[[list[dict[str, Any]]], None],
) -> list[nn.Parameter]:
    """Split blocks in place and check that each kind computes as before.

    Returns the whole parameters of whose gradients each rank computes a part; hooks add these up.

    Parameters
    ----------
    given
        What each block is called with, the hidden state first.
    group
        The ranks.
    cut
        Applies rules of AutoTP to the model that has these blocks.

    Raises
    ------
    ValueError
        If a block cannot be split, or its results differ.
    """
    with ExitStack() as stack:
        for block in model_blocks:
            stack.enter_context(evaluating(block))
        return _split(model_blocks, given, group, cut)


def _split(
    model_blocks: Sequence[nn.Module],
    given: Sequence[Arguments],
    group: Any,
    cut: Callable[[list[dict[str, Any]]], None],
) -> list[nn.Parameter]:
    ranks = dist.get_world_size(group)
    rank = dist.get_rank(group)
    of_kinds = []
    for first, *others in kinds(model_blocks).values():
        block = model_blocks[first]
        layout = layout_of(block, given[first], ranks)
        before = _results(block, given[first], layout)
        of_kinds.append((first, others, layout, before))
    cut(_rules([layout for _, _, layout, _ in of_kinds], ranks))
    partial = []
    for first, others, layout, before in of_kinds:
        for number in (first, *others):
            partial += [model_blocks[number].get_parameter(name) for name in layout.partial]
            _adjust_heads(model_blocks[number], layout, rank, ranks)
            _communicate(model_blocks[number], layout, group)
        block = model_blocks[first]
        try:
            after = _results(block, given[first], layout)
        except (RuntimeError, ValueError, IndexError) as error:
            reason = str(error).strip().splitlines()[0].partition(". ")[0]
            raise refusal(ranks, f"a split block fails ({reason})") from error
        _compare(before, after, ranks)
    return partial


def _rules(layouts: Sequence[Layout], ranks: int) -> list[dict[str, Any]]:
    """Return AutoTP's rules for all kinds of blocks."""
    roles: dict[str, Any] = {}
    rules: list[dict[str, Any]] = []
    for layout in layouts:
        for name, role in layout.roles.items():
            if roles.setdefault(name, role) != role:
                raise refusal(ranks, f"{name} has a different place in some blocks")
        rules += [rule for rule in layout.rules() if rule not in rules]
    return rules


def _results(block: nn.Module, arguments: Arguments, layout: Layout) -> dict[str, Tensor]:
    """Return a block's output for random numbers, and gradients of its input and of whole parameters."""
    given, named = arguments
    hidden = (SMALL * random_like(given[0])).requires_grad_()
    output = first_of(block(hidden, *given[1:], **named))
    names = ["input", *layout.partial]
    to = [hidden, *(block.get_parameter(name) for name in layout.partial)]
    found = torch.autograd.grad(output, to, random_like(output), materialize_grads=True)
    return {"output": output.detach(), **dict(zip(names, found, strict=True))}


def _compare(before: dict[str, Tensor], after: dict[str, Tensor], ranks: int) -> None:
    """Raise ValueError if a split block computes something else than the whole block."""
    for name, whole in before.items():
        difference = (after[name].float() - whole.float()).norm()
        off = float(difference / whole.float().norm().clamp_min(1e-30))
        if not off <= TOLERANCES[whole.dtype]:
            what = "output" if name == "output" else f"gradient of the {name}"
            raise refusal(ranks, f"the {what} of a split block is {off:.0%} off")


def _communicate(block: nn.Module, layout: Layout, group: Any) -> None:
    """Let the ranks add up gradients, and exchange what modules need of all heads; AutoTP does neither."""
    for name in layout.partial:
        _sum_gradient(block.get_parameter(name), group)
    for name in layout.across:
        _gather_for(block.get_submodule(name), group)


def _adjust_heads(block: nn.Module, layout: Layout, rank: int, ranks: int) -> None:
    """Give a block the head counts of a rank in its configurations, and what GPT-2 and BLOOM derive from them."""
    owners = {name.rpartition(".")[0] for name in layout.roles}
    for name, module in block.named_modules():
        config = getattr(module, "config", None)
        if config is not None:
            module.config = _with_fewer_heads(config, ranks)
        if name not in owners:
            continue
        if hasattr(module, "split_size"):  # GPT-2: where keys and values begin
            module.split_size //= ranks
        if "alibi" in inspect.signature(module.forward).parameters:
            _slice_alibi(module, rank, ranks)


def _with_fewer_heads(config: Any, ranks: int) -> Any:
    """Return a copy of a configuration with the head counts of a rank."""
    config = copy.copy(config)
    for name in HEAD_COUNTS:
        number = getattr(config, name, None)
        if isinstance(number, int) and number % ranks == 0:
            setattr(config, name, number // ranks)
    return config


def _sum_gradient(weight: Tensor, group: Any) -> None:
    """Add up the gradient of a parameter, of which each rank computes a part."""

    def summed(gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=group)
        return gradient

    weight.register_hook(summed)


def keep_part(model: Any, ranks: int) -> None:
    """Give a model the shapes of one rank, without communication, to count what a rank does; its values are wrong."""
    given = block_arguments(model)
    model_blocks = blocks(model)
    with evaluating(model):
        for numbers in kinds(model_blocks).values():
            layout = layout_of(model_blocks[numbers[0]], given[numbers[0]], ranks)
            for number in numbers:
                block = model_blocks[number]
                _cut_weights(block, layout, ranks)
                _adjust_heads(block, layout, 0, ranks)
                for name in layout.across:
                    _repeat_for(block.get_submodule(name), ranks)


def _cut_weights(block: nn.Module, layout: Layout, ranks: int) -> None:
    """Keep the first part of the weights of a block's layers, as AutoTP does, and divide its head counts."""
    for name in layout.sections:
        layer: Any = block.get_submodule(name)
        layer.out_features //= ranks
        layer.weight = nn.Parameter(layer.weight.detach()[: layer.out_features])
        if layer.bias is not None:
            layer.bias = nn.Parameter(layer.bias.detach()[: layer.out_features])
    for name in layout.rows:
        layer = block.get_submodule(name)
        layer.in_features //= ranks
        layer.weight = nn.Parameter(layer.weight.detach()[:, : layer.in_features].contiguous())
    for name in {role.rpartition(".")[0] for role in layout.roles}:
        module = block.get_submodule(name)
        for count in COUNTS_OF_MODULES:
            if isinstance(getattr(module, count, None), int):
                setattr(module, count, getattr(module, count) // ranks)


def _repeat_for(module: nn.Module, ranks: int) -> None:
    """Give a module its own inputs in place of other ranks', and keep a part of its output."""

    def repeat(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return torch.cat([inputs[0]] * ranks, dim=-1), *inputs[1:]

    module.register_forward_pre_hook(repeat)
    module.register_forward_hook(lambda _, __, output: output.chunk(ranks, dim=-1)[0])


class _Gather(torch.autograd.Function):
    """Join the last dimension of all ranks' tensors; the gradient is the sum of all ranks' for this rank's part."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Any) -> Tensor:  # type: ignore[override]
        ctx.group = group
        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, tensor.contiguous(), group=group)
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        ranks = dist.get_world_size(ctx.group)
        own = gradient.chunk(ranks, dim=-1)[dist.get_rank(ctx.group)]
        return own.contiguous(), None


def _gather_for(module: nn.Module, group: Any) -> None:
    """Give a module, such as a norm over all heads, all ranks' inputs, and keep this rank's part of its output."""
    ranks = dist.get_world_size(group)
    rank = dist.get_rank(group)

    def gather(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        whole = _Gather.apply(inputs[0], group)  # type: ignore[no-untyped-call]
        return whole, *inputs[1:]

    def keep(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        return output.chunk(ranks, dim=-1)[rank]

    module.register_forward_pre_hook(gather)
    module.register_forward_hook(keep)


def _slice_alibi(attention: nn.Module, rank: int, ranks: int) -> None:
    """Pass an attention layer the ALiBi slopes of a rank's heads only, out of (batch x heads, 1, length)."""

    def slice_(
        _: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        if named.get("alibi") is None:
            return inputs, named
        of_heads = named["alibi"].unflatten(0, (len(inputs[0]), -1))
        alibi = of_heads.chunk(ranks, dim=1)[rank].flatten(0, 1)
        return inputs, {**named, "alibi": alibi}

    attention.register_forward_pre_hook(slice_, with_kwargs=True)
