"""Describes an agent's host: briefly at every start, in detail for `dsnb doctor`."""

import contextlib
import os
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import psutil

from dsnb.launcher import environment, op_builds
from dsnb.launcher.hosts import addresses
from dsnb.system import hardware
from dsnb.version import __version__

BUSY_GIB = 1.0
"""Memory in use above which a GPU counts as busy; the driver alone takes less."""
GPU_FREE_TIMEOUT_S = 10.0
"""How long to wait for a GPU to become free: its memory is released some seconds after a process ends."""


def hello() -> dict[str, Any]:
    """Return what this host is and how it was reached."""
    place = addresses.own_address()
    return {
        "dsnb": __version__,
        "host": socket.gethostname(),
        "address": place.address,
        "interface": place.interface,
        "interfaces": {name: address for address, name in addresses.interfaces().items()},
        "gpus": len(hardware.gpus()),
        "environment": environment.describe(),
    }


def examine(request: dict[str, Any]) -> dict[str, Any]:
    """Return the state of disk, GPUs, and links to other hosts."""
    folder = Path(str(request.get("folder", ".")))
    existing = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
    token = folder / str(request.get("token", "-"))
    return {
        "free_gib": round(shutil.disk_usage(existing).free / hardware.GIB, 1),
        "writable": os.access(existing, os.W_OK),
        "sees_outputs": token.exists(),
        "memory_free_gib": round(psutil.virtual_memory().available / hardware.GIB, 1),
        "load_per_core": round(os.getloadavg()[0] / hardware.cores(), 2),
        "busy": busy_gpus([gpu.index for gpu in hardware.gpus()], wait_s=0),
        "links": links(),
        "compiler": bool(shutil.which("c++") or shutil.which("g++")),
        "stale_locks": len(op_builds.stale_locks()),
        "reached": {str(peer): _connect_time_ms(str(peer)) for peer in request.get("peers", [])},
    }


def links() -> dict[str, str]:
    """Return the speeds of network interfaces and InfiniBand ports, and the number of NVLinks per GPU."""
    found = {
        name: f"{state.speed} Mbit/s" if state.speed else "speed unknown"
        for name, state in psutil.net_if_stats().items()
        if state.isup and name != "lo"
    }
    for rate in sorted(Path("/sys/class/infiniband").glob("*/ports/*/rate")):
        with contextlib.suppress(OSError):
            found[f"{rate.parts[-4]}:{rate.parts[-2]}"] = rate.read_text().strip()
    if (nvlinks := hardware.nvlinks()) is not None:
        found["NVLink"] = f"{nvlinks} links per GPU"
    return found


def busy_gpus(indexes: list[int], wait_s: float = GPU_FREE_TIMEOUT_S) -> str | None:
    """Return which GPU is in use, after waiting up to `wait_s` for it; None if all are free."""
    deadline = time.monotonic() + wait_s
    while (busy := _busy(indexes)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return busy


def _busy(indexes: list[int]) -> str | None:
    for index, (used_gib, pids) in hardware.gpu_usage(indexes).items():
        if pids or used_gib > BUSY_GIB:
            who = f" by {', '.join(map(_name, pids))}" if pids else ""
            return f"GPU {index} is in use{who}, {used_gib:.1f} GiB"
    return None


def _name(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        return f"process {pid} ({psutil.Process(pid).name()})"
    return f"process {pid}"


def _connect_time_ms(peer: str, timeout_s: float = 3.0) -> float | None:
    """Return the milliseconds until a host accepts or refuses a TCP connection; None if it does not answer."""
    address, _, port = peer.rpartition(":")
    began = time.perf_counter()
    try:
        socket.create_connection((address, int(port)), timeout_s).close()
    except ConnectionRefusedError:
        pass
    except (OSError, ValueError):
        return None
    return round((time.perf_counter() - began) * 1000, 2)
