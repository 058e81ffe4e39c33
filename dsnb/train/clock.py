"""Clocks that mark step boundaries: CUDA events on a GPU, without synchronizing, and a monotonic clock on a CPU."""

import time
from typing import Protocol

import torch


class Clock(Protocol):
    """Marks points in the work queued on a device, numbered from 0."""

    def mark(self) -> int:
        """Mark the end of the work queued so far and return the number of the mark."""

    def passed(self, mark: int) -> bool:
        """Return, without waiting, whether the work before the mark is done."""

    def seconds(self, first: int, second: int) -> float:
        """Return the seconds between two marks that have passed."""

    def synchronize(self) -> None:
        """Wait until all work queued so far is done; never called inside the timed region."""


class CpuClock:
    """A CPU executes work as it is called, so a mark is a reading of the monotonic clock."""

    def __init__(self) -> None:
        self._marks: list[float] = []

    def mark(self) -> int:
        """Read the clock and return the number of the reading."""
        self._marks.append(time.perf_counter())
        return len(self._marks) - 1

    def passed(self, mark: int) -> bool:
        """Return True: the work before the mark is always done."""
        return True

    def seconds(self, first: int, second: int) -> float:
        """Return the seconds between two readings."""
        return self._marks[second] - self._marks[first]

    def synchronize(self) -> None:
        """Do nothing."""


class CudaClock:
    """CUDA events in the current stream: the GPU records the time when it reaches them."""

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> int:
        """Queue an event and return its number."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()  # type: ignore[no-untyped-call]
        self._events.append(event)
        return len(self._events) - 1

    def passed(self, mark: int) -> bool:
        """Return whether the GPU has reached the event."""
        return bool(self._events[mark].query())

    def seconds(self, first: int, second: int) -> float:
        """Return the seconds between two events, measured by the GPU."""
        return float(self._events[first].elapsed_time(self._events[second])) / 1e3

    def synchronize(self) -> None:
        """Wait for the GPU."""
        torch.cuda.synchronize()
