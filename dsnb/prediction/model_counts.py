"""Counts what the blocks of any causal language model do with one token, operator by operator, without a GPU.

Forward and backward pass run on fake tensors, as for memory. Products are told by their operators, attention is one
operator of its own, and everything else is elementwise. A compiler is imitated by one rule: operators between two
products are one kernel, which reads what enters and writes what leaves; what the backward pass needs of it is computed
again from what entered.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AttentionInterface

from dsnb.prediction import fake_model
from dsnb.prediction.fake_model import MANY, CudaOperators, as_autocast, autocast, build
from dsnb.settings.experiment import Experiment
from dsnb.train import attention as train_attention
from dsnb.train import model as model_builder
from dsnb.train.model_parts import blocks, output_layer
from dsnb.train.token_work import _window, expert_modules

LENGTH = 64
MODES = {
    "half": {"precision": "bf16"},
    "autocast": {"precision": "bf16", "strategy": "plain"},
    "full": {"precision": "fp32"},
}
"""Settings of the passes: weights in half precision, cast to it, and in fp32."""
NAME = "dsnb_counted"
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "grouped_mm")
NOTHING = ("aten::empty", "aten::new_empty", "aten::detach", "aten::alias", "aten::_unsafe_view", "prim::")


class _Attention(torch.autograd.Function):
    """Attention as one operator that allocates its results, laid out as the flash kernel of GPUs does."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(query, key, value)
        batch, heads, length, _ = query.shape
        return query.new_empty(batch, length, heads, value.shape[-1])

    @staticmethod
    def backward(ctx: Any, _: Any) -> Any:  # type: ignore[override]
        return tuple(one.new_empty(one.shape) for one in ctx.saved_tensors)


class _Pass(TorchDispatchMode):
    """One forward and backward pass: every operator, with the numbers of the storages that it reads and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.backward = False
        self.operators: list[tuple[bool, bool, list[int], list[int]]] = []  # product, backward, read, written
        self.attended: list[tuple[float, int | None, int]] = []  # width, window, heads
        self.bytes: list[float] = []  # of each storage: those of a sequence
        self.moved = [0.0, 0.0]  # eager bytes of a sequence, forward and backward
        self.kernels = [0.0, 0.0]
        self.products = {"weights": 0.0, "held": 0.0, "numbers": 0.0, "grouped": 0.0}
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []  # so that no number of a storage is given twice

    def attend(self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: Any) -> Any:
        """Attend to values, all of shape (batch, heads, length, head size)."""
        if query.shape[1] % key.shape[1]:
            raise ValueError(f"{query.shape[1]} heads cannot share {key.shape[1]} of keys and values")
        query, key, value = as_autocast(query, key, value)
        width = query.shape[1] * (query.shape[-1] + value.shape[-1]) / 2
        self.attended.append((width, window, query.shape[1]))
        found = _Attention.apply(query, key, value)  # type: ignore[no-untyped-call]
        self.operators.append((True, False, [*map(self._number, (query, key, value))], [self._number(found)]))
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.name()
        read = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        written = [one for one in tree_leaves(out) if isinstance(one, torch.Tensor)]
        returned = func._schema.returns
        is_view = bool(returned and returned[0].alias_info and not returned[0].alias_info.is_write)
        own = {self._number(one) for one in read}
        if is_view or not written or name.startswith(NOTHING):
            return out
        is_product = any(one in name for one in PRODUCTS[4:]) or name.split(".")[0] in PRODUCTS
        if is_product and not self.backward:
            self._product(read, written[0], "grouped" in name)
        size = sum(self._size(one) for one in (*read, *written))
        if not is_product:
            self.moved[self.backward] += size
        self.kernels[self.backward] += 1
        self.operators.append((is_product, self.backward, [*own], [self._number(one) for one in written]))
        return out

    def _product(self, read: list[torch.Tensor], result: torch.Tensor, is_grouped: bool) -> None:
        """Count a product of a weight, whose bytes do not depend on the micro-batch, with what does."""
        weights = [one for one in read if one.dim() > 1 and not self._size(one)]
        given = next((one for one in read if self._size(one)), None)
        if given is None or not weights:
            return
        rows = given.numel() / given.shape[-1] / (MANY * LENGTH)  # for each token
        self.products["weights"] += rows * given.shape[-1] * result.shape[-1]
        self.products["grouped"] += is_grouped * rows * given.shape[-1] * result.shape[-1]
        self.products["held"] += weights[0].numel()
        self.products["numbers"] += rows * (given.shape[-1] + result.shape[-1])

    def _size(self, tensor: torch.Tensor) -> float:
        """Return the bytes of a sequence that are read of a tensor: none if it is as large for all micro-batches."""
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
        """Return the bytes of a sequence and the kernels of a compiled forward and backward pass."""
        depth: dict[int, int] = defaultdict(int)  # products that a tensor is behind
        made: dict[int, tuple[bool, bool, list[int], int]] = {}  # of a tensor: product, backward, read, depth
        kept: set[int] = set()  # tensors that are in memory
        for is_product, backward, read, written in self.operators:
            here = max((depth[one] for one in read), default=0) + is_product
            for one in read:
                if one in made and backward == made[one][1] and (is_product or made[one][3] != here):
                    kept.add(one)
            for one in written:
                if one not in made:
                    made[one] = is_product, backward, read, here
                depth[one] = here

        def sources(one: int, seen: dict[int, frozenset[int]]) -> frozenset[int]:
            """Return the tensors in memory that a tensor follows from."""
            if one in seen:
                return seen[one]
            seen[one] = frozenset((one,))
            if one in made and one not in kept and not made[one][0]:
                seen[one] = frozenset().union(*(sources(other, seen) for other in made[one][2]))
            return seen[one]

        groups: dict[Any, tuple[set[int], set[int]]] = defaultdict(lambda: (set(), set()))
        seen: dict[int, frozenset[int]] = {}
        kernels = [0.0, 0.0]
        for number, (is_product, backward, read, written) in enumerate(self.operators):
            if is_product:
                kernels[backward] += 1
                continue
            of_tokens = not any(self.bytes[one] for one in written)  # sums over tokens are kernels of their own
            key = (backward, number if of_tokens else -1, made[written[0]][3])
            if of_tokens and not any(self.bytes[one] for one in read):
                continue
            own = groups[key]
            own[0].update(one for each in read for one in sources(each, seen))
            own[1].update(one for one in written if one in kept)
        moved = [0.0, 0.0]
        for (backward, *_), (read_, written_) in groups.items():
            moved[backward] += sum(self.bytes[one] for one in (*(read_ - written_), *written_))
            kernels[backward] += 1
        return [*moved, *kernels]


@contextmanager
def _counted(passing: _Pass, model: Any) -> Iterator[None]:
    """Let every attention of a model be the one operator, whatever it is called by."""

    def attend(module: Any, query: Any, key: Any, value: Any, *_: Any, **options: Any) -> tuple[Any, None]:
        window = options.get("sliding_window") or _window(module, model.config)
        return passing.attend(module, query, key, value, window), None

    def fused(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        return passing.attend(None, query, key, value, None).transpose(1, 2)

    AttentionInterface.register(NAME, attend)
    usual = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = fused
    try:
        yield
    finally:
        F.scaled_dot_product_attention = usual


def _follow(experiment: Experiment, layers: int) -> _Pass:
    """Follow a pass of a model of so many blocks."""
    model, fake = build(experiment, layers)
    passing = _Pass()
    configs: dict[int, Any] = {
        id(one): one for module in model.modules() if (one := getattr(module, "config", None)) is not None
    }
    for config in configs.values():
        if getattr(config, "_attn_implementation", None) in {"eager", train_attention.CAUSAL}:
            config._attn_implementation = NAME
    with fake, fake_model.grouped_products(), fake_model.masks_of(False), _counted(passing, model.model):
        ids = torch.zeros(MANY, LENGTH, dtype=torch.long)
        with passing:
            with CudaOperators(), autocast(experiment):
                loss = model(ids)
            passing.backward = True
            loss.backward()
    return passing


def count(experiment: Experiment) -> dict[str, Any]:
    """Return what `dsnb.prediction.shapes.Counts` needs of a model; raise ValueError if its blocks cannot be told."""
    config = model_builder.model_config(experiment)
    layers, every = config.num_hidden_layers, fake_model.period(config)
    with torch.device("meta"):
        whole = build(_as(experiment, "half"), layers)[0].model
    of_blocks = list(blocks(whole))
    head, parameters = output_layer(whole), list(whole.parameters())
    in_blocks = [weight for block in of_blocks for weight in block.parameters()]
    linear = [one for block in of_blocks for one in block.modules() if isinstance(one, torch.nn.Linear)]
    if len({sum(weight.numel() for weight in block.parameters()) for block in of_blocks}) != 1:
        raise ValueError("its blocks differ in size")
    few = min(2 * every, layers - 1), min(3 * every, layers)
    found: dict[str, Any] = {}
    for mode in MODES:
        passes = [_follow(_as(experiment, mode), number) for number in few]
        rows = [[*one.moved, *one.kernels, *one.products.values(), *one.fused()] for one in passes]
        found[mode] = [(more - less) / (few[1] - few[0]) for less, more in zip(*rows, strict=True)]
    attended = passes[-1].attended
    per_block = len(attended) // few[1]
    if not per_block or per_block * few[1] != len(attended):
        raise ValueError("some of its blocks have no attention")
    attention = [attended[(number % few[1]) * per_block + one] for number in range(layers) for one in range(per_block)]
    half = found["half"]
    experts = [module for block in of_blocks for module in expert_modules(block).values()]
    of_experts = sum(weight.numel() for module in experts for weight in module.parameters())
    return {
        "family": config.model_type,
        "layers": layers,
        "hidden": config.hidden_size,
        "vocab": head.weight.shape[0],
        "head": head.weight.numel(),
        "parameters": sum(one.numel() for one in parameters),
        "tensors": len(in_blocks) / layers,
        "root_tensors": len(parameters) - len(in_blocks),
        "linear": len(linear) / layers,
        "adapted": sum(one.in_features + one.out_features for one in linear) / layers,
        "weights": half[4],
        "held": half[5],
        "numbers": half[6],
        "grouped": half[7],
        "experts": of_experts / layers,
        "attention": attention,
        "capped": bool(getattr(config, "attn_logit_softcapping", None)),
        "logits_capped": bool(getattr(config, "final_logit_softcapping", None)),
        "maskless": config.model_type in train_attention.MASKLESS,
        # bytes of a token and kernels, forward and backward, eager and compiled
        "traffic": {
            mode: {
                "eager": [one[0] / LENGTH, one[1] / LENGTH, one[2], one[3]],
                "compiled": [one[8] / LENGTH, one[9] / LENGTH, one[10], one[11]],
            }
            for mode, one in found.items()
        },
    }


def _as(experiment: Experiment, mode: str) -> Experiment:
    settings = {"model": experiment.model, "weights": experiment.weights, "device": "cuda", "seq_len": LENGTH}
    return Experiment.recorded({**settings, **MODES[mode]})
