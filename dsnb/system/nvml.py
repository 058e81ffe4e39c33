"""Readings of NVML, NVIDIA's management library, defined once so that figures have one meaning everywhere."""

import contextlib
from collections.abc import Iterator
from typing import Any

GIB = 2**30
POWER_COUNTER = "energy counter"
"""Power is the difference of NVML's energy counter divided by the time."""


@contextlib.contextmanager
def session() -> Iterator[Any]:
    """Yield an initialised NVML; None on a machine without it."""
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
    """Return the memory in use on a GPU by all processes, without the driver's own reserve.

    Version 1 of NVML's call counts the reserve as used (0.6 GiB on an H200); a driver without version 2 still includes
    it.
    """
    try:
        memory = api.nvmlDeviceGetMemoryInfo(handle, version=api.nvmlMemory_v2)
    except api.NVMLError:
        memory = api.nvmlDeviceGetMemoryInfo(handle)
    return float(memory.used / GIB)


def energy_j(api: Any, handle: Any) -> float:
    """Return the energy in joules that a GPU has used since its driver was loaded.

    The counter is in millijoules and is updated every 100 ms on an H200 (measured: 97.6 to 102.0 ms).

    Raises
    ------
    pynvml.NVMLError
        On a GPU without the counter: before Volta, and MIG slices.
    """
    return float(api.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000)


def sample(api: Any, handle: Any) -> dict[str, float]:
    """Return one sample of a GPU: utilization, memory, power, energy, clock; unsupported readings are left out.

    On recent GPUs `power_w` is an average over the last second, so it lags behind the load by that much.
    """
    readings = {
        "util_pct": lambda: api.nvmlDeviceGetUtilizationRates(handle).gpu,
        "memory_used_gib": lambda: round(memory_used_gib(api, handle), 3),
        "power_w": lambda: round(api.nvmlDeviceGetPowerUsage(handle) / 1000, 1),
        "energy_j": lambda: energy_j(api, handle),
        "sm_clock_mhz": lambda: api.nvmlDeviceGetClockInfo(handle, api.NVML_CLOCK_SM),
    }
    values: dict[str, float] = {}
    for name, reading in readings.items():
        with contextlib.suppress(api.NVMLError):
            values[name] = reading()
    return values
