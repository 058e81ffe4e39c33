"""Measures the steps of one rank, and writes them during training.

Nothing here waits for the device between the first and the last timed step: boundaries are marks in
the device's queue, losses are copied to the host asynchronously, and a step is written once the
device has passed its mark, in a thread: where a write took 0.7 s, a step took 210 ms instead of 74.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from dsnb.base.files import json_files
from dsnb.base.files.appender import Appender
from dsnb.base.system import hardware, launch_clock
from dsnb.base.system.hardware import GIB
from dsnb.measure.record.clock import Clock
from dsnb.measure.record.failure import Position

MAX_PARTS = 8
"""Maximum backward passes of a step whose ends are marked: each mark takes the host some
microseconds."""
LEFT = 0.25
"""The host kept the GPU busy in a part of a step if it had queued all of it with this share still
to be done."""
UPDATE_WITHIN_S = 0.5
"""A counter that does not change for this long is unusable: even an idle GPU draws some joules in
that time."""
MIN_SPAN_S = 0.3
"""Minimum span with an energy figure: updates are timed to about 5 ms at each end, and idle power
is an estimate."""
Reading = tuple[float, float]
"""Time of an update of the counter, on the monotonic clock in seconds, and its value in joules."""


def cpu_bound(clock: Clock, marks: Sequence[int], last: int) -> float:
    """Return the share of the time between the first and the last of `marks` in which the host set the pace.

    The device was idle at the first mark and at the mark `last`, so its clock can be related to the
    host's. For each part between two marks this gives the work that the device had left when the
    host had queued all of it. If that is less than `LEFT` of the part, the rest of the part counts:
    the device waited for launches at its end at the latest, and may have been idle before.
    """
    first = marks[0]
    rate = clock.host_s(first, last) / clock.seconds(first, last)  # the two clocks drift apart
    counted_s = 0.0
    for start, end in pairwise(marks):
        part_s = rate * clock.seconds(start, end)
        left_s = max(0.0, rate * clock.seconds(first, end) - clock.host_s(first, end))
        counted_s += part_s - left_s if left_s < LEFT * part_s else 0.0
    return counted_s / (rate * clock.seconds(first, marks[-1]))


class EnergyMeter:
    """Measures the energy of one span; `read` returns the counter in joules, `now` a monotonic time in seconds.

    The energy counter is updated only about every 100 ms, so it is read right after an update,
    before and after the span. The idle energy between these updates and the span is estimated over
    one more update and subtracted. NVML's power reading is no alternative: on recent GPUs it is an
    average over the last second.
    """

    def __init__(
        self, read: Callable[[], float], now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._read = read
        self._now = now
        self._before: Reading | None = None
        self._began_s = 0.0

    def prepare(self) -> None:
        """Wait for an update of the counter, about 0.1 s; the GPU must be idle."""
        self._before = self._update()

    def begin(self) -> None:
        """Begin the span."""
        self._began_s = self._now()

    def end(self) -> float | None:
        """End the span, whose work must be complete; return its energy in joules, None if unknown, in 0.1 to 0.2 s."""
        ended_s = self._now()
        after = self._update()
        later = self._update()
        if self._before is None or after is None or later is None:
            return None
        if ended_s - self._began_s < MIN_SPAN_S:
            return None
        idle_w = (later[1] - after[1]) / (later[0] - after[0])
        idle_s = (self._began_s - self._before[0]) + (after[0] - ended_s)
        return max(0.0, after[1] - self._before[1] - idle_w * idle_s)

    def _update(self) -> Reading | None:
        """Wait until the counter changes; return None if it does not."""
        before = self._read()
        deadline = self._now() + UPDATE_WITHIN_S
        while (now := self._now()) < deadline:
            value = self._read()
            if value != before:
                return now, value
        return None


@dataclass(frozen=True)
class NvmlGpu:
    """NVML's readings of this rank's GPU."""

    memory_used_gib: Callable[[], float]
    energy: EnergyMeter | None
    """None if the GPU has no energy counter."""


@contextlib.contextmanager
def open_gpu(device: torch.device) -> Iterator[NvmlGpu | None]:
    """Yield NVML's readings of a torch device; None for a CPU, and for a GPU that NVML lacks (a MIG slice)."""
    with hardware.nvml_session() as api:
        if api is None or device.type != "cuda":
            yield None
            return
        meter = None
        try:  # by UUID: torch and NVML may number GPUs differently
            handle = api.nvmlDeviceGetHandleByUUID(
                f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            )
        except api.NVMLError:
            yield None
            return
        with contextlib.suppress(api.NVMLError):
            hardware.energy_j(api, handle)
            meter = EnergyMeter(lambda: hardware.energy_j(api, handle))
        yield NvmlGpu(lambda: hardware.memory_used_gib(api, handle), meter)


@dataclass
class Pending:
    """A step that the device may not have finished yet; `start`, `end` and `forward` are marks."""

    step: int
    phase: str
    start: int
    end: int
    forward: int | None
    skipped: bool
    has_norm: bool
    memory: dict[str, float]


class Meter:
    """Times `steps` steps, warm-up included, and collects their losses; `path` is None on ranks that write nothing.

    `tokens_per_step` are those of all ranks, and `launched_at` is the origin of every `t_s`.
    `position` is updated when a part of a step begins. `marks_forward` is false in a pipeline,
    where the first forward pass includes the wait for other stages.
    """

    def __init__(
        self,
        path: Path | None,
        steps: int,
        tokens_per_step: int,
        device: torch.device,
        launched_at: float,
        clock: Clock | None = None,
        gpu: NvmlGpu | None = None,
        position: Position | None = None,
        marks_forward: bool = True,
    ) -> None:
        self._cuda = device.type == "cuda"
        self.clock = clock or Clock(device)
        # loss and gradient norm of each step
        self._figures = torch.full((steps, 2), float("nan"), device=device)
        self._on_host = torch.full((steps, 2), float("nan"), pin_memory=self._cuda)
        self.losses = self._figures[:, 0]
        self._gpu = gpu
        self._position = position or Position()
        self._marks_forward = marks_forward
        self._path = path
        self._tokens = tokens_per_step
        self._file = Appender(path) if path else None
        self._pending: deque[Pending] = deque()
        self._rows: list[dict[str, Any]] = []
        self._forward: int | None = None
        self._forwards_s: dict[str, list[float]] = {}
        self._parts: list[int] = []
        self._backwards = 0
        self._step = 0
        self.peak_gib: dict[str, float] = {}
        self.skipped_steps = 0
        self.energy_j: float | None = None
        """Energy of the timed steps on this rank's GPU; None if it is not measured."""
        self.cpu_bound: float | None = None
        """`cpu_bound` of the timed steps; None on a CPU."""
        self.alloc_retries: int | None = None
        """How often the allocator returned memory and asked again in the timed steps; None on a
        CPU."""
        self._retries_before = 0
        self._clock_zero = self._boundary = self.clock.mark()
        self.clock.synchronize()
        self._zero_s = launch_clock.now_s() - launched_at
        self._phase = ""
        self._phase_began = 0.0
        self.wall_s: dict[str, float] = {}
        self.span_s: dict[str, tuple[float, float]] = {}

    def begin(self, phase: str, barrier: Callable[[], Any]) -> None:
        """Begin a phase (`warmup` or `timed`): all ranks and their devices are idle when its first step starts."""
        energy = self._energy(phase)
        self.clock.synchronize()
        if energy:
            energy.prepare()
        self._retries_before = self._allocation_retries() or 0
        barrier()
        self._phase = phase
        self._phase_began = time.perf_counter()
        if energy:
            energy.begin()
        self._boundary = self.clock.mark()
        self._parts = [self._boundary]
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()

    def _energy(self, phase: str) -> EnergyMeter | None:
        if self._gpu and phase == "timed":
            return self._gpu.energy
        return None

    @contextlib.contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Mark the ends of a step's first forward pass and of its backward passes, without delaying the device."""
        self._position.phase = name
        yield
        if self._marks_forward and name == "forward" and self._forward is None:
            self._forward = self.clock.mark()
            self._parts.append(self._forward)
        if self.clock.has_queue and name == "backward" and self._backwards < MAX_PARTS:
            self._backwards += 1
            self._parts.append(self.clock.mark())

    def step(
        self, loss: torch.Tensor, skipped: bool, grad_norm: torch.Tensor | float | None = None
    ) -> None:
        """Mark the end of a step, with its mean loss, shape (), on the device, and its gradient norm, if known."""
        self.losses[self._step] = loss
        if grad_norm is not None:
            # converted on the device: a copy to another dtype would wait
            self._figures[self._step, 1] = grad_norm
        self._on_host[self._step].copy_(self._figures[self._step], non_blocking=True)
        end = self.clock.mark()
        has_norm = grad_norm is not None
        marks = (self._boundary, end, self._forward)
        self._pending.append(
            Pending(self._step, self._phase, *marks, skipped, has_norm, self._memory())
        )
        self.skipped_steps += skipped
        self._parts.append(end)
        self._boundary = end
        self._step += 1
        self._forward = None
        self._backwards = 0
        self._write_passed()

    def end(self) -> None:
        """End the phase: wait for the device and write the remaining steps."""
        self.clock.synchronize()
        self.wall_s[self._phase] = time.perf_counter() - self._phase_began
        if energy := self._energy(self._phase):
            self.energy_j = energy.end()
        if self.clock.has_queue and self._phase == "timed":
            last = self.clock.mark()
            self.clock.synchronize()
            self.cpu_bound = cpu_bound(self.clock, self._parts, last)
        retries = self._allocation_retries()
        if retries is not None and self._phase == "timed":
            self.alloc_retries = retries - self._retries_before
        if self._gpu:
            self._note_peaks({"device_memory_gib": self._gpu.memory_used_gib()})
        self._write_passed(force=True)
        if self._file:
            self._file.flush()
        rows = [row for row in self._rows if row["phase"] == self._phase]
        if rows:
            self.span_s[self._phase] = (rows[0]["t_s"] - rows[0]["step_time_s"], rows[-1]["t_s"])

    def times_s(self, phase: str) -> list[float]:
        """Return the step times of a finished phase on this rank, in order."""
        return [row["step_time_s"] for row in self._rows if row["phase"] == phase]

    def forwards_s(self, phase: str) -> list[float]:
        """Return the times from the start of each step to the end of its first forward pass; empty if not marked."""
        return self._forwards_s.get(phase, [])

    def abort(self) -> None:
        """Write the finished steps and close the file, in whatever state the device is."""
        with contextlib.suppress(
            Exception
        ):  # the error that ended the run must be the one reported
            self._write_passed()
        if self._file:
            with contextlib.suppress(Exception):
                self._file.close()

    def close(self, mean_losses: list[float] | None = None) -> None:
        """Close the file; given losses averaged over ranks, write them in place of rank 0's."""
        self._write_passed(force=True)
        if self._file:
            self._file.close()
        if self._path and mean_losses is not None:
            json_files.write_lines(
                self._path, ({**row, "loss": mean_losses[row["step"] - 1]} for row in self._rows)
            )

    def _memory(self) -> dict[str, float]:
        if not self._cuda:
            return {}
        # One call, not flattened: `max_memory_allocated` builds a table of 150 entries each time.
        stats = torch.cuda.memory.memory_stats_as_nested_dict()
        memory = {
            f"{what}_gib": stats[f"{what}_bytes"]["all"]["peak"] / GIB
            for what in ("allocated", "reserved")
        }
        torch.cuda.reset_peak_memory_stats()
        self._note_peaks({f"peak_{key}": value for key, value in memory.items()})
        return memory

    def _allocation_retries(self) -> int | None:
        """Return how often torch's allocator has had to return memory and ask again so far; None on a CPU."""
        if self._cuda:
            return int(torch.cuda.memory_stats()["num_alloc_retries"])
        return None

    def _note_peaks(self, memory_gib: dict[str, float]) -> None:
        for key, value in memory_gib.items():
            self.peak_gib[key] = max(value, self.peak_gib.get(key, 0.0))

    def _write_passed(self, force: bool = False) -> None:
        while self._pending and (force or self.clock.passed(self._pending[0].end)):
            step = self._pending.popleft()
            self._rows.append(row := self._row(step))
            if step.forward is not None:
                self._forwards_s.setdefault(step.phase, []).append(
                    self.clock.seconds(step.start, step.forward)
                )
            if self._file:
                self._file.append(row)

    def _row(self, step: Pending) -> dict[str, Any]:
        loss, grad_norm = self._on_host[step.step].tolist()
        return {
            "step": step.step + 1,
            "phase": step.phase,
            "t_s": self._zero_s + self.clock.seconds(self._clock_zero, step.end),
            "step_time_s": self.clock.seconds(step.start, step.end),
            "loss": loss,
            "tokens": self._tokens,
            **step.memory,
            "skipped": step.skipped,
            **({"grad_norm": grad_norm} if step.has_norm else {}),
        }
