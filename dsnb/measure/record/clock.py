"""Points in the work of a device, timed without waiting for it."""

import time
from typing import Any

import torch


class Clock:
    """Marks points in the work of a device, numbered from 0.

    A GPU works through a queue that the host fills: marks are events in the current stream, timed
    by the GPU. A CPU executes work as it is called, so its marks are readings of the monotonic
    clock.
    """

    def __init__(self, device: torch.device) -> None:
        self.has_queue = device.type == "cuda"
        self._device = device
        self._events: dict[int, Any] = {}
        self._unused: list[Any] = []
        self._host_s: dict[int, float] = {}
        self._marks = 0

    def mark(self) -> int:
        """Mark the end of the work queued so far and return the number of the mark."""
        mark = self._marks
        if self.has_queue:
            event = self._unused.pop() if self._unused else torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self._device))
            self._events[mark] = event
        self._host_s[mark] = time.perf_counter()
        self._marks += 1
        return mark

    def forget(self, mark: int) -> None:
        """Reuse the event of a mark that is no longer asked for: a long training would keep one for each step."""
        del self._host_s[mark]
        if self.has_queue:
            self._unused.append(self._events.pop(mark))

    def passed(self, mark: int) -> bool:
        """Return, without waiting, whether the work before the mark is done."""
        return not self.has_queue or bool(self._events[mark].query())

    def seconds(self, first: int, second: int) -> float:
        """Return the seconds between two marks that have passed."""
        if self.has_queue:
            return float(self._events[first].elapsed_time(self._events[second])) / 1e3
        return self.host_s(first, second)

    def host_s(self, first: int, second: int) -> float:
        """Return the seconds on the host's clock between two calls of `mark`."""
        return self._host_s[second] - self._host_s[first]

    def synchronize(self) -> None:
        """Wait until all work queued so far is done; never called inside the timed region."""
        if self.has_queue:
            torch.cuda.synchronize(self._device)
