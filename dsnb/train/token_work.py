"""The FLOPs of one token of any causal language model: from a forward pass of a copy whose tensors have no values.

Every model of transformers can be observed like this in about a second, on any machine and without memory, because
nothing is computed. What a model would decide by values (which expert gets a token) cannot be followed: experts return
zeros, and a value that is asked for is 1. Which modules hold experts, and how many of them work on a token, is told by
the model and its pass, so that a family that nobody has listed is counted, too. What cannot be told for certain is an
error, because a wrong number of active parameters would be a wrong figure.
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
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedConfig
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from dsnb.formulas import metrics
from dsnb.settings.experiment import Experiment
from dsnb.train import model as model_builder
from dsnb.train.model_parts import blocks

LENGTH = 37
"""Tokens of the pass: a prime number, which no width or size of a chunk is."""
NAME = "dsnb_observed"
"""The name under which transformers finds the attention and the experts of this module."""
WHOLE = {"tensor_parallel": 1, "pipeline_parallel": 1, "activation_checkpointing": False, "attention": "eager"}
"""Settings of the copy: one rank has all of it, and its attention is the plainest."""
aten = torch.ops.aten
_PRODUCTS = {aten.bmm.default, aten.baddbmm.default}
_SOFTMAX = {aten._softmax.default, aten._safe_softmax.default}
_SELECTS = re.compile(r"(Indexer|Compressor)$")
"""Classes of modules that decide by values, or by compressing them, what attention computes."""
_CHOSEN = re.compile(r"(moe_|num_)?top_?k(_experts)?|(num_|n_)?(selected_)?experts_per_tok(en)?|num_selected_experts")
"""Names under which modules and configurations keep the number of experts of a token."""
_SHARED = re.compile(r"shared", re.IGNORECASE)
_EXPERTS = re.compile(r"experts?(\.|$)", re.IGNORECASE)
_ROUTED = re.compile(r"(experts?|router|moe(_?(block|layer|mlp))?)$", re.IGNORECASE)


@dataclass(frozen=True)
class Attended:
    """One product of queries with keys, and of the result with values, in the module of this name."""

    module: str
    width: float
    """Heads x head size; the mean of that of queries and that of values where they differ."""
    window: int | None
    """The most keys that a query sees; None for all."""


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
    """What a forward pass does, by the operators that it calls and the module that each is called in."""

    current: "Observed"

    def __init__(self, model: Any) -> None:
        super().__init__()
        Observed.current = self
        self.model, self.attended = model, list[Attended]()
        self.calls: dict[str, float] = defaultdict(float)
        """By module; those without gradients count a third, which is the share of the forward pass."""
        self.chosen: dict[str, list[tuple[int, int]]] = defaultdict(list)
        """(number of choices, number that is chosen) of each top-k, by each module that it happened in."""
        self.experts: dict[str, set[int]] = defaultdict(set)
        """Experts of each token, by the module that holds the experts."""
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

    Where it is `masked`, attention computes its products, with a mask, which some models need.
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


AttentionInterface.register(NAME, _attention)
ALL_EXPERTS_FUNCTIONS.register(NAME, _experts)


def _window(module: Any, config: Any) -> int | None:
    """Return the most keys that a query of an attention module sees, None for all."""
    number = getattr(module, "layer_idx", getattr(module, "layer_id", None))
    kinds = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    kind = kinds[number] if kinds and isinstance(number, int) and number < len(kinds) else None
    if kind == "chunked_attention":
        return getattr(config, "attention_chunk_size", None)
    if kind in {"sliding_attention", "local"}:
        return getattr(config, "sliding_window", None) or getattr(config, "window_size", None)
    own = getattr(module, "sliding_window", None)
    return own if isinstance(own, int) and not isinstance(own, bool) else None


@dataclass(frozen=True)
class Experts:
    """The number of experts that a module holds, and of those that work on one token."""

    number: int
    chosen: int
    stacked: bool
    """Whether their weights are parameters of the module itself, whose first dimension is the expert."""


def expert_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules that hold routed experts, by name."""
    found = {}
    for name, module in model.named_modules():
        if _EXPERTS.search(f"{name}.{type(module).__name__}") and not _SHARED.search(name) and _number(module):
            found[name] = module
    return found


def _number(module: nn.Module) -> int:
    """Return the experts that a module holds, stacked or one by one; 0 if it holds none."""
    if stacked := _stacked(module):
        return max(stacked)
    if isinstance(module, nn.ModuleList | nn.ModuleDict):
        alike = len({type(one) for one in module.children()}) == 1
        return len(module) if alike and len(module) > 1 else 0
    flat = getattr(module, "num_experts", 0)  # DBRX: (experts x width, hidden)
    return flat if type(module).__name__.endswith("Experts") and isinstance(flat, int) else 0


def _stacked(module: nn.Module) -> set[int]:
    return {one.shape[0] for one in module.parameters(recurse=False) if one.dim() >= 3}


def chosen_experts(model: Any, held: Mapping[str, nn.Module], seen: Observed) -> dict[str, Experts]:
    """Return the experts of each module of `expert_modules`; raise ValueError if a number is not certain."""
    if not held:
        for name, module in model.named_modules():
            if _ROUTED.search(f"{name}.{type(module).__name__}") and not _SHARED.search(name):
                raise ValueError(f"{name} looks like a mixture of experts, but no experts were found")
    return {name: _chosen(model, name, module, seen) for name, module in held.items()}


def _chosen(model: Any, name: str, module: nn.Module, seen: Observed) -> Experts:
    """Return the experts of a module; a token has those that the router took, or else those that are configured."""
    number, parent, stacked = _number(module), name.rpartition(".")[0], _stacked(module)
    if len(stacked) > 1:
        raise ValueError(f"some of the {number} experts of {name} have no weights of their own")
    taken = {kept for of, kept in seen.chosen.get(parent, []) if of == number}
    # What a router beside the experts, or else the configuration, names.
    block = model.get_submodule(parent)
    named = {value for one in (block, *block.children()) for value in _numbers(vars(one))}
    found = seen.experts.get(name) or taken or named or set(_numbers(model.config.to_dict()))
    if len(found) != 1 or not 1 <= min(found) <= number:
        raise ValueError(f"it is not certain how many of the {number} experts of {name} work on a token")
    return Experts(number, min(found), bool(stacked))


def _numbers(named: Mapping[str, Any]) -> Iterator[int]:
    for name, value in named.items():
        if _CHOSEN.fullmatch(name) and isinstance(value, int) and not isinstance(value, bool):
            yield value


def record(experiment: Experiment) -> dict[str, Any]:
    """Return the FLOPs of one token for a run's record; if they are not certain, `flops_missing` says why."""
    try:
        return count(experiment)
    except Exception as error:  # a model that cannot be followed is trained all the same
        words = str(error).splitlines() or [type(error).__name__]
        return {"flops_missing": f"the FLOPs of a token could not be counted: {words[0][:300]}"}


def count(experiment: Experiment) -> dict[str, Any]:
    """Count the work of one token; raise ValueError if experts or keys that it sees are not certain."""
    model, held, seen = _observed(experiment)
    places = {id(one): number for number, block in enumerate(blocks(model)) for one in block.modules()}
    used, trained = _used(model, seen, chosen_experts(model, held, seen), places)
    attention = [_attention_flops(one, model, places, experiment.seq_len) for one in seen.attended]
    every = experiment.checkpoint_every if experiment.activation_checkpointing else 0
    again = [number for number in set(places.values()) if every and number % every == 0]
    active, attended = sum(used.values()), sum(flops for _, flops, _ in attention)
    return {
        "active_parameters": round(active),
        "flops_per_token": metrics.flops_per_token(active, sum(trained.values()), attended),
        "forward_flops_per_token": metrics.forward_flops_per_token(active, attended),
        "masked_flops_per_token": sum(masked for *_, masked in attention),
        "recomputed_flops_per_token": metrics.forward_flops_per_token(
            sum(used[number] for number in again), sum(flops for number, flops, _ in attention if number in again)
        ),
    }


def _observed(experiment: Experiment) -> tuple[Any, dict[str, nn.Module], Observed]:
    """Return a copy of the model, the modules in it that hold experts, and what a pass of it does."""
    model = build(experiment)
    if odd := next((name for name, one in model.named_modules() if _SELECTS.search(type(one).__name__)), None):
        raise ValueError(f"{odd} chooses the keys that attention sees")
    held = expert_modules(model)
    if adapted := next((name for name in held if name.endswith(".base_layer")), None):
        raise ValueError(f"peft computes the adapters of all experts of {adapted}, whatever a token chooses")
    try:
        return model, held, observe(model, held)
    except Exception:  # some models need a mask; what was observed cannot be used again
        model = build(experiment)
        held = expert_modules(model)
        return model, held, observe(model, held, True)


def build(experiment: Experiment) -> Any:
    """Build the model of the settings on the meta device, with its adapters."""

    def make(config: Any, attention: str) -> Any:
        return AutoModelForCausalLM.from_config(config, attn_implementation=attention)

    whole = experiment.model_copy(update=WHOLE)
    with torch.device("meta"):
        return model_builder.adapt(whole, model_builder._with_attention(whole, make))


def _used(
    model: nn.Module, seen: Observed, held: Mapping[str, Experts], places: Mapping[int, int]
) -> tuple[Counter[int | None], Counter[int | None]]:
    """Return the parameters that work on a token, and those of them that are trained, by block; None outside of all.

    A weight that several blocks share counts in each; outside of them once, as tied embeddings do.
    """
    used: Counter[int | None] = Counter()
    trained: Counter[int | None] = Counter()
    once: set[int] = set()
    for name, module in model.named_modules():
        place, times = places.get(id(module)), _calls(name, held, seen)
        for weight in module.parameters(recurse=False):
            if place is None and id(weight) in once:
                continue
            once.add(id(weight))
            size = weight.numel() * (times if place is not None else min(times, 1)) * _share(name, weight, held)
            used[place] += size
            trained[place] += size * weight.requires_grad
    return used, trained


def _calls(name: str, held: Mapping[str, Experts], seen: Observed) -> float:
    """Return how often a module works in a pass; one that its parent does not call may lend it its weights."""
    if (owner := _owner(name, held)) is not None:
        name = owner.rpartition(".")[0]
    return seen.calls.get(name) or min(1.0, seen.calls.get(name.rpartition(".")[0], 0.0))


def _share(name: str, weight: nn.Parameter, held: Mapping[str, Experts]) -> float:
    """Return the share of a weight that works on a token: less than all of one that experts have."""
    owner = _owner(name, held)
    if owner is None or (held[owner].stacked and weight.shape[0] != held[owner].number):
        return 1.0
    return held[owner].chosen / held[owner].number


def _owner(name: str, held: Mapping[str, Experts]) -> str | None:
    return next((one for one in held if name == one or name.startswith(f"{one}.")), None)


def _attention_flops(
    one: Attended, model: nn.Module, places: Mapping[int, int], seq_len: int
) -> tuple[int | None, float, float]:
    """Return the block that attention is in, its FLOPs of a token, and those that a causal mask makes unnecessary."""
    shape = 1, one.width, seq_len, one.window
    place = places.get(id(model.get_submodule(one.module)))
    return place, metrics.attention_flops_per_token(*shape), metrics.masked_flops_per_token(*shape)
