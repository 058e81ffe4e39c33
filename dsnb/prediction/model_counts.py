"""Counts what the blocks of any causal language model do with one token, operator by operator, without a GPU.

Forward and backward pass run on fake tensors, as for memory. Matrix products are recognised by their operators,
attention is a single operator, and everything else is elementwise. A compiler is imitated by one rule: the operators
between two products are one kernel, which reads its inputs and writes its outputs; what the backward pass needs of it
is recomputed from its inputs.
"""

from collections import defaultdict
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AttentionInterface

from dsnb.models import attention as train_attention
from dsnb.models import build as model_builder
from dsnb.models.parts import blocks, output_layer
from dsnb.models.token_work import _window, expert_modules
from dsnb.prediction import fake_model
from dsnb.prediction.fake_model import MANY, CudaOperators, as_autocast, autocast, build
from dsnb.settings.experiment import Experiment

LENGTH = 64
NAME = "dsnb_counted"
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "grouped_mm")
SLICED_BYTES = 6.0
"""Bytes that a vectorized operator moves in the time of one number of an operator on slices, such as those of a tensor
that holds the queries, keys and values of every head (profiles of three models in half precision; docs/LOG.md)."""
NOTHING = (
    "aten::empty",
    "aten::new_empty",
    "aten::detach",
    "aten::alias",
    "aten::_unsafe_view",
    "prim::",
)


class _Attention(torch.autograd.Function):
    """Attention as one operator whose results have the layout of the flash kernel's."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(query, key, value)
        batch, heads, length, _ = query.shape
        return query.new_empty(batch, length, heads, value.shape[-1])

    @staticmethod
    def backward(ctx: Any, _: Any) -> Any:  # type: ignore[override]
        return tuple(tensor.new_empty(tensor.shape) for tensor in ctx.saved_tensors)


class _Pass(TorchDispatchMode):
    """One forward and backward pass: every operator, with the storages that it reads and writes, by number."""

    def __init__(self) -> None:
        super().__init__()
        self.backward = False
        self.operators: list[
            tuple[bool, bool, list[int], list[int]]
        ] = []  # product, backward, read, written
        self.attended: list[tuple[float, int | None, int]] = []  # width, window, heads
        self.bytes: list[float] = []  # of each storage, per sequence
        self.moved = [0.0, 0.0]  # eager bytes per sequence, forward and backward
        self.kernels = [0.0, 0.0]
        self.products = {"weights": 0.0, "held": 0.0, "numbers": 0.0, "grouped": 0.0}
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []  # keeps storages alive, so that no address is used twice

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: Any
    ) -> Any:
        """Record attention to values, all of shape (batch, heads, length, head size)."""
        if query.shape[1] % key.shape[1]:
            raise ValueError(
                f"{query.shape[1]} heads cannot share {key.shape[1]} of keys and values"
            )
        query, key, value = as_autocast(query, key, value)
        width = query.shape[1] * (query.shape[-1] + value.shape[-1]) / 2
        self.attended.append((width, window, query.shape[1]))
        result = _Attention.apply(query, key, value)  # type: ignore[no-untyped-call]
        self.operators.append(
            (True, False, [*map(self._number, (query, key, value))], [self._number(result)])
        )
        return result

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.name()
        read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        written = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        returned = func._schema.returns
        is_view = bool(returned and returned[0].alias_info and not returned[0].alias_info.is_write)
        inputs = {self._number(tensor) for tensor in read}
        if is_view or not written or name.startswith(NOTHING):
            return out
        is_product = (
            any(product in name for product in PRODUCTS[4:]) or name.split(".")[0] in PRODUCTS
        )
        if is_product and not self.backward:
            self._product(read, written[0], "grouped" in name)
        if not is_product:
            is_sliced = name.startswith("aten::cat") or any(map(_has_gaps, (*read, *written)))
            self.moved[self.backward] += sum(
                self._size(tensor)
                * (max(1.0, SLICED_BYTES / tensor.itemsize) if is_sliced else 1.0)
                for tensor in (*read, *written)
            )
        self.kernels[self.backward] += 1
        self.operators.append(
            (is_product, self.backward, [*inputs], [self._number(tensor) for tensor in written])
        )
        return out

    def _product(self, read: list[torch.Tensor], result: torch.Tensor, is_grouped: bool) -> None:
        """Count the product of a weight, whose bytes do not depend on the micro-batch, with activations."""
        weights = [tensor for tensor in read if tensor.dim() > 1 and not self._size(tensor)]
        given = next((tensor for tensor in read if self._size(tensor)), None)
        if given is None or not weights:
            return
        rows = given.numel() / given.shape[-1] / (MANY * LENGTH)  # per token
        self.products["weights"] += rows * given.shape[-1] * result.shape[-1]
        self.products["grouped"] += is_grouped * rows * given.shape[-1] * result.shape[-1]
        self.products["held"] += weights[0].numel()
        self.products["numbers"] += rows * (given.shape[-1] + result.shape[-1])

    def _size(self, tensor: torch.Tensor) -> float:
        """Return a tensor's bytes per sequence; 0 if they do not depend on the micro-batch."""
        number_of_bytes = min(tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes())
        return number_of_bytes / MANY if number_of_bytes % MANY == 0 else 0.0

    def _number(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._numbers:
            self._numbers[storage._cdata] = len(self.bytes)
            self._alive.append(storage)
            self.bytes.append(storage.nbytes() / MANY if storage.nbytes() % MANY == 0 else 0.0)
        return self._numbers[storage._cdata]

    def fused(self) -> list[float]:
        """Return the bytes per sequence, then the kernels, of a compiled forward and backward pass."""
        depth: dict[int, int] = defaultdict(int)  # storage -> products before it
        made: dict[
            int, tuple[bool, bool, list[int], int]
        ] = {}  # storage -> product, backward, read, depth
        kept: set[int] = set()  # storages in memory
        for is_product, backward, read, written in self.operators:
            here = max((depth[number] for number in read), default=0) + is_product
            for number in read:
                if (
                    number in made
                    and backward == made[number][1]
                    and (is_product or made[number][3] != here)
                ):
                    kept.add(number)
            for number in written:
                made.setdefault(number, (is_product, backward, read, here))
                depth[number] = here
        seen: dict[int, frozenset[int]] = {}

        def sources(number: int) -> frozenset[int]:
            """Return the storages in memory that a storage is computed from."""
            if number not in seen:
                seen[number] = frozenset((number,))
                if number in made and number not in kept and not made[number][0]:
                    seen[number] = frozenset().union(*map(sources, made[number][2]))
            return seen[number]

        groups: dict[Any, tuple[set[int], set[int]]] = defaultdict(lambda: (set(), set()))
        moved, kernels = [0.0, 0.0], [0.0, 0.0]
        for place, (is_product, backward, read, written) in enumerate(self.operators):
            if is_product:
                kernels[backward] += 1
                continue
            is_sum = not any(
                self.bytes[number] for number in written
            )  # over tokens: a separate kernel
            if is_sum and not any(self.bytes[number] for number in read):
                continue
            inputs, outputs = groups[backward, place if is_sum else -1, made[written[0]][3]]
            inputs.update(*map(sources, read))
            outputs.update(kept.intersection(written))
        for (backward, *_), (inputs, outputs) in groups.items():
            moved[backward] += sum(self.bytes[number] for number in inputs | outputs)
            kernels[backward] += 1
        return [*moved, *kernels]


def _has_gaps(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a slice of a larger one, so that its numbers are not next to each other."""
    extent = 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return tensor.numel() < extent


def _follow(experiment: Experiment, layers: int) -> _Pass:
    """Run a pass of a model with this number of blocks; each attention is one operator, however it is called."""
    model, fake = build(experiment, layers)
    passing = _Pass()

    def attend(
        module: Any, query: Any, key: Any, value: Any, *_: Any, **options: Any
    ) -> tuple[Any, None]:
        window = options.get("sliding_window") or _window(module, model.model.config)
        return passing.attend(query, key, value, window), None

    def fused(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        return passing.attend(query, key, value, None).transpose(1, 2)

    AttentionInterface.register(NAME, attend)
    configs: list[Any] = [module.config for module in model.modules() if hasattr(module, "config")]
    for config in configs:
        if getattr(config, "_attn_implementation", None) in {"eager", train_attention.CAUSAL}:
            config._attn_implementation = NAME
    substitute = fake_model.patched(F, scaled_dot_product_attention=fused)
    with fake, fake_model.grouped_products(), fake_model.masks_of(False), substitute:
        ids = torch.zeros(MANY, LENGTH, dtype=torch.long)
        with passing:
            with CudaOperators(), autocast(experiment):
                loss = model(ids)
            passing.backward = True
            loss.backward()
    return passing


def count(experiment: Experiment) -> dict[str, Any]:
    """Return the fields of `dsnb.prediction.shapes.Counts` for a model; raise ValueError if its blocks differ.

    `traffic` is that of the experiment's mode.
    """
    experiment = experiment.model_copy(update={"device": "cuda", "seq_len": LENGTH})
    config = model_builder.model_config(experiment)
    layers, every = config.num_hidden_layers, fake_model.period(config)
    model = model_builder.build_on_meta(experiment)
    of_blocks = list(blocks(model))
    head, parameters = output_layer(model), list(model.parameters())
    in_blocks = [weight for block in of_blocks for weight in block.parameters()]
    linear = [
        module
        for block in of_blocks
        for module in block.modules()
        if isinstance(module, torch.nn.Linear)
    ]
    if len({sum(weight.numel() for weight in block.parameters()) for block in of_blocks}) != 1:
        raise ValueError("its blocks differ in size")
    fewer, more = (
        min(every, layers - 1),
        min(2 * every, layers),
    )  # their difference is what blocks do
    passes = [_follow(experiment, number) for number in (fewer, more)]
    rows = [[*run.moved, *run.kernels, *run.products.values(), *run.fused()] for run in passes]
    of_block = [
        (of_more - of_fewer) / (more - fewer) for of_fewer, of_more in zip(*rows, strict=True)
    ]
    attended = passes[-1].attended
    per_block = len(attended) // more
    if not per_block or per_block * more != len(attended):
        raise ValueError("some of its blocks have no attention")
    experts = [module for block in of_blocks for module in expert_modules(block).values()]
    return {
        "family": config.model_type,
        "layers": layers,
        "hidden": config.hidden_size,
        "vocab": head.weight.shape[0],
        "head": head.weight.numel(),
        "parameters": sum(weight.numel() for weight in parameters),
        "tensors": len(in_blocks) / layers,
        "root_tensors": len(parameters) - len(in_blocks),
        "linear": len(linear) / layers,
        "adapted": sum(module.in_features + module.out_features for module in linear) / layers,
        **dict(zip(passes[-1].products, of_block[4:8], strict=True)),
        "experts": sum(weight.numel() for module in experts for weight in module.parameters())
        / layers,
        "attention": [attended[place % len(attended)] for place in range(layers * per_block)],
        "capped": bool(getattr(config, "attn_logit_softcapping", None)),
        "logits_capped": bool(getattr(config, "final_logit_softcapping", None)),
        "maskless": config.model_type in train_attention.MASKLESS,
        # bytes of a token and kernels, forward and backward, eager and compiled
        "traffic": {
            kind: [
                of_block[first] / LENGTH,
                of_block[first + 1] / LENGTH,
                of_block[first + 2],
                of_block[first + 3],
            ]
            for kind, first in (("eager", 0), ("compiled", 8))
        },
    }
