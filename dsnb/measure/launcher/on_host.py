"""A program that runs the ranks of one host; its standard input is the pipe from the launcher.

It answers each request, a line of JSON, with a description of this host. A request with arguments
for torchrun starts the ranks, which are killed when the pipe closes or is silent too long. Messages
to the launcher are lines of JSON after `MARK`, because the ranks print to the same pipe.
"""

import contextlib
import json
import os
import select
import shutil
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

import psutil

from dsnb.base.errors import DsnbError
from dsnb.base.files import json_files
from dsnb.base.system import hardware, interpreter, launch_clock, signals
from dsnb.base.system.processes import kill_family
from dsnb.measure.launcher import code, environment
from dsnb.measure.launcher.folder import existing_part
from dsnb.measure.launcher.local import free_port, is_free, remove_stale_locks
from dsnb.measure.train import start
from dsnb.settings import checks
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.paths import RunPaths
from dsnb.version import __version__

MARK = "\x1e"
"""Precedes a message (ASCII's record separator)."""
BUSY_GIB = 1.0
"""Memory in use above which a GPU counts as busy; the driver alone takes less."""
GPU_FREE_TIMEOUT_S = 10.0
"""How long to wait for a GPU to become free: its memory is released some seconds after a process
ends."""
CONTAINER_BRIDGES = ("docker", "virbr", "br-", "cni", "veth-")


def main() -> int:
    """Serve the requests of one launcher; return 0 unless ranks failed."""
    os.dup2(1, 2)  # the launcher's other pipe is for messages of ssh or srun
    signals.adopt_orphans()  # children of a killed rank could hold the pipe open
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        if "torchrun" in request:
            return run_ranks(request)
        os.environ.update(request["env"])
        if Path(request["cwd"]).is_dir():
            os.chdir(request["cwd"])
        try:
            answer = survey(request)
        except (DsnbError, OSError) as error:
            answer = {"error": str(error)}
        tell(
            {
                "dsnb": __version__,
                "code": code.digest(),
                **answer,
                "time": time.time(),
                "monotonic_s": launch_clock.now_s(),
            }
        )
    return 0


def tell(record: dict[str, Any]) -> None:
    """Send a message to the launcher."""
    with contextlib.suppress(OSError):  # it is gone
        os.write(1, f"{MARK}{json_files.line(record)}".encode())


def run_ranks(request: dict[str, Any]) -> int:
    """Run the ranks of this host to their end; return 0 if all of them succeeded."""
    threading.Thread(target=_end_with_stdin, args=(request["silence_s"],), daemon=True).start()
    kills = hardware.oom_kills()
    try:
        remove_stale_locks()
        gpus = set_environment(request)
        with environment.sampled(gpus, tell, request["launched_at_s"]):
            try:
                # Imports torch, which takes seconds; the pipe is already watched.
                outcome = start.run_ranks(request["torchrun"])
            finally:
                kill_family(psutil.Process())
    except (DsnbError, OSError, RuntimeError, ValueError) as error:
        outcome = {"error": (str(error).strip() or type(error).__name__).splitlines()[0]}
    tell({**outcome, "oom_kills": hardware.oom_kills() - kills})
    return 1 if outcome else 0


def set_environment(request: dict[str, Any]) -> list[int]:
    """Set the variables of the ranks, which inherit them, and return the numbers of their GPUs."""
    device = request["device"]
    slots = request["devices"]
    visible = hardware.gpus()
    gpus = [visible[slot] for slot in slots if device == "cuda"]
    variables = environment.for_ranks(
        device, len(slots), request["launched_at_s"], request["allocator"]
    )
    os.environ.clear()  # of what another launcher has set, such as torchrun's options
    os.environ.update(variables)
    os.environ.update(request["interfaces"], DSNB_OWNER_PID=str(os.getpid()))
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.visible_as for gpu in gpus)
    return [gpu.index for gpu in gpus if not gpu.is_slice]


def _end_with_stdin(silence_s: float) -> NoReturn:
    """Wait until standard input ends or is silent for `silence_s`; then kill all descendants and exit."""
    while select.select([0], [], [], silence_s)[0] and os.read(0, 65536):
        pass
    kill_family(psutil.Process())
    os._exit(1)


def survey(request: dict[str, Any]) -> dict[str, Any]:
    """Return a description of this host.

    A request has `folder`, which this host must see, and `token`, the name of a file just written
    to it; before a run, also `device`, `devices` (the slots to use) and `master_port` (0 for any).
    """
    folder = Path(request["folder"])
    token = folder / request["token"]
    deadline = time.monotonic() + 2  # a network file system shows a new file late
    while folder.exists() and not token.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    sees = token.exists()
    address, interface = own_address()
    answer = {
        "host": socket.gethostname(),
        "address": address,
        "interface": interface,
        "interfaces": {name: number for number, name in interfaces().items()},
        "gpus": len(hardware.gpus()),
        "environment": environment.describe(),
        "sees_folder": sees,
    }
    if "devices" in request:
        return {**answer, **prepare(request, sees)}
    return {
        **answer,
        "free_gib": round(shutil.disk_usage(existing_part(folder)).free / hardware.GIB, 1),
        "memory_free_gib": round(psutil.virtual_memory().available / hardware.GIB, 1),
        "busy": busy_gpu([gpu.index for gpu in hardware.gpus()], wait_s=0),
        "compiler": bool(shutil.which("c++") or shutil.which("g++")),
    }


def prepare(request: dict[str, Any], sees_run: bool) -> dict[str, Any]:
    """Return a port for the rendezvous, and the problem, if any, that keeps this host from running its ranks."""
    port = request["master_port"]
    devices = request["devices"]
    visible = hardware.gpus()
    device = request["device"]
    if device == "auto":
        device = hardware.default_device()
    problem = None
    if port and not is_free("", port):
        problem = (
            f"master_port is {port}: it is in use there; choose another, or 0 for any free port"
        )
    elif sees_run:
        settings = json_files.read_json(RunPaths(Path(request["folder"])).experiment) or {}
        alone = {"hostfile": "", "nodes": 1, "device": device, "gpus": len(devices)}
        experiment = Experiment.recorded({**settings, **alone})
        problem = "; ".join(checks.unsupported(experiment)) or None
    if device == "cuda" and not problem and len(visible) > max(devices):
        problem = busy_gpu([visible[slot].index for slot in devices])
        if problem:
            problem += "; wait until it is free, or leave the host out with 'exclude'"
    return {"port": port or free_port(""), "problem": problem}


def own_address() -> tuple[str, str]:
    """Return the address through which ssh or srun reached this host, and its interface.

    gloo resolves its own host name and listens on the result, on Debian 127.0.1.1, where other
    hosts cannot reach it.
    """
    by_address = interfaces()
    outside = [address for address in by_address if not address.startswith("127.")]
    via_ssh = os.environ.get("SSH_CONNECTION", "").partition(" ")[0]
    launcher = via_ssh or os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect((launcher, 9))  # sends nothing, and chooses an address to send from
        address = str(probe.getsockname()[0])
        if launcher and address in outside:
            return address, by_address[address]
    if outside:
        return outside[0], by_address[outside[0]]
    return "127.0.0.1", "lo"


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


def busy_gpu(indexes: list[int], wait_s: float = GPU_FREE_TIMEOUT_S) -> str | None:
    """Return which GPU is in use, after waiting up to `wait_s` for it; None if all are free."""
    deadline = time.monotonic() + wait_s
    while True:
        usage = hardware.gpu_usage(indexes).items()
        busy = [(index, *use) for index, use in usage if use[1] or use[0] > BUSY_GIB]
        if not busy:
            return None
        if time.monotonic() >= deadline:
            index, used_gib, pids = busy[0]
            users = ""
            if pids:
                users = f" by process {', '.join(map(str, pids))}"
            return f"GPU {index} is in use{users}, {used_gib:.1f} GiB"
        time.sleep(0.5)


if __name__ == "__main__":
    interpreter.end_quickly()
    sys.exit(main())
