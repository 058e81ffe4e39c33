"""What a model's forward and backward pass allocates and frees, as `dsnb.train.recording` has recorded it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

ALLOCATED, FREED, GRADIENT = 0, 1, 2


@dataclass(frozen=True)
class Tensor:
    """A weight or a buffer of the model; `width` is the bytes of an element."""

    shape: tuple[int, ...]
    width: int
    trained: bool

    @cached_property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Recording:
    """A model's tensors and the events of one micro-batch.

    Attributes
    ----------
    tensors
        Weights in the order of the model, then buffers.
    events
        (`ALLOCATED`, bytes that are always there, bytes of each sequence), (`FREED`, number of the allocation, 0), or
        (`GRADIENT`, number of the weight, number of the allocation that holds it, -1 if none does).
    """

    tensors: Sequence[Tensor]
    events: Sequence[Sequence[float]]

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> "Recording":
        """Return the recording of a record.

        Raises
        ------
        KeyError, TypeError, ValueError
            If it is none.
        """
        tensors = [Tensor(tuple(shape), int(width), bool(trained)) for shape, width, trained in record["tensors"]]
        events = [(kind, first, second) for kind, first, second in record["events"]]
        return cls(tensors, events)
