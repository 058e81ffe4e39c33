"""The coordinator's connection to the agent of one host: its messages, and whether it is alive."""

import contextlib
import queue
import subprocess
import threading
import time
from collections.abc import Callable
from typing import IO, Any, cast

from dsnb.errors import LaunchError
from dsnb.launcher.hosts.wire import HEARTBEAT_S, Sender, receive, silence_s
from dsnb.settings.hostfile import Host

INVALID_RECORD = (AttributeError, KeyError, TypeError, ValueError, OverflowError)
"""Errors caused by records that are not from an agent, such as a JSON greeting of a login shell."""
POLL_S = 0.2
ANSWER_TIMEOUT_S = 60.0
END_TIMEOUT_S = 15.0
READ_TIMEOUT_S = 5.0
ANSWERS = {"hello", "pong", "port", "started", "error", "socket", "examined"}


class Node:
    """One host of a run.

    Parameters
    ----------
    number
        Index of the host in the run; host 0 has rank 0.
    host
        Name and GPUs of the host.
    command
        Command that starts the agent.
    take
        Called with the node and every record that is no answer, in the node's thread.
    """

    def __init__(
        self, number: int, host: Host, command: list[str], take: Callable[["Node", dict[str, Any]], None]
    ) -> None:
        self.number, self.host, self._take = number, host, take
        self.hello: dict[str, Any] = {}
        self.codes: dict[int, int] = {}
        self.ended = False
        self.oom_kills = 0
        self.lost: str | None = None
        self.error: str | None = None
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._messages: list[str] = []
        self._heard_at = time.monotonic()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C must reach the coordinator only
            )
        except OSError as error:
            raise LaunchError(
                f"{command[0]} cannot be started ({error.strerror}): install it or add it to PATH"
            ) from error
        self._closed = threading.Event()
        stdin, stdout, stderr = (cast("IO[bytes]", pipe) for pipe in self._pipes())
        self.send = Sender(stdin)
        self.send(silence_s=silence_s())  # both sides use the value of this process
        threading.Thread(target=self._send_heartbeats, daemon=True).start()
        threading.Thread(target=self._listen_to_errors, args=(stderr,), daemon=True).start()
        self._listener = threading.Thread(target=self._listen, args=(stdout,), daemon=True)
        self._listener.start()

    def _pipes(self) -> tuple[IO[bytes] | None, ...]:
        return self._process.stdin, self._process.stdout, self._process.stderr

    def _send_heartbeats(self) -> None:
        while not self._closed.wait(HEARTBEAT_S):
            self.send(alive=True)

    def _listen(self, pipe: IO[bytes]) -> None:
        while (record := receive(pipe)) is not None:
            self._heard_at = time.monotonic()
            with contextlib.suppress(*INVALID_RECORD):
                self._handle(record)
        self._answers.put(None)

    def _handle(self, record: dict[str, Any]) -> None:
        if "exit" in record:
            self.codes[int(record["rank"])] = int(record["exit"])
        elif "ended" in record:
            self.codes = {int(rank): int(code) for rank, code in record["ended"].items()}
            self.oom_kills = int(record.get("oom_kills", 0))
            self.ended = True
        elif ANSWERS & record.keys():
            if "hello" in record:
                self.hello = dict(record["hello"])
            if "error" in record:
                self.error = str(record["error"])
                self._messages = [*self._messages, self.error]
            self._answers.put(record)
        elif "alive" not in record:
            self._pass_on(record)

    def _pass_on(self, record: dict[str, Any]) -> None:
        try:
            self._take(self, record)
        except OSError as error:
            self.lost = self.lost or f"records of {self.host.name} cannot be written here: {error.strerror or error}"

    def _listen_to_errors(self, pipe: IO[bytes]) -> None:
        for raw in pipe:
            line = raw.decode("utf-8", "replace").strip()
            if line and not line.startswith("Warning: Permanently added"):
                self._messages = [*self._messages[-19:], line[:400]]

    def answer(self, timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
        """Wait for the agent's next answer.

        Raises
        ------
        LaunchError
            If the agent reports an error, is lost, or does not answer in time.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                record = self._answers.get(timeout=POLL_S)
            except queue.Empty:
                if self.hello:  # before that, only the timeout tells a slow host from a missing one
                    self.check()
                if time.monotonic() > deadline:
                    self.lost = self.lost or f"{self.host.name} gave no answer within {timeout_s:g} s"
                if self.lost:
                    raise LaunchError(self.lost) from None
                continue
            if record is None:
                self.lost = self.lost or self._lost_connection()
                raise LaunchError(self.lost)
            if "error" in record:
                raise LaunchError(f"{self.host.name}: {record['error']}")
            return record

    def _lost_connection(self) -> str:
        what = f"the connection to {self.host.name} broke" if self.hello else f"{self.host.name} was not reached"
        return f"{what}: {self.last_message()}"

    def last_message(self) -> str:
        """Return the last message of ssh, srun or the agent, which says why the connection ended."""
        try:
            code: int | str = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = "unknown"
        time.sleep(0.1)  # its last message may still arrive
        message = self._messages[-1] if self._messages else f"its agent ended without a message (exit code {code})"
        if "No module named" in message:
            message += f"; dsnb must be installed on {self.host.name} under the same path as here"
        return message

    def check(self) -> None:
        """Set `lost` if the connection has ended or the host has been silent for too long."""
        if self.lost or self.ended:
            return
        if self._process.poll() is not None and not self.ended:
            self.lost = self._lost_connection()
            if self.ended:  # its last record arrived meanwhile
                self.lost = None
        elif time.monotonic() > self._heard_at + silence_s():
            self.lost = f"{self.host.name} has been silent for {silence_s():g} s: its network or the host is down"

    def close(self) -> None:
        """Ask the agent to end and wait for it; an unreachable agent ends by itself when it misses the heartbeats."""
        self._closed.set()
        wait_s = END_TIMEOUT_S if self.hello and not self.lost else 0.0
        closer = threading.Thread(target=self._hang_up, daemon=True)
        closer.start()  # in a thread, because a pipe to a lost host may block
        closer.join(timeout=1.0)
        try:
            self._process.wait(timeout=wait_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            self.lost = self.lost or f"{self.host.name} did not confirm the end of its ranks"
        self._listener.join(timeout=READ_TIMEOUT_S)  # the last records must still be written

    def _hang_up(self) -> None:
        self.send(do="end")
        if self._process.stdin:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
