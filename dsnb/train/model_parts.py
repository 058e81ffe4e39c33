"""The parts of a causal language model: its transformer blocks, what is initialised together, how many parameters."""

from collections.abc import Iterator
from typing import Any

from torch import nn


def blocks(model: Any) -> list[Any]:
    """Return the transformer blocks, in order: the one list of modules that is as long as the configuration says."""
    layers = model.config.num_hidden_layers
    found = (module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == layers)
    return list(next(found))


def has_own_parameters(module: nn.Module) -> bool:
    """Return whether a module has parameters of its own, beside those of the modules in it."""
    return next(iter(module.parameters(recurse=False)), None) is not None


def init_units(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Return the parts that are initialised one after another: each transformer block, and each layer outside them."""

    def walk(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        if isinstance(module, nn.ModuleList):
            yield from (
                module.named_children()
                if not name
                else ((f"{name}.{key}", child) for key, child in module.named_children())
            )
        elif has_own_parameters(module):
            yield name, module
        else:
            for key, child in module.named_children():
                yield from walk(f"{name}.{key}" if name else key, child)

    yield from walk("", model)


def count_parameters(model: nn.Module) -> tuple[int, int, int]:
    """Count all parameters, those that are trained, and those of blocks; tied ones once, shared-out ones whole."""
    sizes = [(_numel(one), one.requires_grad) for one in model.parameters()]
    trained = sum(size for size, is_trained in sizes if is_trained)
    of_blocks = sum(_numel(one) for block in blocks(model) for one in block.parameters())
    return sum(size for size, _ in sizes), trained, of_blocks


def _numel(parameter: nn.Parameter) -> int:
    return int(getattr(parameter, "ds_numel", parameter.numel()))
