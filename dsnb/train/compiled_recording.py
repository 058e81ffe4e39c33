"""Records what a model that is compiled as a whole allocates and frees, in the order of its blocks.

The order of its kernels is the compiler's secret until it has compiled for a GPU. What torch's partitioner keeps of
each block is known, and so are the gradients; temporaries are one of the residual stream and one of the widest layer.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from dsnb.settings.compile_rules import compiles_blocks
from dsnb.settings.experiment import Experiment
from dsnb.train.fake_model import build, fake_mode
from dsnb.train.live_bytes import Size
from dsnb.train.model_parts import blocks, output_layer
from dsnb.train.recording import ALLOCATED, FREED, GRADIENT, tensors_of

WIDEST = 4
"""Widths of the residual stream that a block's widest activation has, in GPT-2, OPT and BLOOM."""


def record(experiment: Experiment, kept: Sequence[Sequence[Size]], loss: Size, head: Size) -> dict[str, Any] | None:
    """Return the recording of a compiled model; None where its blocks are compiled or recomputed one by one.

    The mode of compilation is not asked: a trace serves all of them.

    Parameters
    ----------
    kept
        What models of two and of three blocks keep from their forward to their backward pass.
    loss
        What the backward pass of the loss adds to it.
    head
        The gradient of the output layer.
    """
    s = experiment
    if s.activation_checkpointing or s.lora_rank or s.loss != "whole" or compiles_blocks(s.model_dump()):
        return None
    model = build(experiment, fake_mode())
    events = _Events(experiment, model, head)
    before, block, after = _parts(*kept)
    root = [events.allocate(one) for one in before]
    of_blocks = []
    for _ in events.weights_of_blocks:
        of_blocks.append([events.allocate(one) for one in block])
        events.free([events.allocate(events.widest)])
    logits = [events.allocate(one) for one in after]
    events.add_backward(logits, of_blocks, loss)
    events.free(root)
    events.hand_out_gradients()
    return {"tensors": tensors_of(model), "events": events.found}


def _parts(two: Sequence[Size], three: Sequence[Size]) -> tuple[list[Size], list[Size], list[Size]]:
    """Return what is kept before the blocks, of each block, and after them, from models of two and three blocks."""
    missing = Counter(three) - Counter(two)
    block = _first(three, missing)
    root = _first(two, Counter(two) - missing - missing)
    # The logits are the largest; what comes before them is the input of the output layer.
    last = max(0, max(range(len(root)), key=lambda place: root[place].per_sequence, default=0) - 1)
    return root[:last], block, root[last:]


def _first(sizes: Sequence[Size], wanted: Counter[Size]) -> list[Size]:
    """Return the first so many of each size, in order."""
    left, found = Counter(wanted), []
    for one in sizes:
        if left[one] > 0:
            found.append(one)
            left[one] -= 1
    return found


class _Events:
    """Events of a forward and a backward pass in the making."""

    def __init__(self, experiment: Experiment, model: Any, head: Size) -> None:
        self.found: list[tuple[int, float, float]] = []
        parameters = list(model.parameters())
        numbers = {id(one): number for number, one in enumerate(parameters)}
        self.weights_of_blocks = [[numbers[id(one)] for one in block.parameters()] for block in blocks(model.model)]
        self._weights = [one.element_size() * math.prod(one.shape) for one in parameters]
        self._widths = [one.element_size() for one in parameters]
        self._head, self._of_head = numbers[id(output_layer(model).weight)], head
        self._is_tied = model.model.get_input_embeddings().weight is output_layer(model).weight
        of_number = 4 if experiment.precision in {"fp32", "tf32"} else 2
        self.stream = Size(0, experiment.seq_len * model.config.hidden_size * of_number)
        self.widest = Size(0, WIDEST * self.stream.per_sequence)
        self._gradients: dict[int, int] = {}
        self._count = 0

    def allocate(self, size: Size) -> int:
        """Return the number of an allocation."""
        self.found.append((ALLOCATED, *size))
        self._count += 1
        return self._count - 1

    def free(self, allocations: Sequence[int]) -> None:
        """Free allocations."""
        self.found += [(FREED, one, 0) for one in allocations]

    def add_backward(self, logits: Sequence[int], of_blocks: Sequence[list[int]], loss: Size) -> None:
        """Add the backward pass: gradients stay until its end, what blocks keep is freed as it is used."""
        beside = self.allocate(loss)
        self._gradients[self._head] = self.allocate(self._of_head)
        stream = self.allocate(self.stream)
        self.free([*logits, beside])
        for weights, kept in zip(self.weights_of_blocks[::-1], of_blocks[::-1], strict=True):
            temporary, left = self.allocate(self.widest), list(kept)
            for weight in weights[::-1]:
                self._gradients[weight] = self.allocate(Size(self._weights[weight]))
                self.free([left.pop()] if left else [])
            self.free([temporary, *left[::-1]])
            following = self.allocate(self.stream)
            self.free([stream])
            stream = following
        self._add_embeddings()
        self.free([stream])

    def _add_embeddings(self) -> None:
        """Sum up the gradients of what is outside of blocks in fp32; a tied one is added to the output layer's."""
        of_blocks = {one for weights in self.weights_of_blocks for one in weights}
        for weight, size in enumerate(self._weights):
            if weight == self._head and self._is_tied:
                in_fp32, summed = self.allocate(Size(4 / self._widths[weight] * size)), self.allocate(Size(size))
                self.free([self._gradients[weight], in_fp32])
                self._gradients[weight] = summed
            elif weight not in of_blocks and weight != self._head:
                self._gradients[weight] = self.allocate(Size(size))

    def hand_out_gradients(self) -> None:
        """Give the gradients of all weights to the engine: a compiled graph returns them at its end."""
        self.found += [(GRADIENT, weight, self._gradients[weight]) for weight in sorted(self._gradients)]
        self.free(list(self._gradients.values()))
