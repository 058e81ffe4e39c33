"""Peak rates of GPUs from data sheets, and the hardware of this machine.

Uses NVML and the operating system only, so it works on a laptop without torch.
"""

import contextlib
import math
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from dsnb.base.system import gpu_names

GIB = 2**30
CONTAINER_MEMORY = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""Files with the limit and the use of memory of a container, in bytes: version 2 and 1 of Linux's
control groups."""
POWER_COUNTER = "energy counter"
"""The source of power figures: the difference of NVML's energy counter divided by the time."""


# Best rates of square products of size 4,096 to 16,384, by `benchmarks/matmul.py` (docs/LOG.md,
# 2026-11-21).
MATMUL_TFLOPS = {("h200", "sxm"): {"fp32": 52.8, "tf32": 381.8, "fp16": 738.6, "bf16": 771.6}}


def peak_tflops(gpu_name: str | None, precision: str) -> float | None:
    """Return the vendor's dense peak rate of a GPU, by its name in NVML, in TFLOP/s; None if it is not in the table."""
    known = gpu_names.parse(gpu_name)
    if known is None:
        return None
    return gpu_names.KINDS[known.kind][known.form].tflops.get(precision)


def memory_gb_per_s(gpu_name: str | None) -> float | None:
    """Return the nominal bandwidth of a GPU's memory, in GB/s; None if it is not in the table."""
    known = gpu_names.parse(gpu_name)
    if known is None:
        return None
    sheet = gpu_names.KINDS[known.kind][known.form]
    size_gb = known.memory_gb or sheet.memory_gb[0]
    return sheet.memory_gb_per_s[sheet.memory_gb.index(size_gb)]


def matmul_tflops(gpu_name: str | None, precision: str) -> float | None:
    """Return the measured rate of a large matrix product on a GPU, in TFLOP/s; None if it was not measured."""
    known = gpu_names.parse(gpu_name)
    if known is None:
        return None
    return MATMUL_TFLOPS.get((known.kind, known.form), {}).get(precision)


@contextlib.contextmanager
def nvml_session() -> Iterator[Any]:
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
    """Return the memory in use on a GPU by all processes, without the driver's reserve.

    Version 1 of NVML's call, for drivers without version 2, counts the reserve as used (0.6 GiB on
    an H200).
    """
    try:
        memory = api.nvmlDeviceGetMemoryInfo(handle, version=api.nvmlMemory_v2)
    except api.NVMLError:
        memory = api.nvmlDeviceGetMemoryInfo(handle)
    return float(memory.used / GIB)


def energy_j(api: Any, handle: Any) -> float:
    """Return the energy in joules that a GPU has used since its driver was loaded.

    The counter is updated every 100 ms on an H200 (measured: 97.6 to 102.0 ms). Raises NVMLError on
    GPUs before Volta and MIG slices, which have none.
    """
    return float(api.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000)


def gpu_sample(api: Any, handle: Any) -> dict[str, float]:
    """Return utilization, memory, power, energy and clock of a GPU; unsupported readings are left out.

    On recent GPUs `power_w` is an average over the last second, so it lags behind the load.
    """
    return _supported(
        api,
        util_pct=lambda: api.nvmlDeviceGetUtilizationRates(handle).gpu,
        memory_used_gib=lambda: round(memory_used_gib(api, handle), 3),
        power_w=lambda: round(api.nvmlDeviceGetPowerUsage(handle) / 1000, 1),
        energy_j=lambda: energy_j(api, handle),
        sm_clock_mhz=lambda: api.nvmlDeviceGetClockInfo(handle, api.NVML_CLOCK_SM),
    )


def _supported(api: Any, **readings: Callable[[], float]) -> dict[str, float]:
    values = {}
    for name, reading in readings.items():
        with contextlib.suppress(api.NVMLError):
            values[name] = reading()
    return values


@dataclass(frozen=True)
class InstalledGpu:
    """A GPU, or a MIG slice of one, that this process may use; `index` is NVML's, over all GPUs of the machine."""

    index: int
    name: str
    uuid: str
    memory_gib: float
    capability: tuple[int, int]
    slices: "tuple[InstalledGpu, ...] | None" = None
    """The MIG slices that the GPU is divided into; None if it is whole."""

    @property
    def is_slice(self) -> bool:
        """Whether this is a MIG slice."""
        return self.uuid.startswith("MIG-")

    @property
    def visible_as(self) -> str:
        """Its name in CUDA_VISIBLE_DEVICES."""
        return self.uuid if self.is_slice else str(self.index)


def gpus() -> tuple[InstalledGpu, ...]:
    """Return the GPUs of this machine that CUDA_VISIBLE_DEVICES leaves visible now, in its order."""
    return tuple(_visible(_all_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES")))


@cache
def _all_gpus() -> list[InstalledGpu]:
    with nvml_session() as api:
        count = api.nvmlDeviceGetCount() if api else 0
        return [_installed(api, index) for index in range(count)]


def _installed(api: Any, index: int) -> InstalledGpu:
    """Return a GPU with the MIG slices that it is divided into."""
    card = api.nvmlDeviceGetHandleByIndex(index)
    capability = tuple(api.nvmlDeviceGetCudaComputeCapability(card))

    def described(device: Any, slices: tuple[InstalledGpu, ...] | None = None) -> InstalledGpu:
        return InstalledGpu(
            index,
            api.nvmlDeviceGetName(device),
            api.nvmlDeviceGetUUID(device),
            api.nvmlDeviceGetMemoryInfo(device).total / GIB,
            capability,
            slices,
        )

    is_divided = False
    with contextlib.suppress(api.NVMLError):  # GPUs before Ampere
        is_divided = api.nvmlDeviceGetMigMode(card)[0] == api.NVML_DEVICE_MIG_ENABLE
    if not is_divided:
        return described(card)
    slices = []
    for place in range(api.nvmlDeviceGetMaxMigDeviceCount(card)):
        with contextlib.suppress(api.NVMLError):  # a free place
            slices.append(described(api.nvmlDeviceGetMigDeviceHandleByIndex(card, place)))
    return described(card, tuple(slices))


def _visible(cards: list[InstalledGpu], choice: str | None) -> list[InstalledGpu]:
    """Return the GPUs that CUDA would see: indexes or UUID prefixes, up to the first unknown one.

    CUDA uses a single MIG slice, the first one that is chosen; of a divided GPU without a choice,
    its first slice.
    """
    chosen = cards
    if choice is not None:
        parts = [part for gpu in cards for part in (gpu, *(gpu.slices or ()))]
        chosen = []
        for word in filter(None, map(str.strip, choice.split(","))):
            match = [gpu for gpu in parts if word == gpu.visible_as or gpu.uuid.startswith(word)]
            if len(match) != 1:
                break
            chosen += match
    usable: list[InstalledGpu] = []
    for gpu in chosen:
        usable += [gpu] if gpu.slices is None else gpu.slices[:1]
    slices = [gpu for gpu in usable if gpu.is_slice]
    return slices[:1] or usable


def gpu_usage(indexes: Iterable[int]) -> dict[int, tuple[float, list[int]]]:
    """Return NVML's index -> memory in use in GiB, and IDs of the processes that compute on the GPU."""
    usage: dict[int, tuple[float, list[int]]] = {}
    with nvml_session() as api:
        for index in indexes if api else ():
            handle = api.nvmlDeviceGetHandleByIndex(index)
            pids: list[int] = []
            with contextlib.suppress(api.NVMLError):
                pids = [process.pid for process in api.nvmlDeviceGetComputeRunningProcesses(handle)]
            usage[index] = (memory_used_gib(api, handle), pids)
    return usage


def clocks() -> list[dict[str, float]]:
    """Return the maximum SM clock in MHz and the power limit in W of each GPU; empty without a GPU."""
    with nvml_session() as api:
        handles = [api.nvmlDeviceGetHandleByIndex(gpu.index) for gpu in gpus()] if api else []
        return [
            _supported(
                api,
                sm_clock_max_mhz=lambda: api.nvmlDeviceGetMaxClockInfo(handle, api.NVML_CLOCK_SM),  # noqa: B023
                power_limit_w=lambda: api.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,  # noqa: B023
            )
            for handle in handles
        ]


def driver_version() -> str | None:
    """Return the version of the NVIDIA driver; None without one."""
    with nvml_session() as api:
        return api.nvmlSystemGetDriverVersion() if api else None


def default_device() -> str:
    """Return `cuda` if there is a usable GPU, else `cpu`."""
    return "cuda" if gpus() else "cpu"


def default_world_size(device: str) -> int:
    """Return the number of ranks for `gpus: auto`: all GPUs, or 2 on a CPU, so that ZeRO has something to partition."""
    if device == "cuda":
        return max(1, len(gpus()))
    return min(2, cores())


def cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def loopback_works() -> bool:
    """Return whether processes of this machine can connect to each other through 127.0.0.1."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError:
        return False
    return True


def oom_kills() -> int:
    """Return the number of processes that Linux has killed for lack of memory since boot."""
    try:
        rows = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(row.split()[1]) for row in rows if row.startswith("oom_kill ")), 0)


def memory_gib() -> float:
    """Return the machine's memory in GiB, or the limit of a container if that is less."""
    limits = [_bytes_in(limit) for limit, _ in CONTAINER_MEMORY]
    return min(psutil.virtual_memory().total, *limits) / GIB


def available_memory_gib() -> float:
    """Return the memory in GiB that processes can still take, of the machine and within a container's limit."""
    left = [_bytes_in(limit) - _bytes_in(used, 0.0) for limit, used in CONTAINER_MEMORY]
    return max(0.0, min(psutil.virtual_memory().available, *left) / GIB)


def _bytes_in(file: str, otherwise: float = math.inf) -> float:
    """Return the number in a file of a container; `otherwise` if it is missing, or `max`."""
    try:
        return int(Path(file).read_text())
    except (OSError, ValueError):
        return otherwise


@cache
def cpu_facts() -> dict[str, str]:
    """Return the fields of the first core in /proc/cpuinfo; empty on systems other than Linux."""
    try:
        rows = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (row.partition(":") for row in rows)}


def cpu_supports_fp16() -> bool:
    """Return whether the CPU has the fp16 arithmetic that torch uses; without it DeepSpeed refuses fp16."""
    return not {"avx512_fp16", "avx_ne_convert", "amx_fp16"}.isdisjoint(
        cpu_facts().get("flags", "").split()
    )
