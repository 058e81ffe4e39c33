"""Counts the FLOPs of one token of any causal language model, in a forward pass of a copy on the meta device.

Nothing is computed, so every model of transformers can be observed in about a second, on any machine and without
memory. Choices that depend on values, such as which expert gets a token, cannot be followed: experts return zeros, and
every value that is read is 1. Which modules hold experts, and how many of them work on a token, follows from the model
and its pass, so families need not be listed. If it is not certain, that is an error: a wrong number of active
parameters would give a wrong figure.
"""

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AttentionInterface, PreTrainedConfig
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from dsnb.base.formulas import metrics
from dsnb.models.build import build_on_meta
from dsnb.models.parts import blocks
from dsnb.settings.experiment import Experiment

LENGTH = 37
"""Tokens of the pass: a prime number, unlike any width or size of a chunk."""
NAME = "dsnb_observed"
"""The name under which transformers finds this module's attention and experts."""
WHOLE = {
    "tensor_parallel": 1, "pipeline_parallel": 1, "activation_checkpointing": False, "attention": "eager",
    "pad_vocab": 0,
}  # fmt: skip
"""Settings of the copy, which is not split or padded and has the simplest attention."""
aten = torch.ops.aten
_PRODUCTS = {aten.bmm.default, aten.baddbmm.default}
_SOFTMAX = {aten._softmax.default, aten._safe_softmax.default}
_SELECTS = re.compile(r"(Indexer|Compressor)$")
"""Classes of modules that choose or compress the keys of attention depending on their values."""
_CHOSEN = re.compile(
    r"(moe_|num_)?top_?k(_experts)?|(num_|n_)?(selected_)?experts_per_tok(en)?|num_selected_experts"
)
"""Names in modules and configurations for the number of experts of a token."""
_SHARED = re.compile(r"shared", re.IGNORECASE)
_EXPERTS = re.compile(r"experts?(\.|$)", re.IGNORECASE)
_ROUTED = re.compile(r"(experts?|router|moe(_?(block|layer|mlp))?)$", re.IGNORECASE)


@dataclass(frozen=True)
class Attended:
    """One attention, that is a product of queries and keys and one with values, in the module of this name."""

    module: str
    width: float
    """Heads x head size; if queries and values differ in it, the mean."""
    window: int | None
    """Maximum number of keys that a query sees; None for all."""


def _config(module: nn.Module) -> PreTrainedConfig | None:
    config = getattr(module, "config", None)
    return config if isinstance(config, PreTrainedConfig) else None


class _Ones(TorchFunctionMode):
    """Makes `tolist` of a tensor without values return ones."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.tolist and args[0].is_meta:
            return torch.ones(args[0].shape, dtype=args[0].dtype).tolist()
        return func(*args, **(kwargs or {}))


class Observed(TorchDispatchMode):
    """Records a forward pass: its operators, and the modules in which they are called."""

    current: "Observed"

    def __init__(self, model: Any) -> None:
        super().__init__()
        Observed.current = self
        self.model, self.attended = model, list[Attended]()
        self.calls: dict[str, float] = defaultdict(float)
        """By module; a call without gradients counts a third, the share of the forward pass."""
        self.chosen: dict[str, list[tuple[int, int]]] = defaultdict(list)
        """By module: (number of choices, number chosen) of each top-k that happened in it."""
        self.experts: dict[str, set[int]] = defaultdict(set)
        """Experts of each token, by the module that holds the experts."""
        self.stack = [""]
        self.products: list[tuple[str, int, tuple[int, int, int]]] = []
        self.scores: dict[str, set[int]] = defaultdict(set)

    def entering(self, name: str) -> Any:
        """Return a hook that records a call of a module."""

        def enter(*_: Any) -> None:
            self.stack.append(name)
            self.calls[name] += 1 if torch.is_grad_enabled() else 1 / 3

        return enter

    def leave(self, *_: Any) -> None:
        """Record the end of the last call."""
        self.stack.pop()

    def attend(
        self, module: Any, query: torch.Tensor, value: torch.Tensor, window: int | None
    ) -> None:
        """Record the attention of queries and values, each of shape (batch, heads, length, head size)."""
        width = query.shape[1] * (query.shape[-1] + value.shape[-1]) / 2
        self.attended.append(
            Attended(self.stack[-1], width, window or _window(module, self.model.config))
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten._local_scalar_dense.default:
            return True if args[0].dtype is torch.bool else 1
        out = func(*args, **(kwargs or {}))
        if func in _PRODUCTS:
            first, second = args[-2:] if func is aten.bmm.default else args[1:3]
            self.products.append(
                (self.stack[-1], first.shape[0], (first.shape[1], first.shape[2], second.shape[2]))
            )
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
        """Record attention that modules compute with plain matrix products."""
        widths: dict[str, float] = defaultdict(float)
        for name, batch, (rows, inner, columns) in self.products:
            keys = {
                size - more for size in self.scores[name] for more in (0, 1)
            }  # a sink is one more column
            if columns in keys and rows >= LENGTH:
                widths[name] += batch * inner / 2
            elif inner in keys and rows >= LENGTH:
                widths[name] += batch * columns / 2
        for name, width in widths.items():
            window = _window(self.model.get_submodule(name), self.model.config)
            self.attended.append(Attended(name, width, window))


def observe(model: Any, experts: Mapping[str, nn.Module], masked: bool = False) -> Observed:
    """Record a forward pass of one sequence in a model on the meta device, which cannot be used afterwards.

    If `masked`, the model's attention runs, with its mask, which some models need.
    """
    seen = Observed(model)
    for config in {
        id(config): config for config in map(_config, model.modules()) if config is not None
    }.values():
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


def _zeros(module: nn.Module, hidden: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """Return zeros as wide as the output of experts: as their input, or as the other side of their only weight."""
    weights = [weight for weight in module.parameters(recurse=False) if weight.dim() == 3]
    sides = weights[0].shape[1:] if len(weights) == 1 else ()
    width = sum(sides) - hidden.shape[-1] if hidden.shape[-1] in sides else hidden.shape[-1]
    return hidden.new_zeros(*hidden.shape[:-1], width)


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *_: Any,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    if key.shape[2] != query.shape[2]:
        raise ValueError(
            f"{Observed.current.stack[-1]} attends to {key.shape[2]} keys of {query.shape[2]} tokens"
        )
    Observed.current.attend(module, query, value, options.get("sliding_window"))
    return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]), None


def _experts(
    module: Any, hidden: torch.Tensor, index: torch.Tensor, *_: Any, **__: Any
) -> torch.Tensor:
    Observed.current.experts[Observed.current.stack[-1]].add(index.shape[-1])
    return torch.zeros_like(hidden)


AttentionInterface.register(NAME, _attention)
ALL_EXPERTS_FUNCTIONS.register(NAME, _experts)


def _window(module: Any, config: Any) -> int | None:
    """Return the maximum number of keys that a query of an attention module sees, None for all."""
    number = getattr(module, "layer_idx", getattr(module, "layer_id", None))
    kinds = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    kind = kinds[number] if kinds and isinstance(number, int) and number < len(kinds) else None
    if kind == "chunked_attention":
        return getattr(config, "attention_chunk_size", None)
    if kind in {"sliding_attention", "local"}:
        return getattr(config, "sliding_window", None) or getattr(config, "window_size", None)
    window = getattr(module, "sliding_window", None)
    return window if isinstance(window, int) and not isinstance(window, bool) else None


@dataclass(frozen=True)
class Experts:
    """The number of experts that a module holds, and of those that work on one token."""

    number: int
    chosen: int
    stacked: bool
    """Whether their weights are parameters of the module itself, whose first dimension is the expert."""


def expert_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules that hold routed experts, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if _EXPERTS.search(f"{name}.{type(module).__name__}")
        and not _SHARED.search(name)
        and _number(module)
    }


def _number(module: nn.Module) -> int:
    """Return the number of experts that a module holds, stacked or one by one."""
    if stacked := _stacked(module):
        return max(stacked)
    children = list(module.children()) if isinstance(module, nn.ModuleList | nn.ModuleDict) else []
    return (
        len(children) if len(children) > 1 and len({type(child) for child in children}) == 1 else 0
    )


def _stacked(module: nn.Module) -> set[int]:
    return {weight.shape[0] for weight in module.parameters(recurse=False) if weight.dim() >= 3}


def chosen_experts(model: Any, held: Mapping[str, nn.Module], seen: Observed) -> dict[str, Experts]:
    """Return the experts of each module of `expert_modules`; raise ValueError if a number is not certain."""
    if not held:
        for name, module in model.named_modules():
            if _ROUTED.search(f"{name}.{type(module).__name__}") and not _SHARED.search(name):
                raise ValueError(
                    f"{name} looks like a mixture of experts, but no experts were found"
                )
    return {name: _chosen(model, name, module, seen) for name, module in held.items()}


def _chosen(model: Any, name: str, module: nn.Module, seen: Observed) -> Experts:
    """Return the experts of a module; a token gets the number seen in the pass, or else the configured one."""
    number, parent, stacked = _number(module), name.rpartition(".")[0], _stacked(module)
    if len(stacked) > 1:
        raise ValueError(f"some of the {number} experts of {name} share weights")
    routed = {chosen for choices, chosen in seen.chosen.get(parent, []) if choices == number}
    block = model.get_submodule(parent)
    beside = {value for router in (block, *block.children()) for value in _numbers(vars(router))}
    chosen = seen.experts.get(name) or routed or beside or set(_numbers(model.config.to_dict()))
    if len(chosen) != 1 or not 1 <= min(chosen) <= number:
        raise ValueError(
            f"it is not certain how many of the {number} experts of {name} work on a token"
        )
    return Experts(number, min(chosen), bool(stacked))


def _numbers(named: Mapping[str, Any]) -> Iterator[int]:
    for name, value in named.items():
        if _CHOSEN.fullmatch(name) and isinstance(value, int) and not isinstance(value, bool):
            yield value


def record(experiment: Experiment) -> dict[str, Any]:
    """Return the FLOPs of one token for a run's record; if they are not certain, `flops_missing` says why."""
    try:
        return count(experiment)
    except Exception as error:  # the run continues without them
        lines = str(error).splitlines() or [type(error).__name__]
        return {"flops_missing": f"the FLOPs of a token could not be counted: {lines[0][:300]}"}


def count(experiment: Experiment) -> dict[str, Any]:
    """Count the FLOPs of one token; raise ValueError if its experts or the keys that it sees are not certain."""
    model, held, seen = _observed(experiment)
    places = {
        id(module): number
        for number, block in enumerate(blocks(model))
        for module in block.modules()
    }
    used, trained = _used(model, seen, chosen_experts(model, held, seen), places)
    attention: dict[int | None, float] = defaultdict(float)
    masked = 0.0
    for each in seen.attended:
        shape = 1, each.width, experiment.seq_len, each.window
        attention[places.get(id(model.get_submodule(each.module)))] += (
            metrics.attention_flops_per_token(*shape)
        )
        masked += metrics.masked_flops_per_token(*shape)
    every = experiment.checkpoint_every if experiment.activation_checkpointing else 0
    again = [place for place in set(places.values()) if every and place % every == 0]
    active, attended = sum(used.values()), sum(attention.values())
    return {
        "active_parameters": round(active),
        "flops_per_token": metrics.flops_per_token(active, sum(trained.values()), attended),
        "forward_flops_per_token": metrics.forward_flops_per_token(active, attended),
        "masked_flops_per_token": masked,
        "recomputed_flops_per_token": metrics.forward_flops_per_token(
            sum(used[place] for place in again), sum(attention[place] for place in again)
        ),
    }


def _observed(experiment: Experiment) -> tuple[Any, dict[str, nn.Module], Observed]:
    """Return a copy of the model, the modules in it that hold experts, and the record of a pass."""
    whole = experiment.model_copy(update=WHOLE)
    model = build_on_meta(whole)
    if odd := next(
        (name for name, module in model.named_modules() if _SELECTS.search(type(module).__name__)),
        None,
    ):
        raise ValueError(f"{odd} chooses the keys that attention sees")
    held = expert_modules(model)
    if adapted := next((name for name in held if name.endswith(".base_layer")), None):
        raise ValueError(
            f"peft computes the adapters of all experts of {adapted}, whatever a token chooses"
        )
    try:
        return model, held, observe(model, held)
    except Exception:  # some models need a mask; a model that was observed cannot be used again
        model = build_on_meta(whole)
        held = expert_modules(model)
        return model, held, observe(model, held, True)


def _used(
    model: nn.Module, seen: Observed, held: Mapping[str, Experts], places: Mapping[int, int]
) -> tuple[Counter[int | None], Counter[int | None]]:
    """Return the parameters that work on a token, and those of them that are trained, by block; None outside of all.

    A weight shared by several blocks counts in each; outside of blocks, as with tied embeddings, once.
    """
    used: Counter[int | None] = Counter()
    trained: Counter[int | None] = Counter()
    counted: set[int] = set()
    for name, module in model.named_modules():
        place, calls = places.get(id(module)), _calls(name, held, seen)
        for weight in module.parameters(recurse=False):
            if place is None and id(weight) in counted:
                continue
            counted.add(id(weight))
            size = (
                weight.numel()
                * (calls if place is not None else min(calls, 1))
                * _share(name, weight, held)
            )
            used[place] += size
            trained[place] += size * weight.requires_grad
    return used, trained


def _calls(name: str, held: Mapping[str, Experts], seen: Observed) -> float:
    """Return how often a module works in a pass; one that is not called may lend its weights to its parent."""
    if (owner := _owner(name, held)) is not None:
        name = owner.rpartition(".")[0]
    return seen.calls.get(name) or min(1.0, seen.calls.get(name.rpartition(".")[0], 0.0))


def _share(name: str, weight: nn.Parameter, held: Mapping[str, Experts]) -> float:
    """Return the share of a weight that works on a token; experts' weights work in part."""
    owner = _owner(name, held)
    if owner is None or (held[owner].stacked and weight.shape[0] != held[owner].number):
        return 1.0
    return held[owner].chosen / held[owner].number


def _owner(name: str, held: Mapping[str, Experts]) -> str | None:
    return next((owner for owner in held if name == owner or name.startswith(f"{owner}.")), None)
