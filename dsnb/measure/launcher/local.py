"""The ranks of a run on this machine, forked from a server that has imported all libraries.

A sweep owns one server (`dsnb.measure.train.fork_server`) and passes its socket to every notebook
kernel in an environment variable. A launch outside a sweep starts a server that ends with its
process.
"""

import atexit
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import psutil

from dsnb.base.errors import LaunchError
from dsnb.base.system import hardware, interpreter, scratch, signals
from dsnb.measure.launcher import environment
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.result import last_lines

START_TIMEOUT_S = 180.0
END_TIMEOUT_S = 10.0
LOCALHOST = "127.0.0.1"
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
"""Keeps the ranks of one machine from listening on the network. NCCL uses this interface for setup only; data moves
over NVLink, PCIe or shared memory. Variables set by the user take precedence."""


def rank_variables(
    experiment: Experiment, gpus: list[str], launched_at_s: float
) -> list[dict[str, str]]:
    """Return each rank's environment, with torchrun's variables; raise LaunchError if `master_port` is in use."""
    port = experiment.master_port
    if port and not is_free(LOCALHOST, port):
        raise LaunchError(
            f"master_port is {port}: it is in use; choose another, or 0 for any free port"
        )
    ranks = experiment.gpus
    shared = {
        **LOOPBACK,
        **environment.for_ranks(experiment.device, ranks, launched_at_s, experiment.allocator),
        "MASTER_ADDR": LOCALHOST,
        "MASTER_PORT": str(port or free_port(LOCALHOST)),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
    }
    if experiment.device == "cuda":
        shared["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def socket_variable(device: str) -> str:
    """Return the name of the variable with the server's socket, one per device: DeepSpeed fixes it at import."""
    return f"DSNB_FORK_SERVER_{device.upper()}"


class ForkServer:
    """A fork server process for one device."""

    def __init__(self, device: str) -> None:
        self._folder = scratch.folder()
        self.socket = Path(self._folder.name) / "socket"
        self.log = Path(self._folder.name) / "server.log"
        env = {**environment.for_ranks(device, 1, 0.0), "OMP_NUM_THREADS": "1"}
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                interpreter.command(
                    "-m", "dsnb.measure.train.fork_server", str(self.socket), str(os.getpid())
                ),
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        """Wait until the server listens; raise LaunchError with the last line of its log if it cannot."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while b"ready" not in self.log.read_bytes().splitlines():
            if self.process.poll() is not None or time.monotonic() > deadline:
                why = self._failure()
                self.close()
                raise LaunchError(f"torch, DeepSpeed and transformers could not be imported: {why}")
            time.sleep(0.05)

    def _failure(self) -> str:
        code = self.process.poll()
        if code is None:
            return f"it took longer than {START_TIMEOUT_S:.0f} s"
        if code < 0:
            return f"the process was {signals.killed_by(-code)}; if memory ran out (see `dmesg`), free some and retry"
        printed = last_lines(self.log, 1)
        if printed:
            return printed[0]
        return f"the process ended with exit code {code} and printed nothing"

    def close(self) -> None:
        """Terminate the server and the ranks that it still runs."""
        self.process.terminate()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._folder.cleanup()


@contextlib.contextmanager
def shared_servers(devices: set[str]) -> Iterator[None]:
    """Run one server per device for all processes started inside the `with` block, unless there is one already."""
    servers = {device: ForkServer(device) for device in sorted(devices) if not _is_served(device)}
    try:
        for device, server in servers.items():
            server.wait_ready()
            os.environ[socket_variable(device)] = str(server.socket)
        yield
    finally:
        for device, server in servers.items():
            os.environ.pop(socket_variable(device), None)
            server.close()


def _connect(device: str) -> socket.socket | None:
    """Connect to the fork server that the environment names; None if none is running."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(os.environ.get(socket_variable(device), ""))
    except OSError:
        connection.close()
        return None
    return connection


def _is_served(device: str) -> bool:
    connection = _connect(device)
    if connection:
        connection.close()
    return connection is not None


def _connect_or_start(device: str) -> socket.socket:
    """Connect to the server of the sweep or of this process; if none is running, start one for this process."""
    connection = _connect(device)
    if connection is None:
        servers = contextlib.ExitStack()
        servers.enter_context(shared_servers({device}))
        atexit.register(servers.close)
        connection = _connect(device)
    if connection is None:
        raise LaunchError("the ranks could not be started: the fork server has ended")
    return connection


class ForkedRanks:
    """Ranks forked by the server, in one process group."""

    host_of: Mapping[int, str] = MappingProxyType({})
    """Rank -> name of its host; empty, because there is only one."""
    external_failure: str | None = None
    """How the fork server was lost; None if it was not."""
    _group: int | None = None
    """The process group; None before the ranks run."""
    _complete = False
    """Whether the server has reported the exit codes of all ranks."""
    _ending = False
    """Whether `end` has been called: then the launcher ends the ranks."""

    def __init__(self, experiment: Experiment, run: RunPaths, launched_at_s: float) -> None:
        self._run = run
        self._count = experiment.gpus
        self._device = experiment.device
        chosen = hardware.gpus()[: experiment.gpus] if experiment.device == "cuda" else ()
        visible = [gpu.visible_as for gpu in chosen]
        self._variables = rank_variables(experiment, visible, launched_at_s)
        self.gpus = [
            gpu.index for gpu in chosen if not gpu.is_slice
        ]  # a sample would be of the whole GPU
        self._oom_kills = hardware.oom_kills()
        remove_stale_locks()

    def oom_kills(self) -> int:
        """Return the number of out-of-memory kills on this machine since the start."""
        return hardware.oom_kills() - self._oom_kills

    def start(self, worker: str) -> None:
        """Start the ranks; raise LaunchError if that fails."""
        request = {
            "ranks": self._variables,
            "cwd": os.getcwd(),
            "log": str(self._run.console),
            "worker": worker,
            "run_dir": str(self._run.dir),
        }
        self._codes: dict[int, int] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._connection = _connect_or_start(self._device)
        self._connection.settimeout(START_TIMEOUT_S)
        try:
            self._connection.sendall(json.dumps(request).encode() + b"\n")
            self._answers = self._connection.makefile("rb")
            self._group = json.loads(self._answers.readline())["pids"][0]
            self._connection.settimeout(None)
        except (OSError, ValueError) as error:
            raise LaunchError(
                "the ranks could not be started: the fork server gave no answer"
            ) from error
        finally:
            if (
                self._group is None
            ):  # also after an interrupt: the server kills the ranks of a closed connection
                self._disconnect()
        self._reader.start()

    def _read(self) -> None:
        """Collect exit codes; if the server ends early, its ranks are killed with it."""
        with contextlib.suppress(OSError):
            for message in map(json.loads, self._answers):
                self._codes[message["rank"]] = message["exit"]
        self._complete = len(self._codes) == self._count
        if not self._complete and not self._ending:
            self.external_failure = "the fork server ended during the run, and its ranks with it"

    def exit_codes(self) -> dict[int, int]:
        """Return the exit codes so far: rank -> code, negative if killed by that signal."""
        return dict(self._codes) if self._group else {}

    def ended(self) -> bool:
        """Return whether every rank has ended."""
        return self.external_failure is not None or len(self._codes) == self._count

    def end(self) -> None:
        """Kill the process group, disconnect, and wait until the group is gone."""
        if self._group is None:
            return
        deadline_s = time.monotonic() + END_TIMEOUT_S
        self._ending = True
        with contextlib.suppress(OSError):
            if (
                not self._complete
            ):  # otherwise the server has killed the group and reaped all of them
                os.killpg(self._group, signal.SIGKILL)
        self._disconnect()
        with contextlib.suppress(RuntimeError):  # an interrupt came before it had started
            self._reader.join()
        for rank in range(self._count):
            self._codes.setdefault(rank, -signal.SIGKILL)
        with contextlib.suppress(OSError):
            while time.monotonic() < deadline_s:
                os.killpg(self._group, 0)
                time.sleep(0.02)

    def _disconnect(self) -> None:
        with contextlib.suppress(OSError):  # the server has ended
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def free_port(address: str) -> int:
    """Return a free TCP port below the ephemeral range, whose ports outgoing connections take."""
    for port in random.sample(range(15_000, 32_000), 100):
        if is_free(address, port):
            return port
    raise LaunchError(
        "none of 100 TCP ports between 15000 and 32000 is free: stop the programs that hold them"
    )


def is_free(address: str, port: int) -> bool:
    """Return whether a TCP port is free to listen on."""
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((address, port))
        return True
    return False


def remove_stale_locks() -> None:
    """Remove locks left by killed compilations of DeepSpeed's ops; torch would wait for them silently and forever.

    An op is being compiled if the working directory of a process, such as ninja, is in its folder.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or cache / "torch_extensions")
    for lock in [*root.glob("*/lock"), *root.glob("*/*/lock")]:
        with contextlib.suppress(OSError):  # another launch has removed it
            if time.time() - lock.stat().st_mtime < 10:
                continue  # its owner may not have started the compiler yet
            processes = psutil.process_iter(["cwd"])
            folders = [Path(process.info["cwd"] or "/").resolve() for process in processes]
            if not any(lock.parent in {folder, *folder.parents} for folder in folders):
                lock.unlink()
                print(f"removed the stale lock of a killed compilation: {lock}")
