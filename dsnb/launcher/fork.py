"""Starts ranks by forking them from a server that has imported all libraries: the client of `dsnb.train.fork_server`.

A sweep owns one server and passes its socket to every notebook kernel in an environment variable. A launch outside of a
sweep starts a server that lives as long as its process.
"""

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from dsnb.errors import LaunchError
from dsnb.launcher import environment
from dsnb.launcher.local import LocalRanks, rank_variables
from dsnb.system import interpreter, scratch, signals

START_TIMEOUT_S, END_TIMEOUT_S = 180.0, 10.0


def socket_variable(device: str) -> str:
    """Return the environment variable for the socket of a device's server: DeepSpeed fixes the device at import."""
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
        self._folder.cleanup()


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
    """Connect to the server of the sweep or of this process, which is started if it is not there, or no longer."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(os.environ.get(socket_variable(device), ""))
    except OSError:
        server = ForkServer(device)
        atexit.register(server.close)
        server.wait_ready()
        os.environ[socket_variable(device)] = str(server.socket)
        connection.connect(str(server.socket))
    return connection


class ForkedRanks(LocalRanks):
    """Ranks forked by the server, in one process group."""

    _group: int | None = None
    """The process group; None before the ranks run."""
    _complete = False
    """Whether the server has reported the exit codes of all ranks."""

    def start(self, worker: str, launched_at_s: float) -> None:
        """Start the ranks.

        Raises
        ------
        LaunchError
            If they cannot be started, or the port for their rendezvous is in use.
        """
        variables = rank_variables(self.experiment, self.gpus, launched_at_s)
        request = {"ranks": variables, "cwd": os.getcwd(), "log": str(self._run.console)}
        request |= {"worker": worker, "run_dir": str(self._run.dir)}
        self._codes: dict[int, int] = {}
        self._connection = _connect(self.experiment.device)
        self._connection.settimeout(START_TIMEOUT_S)
        try:
            self._connection.sendall(json.dumps(request).encode() + b"\n")
            answers = self._connection.makefile("rb")
            self._group = json.loads(answers.readline())["pids"][0]
            self._connection.settimeout(None)
        except (OSError, ValueError) as error:
            raise LaunchError("the ranks could not be started: the fork server gave no answer") from error
        finally:
            if self._group is None:  # also after an interrupt: the server kills the ranks of a closed connection
                self._disconnect()
        self._reader = threading.Thread(target=self._read, args=(answers,), daemon=True)
        self._reader.start()

    def _read(self, answers: Iterable[bytes]) -> None:
        """Collect exit codes; if the server ends before it has reported all of them, the rest count as killed."""
        with contextlib.suppress(OSError):
            for message in map(json.loads, answers):
                self._codes[message["rank"]] = message["exit"]
        self._complete = self.ended()
        for rank in range(self.experiment.gpus):
            self._codes.setdefault(rank, -signal.SIGKILL)

    def exit_codes(self) -> dict[int, int]:
        """Return the exit codes so far: rank -> code, negative if killed by that signal."""
        return dict(self._codes) if self._group else {}

    def ended(self) -> bool:
        """Return whether every rank has ended."""
        return len(self._codes) == self.experiment.gpus

    def end(self) -> None:
        """Kill the process group, disconnect, and wait until the group is gone."""
        if self._group is None:
            return
        deadline_s = time.monotonic() + END_TIMEOUT_S
        with contextlib.suppress(OSError):
            if not self._complete:  # otherwise the server has killed the group and reaped all of them
                os.killpg(self._group, signal.SIGKILL)
        self._disconnect()
        self._reader.join()
        with contextlib.suppress(OSError):
            while time.monotonic() < deadline_s:
                os.killpg(self._group, 0)
                time.sleep(0.02)

    def _disconnect(self) -> None:
        with contextlib.suppress(OSError):  # the server has ended
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
