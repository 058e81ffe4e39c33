"""The parts of a causal language model: transformer blocks, units of initialisation, parameter counts."""

from collections.abc import Iterator
from typing import Any

from torch import nn
from transformers import PreTrainedModel


def blocks(model: Any) -> list[Any]:
    """Return the transformer blocks in order: the module list whose length is the configured number of layers.

    Raises
    ------
    ValueError
        If there is none.
    """
    layers = model.config.num_hidden_layers
    found = (module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == layers)
    blocks_found = next(found, None)
    if blocks_found is None:
        kind = model.config.model_type
        raise ValueError(f"the {layers} blocks of {kind} are in no list of modules: models like it cannot be trained")
    return list(blocks_found)


def output_layer(model: nn.Module) -> Any:
    """Return the layer that computes the logits."""
    return next(one for one in model.modules() if isinstance(one, PreTrainedModel)).get_output_embeddings()


def has_own_parameters(module: nn.Module) -> bool:
    """Return whether a module has parameters that belong to none of its submodules."""
    return next(iter(module.parameters(recurse=False)), None) is not None


def init_units(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the units that are initialised one by one, with names: each block, and each layer outside of blocks."""

    def walk(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        if isinstance(module, nn.ModuleList):
            prefix = f"{name}." if name else ""
            yield from ((f"{prefix}{key}", child) for key, child in module.named_children())
        elif has_own_parameters(module):
            yield name, module
        else:
            for key, child in module.named_children():
                yield from walk(f"{name}.{key}" if name else key, child)

    yield from walk("", model)


def count_parameters(model: nn.Module) -> tuple[int, int, int]:
    """Return the numbers of all, trainable and block parameters; tied ones count once, partitioned ones in full."""
    sizes = [(_numel(one), one.requires_grad) for one in model.parameters()]
    trained = sum(size for size, is_trained in sizes if is_trained)
    of_blocks = sum(_numel(one) for block in blocks(model) for one in block.parameters())
    return sum(size for size, _ in sizes), trained, of_blocks


def _numel(parameter: nn.Parameter) -> int:
    return int(getattr(parameter, "ds_numel", parameter.numel()))
