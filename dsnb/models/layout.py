"""How the blocks of any model are split among tensor-parallel ranks: by what their layers compute from each other.

A block is followed once, with random numbers. A linear layer whose input every rank has is split
by columns, so that each rank computes a part of its outputs; a layer that reads such outputs is
split by rows, and the ranks' results are added (Shoeybi et al. 2019, arXiv:1909.08053). Which
outputs a rank needs, such as its heads of a layer with queries, keys and values side by side, is
read off the gradients of its part of the input of the next layer.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dsnb.base.formulas import model_shapes
from dsnb.models.attention import whole_sequences
from dsnb.models.parts import blocks, use_linear_layers

LENGTH = 16
"""Tokens of the sequence with which blocks are followed."""

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
        self.hidden = random_like(given[0]).requires_grad_()
        with ExitStack() as stack:
            for module in block.modules():
                own = next(module.parameters(recurse=False), None)
                if isinstance(module, nn.Linear):
                    stack.callback(module.register_forward_hook(self._cut).remove)
                elif own is not None and module is not block:
                    stack.callback(module.register_forward_hook(self._pass).remove)
            self.result = first_of(block(self.hidden, *given[1:], **named))

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
        seed *= random_like(seed)
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


def first_of(result: Any) -> Tensor:
    """Return the hidden state that a block returns, alone or first of several."""
    if isinstance(result, tuple):
        result = result[0]
    return result


def random_like(like: Tensor) -> Tensor:
    """Return normal numbers, equal on all ranks."""
    if like.is_meta:
        return torch.empty_like(like)
    generator = torch.Generator().manual_seed(0)
    return torch.randn(like.shape, generator=generator).to(like)
