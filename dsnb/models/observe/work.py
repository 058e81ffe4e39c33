"""Counts what the blocks of any causal language model do with one token, operator by operator, without a GPU.

Forward and backward pass run on fake tensors, as for memory. Matrix products are recognised by
their operators, attention is a single operator, and everything else is elementwise. A compiler is
imitated by one rule: the operators between two products are one kernel, which reads its inputs and
writes its outputs; what the backward pass needs of it is recomputed from its inputs.
"""

from collections import defaultdict
from contextlib import suppress
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AttentionInterface, AttentionMaskInterface

from dsnb.models.adapters import counted, is_linear, recast, sizes
from dsnb.models.attention import CAUSAL, mask_beyond_causal
from dsnb.models.build import build_on_meta, model_config
from dsnb.models.observe.experts import expert_modules
from dsnb.models.observe.fake import (
    MANY,
    as_autocast,
    as_cuda,
    as_on_gpu,
    build,
    per_sequence,
    period,
)
from dsnb.models.observe.forward import config_of, window_of
from dsnb.models.parts import blocks, output_layer
from dsnb.settings.experiment import Experiment

LENGTH = 64
NAME = "dsnb_counted"
PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}
SLICED_BYTES = 6.0
"""Bytes that a vectorized operator moves in the time of one number of an operator on slices, such as those of a tensor
that holds the queries, keys and values of every head (profiles of three models in half precision;
docs/LOG.md)."""
NOTHING = (
    "aten::empty",
    "aten::new_empty",
    "aten::detach",
    "aten::alias",
    "aten::_unsafe_view",
    "prim::",
)


def count(experiment: Experiment) -> dict[str, Any]:
    """Return the fields of `dsnb.prediction.shapes.Counts` for a model; raise ValueError if its blocks differ.

    `traffic` is that of the experiment's mode.
    """
    experiment = experiment.model_copy(update={"device": "cuda", "seq_len": LENGTH})
    config = model_config(experiment)
    model = build_on_meta(experiment)
    layers = config.num_hidden_layers
    parameters = list(model.parameters())
    head = output_layer(model).weight
    modules = [module for block in blocks(model) for module in block.modules()]
    linear = [module for module in modules if is_linear(module)]
    of_blocks = [list(block.parameters()) for block in blocks(model)]
    tensors = sum(map(len, of_blocks))
    if len({_elements(block) for block in of_blocks}) != 1:
        raise ValueError("its blocks differ in size")
    experts = [module for block in blocks(model) for module in expert_modules(block).values()]
    every = period(config)
    fewer = min(every, layers - 1)
    more = min(2 * every, layers)
    of_block, large = _of_block(experiment, fewer, more)
    eager, products, compiled = of_block.tolist()
    per_block = len(large.attended) // more
    if not per_block or per_block * more != len(large.attended):
        raise ValueError("some of its blocks have no attention")
    attended = large.attended * layers
    return {
        "family": config.model_type,
        "layers": layers,
        "hidden": config.hidden_size,
        "vocab": head.shape[0],
        "head": head.numel(),
        "parameters": _elements(parameters),
        "tensors": tensors / layers,
        "root_tensors": len(parameters) - tensors,
        "linear": len(linear) / layers,
        "adapted": sum(map(sum, map(sizes, linear))) / layers,
        "targets": _targets(model),
        "recast": _recast(model),
        "largest": max((module.weight.numel() for module in linear), default=0),
        **dict(zip(large.products, products, strict=True)),
        "experts": sum(_elements(module.parameters()) for module in experts) / layers,
        "attention": attended[: layers * per_block],
        "capped": bool(getattr(config, "attn_logit_softcapping", None)),
        "logits_capped": bool(getattr(config, "final_logit_softcapping", None)),
        "maskless": not large.is_masked,
        "traffic": {"eager": _of_token(eager), "compiled": _of_token(compiled)},
        "inside": _inside(experiment, of_block, fewer, more),
    }


def _of_block(experiment: Experiment, fewer: int, more: int) -> tuple[NDArray[np.float64], "_Pass"]:
    """Return the totals of a block, the difference of models of fewer and more, and the pass of the latter."""
    small = _follow(experiment, fewer)
    large = _follow(experiment, more)
    return (large.totals() - small.totals()) / (more - fewer), large


def _inside(
    experiment: Experiment, whole: NDArray[np.float64], fewer: int, more: int
) -> dict[str, list[float]]:
    """Return the bytes of a token, forward and backward, that tensor-parallel ranks share: empty if they cannot.

    Of two ranks each moves half of them.
    """
    try:
        half, _ = _of_block(experiment.model_copy(update={"tensor_parallel": 2}), fewer, more)
    except (ValueError, RuntimeError):
        return {}
    eager, _, compiled = (2 * (whole - half)).tolist()
    return {"eager": _of_token(eager)[:2], "compiled": _of_token(compiled)[:2]}


def _targets(model: Any) -> dict[str, list[float]]:
    """Return what LoRA adapts in a block by `lora_targets`, without those that a model lacks."""
    found = {}
    for targets in ("attention", "query-value"):
        with suppress(ValueError):
            found[targets] = counted(model, targets)
    return found


def _recast(model: Any) -> float:
    with suppress(ValueError):
        return recast(model)
    return 0.0


def _elements(parameters: Any) -> int:
    return sum(weight.numel() for weight in parameters)


def _of_token(totals: list[float]) -> list[float]:
    """Return the bytes of a token and the kernels, forward and backward, of such totals of a sequence."""
    forward, backward, *kernels = totals
    return [forward / LENGTH, backward / LENGTH, *kernels]


def _follow(experiment: Experiment, layers: int) -> "_Pass":
    """Run a pass of a model with this number of blocks; each attention is one operator, however it is called."""
    model, fake = build(experiment, layers)
    passing = _Pass()

    def attend(
        module: Any, query: Any, key: Any, value: Any, mask: Any, *_: Any, **options: Any
    ) -> tuple[Any, None]:
        window = options.get("sliding_window") or window_of(module, model.config)
        if mask is not None and not window:
            passing.is_masked = True
        return passing.attend(query, key, value, window), None

    def fused(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        passing.is_masked = True  # by transformers, as soon as a compiler traces the model
        return passing.attend(query, key, value, None).transpose(1, 2)

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, mask_beyond_causal)
    for module in model.modules():
        config = config_of(module)
        if config is not None and config._attn_implementation in {"eager", CAUSAL}:
            config._attn_implementation = NAME
    with fake, as_on_gpu(), patch.object(F, "scaled_dot_product_attention", fused):
        ids = torch.zeros(MANY, LENGTH, dtype=torch.long)
        with passing:
            with as_cuda(experiment):
                loss = model(ids)
            passing.backward = True
            loss.backward()
    return passing


class _Attention(torch.autograd.Function):
    """Attention as one operator whose results have the layout of the flash kernel's."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(query, key, value)
        batch, heads, length, _ = query.shape
        return query.new_empty(batch, length, heads, value.shape[-1])

    @staticmethod
    def backward(ctx: Any, _: Any) -> Any:  # type: ignore[override]
        return tuple(tensor.new_empty(tensor.shape) for tensor in ctx.saved_tensors)


class _Operator(NamedTuple):
    """One call of an operator, with the storages that it reads and writes, by number."""

    is_product: bool
    backward: bool
    read: list[int]
    written: list[int]


class _Pass(TorchDispatchMode):
    """One forward and backward pass: every operator."""

    def __init__(self) -> None:
        super().__init__()
        self.backward = False
        self.is_masked = False
        """Whether the model gives attention over the whole sequence a mask."""
        self.operators: list[_Operator] = []
        self.attended: list[tuple[float, int | None, int]] = []
        """Width, window and heads of each attention."""
        self.bytes: list[float] = []
        """Of each storage, per sequence."""
        self.moved = [0.0, 0.0]
        """Eager bytes per sequence, forward and backward."""
        self.kernels = [0.0, 0.0]
        self.products = dict.fromkeys(("weights", "held", "numbers", "grouped"), 0.0)
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []
        """Storages, so that no address is used twice."""

    def totals(self) -> NDArray[np.float64]:
        """Return the eager pass, the products, and the compiled pass, shape (3, 4)."""
        eager = [*self.moved, *self.kernels]
        return np.array([eager, [*self.products.values()], self._fused()])

    def attend(self, query: Tensor, key: Tensor, value: Tensor, window: Any) -> Any:
        """Record attention to values, all of shape (batch, heads, length, head size)."""
        heads = query.shape[1]
        if heads % key.shape[1]:
            raise ValueError(f"{heads} heads cannot share {key.shape[1]} of keys and values")
        inputs = as_autocast(query, key, value)
        width = heads * (query.shape[-1] + value.shape[-1]) / 2
        self.attended.append((width, window, heads))
        result = _Attention.apply(*inputs)  # type: ignore[no-untyped-call]
        self._record(True, False, inputs, [result])
        return result

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.name()
        read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        written = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        if func.is_view or not written or name.startswith(NOTHING):
            return out
        is_grouped = "grouped_mm" in name
        is_product = is_grouped or name.split(".")[0] in PRODUCTS
        if not is_product:
            self._move(read + written, name.startswith("aten::cat"))
        elif not self.backward:
            self._multiply(read, written[0], is_grouped)
        self.kernels[self.backward] += 1
        self._record(is_product, self.backward, read, written)
        return out

    def _record(
        self, is_product: bool, backward: bool, read: list[Tensor], written: list[Tensor]
    ) -> None:
        inputs = [*map(self._number, read)]
        outputs = [*map(self._number, written)]
        self.operators.append(_Operator(is_product, backward, inputs, outputs))

    def _move(self, tensors: list[Tensor], is_sliced: bool) -> None:
        """Count the bytes of an elementwise operator."""
        is_sliced = is_sliced or any(map(has_gaps, tensors))
        for tensor in tensors:
            weight = 1.0
            if is_sliced:
                weight = max(1.0, SLICED_BYTES / tensor.itemsize)
            self.moved[self.backward] += weight * _size(tensor)

    def _multiply(self, read: list[Tensor], result: Tensor, is_grouped: bool) -> None:
        """Count the product of a weight, whose bytes do not depend on the micro-batch, with activations."""
        weights = [tensor for tensor in read if tensor.dim() > 1 and not _size(tensor)]
        given = [tensor for tensor in read if _size(tensor)]
        if not given or not weights:
            return
        inputs = given[0].shape[-1]
        outputs = result.shape[-1]
        rows = given[0].numel() / inputs / (MANY * LENGTH)  # per token
        self.products["weights"] += rows * inputs * outputs
        self.products["grouped"] += is_grouped * rows * inputs * outputs
        self.products["held"] += weights[0].numel()
        self.products["numbers"] += rows * (inputs + outputs)

    def _number(self, tensor: Tensor) -> int:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._numbers:
            self._numbers[storage._cdata] = len(self.bytes)
            self._alive.append(storage)
            self.bytes.append(per_sequence(storage.nbytes()))
        return self._numbers[storage._cdata]

    def _fused(self) -> list[float]:
        """Return the bytes per sequence, then the kernels, of a compiled forward and backward pass."""
        depth: dict[int, int] = defaultdict(int)  # storage -> products before it
        made: dict[int, tuple[_Operator, int]] = {}  # storage -> its operator, and the depth
        kept: set[int] = set()  # storages in memory
        for operator in self.operators:
            here = max((depth[number] for number in operator.read), default=0)
            here += operator.is_product
            for number in made.keys() & operator.read:
                source, its_depth = made[number]
                is_other_kernel = operator.is_product or its_depth != here
                if source.backward == operator.backward and is_other_kernel:
                    kept.add(number)
            for number in operator.written:
                made.setdefault(number, (operator, here))
                depth[number] = here
        seen: dict[int, frozenset[int]] = {}

        def sources(number: int) -> frozenset[int]:
            """Return the storages in memory that a storage is computed from."""
            if number not in seen:
                seen[number] = frozenset((number,))
                if number in made and number not in kept and not made[number][0].is_product:
                    seen[number] = frozenset().union(*map(sources, made[number][0].read))
            return seen[number]

        kernels = [0.0, 0.0]
        touched: dict[Any, set[int]] = defaultdict(set)
        """Storages that each fused kernel reads or writes."""
        for place, operator in enumerate(self.operators):
            if operator.is_product:
                kernels[operator.backward] += 1
                continue
            is_sum = not any(self.bytes[number] for number in operator.written)  # over tokens
            if is_sum and not any(self.bytes[number] for number in operator.read):
                continue
            own_kernel = place if is_sum else -1
            of_depth = made[operator.written[0]][1]
            kernel = touched[operator.backward, own_kernel, of_depth]
            kernel.update(*map(sources, operator.read), kept.intersection(operator.written))
        moved = [0.0, 0.0]
        for (backward, *_), storages in touched.items():
            moved[backward] += sum(self.bytes[number] for number in storages)
            kernels[backward] += 1
        return [*moved, *kernels]


def _size(tensor: Tensor) -> float:
    """Return a tensor's bytes per sequence; 0 if they do not depend on the micro-batch."""
    return per_sequence(min(tensor.nbytes, tensor.untyped_storage().nbytes()))


def has_gaps(tensor: Tensor) -> bool:
    """Return whether a tensor is a slice of a larger one, so that its numbers are not next to each other."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    extent = 1 + sum((size - 1) * stride for size, stride in steps)
    return tensor.numel() < extent
