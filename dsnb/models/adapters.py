"""Which linear layers LoRA adapts, found by what they are in the model instead of by a family's list of names.

transformers names each module of attention after it (`LlamaAttention`). Inside, the layers of
queries and values say so in their names, or one layer that is wider than the hidden state makes
them together with the keys.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D

from dsnb.models.parts import blocks

QUERIES = {"q", "wq", "query"}
VALUES = {"v", "wv", "value", "kv"}
"""Words of the names of layers; DeepSeek's `kv_b_proj` makes keys and values."""


def sizes(layer: Any) -> tuple[int, int]:
    """Return the inputs and outputs of a linear layer."""
    if isinstance(layer, Conv1D):
        return layer.nx, layer.nf
    return layer.in_features, layer.out_features


def is_linear(module: Any) -> bool:
    """Return whether a module is a linear layer, also one with a transposed weight."""
    return isinstance(module, nn.Linear | Conv1D)


def layers_of(model: Any, targets: str) -> dict[str, Any]:
    """Return the linear layers of blocks that `lora_targets` means, by name; raise ValueError if there are none."""
    in_blocks = {id(module) for block in blocks(model) for module in block.modules()}
    linear = {}
    attention = {}
    inside: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if id(module) not in in_blocks:
            continue
        if "Attention" in type(module).__name__:
            inside = (*inside, f"{name}.")
        if not is_linear(module):
            continue
        linear[name] = module
        if name.startswith(inside):
            attention[name] = module
    found = {"linear": linear, "attention": attention}
    found["query-value"] = _queries_and_values(attention)
    if not found[targets]:
        raise ValueError(
            f"lora_targets is '{targets}': {model.config.model_type} has no such linear layers; use 'linear'"
        )
    return found[targets]


def _queries_and_values(attention: Mapping[str, Any]) -> dict[str, Any]:
    """Return the layers of queries and values of attention."""
    named = _named(attention, QUERIES | VALUES)
    if _named(attention, QUERIES) and _named(attention, VALUES):
        return named
    wide = {}
    for name, layer in attention.items():
        inputs, outputs = sizes(layer)
        if outputs > inputs:
            wide[name] = layer
    return wide


def _named(layers: Mapping[str, Any], words: Iterable[str]) -> dict[str, Any]:
    """Return the layers whose own name has one of these words."""
    found = {}
    for name, layer in layers.items():
        parts = re.split(r"[_\d]+", name.rpartition(".")[2].lower())
        if set(words).intersection(parts):
            found[name] = layer
    return found


def recast(model: Any) -> float:
    """Return the inputs of a block's linear layers, each once, without the result of attention.

    These are what norms and activations make: a compiler can make them again.
    """
    attention = layers_of(model, "attention")
    outside: dict[int, set[int]] = {}
    for number, block in enumerate(blocks(model)):
        mine = {id(module) for module in block.modules()}
        for name, layer in layers_of(model, "linear").items():
            if id(layer) in mine and name not in attention:
                outside.setdefault(number, set()).add(sizes(layer)[0])
    numbers = sum(map(sum, outside.values())) / model.config.num_hidden_layers
    return float(model.config.hidden_size + numbers)


def counted(model: Any, targets: str) -> list[float]:
    """Return the linear layers that are adapted in a block, and the sum of their inputs and outputs."""
    layers = layers_of(model, targets)
    of_block = model.config.num_hidden_layers
    numbers = sum(sum(sizes(layer)) for layer in layers.values())
    return [len(layers) / of_block, numbers / of_block]
