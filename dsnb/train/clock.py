"""Clocks that mark step boundaries: device time on a GPU without waiting for it, a monotonic clock on a CPU."""

import time
from typing import Protocol

import torch


class Clock(Protocol):
    """Marks moments of the device's work, numbered from 0."""

    def mark(self) -> int:
        """Mark this point of the work queued so far and give its number."""

    def passed(self, mark: int) -> bool:
        """Say, without waiting, whether the work before the mark is done."""

    def seconds(self, first: int, second: int) -> float:
        """Return the time between two passed marks in seconds."""

    def synchronize(self) -> None:
        """Wait until all work queued so far is done; never called inside the timed region."""


class CpuClock:
    """A CPU works as it is told, so a mark is a reading of the monotonic clock."""

    def __init__(self) -> None:
        self._marks: list[float] = []

    def mark(self) -> int:
        """Read the clock."""
        self._marks.append(time.perf_counter())
        return len(self._marks) - 1

    def passed(self, mark: int) -> bool:
        """Say yes: whatever was before the mark is done."""
        return True

    def seconds(self, first: int, second: int) -> float:
        """Return the difference of two readings in seconds."""
        return self._marks[second] - self._marks[first]

    def synchronize(self) -> None:
        """Do nothing."""


class CudaClock:
    """CUDA events in the current stream: the GPU writes down the time when it gets there."""

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> int:
        """Queue an event."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()  # type: ignore[no-untyped-call]
        self._events.append(event)
        return len(self._events) - 1

    def passed(self, mark: int) -> bool:
        """Ask whether the GPU has reached the event."""
        return bool(self._events[mark].query())

    def seconds(self, first: int, second: int) -> float:
        """Return the GPU's time between two events in seconds."""
        return float(self._events[first].elapsed_time(self._events[second])) / 1e3

    def synchronize(self) -> None:
        """Wait for the GPU."""
        torch.cuda.synchronize()
