"""Readings of NVIDIA's management library, defined once: what a figure means must not depend on who reads it."""

import contextlib
from collections.abc import Iterator
from typing import Any

GIB = 2**30
POWER_COUNTER = "energy counter"
"""Power over a span is the difference of NVML's energy counter over its time."""
POWER_AVERAGE = "power samples"
"""Power over a span is the mean of NVML's power readings, each an average over the second before on recent GPUs."""


@contextlib.contextmanager
def session() -> Iterator[Any]:
    """Yield an initialised NVML, or None on a machine that has none."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def memory_used_gib(api: Any, handle: Any) -> float:
    """Return the memory in use on a GPU by all processes, without what the driver reserves for itself.

    NVML's first version of this call counts the reserve as used (0.6 GiB on an H200); a driver that lacks the second
    version reports it still.
    """
    try:
        memory = api.nvmlDeviceGetMemoryInfo(handle, version=api.nvmlMemory_v2)
    except api.NVMLError:
        memory = api.nvmlDeviceGetMemoryInfo(handle)
    return float(memory.used / GIB)


def energy_j(api: Any, handle: Any) -> float:
    """Return the joules that a GPU has drawn since its driver was loaded.

    The counter is in millijoules and is updated every 100 ms on an H200 (measured: 97.6 to 102.0 ms).

    Raises
    ------
    pynvml.NVMLError
        On a GPU without the counter: those before Volta, and parts of a GPU (MIG).
    """
    return float(api.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000)


def sample(api: Any, handle: Any) -> dict[str, float]:
    """Read everything that is sampled while a GPU works; what the GPU does not report is left out.

    `power_w` is NVML's own average over the last second on recent GPUs, so it lags behind the load by as much.
    """
    readings = {
        "util_pct": lambda: api.nvmlDeviceGetUtilizationRates(handle).gpu,
        "memory_used_gib": lambda: round(memory_used_gib(api, handle), 3),
        "power_w": lambda: round(api.nvmlDeviceGetPowerUsage(handle) / 1000, 1),
        "energy_j": lambda: energy_j(api, handle),
        "sm_clock_mhz": lambda: api.nvmlDeviceGetClockInfo(handle, api.NVML_CLOCK_SM),
    }
    found: dict[str, float] = {}
    for name, reading in readings.items():
        with contextlib.suppress(api.NVMLError):
            found[name] = reading()
    return found
