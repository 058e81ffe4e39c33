"""The steps of a recorded training on one rank: timed without waiting, written once the device has passed them."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dsnb.base.files.appender import Appender
from dsnb.base.system import launch_clock
from dsnb.base.system.hardware import GIB
from dsnb.measure.record.clock import Clock

Row = dict[str, Any]
LATE = 1
"""Steps that are held back, because the figures of a step may be logged after its end."""


@dataclass
class Pending:
    """A step that the device may not have finished; `start` and `end` are marks."""

    row: Row
    start: int
    end: int
    gaps: tuple[tuple[int, int], ...]
    """Marks between which the script did something else."""
    readings: dict[str, torch.Tensor] = field(default_factory=dict)
    """Figures on their way from the device to the host."""


class Steps:
    """Times steps from end to end; what a script does in between, it may leave out."""

    def __init__(self, device: torch.device, launched_at: float) -> None:
        self._clock = Clock(device)
        self._pending: deque[Pending] = deque()
        self._file: Appender | None = None
        self._unused: list[torch.Tensor] = []
        self._device = device
        self._watches_memory = self._clock.has_queue
        self.rows: list[Row] = []
        """The steps that the device has passed."""
        self.count = 0
        self.peak_gib: dict[str, float] = {}
        """Peaks of this rank's GPU since the warm-up."""
        self._retries_before = 0
        self._zero = self._clock.mark()
        self._clock.synchronize()
        self._zero_s = launch_clock.now_s() - launched_at
        self._start = self._clock.mark()
        self._left: int | None = None
        self._depth = 0
        self._gaps: list[tuple[int, int]] = []

    def write_to(self, path: Path) -> None:
        """Append steps to a file from now on, with those so far."""
        self._file = Appender(path)
        for row in self.rows:
            self._file.append(row)

    def resume(self) -> None:
        """Begin the next step here, not at the end of the last one."""
        self._start = self._clock.mark()
        self._gaps.clear()

    def leave(self) -> None:
        """Begin something that belongs to no step, perhaps within something else that does not."""
        if not self._depth:
            self._left = self._clock.mark()
        self._depth += 1

    def come_back(self) -> None:
        """End what belongs to no step."""
        self._depth -= 1
        if self._left is not None and not self._depth:
            self._gaps.append((self._left, self._clock.mark()))
            self._left = None

    def end_step(self, phase: str, figures: Mapping[str, Any]) -> None:
        """End a step; figures that are on a GPU are copied without waiting for it."""
        readings = {}
        row: Row = {"step": self.count + 1, "phase": phase}
        for name, value in figures.items():
            if torch.is_tensor(value) and value.device.type == "cuda":
                readings[name] = self._read_later(value)
            elif value is not None:
                row[name] = plain(value)
        row |= self._memory()
        end = self._clock.mark()
        self._pending.append(Pending(row, self._start, end, tuple(self._gaps), readings))
        self._gaps.clear()
        self._start = end
        self.count += 1
        self._pass_on(LATE)

    def add(self, step: int, figures: Row) -> None:
        """Add figures to a step that ended a moment ago."""
        for pending in self._pending:
            if pending.row["step"] == step:
                pending.row |= figures

    def reset_peaks(self) -> None:
        """Begin to watch the peak of memory; once, because the user's script may reset it too."""
        self.peak_gib.clear()
        self._retries_before = self.alloc_retries or 0
        if self._watches_memory:
            torch.cuda.reset_peak_memory_stats(self._device)

    @property
    def alloc_retries(self) -> int | None:
        """How often the allocator has asked again since the warm-up; None on a CPU."""
        if not self._watches_memory:
            return None
        stats = torch.cuda.memory_stats(self._device)
        return int(stats["num_alloc_retries"]) - self._retries_before

    def finish(self) -> None:
        """Wait for the device, and pass the remaining steps on."""
        self._clock.synchronize()
        self.flush()

    def flush(self) -> None:
        """Pass on the steps that the device has finished."""
        self._pass_on(0)
        if self._file:
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()

    def _pass_on(self, held_back: int) -> None:
        while len(self._pending) > held_back and self._clock.passed(self._pending[0].end):
            pending = self._pending.popleft()
            row = pending.row | self._times(pending)
            for name, reading in pending.readings.items():
                row[name] = plain(reading)
                self._unused.append(reading)
            self.rows.append(row)
            if self._file:
                self._file.append(row)

    def _times(self, pending: Pending) -> Row:
        time_s = self._clock.seconds(pending.start, pending.end)
        for left, back in pending.gaps:
            time_s -= self._clock.seconds(left, back)
            self._clock.forget(left)
            self._clock.forget(back)
        self._clock.forget(pending.start)
        t_s = self._zero_s + self._clock.seconds(self._zero, pending.end)
        return {"t_s": t_s, "step_time_s": time_s}

    def _read_later(self, value: torch.Tensor) -> torch.Tensor:
        """Copy a number from the device to the host while the step goes on."""
        if not self._unused:
            self._unused.append(torch.empty((), dtype=torch.float64, pin_memory=True))
        reading = self._unused.pop()
        value = value.detach().double()  # on the device: a copy to another dtype would wait
        if value.dim():
            value = value.mean()
        reading.copy_(value, non_blocking=True)
        return reading

    def _memory(self) -> Row:
        if not self._watches_memory:
            return {}
        stats = torch.cuda.memory.memory_stats_as_nested_dict(self._device)
        memory = {}
        for what in ("allocated", "reserved"):
            peak = stats[f"{what}_bytes"]["all"]["peak"] / GIB
            memory[f"{what}_gib"] = peak
            self.peak_gib[what] = max(peak, self.peak_gib.get(what, 0.0))
        return memory


def on_this_rank(value: Any) -> Any:
    """Return a figure without its distribution over ranks; None if reading it would need the others."""
    if hasattr(value, "placements"):
        whole = all(placement.is_replicate() for placement in value.placements)
        return value.to_local() if whole else None
    return value


def plain(value: Any) -> Any:
    """Return a figure as a plain number."""
    if torch.is_tensor(value):
        return float(value.detach().double().mean())
    return value
