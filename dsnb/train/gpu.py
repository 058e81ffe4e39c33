"""NVML's view of a rank's GPU: memory in use by all processes, and energy."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from dsnb.system import nvml
from dsnb.train.energy import EnergyMeter


@dataclass(frozen=True)
class Gpu:
    """NVML's view of one GPU."""

    memory_used_gib: Callable[[], float]
    energy: EnergyMeter | None
    """None where the GPU has no energy counter."""


@contextmanager
def open_device(device: torch.device) -> Iterator[Gpu | None]:
    """Yield NVML's view of a torch device; None for a CPU, and for a GPU that NVML lacks (a MIG slice)."""
    with nvml.session() as api:
        handle = _handle(api, device)
        if handle is None:
            yield None
        else:
            meter = EnergyMeter(lambda: nvml.energy_j(api, handle)) if _has_counter(api, handle) else None
            yield Gpu(lambda: nvml.memory_used_gib(api, handle), meter)


def _handle(api: Any, device: torch.device) -> Any:
    """Return NVML's handle of a torch device, found by UUID: the two may number GPUs differently."""
    if api is None or device.type != "cuda":
        return None
    try:
        return api.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except (api.NVMLError, AttributeError):
        return None


def _has_counter(api: Any, handle: Any) -> bool:
    try:
        nvml.energy_j(api, handle)
    except api.NVMLError:
        return False
    return True
