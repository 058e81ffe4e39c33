"""What memory holds at one moment of a step, and what a trace of the model says about its forward and backward pass."""

from collections.abc import Sequence
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Trace:
    """The memory of one micro-batch, without weights, gradients and optimizer; from `dsnb.train.memory_trace`.

    Attributes
    ----------
    forward_peak
        The most bytes of the forward pass.
    kept
        Bytes that the blocks keep from their forward to their backward passes.
    moments
        (bytes, elements) in the backward pass: the most bytes alive while so many elements of gradients had been
        computed. The first one is the loss's backward pass, when none had.
    parameters, trainable, of_block, of_root, largest
        Elements: all, trained, of one block, outside of all blocks, of the largest parameter.
    layers, hidden, vocab, width_of_head
        Blocks, their width, and the shape of the output layer.
    block_input
        Bytes of the input of one block.
    """

    forward_peak: float
    kept: float
    moments: Sequence[tuple[float, float]]
    parameters: float
    trainable: float
    of_block: float
    of_root: float
    largest: float
    layers: int
    hidden: int
    vocab: int
    width_of_head: int
    block_input: float


@dataclass(frozen=True)
class Moment:
    """Bytes in a GPU's memory at one moment of a step.

    Attributes
    ----------
    name
        `forward`, `loss`, `backward`, `reduction` or `optimizer`.
    buffers
        Communication buckets, gathered weights, and temporaries of the optimizer.
    """

    name: str
    weights: float = 0
    gradients: float = 0
    optimizer: float = 0
    activations: float = 0
    logits: float = 0
    buffers: float = 0

    @property
    def total(self) -> float:
        """The sum of all parts."""
        return sum(self.parts().values())

    def parts(self) -> dict[str, float]:
        """Return the bytes of each part."""
        return {name: getattr(self, name) for name in PARTS}

    def with_more(self, name: str, **more: float) -> "Moment":
        """Return another moment, in which some parts are larger by so many bytes."""
        parts = self.parts()
        return Moment(name, **parts | {part: parts[part] + size for part, size in more.items()})


PARTS = tuple(part.name for part in fields(Moment) if part.name != "name")
