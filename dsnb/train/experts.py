"""Mixture of experts: which modules of a model hold experts, and how many of them work on a token.

Both come from the built model, so that a family that nobody has listed is counted, too. What cannot be told for certain
is an error, because a wrong number of active parameters would be a wrong figure.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from dsnb.train.empty_pass import Observed

_CHOSEN = re.compile(r"(moe_|num_)?top_?k(_experts)?|(num_|n_)?(selected_)?experts_per_tok(en)?|num_selected_experts")
"""Names under which modules and configurations keep the number of experts of a token."""
_SHARED = re.compile(r"shared", re.IGNORECASE)
_EXPERTS = re.compile(r"experts?(\.|$)", re.IGNORECASE)
_ROUTED = re.compile(r"(experts?|router|moe(_?(block|layer|mlp))?)$", re.IGNORECASE)


@dataclass(frozen=True)
class Experts:
    """The experts that a module holds.

    Attributes
    ----------
    number, chosen
        All of them, and those that work on one token.
    stacked
        Whether their weights are parameters of the module itself, whose first dimension is the expert.
    """

    number: int
    chosen: int
    stacked: bool


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
    """Return how many of the experts of each module work on one token.

    Parameters
    ----------
    held
        What `expert_modules` returned.
    seen
        A pass of the model.

    Raises
    ------
    ValueError
        If a number is not certain.
    """
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
    found = seen.experts.get(name) or taken or _configured(model, parent)
    if len(found) != 1 or not 1 <= min(found) <= number:
        raise ValueError(f"it is not certain how many of the {number} experts of {name} work on a token")
    return Experts(number, min(found), bool(stacked))


def _configured(model: Any, parent: str) -> set[int]:
    """Return the numbers of chosen experts that a router beside the experts, or else the configuration, names."""
    block = model.get_submodule(parent)
    of_modules = {value for one in (block, *block.children()) for value in _numbers(vars(one))}
    return of_modules or set(_numbers(model.config.to_dict()))


def _numbers(named: Mapping[str, Any]) -> Iterator[int]:
    for name, value in named.items():
        if _CHOSEN.fullmatch(name) and isinstance(value, int) and not isinstance(value, bool):
            yield value
