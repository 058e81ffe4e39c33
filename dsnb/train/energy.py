"""NVML's view of a rank's GPU: memory in use by all processes, and the energy that it draws during a span of work.

On recent GPUs NVML's power reading is an average over the last second, so it is of no use for a shorter span. The
energy counter has no such memory, but it is updated only about every 100 ms. The counter is therefore read right after
an update, both before the span begins and after it has ended, while the GPU is idle. The idle energy between these
updates and the span is estimated over one more update and subtracted.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsnb.system import hardware

if TYPE_CHECKING:
    import torch

UPDATE_WITHIN_S = 0.5
"""A counter that does not change for this long is unusable: even an idle GPU draws some joules in that time."""
MIN_SPAN_S = 0.3
"""Shorter spans have no figure: updates are timed to about 5 ms at each end, and the idle power is an estimate."""

Reading = tuple[float, float]
"""Time of an update of the counter, on the monotonic clock in seconds, and its value in joules."""


class EnergyMeter:
    """Measures the energy of one span; `read` returns the counter in joules, `now` a monotonic time in seconds."""

    def __init__(self, read: Callable[[], float], now: Callable[[], float] = time.perf_counter) -> None:
        self._read, self._now = read, now
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
        after, later = self._update(), self._update()
        if self._before is None or after is None or later is None or ended_s - self._began_s < MIN_SPAN_S:
            return None
        idle_w = (later[1] - after[1]) / (later[0] - after[0])
        idle_s = (self._began_s - self._before[0]) + (after[0] - ended_s)
        return max(0.0, after[1] - self._before[1] - idle_w * idle_s)

    def _update(self) -> Reading | None:
        """Wait until the counter changes; return None if it does not."""
        before, deadline = self._read(), self._now() + UPDATE_WITHIN_S
        while (now := self._now()) < deadline:
            if (value := self._read()) != before:
                return now, value
        return None


@dataclass(frozen=True)
class Gpu:
    """NVML's view of one GPU."""

    memory_used_gib: Callable[[], float]
    energy: EnergyMeter | None
    """None where the GPU has no energy counter."""


@contextmanager
def open_device(device: "torch.device") -> Iterator[Gpu | None]:
    """Yield NVML's view of a torch device; None for a CPU, and for a GPU that NVML lacks (a MIG slice)."""
    with hardware.nvml_session() as api:
        handle = _handle(api, device)
        if handle is None:
            yield None
            return
        meter: EnergyMeter | None = EnergyMeter(lambda: hardware.energy_j(api, handle))
        try:
            hardware.energy_j(api, handle)
        except api.NVMLError:
            meter = None
        yield Gpu(lambda: hardware.memory_used_gib(api, handle), meter)


def _handle(api: Any, device: "torch.device") -> Any:
    """Return NVML's handle of a torch device, found by UUID: the two may number GPUs differently."""
    if api is None or device.type != "cuda":
        return None
    try:
        import torch

        return api.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except (api.NVMLError, AttributeError):
        return None
