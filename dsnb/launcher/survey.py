"""`python -m dsnb.launcher.survey`: prints what this host is and what a run would lack here, as a line of JSON.

The coordinator of a run asks every host before it starts ranks, and `dsnb doctor --hostfile` asks for more. The request
comes as a line of JSON from standard input: no command line shows the variables in it.
"""

import contextlib
import json
import os
import shutil
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from dsnb.errors import DsnbError
from dsnb.files import records
from dsnb.launcher import environment, torchrun
from dsnb.launcher.local import free_port, is_free
from dsnb.run_folder.paths import RunPaths
from dsnb.settings import checks
from dsnb.system import hardware, launch_clock
from dsnb.version import __version__

SHARED_WAIT_S = 2.0
"""How long a file of the coordinator may take to appear here through a network file system."""
BUSY_GIB = 1.0
"""Memory in use above which a GPU counts as busy; the driver alone takes less."""
GPU_FREE_TIMEOUT_S = 10.0
"""How long to wait for a GPU to become free: its memory is released some seconds after a process ends."""
CONTAINER_BRIDGES = ("docker", "virbr", "br-", "cni", "veth-")


def survey(request: dict[str, Any]) -> dict[str, Any]:
    """Return what this host is and how it was reached.

    Parameters
    ----------
    request
        `folder`, which this host has to see, `token`, a file in it, `cwd` and `env`. For a run also `device`,
        `devices`, the slots to use, and `master_port`, on the first host only. For `dsnb doctor` also `examine`.
    """
    if Path(request["cwd"]).is_dir():
        os.chdir(request["cwd"])
    address, interface = own_address()
    sees = sees_folder(Path(request["folder"]), request["token"])
    answer = {
        "dsnb": __version__,
        "host": socket.gethostname(),
        "address": address,
        "interface": interface,
        "interfaces": {name: number for number, name in interfaces().items()},
        "gpus": len(hardware.gpus()),
        "environment": environment.describe(),
        "sees_folder": sees,
    }
    if request.get("examine"):
        return {**answer, **examine(Path(request["folder"]), request.get("peers", []))}
    return {**answer, **prepare(request, sees)}


def sees_folder(folder: Path, token: str) -> bool:
    """Return whether this host sees the coordinator's folder, by a file that was just written to it."""
    deadline = time.monotonic() + SHARED_WAIT_S
    while not (seen := (folder / token).exists()) and folder.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    return seen


def prepare(request: dict[str, Any], sees_run: bool) -> dict[str, Any]:
    """Return a port for the rendezvous and the reason, if any, why this host cannot run its ranks."""
    wanted = int(request.get("master_port") or 0)
    device = request["device"] if request["device"] != "auto" else hardware.default_device()
    if wanted and not is_free("", wanted):
        return {
            "port": wanted,
            "problem": f"master_port is {wanted}: it is in use there; choose another, or 0 for any free port",
        }
    problem = None
    if sees_run:
        settings = records.read_json(RunPaths(Path(request["folder"])).experiment) or {}
        alone = {"hostfile": "", "nodes": 1, "device": device, "gpus": len(request["devices"])}
        problem = "; ".join(checks.unsupported({**settings, **alone})) or None
    visible = hardware.gpus()
    if device == "cuda" and not problem and len(visible) > max(request["devices"]):
        busy = busy_gpu([visible[slot].index for slot in request["devices"]])
        problem = f"{busy}; wait until it is free, or leave the host out with 'exclude'" if busy else None
    return {"port": wanted or free_port(""), "problem": problem}


def examine(folder: Path, peers: list[str]) -> dict[str, Any]:
    """Return the state of disk, GPUs, and links to other hosts, for `dsnb doctor`."""
    existing = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
    return {
        "free_gib": round(shutil.disk_usage(existing).free / hardware.GIB, 1),
        "memory_free_gib": round(psutil.virtual_memory().available / hardware.GIB, 1),
        "load_per_core": round(os.getloadavg()[0] / hardware.cores(), 2),
        "busy": busy_gpu([gpu.index for gpu in hardware.gpus()], wait_s=0),
        "links": links(),
        "compiler": bool(shutil.which("c++") or shutil.which("g++")),
        "reached": {peer: _answers(peer) for peer in peers},
    }


def own_address() -> tuple[str, str]:
    """Return the address through which ssh or srun reached this host, and its interface.

    gloo resolves its own host name and listens on the result, on Debian 127.0.1.1, where other hosts cannot reach it.
    """
    addresses = interfaces()
    by_ssh = os.environ.get("SSH_CONNECTION", "").split()  # client, its port, server, its port
    for address in (by_ssh[2] if len(by_ssh) == 4 else None, _source_address("SLURM_LAUNCH_NODE_IPADDR")):
        if address in addresses and not address.startswith("127."):
            return address, addresses[address]
    return next((pair for pair in addresses.items() if not pair[0].startswith("127.")), ("127.0.0.1", "lo"))


def interfaces() -> dict[str, str]:
    """Return IPv4 address -> interface, of all interfaces that are up; container bridges come last."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    pairs = {
        entry.address: name
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET and name in up
    }
    return dict(sorted(pairs.items(), key=lambda pair: pair[1].startswith(CONTAINER_BRIDGES)))


def _source_address(variable: str) -> str | None:
    """Return the address from which this host would send to the one in a variable; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(KeyError, OSError):
        probe.connect((os.environ[variable], 9))
        return str(probe.getsockname()[0])
    return None


def links() -> dict[str, str]:
    """Return the speeds of network interfaces and InfiniBand ports, and the number of NVLinks per GPU."""
    speeds = {
        name: f"{state.speed} Mbit/s" if state.speed else "speed unknown"
        for name, state in psutil.net_if_stats().items()
        if state.isup and name != "lo"
    }
    for rate in sorted(Path("/sys/class/infiniband").glob("*/ports/*/rate")):
        with contextlib.suppress(OSError):
            speeds[f"{rate.parts[-4]}:{rate.parts[-2]}"] = rate.read_text().strip()
    if (nvlinks := hardware.nvlinks()) is not None:
        speeds["NVLink"] = f"{nvlinks} links per GPU"
    return speeds


def busy_gpu(indexes: list[int], wait_s: float = GPU_FREE_TIMEOUT_S) -> str | None:
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


def _answers(peer: str, timeout_s: float = 3.0) -> bool:
    """Return whether a host accepts or refuses a TCP connection."""
    address, _, port = peer.rpartition(":")
    try:
        socket.create_connection((address, int(port)), timeout_s).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True


def main() -> None:
    """Answer one request."""
    request = json.loads(sys.stdin.buffer.readline() or "{}")
    os.environ.update(request.get("env", {}))
    threading.Thread(target=torchrun.end_with_stdin, daemon=True).start()
    try:
        answer = survey(request)
    except (DsnbError, OSError) as error:
        answer = {"dsnb": __version__, "error": str(error)}
    print(records.line({**answer, "time": time.time(), "monotonic_s": launch_clock.now_s()}), end="", flush=True)


if __name__ == "__main__":
    main()
