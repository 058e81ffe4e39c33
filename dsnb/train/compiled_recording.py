"""Records what a compiled model allocates and frees, in the order of its blocks.

The order of its kernels is the compiler's secret until it has compiled for a GPU. What torch's partitioner keeps of
each block is known, and so are the gradients; temporaries are one of the residual stream and one of the widest layer.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from dsnb.settings.derived import compiles_blocks
from dsnb.settings.experiment import Experiment
from dsnb.train.fake_model import build, fake_mode
from dsnb.train.live_bytes import Size
from dsnb.train.model_parts import blocks, output_layer
from dsnb.train.recording import ALLOCATED, FREED, GRADIENT, tensors_of

WIDEST = 4
"""Widths of the residual stream that a block's widest activation has, in GPT-2, OPT and BLOOM."""


def record(
    experiment: Experiment, kept: Sequence[Sequence[Size]], block_input: Size, loss: Size, head: Size
) -> dict[str, Any]:
    """Return the recording of a compiled model; the mode of compilation is not asked: a trace serves all of them.

    Parameters
    ----------
    kept
        What models of two and of three blocks keep from their forward to their backward pass.
    block_input
        What a block takes, which is kept where it is recomputed.
    loss
        What the backward pass of the loss adds to it.
    head
        The gradient of the output layer.
    """
    model = build(experiment, fake_mode())
    before, block, after = _parts(*kept)
    events = _Events(experiment, model, block, block_input)
    root = [events.allocate(one) for one in before]
    of_blocks = [events.forward(number) for number in range(len(events.weights_of_blocks))]
    events.backward_of_loss([events.allocate(one) for one in after], loss, head)
    if events.recomputes_at_once:
        of_blocks = [[*one, *(events.allocate(size) for size in block)] for one in of_blocks]
    for number in reversed(range(len(of_blocks))):
        events.backward(number, of_blocks[number])
    events.end(root)
    return {"tensors": tensors_of(model), "events": events.found}


def _parts(two: Sequence[Size], three: Sequence[Size]) -> tuple[list[Size], list[Size], list[Size]]:
    """Return what is kept before the blocks, of each block, and after them, from models of two and three blocks."""
    missing = Counter(three) - Counter(two)
    block = _first(three, missing)
    root = _first(two, Counter(two) - missing - missing)
    # The logits are the largest; what comes before them is the input of the output layer.
    last = max(range(len(root)), key=lambda place: (root[place].per_sequence, root[place].constant), default=0) - 1
    return root[: max(0, last)], block, root[max(0, last) :]


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

    def __init__(self, experiment: Experiment, model: Any, kept: Sequence[Size], block_input: Size) -> None:
        self.found: list[tuple[int, float, float]] = []
        self._settings, self._kept, self._block_input = experiment, kept, block_input
        self._alone = compiles_blocks(experiment.model_dump())
        # One graph computes blocks that follow each other again at once.
        every = experiment.checkpoint_every if experiment.activation_checkpointing else 0
        self.recomputes_at_once = every == 1 and not self._alone
        trained = {id(one): number for number, one in enumerate(model.parameters()) if one.requires_grad}
        self.weights_of_blocks = [
            [trained[id(one)] for one in block.parameters() if id(one) in trained] for block in blocks(model.model)
        ]
        self._outside = set(trained.values()).difference(*self.weights_of_blocks)
        self._widths = [one.element_size() for one in model.parameters()]
        self._bytes = [one.element_size() * math.prod(one.shape) for one in model.parameters()]
        self._head = trained.get(id(output_layer(model).weight))
        self._is_tied = model.model.get_input_embeddings().weight is output_layer(model).weight
        of_number = 4 if experiment.precision in {"fp32", "tf32"} else 2
        self._of_stream = Size(0, experiment.seq_len * model.config.hidden_size * of_number)
        self._widest = Size(0, WIDEST * self._of_stream.per_sequence)
        self._gradients: dict[int, int] = {}
        self._stream = self._count = 0

    def allocate(self, size: Size) -> int:
        """Return the number of an allocation."""
        self.found.append((ALLOCATED, *size))
        self._count += 1
        return self._count - 1

    def free(self, allocations: Sequence[int]) -> None:
        """Free allocations."""
        self.found += [(FREED, one, 0) for one in allocations]

    def forward(self, number: int) -> list[int]:
        """Return what a block keeps: its input where it is recomputed, nothing where that goes to host memory."""
        if not self._is_recomputed(number):
            kept = [self.allocate(one) for one in self._kept]
        else:
            kept = [self.allocate(self._block_input)]
            if self._settings.checkpoint_offload:
                self.free(kept)
                kept = []
        self.free([self.allocate(self._widest)])
        return kept

    def backward_of_loss(self, logits: Sequence[int], loss: Size, head: Size) -> None:
        """Compute the gradients of the output layer and of its input."""
        beside = self.allocate(loss)
        if self._head is not None:
            self._gradients[self._head] = self.allocate(head)
        self._stream = self.allocate(self._of_stream)
        self.free([*logits, beside])

    def backward(self, number: int, kept: Sequence[int]) -> None:
        """Compute the gradients of a block; what it has kept is freed as it is used."""
        left = list(kept)
        if self._is_recomputed(number) and not self.recomputes_at_once:
            left += [self.allocate(one) for one in self._kept]
        temporary = self.allocate(self._widest)
        for weight in self.weights_of_blocks[number][::-1]:
            self._gradients[weight] = self.allocate(Size(self._bytes[weight]))
            self.free([left.pop()] if left else [])
        self.free([temporary, *left[::-1]])
        following = self.allocate(self._of_stream)
        self.free([self._stream])
        self._stream = following
        if self._alone:
            self._hand_out(self.weights_of_blocks[number])

    def end(self, root: Sequence[int]) -> None:
        """Compute the gradients outside of blocks, and hand out those that are left: one graph returns all at its end.

        An embedding's is summed up in fp32; a tied one is added to the output layer's.
        """
        for weight in sorted(self._outside):
            if weight == self._head and self._is_tied:
                in_fp32 = self.allocate(Size(4 / self._widths[weight] * self._bytes[weight]))
                summed = self.allocate(Size(self._bytes[weight]))
                self.free([self._gradients[weight], in_fp32])
                self._gradients[weight] = summed
            elif weight != self._head:
                self._gradients[weight] = self.allocate(Size(self._bytes[weight]))
        self.free([self._stream, *root])
        self._hand_out(sorted(self._gradients))

    def _is_recomputed(self, number: int) -> bool:
        return self._settings.activation_checkpointing and number % self._settings.checkpoint_every == 0

    def _hand_out(self, weights: Sequence[int]) -> None:
        self.found += [(GRADIENT, weight, self._gradients[weight]) for weight in weights]
        self.free([self._gradients.pop(weight) for weight in weights])
