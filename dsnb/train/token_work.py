"""The FLOPs of one token, of any causal language model: from a copy of it without values (`dsnb.train.empty_pass`)."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from dsnb.formulas import metrics
from dsnb.settings.experiment import Experiment
from dsnb.train import model as model_builder
from dsnb.train.empty_pass import Attended, Experts, Observed, chosen_experts, expert_modules, observe
from dsnb.train.model_parts import blocks

_SELECTS = re.compile(r"(Indexer|Compressor)$")
"""Classes of modules that decide by values, or by compressing them, what attention computes."""
WHOLE = {"tensor_parallel": 1, "pipeline_parallel": 1, "activation_checkpointing": False, "attention": "eager"}
"""Settings of the copy: one rank has all of it, and its attention is the plainest."""


def record(experiment: Experiment) -> dict[str, Any]:
    """Return the FLOPs of one token for a run's record; if they are not certain, `flops_missing` says why."""
    try:
        return count(experiment)
    except Exception as error:  # a model that cannot be followed is trained all the same
        words = str(error).splitlines() or [type(error).__name__]
        return {"flops_missing": f"the FLOPs of a token could not be counted: {words[0][:300]}"}


def count(experiment: Experiment) -> dict[str, Any]:
    """Count the work of one token.

    Returns
    -------
    dict
        `active_parameters`, `flops_per_token`, `forward_flops_per_token`, `masked_flops_per_token`,
        `recomputed_flops_per_token`.

    Raises
    ------
    ValueError
        If it is not certain how many experts work on a token, or which keys its attention sees.
    """
    model, held, seen = _observed(experiment)
    places = {id(one): number for number, block in enumerate(blocks(model)) for one in block.modules()}
    used, trained = _used(model, seen, chosen_experts(model, held, seen), places)
    attention = [_attention(one, model, places, experiment.seq_len) for one in seen.attended]
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


def _attention(
    one: Attended, model: nn.Module, places: Mapping[int, int], seq_len: int
) -> tuple[int | None, float, float]:
    """Return the block that attention is in, its FLOPs of a token, and those that a causal mask makes unnecessary."""
    shape = 1, one.width, seq_len, one.window
    place = places.get(id(model.get_submodule(one.module)))
    return place, metrics.attention_flops_per_token(*shape), metrics.masked_flops_per_token(*shape)
