"""What memory holds at one moment of a step, and what a trace of the model says about its forward and backward pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Trace:
    """The memory of one micro-batch, without weights, gradients and optimizer.

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
    layers, hidden, vocab
        Blocks, their width, and the rows of the output layer.
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

    @cached_property
    def after_loss(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The bytes and elements of the moments after the first one, each of shape (moments - 1,)."""
        sizes, done = np.array(self.moments[1:], dtype=float).reshape(-1, 2).T
        return sizes, done


SIZES = ("forward", "kept", "moments")
ELEMENTS = ("parameters", "trainable", "of_block", "of_root", "largest", "layers", "hidden", "vocab")


@dataclass(frozen=True)
class ModelTrace:
    """The memory of a model as a function of the micro-batch; from `dsnb.prediction.memory_trace`.

    A size is (bytes that are always there, bytes of each sequence). Which of several sizes is the largest depends on
    the micro-batch.

    Attributes
    ----------
    forward, kept
        As in `Trace`, in sizes.
    moments
        (constant, per sequence, elements).
    elements
        The other fields of `Trace`.
    """

    forward: Sequence[Sequence[float]]
    kept: Sequence[float]
    moments: Sequence[Sequence[float]]
    elements: Mapping[str, int]

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> "ModelTrace":
        """Return the trace of a record of `dsnb.prediction.memory_trace`.

        Raises
        ------
        KeyError, TypeError, ValueError
            If it is none.
        """
        own = {name: record[name] for name in SIZES}
        trace = cls(**own, elements={name: record[name] for name in ELEMENTS})
        trace.of(1)
        return trace

    def of(self, micro_batch: int) -> Trace:
        """Return the memory of a micro-batch."""

        def whole(size: Sequence[float]) -> float:
            return size[0] + micro_batch * size[1]

        return Trace(
            max(map(whole, self.forward)),
            whole(self.kept),
            _peaks([(whole(moment), moment[2]) for moment in self.moments]),
            **self.elements,
        )


def _peaks(moments: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Return the loss's backward pass, and the later moments that can be a peak: none has more bytes and gradients."""
    kept: list[tuple[float, float]] = []
    for size, done in sorted((one for one in moments if one[1]), key=lambda moment: (-moment[1], -moment[0])):
        if not kept or size > kept[-1][0]:
            kept.append((size, done))
    return (max(one for one in moments if not one[1]), *kept[::-1])


class Moment(NamedTuple):
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
        return sum(self[1:])

    def parts(self) -> dict[str, float]:
        """Return the bytes of each part."""
        return dict(zip(self._fields[1:], self[1:], strict=True))

    def with_more(self, name: str, **more: float) -> "Moment":
        """Return another moment, in which some parts are larger by so many bytes."""
        return self._replace(name=name, **{part: getattr(self, part) + size for part, size in more.items()})
