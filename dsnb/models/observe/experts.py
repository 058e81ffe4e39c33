"""Finds the routed experts of any model, and how many of them work on a token, without a list of families.

Both follow from the model and its pass. If they are not certain, that is an error: a wrong number
of active parameters would give a wrong figure.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from dsnb.models.observe.forward import Observed

_CHOSEN = re.compile(
    r"(moe_|num_)?top_?k(_experts)?|(num_|n_)?(selected_)?experts_per_tok(en)?|num_selected_experts"
)
"""Names in modules and configurations for the number of experts of a token."""
_SHARED = re.compile(r"shared", re.IGNORECASE)
_EXPERTS = re.compile(r"experts?(\.|$)", re.IGNORECASE)
_ROUTED = re.compile(r"(experts?|router|moe(_?(block|layer|mlp))?)$", re.IGNORECASE)


@dataclass(frozen=True)
class Experts:
    """The number of experts that a module holds, and of those that work on one token."""

    number: int
    chosen: int
    stacked: bool
    """Whether their weights are parameters of the module itself, whose first dimension is the
    expert."""

    def share(self, weight: nn.Parameter) -> float:
        """Return the share of a weight in the module that works on a token."""
        if self.stacked and weight.shape[0] != self.number:
            return 1.0
        return self.chosen / self.number


def expert_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules that hold routed experts, by name."""
    return {name: module for name, module in _called(model, _EXPERTS) if _number(module)}


def _called(model: nn.Module, pattern: re.Pattern[str]) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules whose name or class matches, but for those that all tokens share."""
    for name, module in model.named_modules():
        if pattern.search(f"{name}.{type(module).__name__}") and not _SHARED.search(name):
            yield name, module


def _number(module: nn.Module) -> int:
    """Return the number of experts that a module holds, stacked or one by one."""
    stacked = _stacked(module)
    if stacked:
        return max(stacked)
    children = list(module.children())
    is_list = isinstance(module, nn.ModuleList | nn.ModuleDict)
    if is_list and len(children) > 1 and len(set(map(type, children))) == 1:
        return len(children)
    return 0


def _stacked(module: nn.Module) -> set[int]:
    return {weight.shape[0] for weight in module.parameters(recurse=False) if weight.dim() >= 3}


def chosen_experts(model: Any, held: Mapping[str, nn.Module], seen: Observed) -> dict[str, Experts]:
    """Return the experts of each module of `expert_modules`; raise ValueError if a number is not certain."""
    if not held:
        for name, _ in _called(model, _ROUTED):
            raise ValueError(f"{name} looks like a mixture of experts, but no experts were found")
    return {name: _chosen(model, name, module, seen) for name, module in held.items()}


def _chosen(model: Any, name: str, module: nn.Module, seen: Observed) -> Experts:
    """Return the experts of a module; a token gets the number seen in the pass, or else the configured one."""
    number = _number(module)
    stacked = _stacked(module)
    if len(stacked) > 1:
        raise ValueError(f"some of the {number} experts of {name} share weights")
    parent = name.rpartition(".")[0]
    block = model.get_submodule(parent)
    beside = (value for router in (block, *block.children()) for value in _numbers(vars(router)))
    routed = (chosen for choices, chosen in seen.chosen.get(parent, []) if choices == number)
    chosen = (
        seen.experts.get(name)
        or set(routed)
        or set(beside)
        or set(_numbers(model.config.to_dict()))
    )
    if len(chosen) != 1 or not 1 <= min(chosen) <= number:
        raise ValueError(
            f"it is not certain how many of the {number} experts of {name} work on a token"
        )
    return Experts(number, min(chosen), bool(stacked))


def _numbers(named: Mapping[str, Any]) -> Iterator[int]:
    for name, value in named.items():
        if _CHOSEN.fullmatch(name) and isinstance(value, int) and not isinstance(value, bool):
            yield value
