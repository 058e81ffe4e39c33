"""Starts ranks by forking them from a server that has imported all libraries: the client of `dsnb.train.fork_server`.

A sweep owns one server and passes its socket to every notebook kernel in an environment variable. A launch outside of a
sweep starts a server that lives as long as its process.
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
from dsnb.system import interpreter, signals
from dsnb.system.scratch import Scratch

START_TIMEOUT_S = 180.0
_servers: dict[str, "ForkServer"] = {}


def socket_variable(device: str) -> str:
    """Return the environment variable for the socket of a device's server: DeepSpeed fixes the device at import."""
    return f"DSNB_FORK_SERVER_{device.upper()}"


class ForkServer:
    """A fork server process for one device."""

    def __init__(self, device: str) -> None:
        self._scratch = Scratch()
        self.socket = self._scratch.path / "socket"
        self.log = self._scratch.path / "server.log"
        env = {**environment.for_ranks(device, 1, 0.0), "OMP_NUM_THREADS": "1"}
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                interpreter.command("-m", "dsnb.train.fork_server", str(self.socket), str(os.getpid())),
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
            If it ended or took too long; the message holds the last line of its log.
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
            return f"it took longer than {START_TIMEOUT_S:.0f} s; check that the disk they are installed on is not slow"
        if code < 0:
            advice = "if memory ran out (`dmesg` says so), free some, then start again"
            return f"the process was {signals.killed_by(-code)}; {advice}"
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"the process ended with exit code {code} and printed nothing"

    def close(self) -> None:
        """Terminate the server and the ranks that it still runs."""
        self.process.terminate()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._scratch.remove()


@contextlib.contextmanager
def shared_servers(devices: set[str]) -> Iterator[None]:
    """Run one server per device for all processes started inside the `with` block, unless there is one already.

    Raises
    ------
    LaunchError
        If a server cannot import the libraries.
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
    """Connect to the sweep's server, or to this process's own, which is started if necessary."""
    if path := os.environ.get(socket_variable(device)):
        with contextlib.suppress(OSError):
            return _open(path)
    server = _servers.get(device)
    if server is None or server.process.poll() is not None:
        server = _servers[device] = ForkServer(device)
        atexit.register(server.close)
    server.wait_ready()
    return _open(str(server.socket))


def _open(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


class ForkedRanks:
    """Ranks forked by the server, in one process group."""

    def __init__(self, device: str, variables: list[dict[str, str]], console: Path, worker: str, run_dir: Path) -> None:
        self._count = len(variables)
        self._codes: dict[int, int] = {}
        self._rest = b""
        self._hung_up = False
        request = {
            "ranks": variables,
            "cwd": os.getcwd(),
            "log": str(console),
            "worker": worker,
            "run_dir": str(run_dir),
            "umask": environment.umask(),
        }
        self.pids: list[int] = []
        self._connection = _connect(device)
        try:
            with contextlib.suppress(ConnectionError):
                self._connection.sendall(json.dumps(request).encode() + b"\n")
                deadline = time.monotonic() + START_TIMEOUT_S
                while not (self.pids or self._hung_up) and time.monotonic() < deadline:
                    self._read(timeout_s=0.5)
            if not self.pids:
                raise LaunchError("the ranks could not be started: the fork server gave no answer", console)
        except BaseException:  # also an interrupt: the server kills the ranks of a closed connection
            self._connection.close()
            raise

    def _read(self, timeout_s: float = 0.0) -> None:
        while not self._hung_up and select.select([self._connection], [], [], timeout_s)[0]:
            added = self._connection.recv(65536)
            self._hung_up = not added
            *lines, self._rest = (self._rest + added).split(b"\n")
            for message in map(json.loads, lines):
                if "pids" in message:
                    self.pids = message["pids"]
                else:
                    self._codes[message["rank"]] = message["exit"]
            timeout_s = 0.0

    def exit_codes(self) -> dict[int, int]:
        """Return the exit codes so far; if the server died, the remaining ranks count as killed."""
        self._read()
        if self._hung_up:
            missing = {rank: -signal.SIGKILL for rank in range(self._count) if rank not in self._codes}
            return {**self._codes, **missing}
        return dict(self._codes)

    def ended(self) -> bool:
        """Return whether every rank has ended."""
        return len(self.exit_codes()) == self._count

    def end(self) -> None:
        """Kill the process group, disconnect, and wait until the group is gone.

        Raises
        ------
        LaunchError
            If a process of the group remains.
        """
        self._read()
        if len(self._codes) < self._count:  # otherwise the server has reaped all of them
            with contextlib.suppress(OSError):
                os.killpg(self.pids[0], signal.SIGKILL)
        self._hung_up = True
        self._connection.close()
        for _ in range(500):
            try:
                os.killpg(self.pids[0], 0)
            except OSError:
                return
            time.sleep(0.02)
        raise LaunchError(f"process group {self.pids[0]} does not end after SIGKILL: find out with `ps` why")
