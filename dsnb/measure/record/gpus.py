"""Samples of the GPUs of a host while a script trains on them."""

import contextlib
import socket
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dsnb.base.files import json_files
from dsnb.base.system import hardware
from dsnb.measure.launcher.environment import sampled
from dsnb.measure.launcher.figures import BEFORE_RANKS_S


class GpuSampler:
    """Samples GPUs from `start` to `stop`; `began_s` is the origin of every `t_s`."""

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self._sampling = contextlib.ExitStack()

    def start(self, path: Path, uuids: Iterable[str | None]) -> None:
        """Append samples of these GPUs to a file."""
        take = partial(_take, path, socket.gethostname())
        self._sampling.enter_context(sampled(_indexes(uuids), take, self._began_s))

    def stop(self) -> None:
        """Stop, and wait for the last sample."""
        self._sampling.close()


def _take(path: Path, host: str, sample: dict[str, Any]) -> None:
    if sample["t_s"] > BEFORE_RANKS_S:  # what is in use by then would count as another program's
        json_files.append_line(path, {**sample, "host": host})


def gpu_uuid(device: torch.device) -> str | None:
    """Return the name of a GPU by which NVML knows it; None for a CPU."""
    if device.type != "cuda":
        return None
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def _indexes(uuids: Iterable[str | None]) -> list[int]:
    """Return NVML's indexes of GPUs; it does not know slices of them by these names."""
    found = set()
    with hardware.nvml_session() as api:
        for uuid in filter(None, uuids) if api else ():
            with contextlib.suppress(api.NVMLError):
                found.add(api.nvmlDeviceGetIndex(api.nvmlDeviceGetHandleByUUID(uuid)))
    return sorted(found)
