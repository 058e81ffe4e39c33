"""Follows a forward pass of any causal language model on the meta device: calls, attention, choices of experts.

Nothing is computed, so every model of transformers can be observed in about a second, on any
machine and without memory. Choices that depend on values, such as which expert gets a token, cannot
be followed: experts return zeros, and every value that is read is 1.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AttentionInterface, PreTrainedConfig
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

LENGTH = 37
"""Tokens of the pass: a prime number, unlike any width or size of a chunk."""
NAME = "dsnb_observed"
"""The name under which transformers finds this module's attention and experts."""
aten = torch.ops.aten
_PRODUCTS = {aten.bmm.default, aten.baddbmm.default}
_SOFTMAX = {aten._softmax.default, aten._safe_softmax.default}


@dataclass(frozen=True)
class Attended:
    """One attention, that is a product of queries and keys and one with values, in the module of this name."""

    module: str
    width: float
    """Heads x head size; if queries and values differ in it, the mean."""
    window: int | None
    """Maximum number of keys that a query sees; None for all."""


class Observed(TorchDispatchMode):
    """Records a forward pass: its operators, and the modules in which they are called."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.attended: list[Attended] = []
        self.calls: dict[str, float] = defaultdict(float)
        """By module; a call without gradients counts a third, the share of the forward pass."""
        self.chosen: dict[str, list[tuple[int, int]]] = defaultdict(list)
        """By module: (number of choices, number chosen) of each top-k that happened in it."""
        self.experts: dict[str, set[int]] = defaultdict(set)
        """Experts of each token, by the module that holds the experts."""
        self._stack = [""]
        self._products: list[tuple[str, Tensor, Tensor]] = []
        self._scores: dict[str, set[int]] = defaultdict(set)

    @property
    def module(self) -> str:
        """The name of the module that is being called."""
        return self._stack[-1]

    def enter(self, name: str, *_: Any) -> None:
        """Record a call of a module."""
        self._stack.append(name)
        self.calls[name] += 1 if torch.is_grad_enabled() else 1 / 3

    def leave(self, *_: Any) -> None:
        """Record the end of the last call."""
        self._stack.pop()

    def attend(self, name: str, width: float, window: int | None = None) -> None:
        """Record the attention of a module; its window is that of the module if not given."""
        window = window or window_of(self.model.get_submodule(name), self.model.config)
        self.attended.append(Attended(name, width, window))

    def attention(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, **options: Any
    ) -> tuple[Tensor, None]:
        """Record attention that transformers looks up by its name, instead of computing it."""
        batch, heads, length = query.shape[:3]
        if key.shape[2] != length:
            raise ValueError(f"{self.module} attends to {key.shape[2]} keys of {length} tokens")
        self.attend(self.module, width_of(query, value), options.get("sliding_window"))
        return query.new_empty(batch, length, heads, value.shape[-1]), None

    def route(self, module: Any, hidden: Tensor, index: Tensor, *_: Any, **__: Any) -> Tensor:
        """Record the experts of a token, where transformers looks up how to compute them."""
        self.experts[self.module].add(index.shape[-1])
        return torch.zeros_like(hidden)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten._local_scalar_dense.default:
            return True if args[0].dtype is torch.bool else 1
        out = func(*args, **(kwargs or {}))
        if func in _PRODUCTS:
            self._products.append((self.module, *args[-2:]))
        elif func in _SOFTMAX and args[0].dim() > 2 and args[0].shape[-1] >= LENGTH:
            for name in self._stack:
                self._scores[name].add(args[0].shape[-1])
        elif func is aten.topk.default:
            for name in self._stack:
                self.chosen[name].append((args[0].shape[-1], args[1]))
        elif "scaled_dot_product" in func.name() and "backward" not in func.name():
            self.attend(self.module, width_of(args[0], args[2]))
        return out

    def attend_products(self) -> None:
        """Record attention that modules compute with plain matrix products."""
        widths: dict[str, float] = defaultdict(float)
        for name, first, second in self._products:
            batch, rows, inner = first.shape
            columns = second.shape[2]
            # A sink is one more column of scores.
            keys = self._scores[name] | {size - 1 for size in self._scores[name]}
            if rows < LENGTH:
                continue
            if columns in keys:
                widths[name] += batch * inner / 2
            elif inner in keys:
                widths[name] += batch * columns / 2
        for name, width in widths.items():
            self.attend(name, width)


def observe(model: Any, experts: Mapping[str, nn.Module], masked: bool = False) -> Observed:
    """Record a forward pass of one sequence in a model on the meta device, which cannot be used afterwards.

    If `masked`, the model's attention runs, with its mask, which some models need.
    """
    seen = Observed(model)
    AttentionInterface.register(NAME, seen.attention)
    ALL_EXPERTS_FUNCTIONS.register(NAME, seen.route)
    for name, module in model.named_modules():
        config = config_of(module)
        if config is not None:
            config._experts_implementation = NAME
            if not masked:
                config._attn_implementation = NAME
        elif name in experts:
            module.forward = partial(_zeros, module)
        module.register_forward_pre_hook(partial(seen.enter, name))
        module.register_forward_hook(seen.leave, always_call=True)
    with _Ones(), seen, torch.enable_grad():
        model(input_ids=torch.zeros(1, LENGTH, dtype=torch.long, device="meta"), use_cache=False)
    seen.attend_products()
    return seen


class _Ones(TorchFunctionMode):
    """Makes `tolist` of a tensor without values return ones."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.tolist and args[0].is_meta:
            return torch.ones(args[0].shape, dtype=args[0].dtype).tolist()
        return func(*args, **(kwargs or {}))


def _zeros(module: nn.Module, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
    """Return zeros as wide as the output of experts: as their input, or as the other side of their only weight."""
    width: int = hidden.shape[-1]
    weights = [weight for weight in module.parameters(recurse=False) if weight.dim() == 3]
    if len(weights) == 1 and width in weights[0].shape[1:]:
        width = weights[0].shape[1] + weights[0].shape[2] - width
    return hidden.new_zeros(*hidden.shape[:-1], width)


def width_of(query: Tensor, value: Tensor) -> float:
    """Return the width of attention of queries and values, each of shape (batch, heads, length, head size)."""
    return query.shape[1] * (query.shape[-1] + value.shape[-1]) / 2


def config_of(module: nn.Module) -> Any:
    """Return the configuration of a module; None if it has none of its own."""
    config = getattr(module, "config", None)
    if isinstance(config, PreTrainedConfig):
        return config
    return None


def window_of(module: Any, config: Any) -> int | None:
    """Return the maximum number of keys that a query of an attention module sees, None for all."""
    number = getattr(module, "layer_idx", getattr(module, "layer_id", None))
    kinds = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None) or []
    kind = kinds[number] if isinstance(number, int) and number < len(kinds) else None
    if kind == "chunked_attention":
        return getattr(config, "attention_chunk_size", None)
    if kind in {"sliding_attention", "local"}:
        return getattr(config, "sliding_window", None) or getattr(config, "window_size", None)
    window = getattr(module, "sliding_window", None)
    if isinstance(window, int) and not isinstance(window, bool):
        return window
    return None
