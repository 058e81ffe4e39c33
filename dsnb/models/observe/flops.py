"""Counts the FLOPs of one token of any causal language model, in a forward pass of a copy on the meta device."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from torch import nn

from dsnb.base.formulas import metrics
from dsnb.models.build import build_on_meta
from dsnb.models.observe.experts import Experts, chosen_experts, expert_modules
from dsnb.models.observe.forward import Observed, observe
from dsnb.models.parts import blocks
from dsnb.settings.experiment import Experiment

WHOLE = {
    "tensor_parallel": 1, "pipeline_parallel": 1, "activation_checkpointing": False, "attention": "eager",
    "pad_vocab": 0,
}  # fmt: skip
"""Settings of the copy, which is not split or padded and has the simplest attention."""
_SELECTS = re.compile(r"(Indexer|Compressor)$")
"""Classes of modules that choose or compress the keys of attention depending on their values."""


def record(experiment: Experiment) -> dict[str, Any]:
    """Return the FLOPs of one token for a run's record; if they are not certain, `flops_missing` says why."""
    try:
        return count(experiment)
    except Exception as error:  # the run continues without them
        lines = str(error).splitlines() or [type(error).__name__]
        return {"flops_missing": f"the FLOPs of a token could not be counted: {lines[0][:300]}"}


def count(experiment: Experiment) -> dict[str, Any]:
    """Count the FLOPs of one token; raise ValueError if its experts or the keys that it sees are not certain."""
    whole = experiment.model_copy(update=WHOLE)
    model = build_on_meta(whole)
    _check(model)
    held = expert_modules(model)
    try:
        seen = observe(model, held)
    except Exception:  # some models need a mask; a model that was observed cannot be used again
        model = build_on_meta(whole)
        held = expert_modules(model)
        seen = observe(model, held, masked=True)
    places = {
        id(module): number
        for number, block in enumerate(blocks(model))
        for module in block.modules()
    }
    used, trained = _used(model, seen, chosen_experts(model, held, seen), places)
    attention: dict[int | None, float] = defaultdict(float)
    masked = 0.0
    windowed = 0
    for each in seen.attended:
        shape = 1, each.width, experiment.seq_len, each.window
        place = places.get(id(model.get_submodule(each.module)))
        attention[place] += metrics.attention_flops_per_token(*shape)
        masked += metrics.masked_flops_per_token(*shape)
        windowed += bool(each.window and each.window < experiment.seq_len)
    every = experiment.whole_every
    again = range(0, len(blocks(model)), every) if every else ()
    active = used.total()
    attended = sum(attention.values())
    return {
        "active_parameters": round(active),
        "flops_per_token": metrics.flops_per_token(active, trained.total(), attended),
        "forward_flops_per_token": metrics.forward_flops_per_token(active, attended),
        "masked_flops_per_token": masked,
        "windowed_share": windowed / max(1, len(seen.attended)),
        "recomputed_flops_per_token": metrics.forward_flops_per_token(
            sum(used[place] for place in again), sum(attention[place] for place in again)
        ),
    }


def _check(model: nn.Module) -> None:
    """Raise ValueError if the work of a token depends on values, or adapters work on all tokens."""
    for name, module in model.named_modules():
        if _SELECTS.search(type(module).__name__):
            raise ValueError(f"{name} chooses the keys that attention sees")
    for name in expert_modules(model):
        if name.endswith(".base_layer"):
            raise ValueError(
                f"peft computes the adapters of all experts of {name}, whatever a token chooses"
            )


def _used(
    model: nn.Module, seen: Observed, held: Mapping[str, Experts], places: Mapping[int, int]
) -> tuple[Counter[int | None], Counter[int | None]]:
    """Return the parameters that work on a token, and those of them that are trained, by block; None outside of all.

    A weight shared by several blocks counts in each; outside of blocks, as with tied embeddings,
    once.
    """
    used: Counter[int | None] = Counter()
    trained: Counter[int | None] = Counter()
    counted: set[int] = set()
    for name, module in model.named_modules():
        place = places.get(id(module))
        owner = next((one for one in held if f"{name}.".startswith(f"{one}.")), None)
        calls = _calls(owner.rpartition(".")[0] if owner else name, seen)
        for weight in module.parameters(recurse=False):
            size = calls * weight.numel()
            if place is None:
                if id(weight) in counted:
                    continue
                size = min(calls, 1) * weight.numel()
            counted.add(id(weight))
            if owner:
                size *= held[owner].share(weight)
            used[place] += size
            trained[place] += size * weight.requires_grad
    return used, trained


def _calls(name: str, seen: Observed) -> float:
    """Return how often a module works in a pass; one that is not called may lend its weights to its parent."""
    return seen.calls.get(name) or min(1.0, seen.calls.get(name.rpartition(".")[0], 0.0))
