"""Follows the bytes of living tensors as a function of the micro-batch, in a single pass over a model."""

import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

BLOCK_BYTES = 512
"""torch's caching allocator rounds every allocation up to a multiple of this."""
MANY = 1_000_003
"""A micro-batch that is a prime: a tensor whose bytes it divides has one part for each sequence, any other has none."""


class Size(NamedTuple):
    """Bytes as a function of the micro-batch: those that are always there, and those of each sequence."""

    constant: float = 0
    per_sequence: float = 0

    def plus(self, other: "Size", times: float = 1) -> "Size":
        """Return the sum of this size and another one, taken several times."""
        return Size(self.constant + times * other.constant, self.per_sequence + times * other.per_sequence)


def size(number_of_bytes: int, micro_batch: int) -> Size:
    """Return the size of an allocation in a pass of `micro_batch` sequences; without `MANY` all of it is constant."""
    if micro_batch == MANY and number_of_bytes % MANY == 0:
        return Size(0, number_of_bytes // MANY)
    return Size(-(-number_of_bytes // BLOCK_BYTES) * BLOCK_BYTES, 0)


def total(sizes: Iterable[Size]) -> Size:
    """Return the sum of sizes."""
    found = Size()
    for one in sizes:
        found = found.plus(one)
    return found


def largest(sizes: Iterable[Size]) -> list[Size]:
    """Return the sizes that can be the largest one for some micro-batch."""
    kept: list[Size] = []
    for one in sorted(set(sizes), reverse=True):
        if not kept or one.per_sequence > kept[-1].per_sequence:
            kept.append(one)
    return kept


class LiveBytes(TorchDispatchMode):
    """Follows the bytes of the storages that are alive, apart from those that exist already.

    Parameters
    ----------
    existing
        Tensors that are not counted.
    micro_batch
        Sequences of the pass; `MANY` to tell what each sequence adds.

    Attributes
    ----------
    now
        What is alive.
    """

    def __init__(self, existing: Iterable[torch.Tensor], micro_batch: int) -> None:
        super().__init__()
        self._known = {tensor.untyped_storage()._cdata for tensor in existing}
        self._micro_batch = micro_batch
        self._sizes: dict[int, Size] = {}
        self._peaks: list[Size] = []
        self.now = Size()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._add(tensor.untyped_storage())
        return result

    def change(self, more: Size, times: float = 1) -> None:
        """Count more bytes, or fewer, that no tensor shows."""
        self.now = self.now.plus(more, times)
        if not self._peaks or any(now > peak for now, peak in zip(self.now, self._peaks[-1], strict=True)):
            self._peaks.append(self.now)

    def take_peaks(self) -> list[Size]:
        """Return the sizes that can have been the peak since the last call."""
        found = largest(self._peaks)
        self._peaks = [self.now]
        return found

    def _add(self, storage: Any) -> None:
        key = storage._cdata
        if key in self._known or key in self._sizes:
            return
        self._sizes[key] = size(storage.nbytes(), self._micro_batch)
        weakref.finalize(storage, self._remove, key)
        self.change(self._sizes[key])

    def _remove(self, key: int) -> None:
        self.now = self.now.plus(self._sizes.pop(key), -1)
