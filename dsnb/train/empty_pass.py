"""One forward pass of a model whose tensors have shapes but no values: what it calls, attends to and chooses.

Every model of transformers can be observed like this in about a second, on any machine and without memory, because
nothing is computed. What a model would decide by values (which expert gets a token) cannot be followed: experts return
zeros, and a value that is asked for is 1.
"""

import functools
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AttentionInterface, PreTrainedConfig
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

LENGTH = 37
"""Tokens of the pass: a prime number, which no width or size of a chunk is."""
NAME = "dsnb_observed"
"""The name under which transformers finds the attention and the experts of this module."""
aten = torch.ops.aten


@dataclass(frozen=True)
class Attended:
    """One product of queries with keys, and of the result with values.

    Attributes
    ----------
    module
        Name of the module that computes it.
    width
        Heads x head size; the mean of that of queries and that of values where they differ.
    window
        The most keys that a query sees; None for all.
    """

    module: str
    width: float
    window: int | None


def _config(module: nn.Module) -> PreTrainedConfig | None:
    config = getattr(module, "config", None)
    return config if isinstance(config, PreTrainedConfig) else None


class _Ones(TorchFunctionMode):
    """Lets a list of values that do not exist be one of ones."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.tolist and args[0].is_meta:
            return torch.ones(args[0].shape, dtype=args[0].dtype).tolist()
        return func(*args, **(kwargs or {}))


class Observed(TorchDispatchMode):
    """What a forward pass does, by the operators that it calls and the module that each is called in.

    Attributes
    ----------
    calls
        Calls by module; those without gradients count a third, which is the share of the forward pass.
    attended
        All attention.
    chosen
        (number of choices, number that is chosen) of each top-k, by each module that it happened in.
    experts
        Experts of each token, by the module that holds the experts.
    """

    current: "Observed"

    def __init__(self, model: Any) -> None:
        super().__init__()
        Observed.current = self
        self.model, self.attended = model, list[Attended]()
        self.calls: dict[str, float] = defaultdict(float)
        self.chosen: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.experts: dict[str, set[int]] = defaultdict(set)
        self.stack = [""]
        self.products: list[tuple[str, int, tuple[int, int, int]]] = []
        self.scores: dict[str, set[int]] = defaultdict(set)

    def entering(self, name: str) -> Any:
        """Return a hook that notes a call of a module."""

        def enter(*_: Any) -> None:
            self.stack.append(name)
            self.calls[name] += 1 if torch.is_grad_enabled() else 1 / 3

        return enter

    def leave(self, *_: Any) -> None:
        """Note the end of the last call."""
        self.stack.pop()

    def attend(self, module: Any, query: torch.Tensor, value: torch.Tensor, window: int | None) -> None:
        """Note the attention of queries and values, each of shape (batch, heads, length, head size)."""
        width = query.shape[1] * (query.shape[-1] + value.shape[-1]) / 2
        self.attended.append(Attended(self.stack[-1], width, window or _window(module, self.model.config)))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten._local_scalar_dense.default:
            return True if args[0].dtype is torch.bool else 1
        out = func(*args, **(kwargs or {}))
        if func in _PRODUCTS:
            first, second = args[-2:] if func is aten.bmm.default else args[1:3]
            self.products.append((self.stack[-1], first.shape[0], (first.shape[1], first.shape[2], second.shape[2])))
        elif func in _SOFTMAX and args[0].dim() > 2 and args[0].shape[-1] >= LENGTH:
            for name in self.stack:
                self.scores[name].add(args[0].shape[-1])
        elif func is aten.topk.default:
            for name in self.stack:
                self.chosen[name].append((args[0].shape[-1], args[1]))
        elif "scaled_dot_product" in func.name() and "backward" not in func.name():
            query, _, value = args[:3]
            self.attend(self.model.get_submodule(self.stack[-1]), query, value, None)
        return out

    def attend_products(self) -> None:
        """Note the attention that modules compute by products of their own."""
        widths: dict[str, float] = defaultdict(float)
        for name, batch, (rows, inner, columns) in self.products:
            keys = {size - more for size in self.scores[name] for more in (0, 1)}  # a sink is one more column
            if columns in keys and rows >= LENGTH:
                widths[name] += batch * inner / 2
            elif inner in keys and rows >= LENGTH:
                widths[name] += batch * columns / 2
        for name, width in widths.items():
            window = _window(self.model.get_submodule(name), self.model.config)
            self.attended.append(Attended(name, width, window))


def observe(model: Any, experts: Mapping[str, nn.Module], masked: bool = False) -> Observed:
    """Return what a model on the meta device does in a forward pass of one sequence; it cannot be used afterwards.

    Parameters
    ----------
    experts
        Modules that hold experts, by name.
    masked
        Whether to let attention compute its products, with a mask, which some models need.
    """
    seen = Observed(model)
    for config in {id(one): one for one in map(_config, model.modules()) if one is not None}.values():
        config._experts_implementation = NAME
        if not masked:
            config._attn_implementation = NAME
    for name, module in model.named_modules():
        module.register_forward_pre_hook(seen.entering(name))
        module.register_forward_hook(seen.leave, always_call=True)
        if name in experts and _config(module) is None:
            module.forward = functools.partial(_zeros, module)
    with _Ones(), seen, torch.enable_grad():
        model(input_ids=torch.zeros(1, LENGTH, dtype=torch.long, device="meta"), use_cache=False)
    seen.attend_products()
    return seen


_PRODUCTS = {aten.bmm.default, aten.baddbmm.default}
_SOFTMAX = {aten._softmax.default, aten._safe_softmax.default}


def _zeros(module: nn.Module, hidden: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """Return zeros of the width that experts return: that of their input, or of the other side of their only weight."""
    weights = [one for one in module.parameters(recurse=False) if one.dim() == 3]
    sides = weights[0].shape[1:] if len(weights) == 1 else ()
    width = sum(sides) - hidden.shape[-1] if hidden.shape[-1] in sides else hidden.shape[-1]
    return hidden.new_zeros(*hidden.shape[:-1], width)


def _attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    if key.shape[2] != query.shape[2]:
        raise ValueError(f"{Observed.current.stack[-1]} attends to {key.shape[2]} keys of {query.shape[2]} tokens")
    Observed.current.attend(module, query, value, options.get("sliding_window"))
    return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]), None


def _experts(module: Any, hidden: torch.Tensor, index: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    Observed.current.experts[Observed.current.stack[-1]].add(index.shape[-1])
    return torch.zeros_like(hidden)


def _window(module: Any, config: Any) -> int | None:
    """Return the most keys that a query of an attention module sees, None for all."""
    kind = _kind(module, config)
    if kind == "chunked_attention":
        return getattr(config, "attention_chunk_size", None)
    if kind in {"sliding_attention", "local"}:
        return getattr(config, "sliding_window", None) or getattr(config, "window_size", None)
    own = getattr(module, "sliding_window", None)
    return own if isinstance(own, int) and not isinstance(own, bool) else None


def _kind(module: Any, config: Any) -> str | None:
    number = getattr(module, "layer_idx", getattr(module, "layer_id", None))
    kinds = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    return kinds[number] if kinds and isinstance(number, int) and number < len(kinds) else None


AttentionInterface.register(NAME, _attention)
ALL_EXPERTS_FUNCTIONS.register(NAME, _experts)
