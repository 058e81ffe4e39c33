"""What goes into a model: the sequences and tokens of its training passes, seen by a hook on it."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

MAIN_INPUT = "input_ids"
"""What transformers calls token ids; a model may name its main input otherwise."""


class Batches:
    """Counts what a model trains on; a compiled model keeps its graphs."""

    def __init__(self, model: Any) -> None:
        self.passes = 0
        """Training passes so far."""
        self.sequences = 0
        """Most sequences of a pass."""
        self.lengths: set[int] = set()
        """Lengths of sequences: the first one, and another if there is one."""
        self.autocast: torch.dtype | None = None
        """The number format of autocast around the model; None if it is off."""
        self.is_in_ddp = False
        """Whether torch's DistributedDataParallel ran the model."""
        self._main_input = str(getattr(model, "main_input_name", MAIN_INPUT))
        self._tokens = 0
        self._is_counted = True
        self._hook = None
        if model is not None and not is_one_graph(model):
            # Traced, the hook would compile again in each step, or break the graph.
            see = torch.compiler.disable(self._see)
            self._hook = model.register_forward_pre_hook(see, with_kwargs=True)

    def take_tokens(self) -> int | None:
        """Return the tokens since the last call; None if they cannot be counted."""
        tokens = self._tokens
        self._tokens = 0
        if tokens and self._is_counted:
            return tokens
        return None

    def close(self) -> None:
        """Remove the hook."""
        if self._hook is not None:
            self._hook.remove()

    def _see(self, model: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not model.training or not torch.is_grad_enabled():
            return
        self.passes += 1
        if self.passes == 1:
            self._see_surroundings(model)
        shape = self._shape(inputs, named)
        if shape is None:
            self._is_counted = False
            return
        sequences, length = shape
        self._tokens += sequences * length
        self.sequences = max(self.sequences, sequences)
        if len(self.lengths) < 2:
            self.lengths.add(length)

    def _see_surroundings(self, model: Any) -> None:
        kind = next((weight.device.type for weight in model.parameters()), "cpu")
        if torch.is_autocast_enabled(kind):
            self.autocast = torch.get_autocast_dtype(kind)
        self.is_in_ddp = getattr(DistributedDataParallel, "_active_ddp_module", None) is not None

    def _shape(self, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[int, int] | None:
        """Return the number of sequences and their length; None if there are no token ids."""
        for values in (named, *inputs):
            if isinstance(values, Mapping) and torch.is_tensor(values.get(self._main_input)):
                return _sequences(values[self._main_input])
        for value in _tensors((*inputs, named)):
            is_integer = not value.is_floating_point() and value.dtype != torch.bool
            if is_integer and value.dim() == 2:
                return _sequences(value)
        embedded = named.get("inputs_embeds")
        if torch.is_tensor(embedded):
            return _sequences(embedded)
        return None


def _sequences(value: torch.Tensor) -> tuple[int, int] | None:
    if value.dim() < 2:
        return 1, value.numel()
    if value.dim() > 2 and not value.is_floating_point():
        return value.shape[:-1].numel(), value.shape[-1]
    return value.shape[0], value.shape[1]


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if torch.is_tensor(value):
            yield value
        elif isinstance(value, Mapping):
            yield from _tensors(value.values())


def is_one_graph(model: Any) -> bool:
    """Return whether torch would trace a hook of this model into a graph that must not break.

    Hooks of a wrapper, compiled or not, are called outside of the graph.
    """
    if hasattr(model, "_orig_mod") or hasattr(model, "module"):
        return False
    compiled = getattr(model, "_compiled_call_impl", None)
    if compiled is not None:
        cells = getattr(compiled, "__closure__", None) or ()
        return any(getattr(cell.cell_contents, "fullgraph", False) for cell in cells)
    plugin = getattr(accelerator_state(), "dynamo_plugin", None)
    return bool(getattr(plugin, "fullgraph", False))


def accelerator_state() -> Any:
    """Return accelerate's state of this process; None if it was not used."""
    module = sys.modules.get("accelerate.state")
    if module is None or not module.AcceleratorState._shared_state:
        return None
    return module.AcceleratorState()
