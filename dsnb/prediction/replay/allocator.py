"""Torch's caching allocator of GPU memory: which allocations share a segment, and what it therefore reserves.

As in `c10/cuda/CUDACachingAllocator.cpp` of PyTorch 2.11 with its default settings: sizes are rounded up to 512 bytes;
blocks of up to 1 MiB come from segments of 2 MiB, of less than 10 MiB from segments of 20 MiB, larger ones from a
segment of their own, rounded up to 2 MiB. The smallest free block that is large enough is taken, and split if enough
is left of it. Free neighbours are merged. What is freed stays reserved until memory runs short: whole free segments are
given back then.
"""

import bisect
import itertools
import math

MIB = 2**20
ROUNDED_TO = 512
SMALL = MIB
"""The largest size of the small blocks."""
SMALL_SEGMENT, SEGMENT, MIDDLE = 2 * MIB, 20 * MIB, 10 * MIB
SEGMENT_ROUNDED_TO = 2 * MIB


class OutOfMemoryError(Exception):
    """No segment can be had for an allocation, though all that are free have been given back."""


class Block:
    """A part of a segment, free or in use, between its neighbours."""

    __slots__ = ("after", "before", "free", "place", "size", "small")

    def __init__(self, place: tuple[int, int], size: int, small: bool) -> None:
        self.place, self.size, self.small = place, size, small
        self.before: Block | None = None
        self.after: Block | None = None
        self.free = False


class CachingAllocator:
    """Counts the bytes that are allocated and reserved; the address of a block is its segment's number and an offset.

    Parameters
    ----------
    limit
        Bytes that can be reserved.

    Attributes
    ----------
    allocated, reserved
        Bytes now.
    peak_allocated, peak_reserved
        The most bytes so far.
    """

    def __init__(self, limit: float = math.inf) -> None:
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = 0
        self._limit = limit
        self._numbers = itertools.count()
        self._free: dict[bool, list[tuple[int, tuple[int, int], Block]]] = {True: [], False: []}

    def allocate(self, number_of_bytes: float) -> Block:
        """Return a block of at least so many bytes.

        Raises
        ------
        OutOfMemoryError
            If there is none within the limit.
        """
        size = max(1, math.ceil(number_of_bytes / ROUNDED_TO)) * ROUNDED_TO
        small = size <= SMALL
        free = self._free[small]
        place = bisect.bisect_left(free, (size,))
        block = free.pop(place)[2] if place < len(free) else self._segment(size, small)
        left = block.size - size
        if left >= ROUNDED_TO if small else left > SMALL:
            self._split(block, size)
        block.free = False
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def release(self, block: Block) -> None:
        """Free a block; it stays reserved."""
        self.allocated -= block.size
        block.free = True
        if block.before and block.before.free:
            self._take(block.before)
            block = _merged(block.before, block)
        if block.after and block.after.free:
            self._take(block.after)
            block = _merged(block, block.after)
        bisect.insort(self._free[block.small], (block.size, block.place, block))

    def empty_cache(self) -> None:
        """Give back the segments of which nothing is in use."""
        for small, free in self._free.items():
            whole = [entry for entry in free if not (entry[2].before or entry[2].after)]
            self.reserved -= sum(size for size, *_ in whole)
            self._free[small] = [entry for entry in free if entry[2].before or entry[2].after]

    def _segment(self, size: int, small: bool) -> Block:
        if small:
            whole = SMALL_SEGMENT
        else:
            whole = SEGMENT if size < MIDDLE else math.ceil(size / SEGMENT_ROUNDED_TO) * SEGMENT_ROUNDED_TO
        if self.reserved + whole > self._limit:
            self.empty_cache()
        if self.reserved + whole > self._limit:
            raise OutOfMemoryError
        self.reserved += whole
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return Block((next(self._numbers), 0), whole, small)

    def _split(self, block: Block, size: int) -> None:
        segment, offset = block.place
        rest = Block((segment, offset + size), block.size - size, block.small)
        rest.free = True
        rest.before, rest.after = block, block.after
        if block.after:
            block.after.before = rest
        block.after, block.size = rest, size
        bisect.insort(self._free[block.small], (rest.size, rest.place, rest))

    def _take(self, block: Block) -> None:
        free = self._free[block.small]
        free.pop(bisect.bisect_left(free, (block.size, block.place)))


def _merged(first: Block, second: Block) -> Block:
    first.size += second.size
    first.after = second.after
    if second.after:
        second.after.before = first
    return first
