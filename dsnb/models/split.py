"""Splits the blocks of any model among tensor-parallel ranks, by what its layers compute from each other.

A block is followed once, with random numbers. A linear layer whose input every rank has is split
by columns, so that each rank computes a part of its outputs; a layer that reads such outputs is
split by rows, and the ranks' results are added (Shoeybi et al. 2019, arXiv:1909.08053). Which
outputs a rank needs, such as its heads of a layer with queries, keys and values side by side, is
read off the gradients of its part of the input of the next layer.

DeepSpeed's AutoTP cuts the weights and communicates. It does not handle transformers' Conv1D,
head counts in configurations, a norm over the heads of all ranks, and what GPT-2 and BLOOM derive
from head counts. After the split each kind of block must compute what it computed before.
"""

import copy
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dsnb.base.formulas import model_shapes
from dsnb.models.attention import whole_sequences
from dsnb.models.parts import blocks, use_linear_layers

LENGTH = 16
"""Tokens of the sequence with which blocks are followed."""
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}
"""Largest relative difference of a split block's results and gradients; a wrong split is off by about 1."""
HEAD_COUNTS = ("num_attention_heads", "num_key_value_heads", "num_kv_heads")
"""Fields of configurations that blocks read."""
COUNTS_OF_MODULES = (
    "num_heads", "num_attention_heads", "num_key_value_heads", "num_kv_heads", "hidden_size", "embed_dim",
)  # fmt: skip
"""Attributes of modules that AutoTP divides (its `update_mp_params`)."""

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class Layout:
    """How one kind of block is split; modules and parameters by their names in the block."""

    sections: dict[str, list[int]] = field(default_factory=dict)
    """Of each layer that is split by columns: sizes of the parts of its output that are split
    separately, such as queries, keys and values."""
    rows: list[str] = field(default_factory=list)
    """Layers that are split by rows."""
    partial: list[str] = field(default_factory=list)
    """Whole parameters between both, of whose gradients each rank computes a part."""
    across: list[str] = field(default_factory=list)
    """Modules between both that need the outputs of all ranks, such as norms over all heads."""

    @property
    def roles(self) -> dict[str, Any]:
        """What is done with each layer."""
        return {**self.sections, **dict.fromkeys(self.rows, "rows")}

    def rules(self) -> Iterator[dict[str, Any]]:
        """Yield the rules for DeepSpeed's AutoTP."""
        for name, sizes in self.sections.items():
            rule: dict[str, Any] = {"patterns": [_pattern(name)], "partition_type": "column"}
            if len(sizes) > 1:
                rule |= {"shape": [sizes, -1], "partition_dim": 0}
            yield rule
        for name in self.rows:
            yield {"patterns": [_pattern(name)], "partition_type": "row"}


def _pattern(name: str) -> str:
    return rf".*\.{re.escape(name)}\.weight$"


def refusal(ranks: int, reason: str) -> ValueError:
    """Return the error about a model that cannot be split."""
    return ValueError(model_shapes.not_split(ranks, reason))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Turn off dropout and checkpointing, and restore which modules are training."""
    trained = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in trained:
            module.training = True


def block_arguments(model: Any) -> list[Arguments]:
    """Return what each block of a model is called with, the hidden state first, for a short sequence."""
    found: list[Arguments] = []

    def record(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        found.append((inputs, named))

    embedding = model.get_input_embeddings().weight
    inputs = embedding.new_zeros(1, LENGTH, embedding.shape[1])
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(evaluating(model))
        stack.enter_context(whole_sequences())
        for block in blocks(model):
            hook = block.register_forward_pre_hook(record, with_kwargs=True)
            stack.callback(hook.remove)
        model.base_model(inputs_embeds=inputs, use_cache=False)
    return found


def kinds(model_blocks: Iterable[nn.Module]) -> dict[Any, list[int]]:
    """Return the numbers of the blocks of each kind, which have equal modules and sizes."""
    found: dict[Any, list[int]] = {}
    for number, block in enumerate(model_blocks):
        sizes = tuple((name, tuple(weight.shape)) for name, weight in block.named_parameters())
        found.setdefault((type(block), sizes), []).append(number)
    return found


def check(model: Any, ranks: int) -> None:
    """Raise ValueError if a model cannot be split among ranks; it may be on the meta device."""
    use_linear_layers(model)
    given = block_arguments(model)
    model_blocks = blocks(model)
    with evaluating(model):
        for first, *_ in kinds(model_blocks).values():
            layout_of(model_blocks[first], given[first], ranks)


class _Followed:
    """One forward pass of a block, in which the output of each linear layer is a variable of its own."""

    def __init__(self, block: nn.Module, arguments: Arguments, ranks: int) -> None:
        self.ranks = ranks
        self.names = {module: name for name, module in block.named_modules()}
        self.inputs: dict[Any, Tensor] = {}
        self.outputs: dict[Any, Tensor] = {}
        """Of linear layers, in the order of their calls."""
        self.columns: list[Any] = []
        self.rows: list[Any] = []
        self.widths: dict[nn.Module, int] = {}
        """The last dimension of the input of each module that has parameters but is not linear."""
        self.across: set[nn.Module] = set()
        given, named = arguments
        self.hidden = _random(given[0]).requires_grad_()
        with ExitStack() as stack:
            for module in block.modules():
                own = next(module.parameters(recurse=False), None)
                if isinstance(module, nn.Linear):
                    stack.callback(module.register_forward_hook(self._cut).remove)
                elif own is not None and module is not block:
                    stack.callback(module.register_forward_hook(self._pass).remove)
            self.result = _first(block(self.hidden, *given[1:], **named))

    def _cut(self, layer: nn.Linear, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """Note how a layer is split, and let what follows depend on it alone."""
        name = self.names[layer]
        if layer in self.outputs:
            raise refusal(self.ranks, f"a block calls its layer {name} more than once")
        sources = self.sources(inputs[0])
        split = [source for source in sources if source in self.columns]
        if not split:
            self.columns.append(layer)
        elif len(split) < len(sources) or self.depends(inputs[0], self.hidden):
            raise refusal(self.ranks, f"{name} reads both split and whole layers")
        else:
            self.rows.append(layer)
        self.inputs[layer] = inputs[0]
        self.outputs[layer] = output.detach().requires_grad_()
        return self.outputs[layer].clone()  # the block may change it in place

    def _pass(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        """Leave out a module that mixes the outputs of a layer that is split by columns."""
        if not inputs or not isinstance(inputs[0], Tensor):
            return output
        width = inputs[0].shape[-1]
        self.widths[module] = width
        sources = [layer for layer in self.sources(inputs[0]) if layer.out_features == width]
        is_split = any(layer in self.columns for layer in sources)
        has_own_numbers = any(weight.numel() > 1 for weight in module.parameters(recurse=False))
        if is_split and has_own_numbers and _shape(output) == inputs[0].shape:
            self.across.add(module)
            return inputs[0]
        return output

    def gradients(self, of: Tensor, to: Sequence[Tensor], seed: Tensor | None = None) -> Any:
        """Return the gradients of a tensor, None where it does not depend on the other."""
        if not of.requires_grad or not to:
            return (None,) * len(to)
        if seed is None:
            seed = torch.ones_like(of)
        return torch.autograd.grad(of, to, seed, retain_graph=True, allow_unused=True)

    def depends(self, tensor: Tensor, on: Tensor) -> bool:
        """Return whether a tensor depends on another one without a linear layer between them."""
        return self.gradients(tensor, [on])[0] is not None

    def sources(self, tensor: Tensor) -> list[Any]:
        """Return the linear layers that a tensor is computed from without another one between them."""
        layers = list(self.outputs)
        found = self.gradients(tensor, [self.outputs[layer] for layer in layers])
        return [layer for layer, one in zip(layers, found, strict=True) if one is not None]


def layout_of(block: nn.Module, arguments: Arguments, ranks: int) -> Layout:
    """Return how a block is split; raise ValueError with the reason if it cannot be.

    On the meta device the parts of a layer's output are not known and not split separately.
    """
    followed = _Followed(block, arguments, ranks)
    for layer in followed.sources(followed.result):
        if layer in followed.columns:
            reason = f"no linear layer follows {followed.names[layer]} in a block"
            raise refusal(ranks, reason)
    _check_sizes(followed)
    layout = Layout(rows=[followed.names[layer] for layer in followed.rows])
    layout.across = [followed.names[module] for module in followed.across]
    for layer in followed.columns:
        layout.sections[followed.names[layer]] = _sections(followed, layer)
    layout.partial = list(_partial(followed, block))
    return layout


def _check_sizes(followed: _Followed) -> None:
    sizes = [(layer, layer.out_features, "outputs") for layer in followed.columns]
    sizes += [(layer, layer.in_features, "inputs") for layer in followed.rows]
    for layer, number, what in sizes:
        if number % followed.ranks:
            reason = f"it must divide the {number} {what} of {followed.names[layer]}"
            raise ValueError(f"tensor_parallel is {followed.ranks}: {reason}")


def _sections(followed: _Followed, column: Any) -> list[int]:
    """Return the sizes of a layer's outputs that are split separately."""
    size = column.out_features
    if column.weight.is_meta:
        return [size]
    needed = torch.zeros(size, dtype=torch.bool, device=column.weight.device)
    wholes = []
    for row in followed.rows:
        given = followed.inputs[row]
        seed = torch.zeros_like(given)
        seed[..., : row.in_features // followed.ranks] = 1
        seed *= _random(seed)
        (gradient,) = followed.gradients(given, [followed.outputs[column]], seed)
        if gradient is not None:
            wholes.append(row.in_features)
            needed |= gradient.flatten(0, -2).ne(0).any(0)
    for sizes in _possible(size, wholes):
        first = torch.zeros_like(needed)
        for start, part in zip(_starts(sizes), sizes, strict=True):
            first[start : start + part // followed.ranks] = True
        is_all = not (needed & ~first).any()
        if is_all and 2 * needed.sum() >= first.sum():
            return sizes
    name = followed.names[column]
    raise refusal(followed.ranks, f"the outputs of {name} are not in an order that can be split")


def _possible(size: int, inputs: Sequence[int]) -> Iterator[list[int]]:
    """Yield parts that the outputs of a layer may consist of, for the inputs of the next layers."""
    yield [size]
    for number in (2, 3):
        if size % number == 0:
            yield [size // number] * number
    for width in inputs:  # queries, then fewer keys and values
        rest = size - width
        if rest > 0 and rest % 2 == 0:
            yield [width, rest // 2, rest // 2]


def _starts(sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[:number]) for number in range(len(sizes))]


def _partial(followed: _Followed, block: nn.Module) -> Iterator[str]:
    """Yield the parameters between layers that are split, whole on every rank."""
    for name, weight in block.named_parameters():
        owner = block.get_submodule(name.rpartition(".")[0])
        if isinstance(owner, nn.Linear):
            if owner not in followed.outputs:
                raise refusal(
                    followed.ranks, f"a block does not call its layer {followed.names[owner]}"
                )
            continue
        if weight.dim() > 2:
            shape = " x ".join(map(str, weight.shape))
            raise refusal(followed.ranks, f"{name} ({shape}) is in no linear layer, as of experts")
        if owner in followed.across:
            yield name
            continue
        is_between = any(followed.depends(followed.inputs[row], weight) for row in followed.rows)
        if not is_between:
            continue
        if weight.numel() > 1 and tuple(weight.shape) != (followed.widths.get(owner),):
            raise refusal(followed.ranks, f"{name} is in no linear layer and belongs to all heads")
        yield name


def _shape(value: Any) -> Any:
    return getattr(value, "shape", None)


def _first(result: Any) -> Tensor:
    if isinstance(result, tuple):
        result = result[0]
    return result


def _random(like: Tensor) -> Tensor:
    """Return normal numbers, equal on all ranks."""
    if like.is_meta:
        return torch.empty_like(like)
    generator = torch.Generator().manual_seed(0)
    return torch.randn(like.shape, generator=generator).to(like)


def split(
    model_blocks: Sequence[nn.Module],
    given: Sequence[Arguments],
    group: Any,
    cut: Callable[[list[dict[str, Any]]], None],
) -> None:
    """Split blocks in place and check that each kind computes as before.

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
        _split(model_blocks, given, group, cut)


def _split(
    model_blocks: Sequence[nn.Module],
    given: Sequence[Arguments],
    group: Any,
    cut: Callable[[list[dict[str, Any]]], None],
) -> None:
    ranks = dist.get_world_size(group)
    rank = dist.get_rank(group)
    of_kinds = []
    for first, *others in kinds(model_blocks).values():
        block = model_blocks[first]
        layout = layout_of(block, given[first], ranks)
        before = _results(block, given[first], layout)
        of_kinds.append((first, others, layout, before))
    cut(_rules([layout for _, _, layout, _ in of_kinds], ranks))
    for first, others, layout, before in of_kinds:
        for number in (first, *others):
            _adjust_heads(model_blocks[number], layout, rank, ranks)
            _communicate(model_blocks[number], layout, group)
        block = model_blocks[first]
        try:
            after = _results(block, given[first], layout)
        except (RuntimeError, ValueError, IndexError) as error:
            reason = str(error).strip().splitlines()[0]
            raise refusal(ranks, f"a split block fails ({reason})") from error
        _compare(before, after, ranks)


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
    hidden = _random(given[0]).requires_grad_()
    output = _first(block(hidden, *given[1:], **named))
    names = ["input", *layout.partial]
    to = [hidden, *(block.get_parameter(name) for name in layout.partial)]
    found = torch.autograd.grad(output, to, _random(output), materialize_grads=True)
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
