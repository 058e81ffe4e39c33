"""Samples utilization, memory, power and clock of a run's GPUs through NVML, from outside the ranks."""

import contextlib
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dsnb import hardware, records

INTERVAL_S = 0.25


class GpuSampler:
    """Appends to `gpu.jsonl` until the `with` block ends; without GPUs it writes no file at all.

    Parameters
    ----------
    path
        The file to append to.
    count
        How many of the visible GPUs the run uses, the first ones.
    launched_at
        Unix time of the launch in seconds, the origin of `t_s`.
    """

    def __init__(self, path: Path, count: int, launched_at: float) -> None:
        self._path, self._launched_at = path, launched_at
        self._gpus = hardware.gpus()[:count]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        if self._gpus:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _sample(self) -> None:
        with hardware.nvml() as api, open(self._path, "a", encoding="utf-8", buffering=1) as file:
            if api is None:
                return
            handles = {gpu.index: api.nvmlDeviceGetHandleByIndex(gpu.index) for gpu in self._gpus}
            while not self._stop.wait(INTERVAL_S):
                for index, handle in handles.items():
                    t_s = round(time.time() - self._launched_at, 3)
                    file.write(records.line({"t_s": t_s, "gpu": index, **read(api, handle)}))


def read(api: Any, handle: Any) -> dict[str, float]:
    """Read one GPU; what it does not report is left out."""
    readings = {
        "util_pct": lambda: api.nvmlDeviceGetUtilizationRates(handle).gpu,
        "memory_used_gib": lambda: round(api.nvmlDeviceGetMemoryInfo(handle).used / hardware.GIB, 3),
        "power_w": lambda: round(api.nvmlDeviceGetPowerUsage(handle) / 1000, 1),
        "sm_clock_mhz": lambda: api.nvmlDeviceGetClockInfo(handle, api.NVML_CLOCK_SM),
    }
    sample = {}
    for name, reading in readings.items():
        with contextlib.suppress(api.NVMLError):
            sample[name] = reading()
    return sample
