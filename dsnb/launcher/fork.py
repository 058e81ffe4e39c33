"""Starts ranks by forking them from a server that has imported everything: the client of `dsnb.train.fork_server`.

A sweep owns one server and names its socket in the environment of every notebook kernel; a launch without a sweep
starts a server that lives as long as its process.
"""

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from dsnb.errors import LaunchError
from dsnb.launcher import environment
from dsnb.launcher.host_ranks import HostRanks
from dsnb.launcher.rank_group import group_is_gone
from dsnb.system import interpreter, signals
from dsnb.system.scratch import Scratch

START_TIMEOUT_S = 180.0
_servers: dict[str, "ForkServer"] = {}


def socket_variable(device: str) -> str:
    """Name the variable in which a sweep passes its server's socket: DeepSpeed fixes the device at import."""
    return f"DSNB_FORK_SERVER_{device.upper()}"


class ForkServer:
    """A running fork server for one device."""

    def __init__(self, device: str) -> None:
        self._scratch = Scratch()
        self.socket = self._scratch.path / "socket"
        self.log = self._scratch.path / "server.log"
        env = {**environment.for_ranks(device, 1, 0.0), "OMP_NUM_THREADS": "1"}
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                interpreter.command("-m", "dsnb.train.fork_server", str(self.socket)),
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        """Wait until the server listens.

        Raises
        ------
        LaunchError
            With the last line of its log, if it ended or took too long.
        """
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
            return f"that took longer than {START_TIMEOUT_S:.0f} s; is the disk that they lie on slow?"
        if code < 0:
            advice = "if memory ran out (`dmesg` says so), free some, then start again"
            return f"the process was {signals.killed_by(-code)}; {advice}"
        said = self.log.read_text(errors="replace").strip().splitlines()
        return said[-1] if said else f"the process ended with exit code {code} and printed nothing"

    def close(self) -> None:
        """End the server, which takes whatever it still runs with it."""
        self.process.terminate()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._scratch.remove()


@contextlib.contextmanager
def shared_servers(devices: set[str]) -> Iterator[None]:
    """Keep one server per device for all processes started inside the `with` block; one that is there already serves.

    Raises
    ------
    LaunchError
        If a server cannot import what it needs.
    """
    servers = {device: ForkServer(device) for device in sorted(devices) if socket_variable(device) not in os.environ}
    try:
        for device, server in servers.items():
            server.wait_ready()
            os.environ[socket_variable(device)] = str(server.socket)
        yield
    finally:
        for device, server in servers.items():
            os.environ.pop(socket_variable(device), None)
            server.close()


def _connect(device: str) -> socket.socket:
    """Connect to the sweep's server, or to this process's own, started if need be."""
    if path := os.environ.get(socket_variable(device)):
        with contextlib.suppress(OSError):
            return _open(path)
    server = _servers.get(device)
    if server is None or server.process.poll() is not None:
        server = _servers[device] = ForkServer(device)
        atexit.register(server.close)
    server.wait_ready()
    return _open(str(server.socket))


def close_servers() -> None:
    """End the servers that this process started for itself; for one that does not get to its regular end."""
    for server in _servers.values():
        server.close()


def _open(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


class ForkedRanks:
    """Ranks forked by the server, one process group."""

    def __init__(self, host_ranks: HostRanks) -> None:
        self._ranks = host_ranks.ranks
        self._codes: dict[int, int] = {}
        self._rest = b""
        self._hung_up = False
        self._connection = _connect(host_ranks.device)
        request = {
            "ranks": host_ranks.variables,
            "cwd": os.getcwd(),
            "log": str(host_ranks.console),
            "worker": host_ranks.worker,
            "run_dir": str(host_ranks.run_dir),
            "umask": environment.umask(),
        }
        self.pids: list[int] = []
        try:
            self._connection.sendall(json.dumps(request).encode() + b"\n")
            self._wait_for_pids(host_ranks.console)
        except BaseException:  # an interrupt too: the server kills what it forked for a connection that is gone
            self._connection.close()
            raise

    def _wait_for_pids(self, log: Path) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.pids:
            self._read(timeout_s=0.5)
            if self._hung_up or time.monotonic() > deadline:
                raise LaunchError("the ranks could not be started: the fork server gave no answer", log)

    def _read(self, timeout_s: float = 0.0) -> None:
        while not self._hung_up and select.select([self._connection], [], [], timeout_s)[0]:
            added = self._connection.recv(65536)
            self._hung_up = not added
            *lines, self._rest = (self._rest + added).split(b"\n")
            for message in map(json.loads, lines):
                if "pids" in message:
                    self.pids = message["pids"]
                else:
                    self._codes[self._ranks[message["rank"]]] = message["exit"]
            timeout_s = 0.0

    def exit_codes(self) -> dict[int, int]:
        """Return the exit codes so far; ranks whose server died count as killed."""
        self._read()
        if self._hung_up:
            missing = {rank: -signal.SIGKILL for rank in self._ranks if rank not in self._codes}
            return {**self._codes, **missing}
        return dict(self._codes)

    def ended(self) -> bool:
        """Return whether every rank has ended."""
        return len(self.exit_codes()) == len(self._ranks)

    def end(self) -> None:
        """Hang up, at which the server kills the group, and wait until it is gone.

        Raises
        ------
        LaunchError
            If a process stays all the same.
        """
        self._read()
        if len(self._codes) < len(self._ranks):  # otherwise the server has seen them all end and cleared the group
            with contextlib.suppress(OSError):
                os.killpg(self.pids[0], signal.SIGKILL)
        self._hung_up = True
        self._connection.close()
        if not group_is_gone(self.pids[0]):
            raise LaunchError(f"process group {self.pids[0]} does not end: look at it with `ps`")
