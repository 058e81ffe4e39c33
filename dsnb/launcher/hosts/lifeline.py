"""An agent's connection to its coordinator; when it is lost, the agent and its ranks end."""

import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from dsnb.launcher import fork
from dsnb.launcher.hosts.wire import HEARTBEAT_S, Sender, receive, silence_s
from dsnb.system import launch_clock

STARTING_S = 0.5
LAST_RESORT_S = 10.0
"""How long the main thread may take to kill the ranks itself: while it starts them, and later."""


class Lifeline:
    """Receives requests, sends heartbeats, and detects that the coordinator is lost.

    It uses threads of its own, because the main thread may block on a write to a full pipe.

    Attributes
    ----------
    cut
        Set when the coordinator is lost.
    last_resort
        Called if the main thread does not end the process within `patience_s` after that.
    """

    def __init__(self, file: IO[bytes], send: Sender) -> None:
        self._file, self._send = file, send
        self._heard_at, self._silence_s = time.monotonic(), silence_s()
        self._requests: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.cut = threading.Event()
        self.last_resort: Callable[[], object] = fork.close_servers
        self.patience_s = STARTING_S
        for work in (self._listen, self._send_heartbeats, self._watch):
            threading.Thread(target=work, daemon=True).start()

    def _listen(self) -> None:
        while (record := receive(self._file)) is not None and record.get("do") != "end":
            self._heard_at = time.monotonic()
            self._silence_s = float(record.get("silence_s", self._silence_s))
            if "ping" in record:
                self._send(pong=record["ping"], time=time.time(), monotonic_s=launch_clock.now_s())
            elif "do" in record:
                self._requests.put(record)
        self.cut.set()
        self._requests.put(None)

    def _send_heartbeats(self) -> None:
        while not self.cut.wait(HEARTBEAT_S):
            self._send(alive=True)

    def _watch(self) -> None:
        while not self.cut.wait(HEARTBEAT_S):
            if time.monotonic() > self._heard_at + self._silence_s:
                self._report_silence()
                self.cut.set()
        self._requests.put(None)
        time.sleep(self.patience_s)  # normally the main thread ends the process before that
        try:
            self.last_resort()
        finally:
            os._exit(1)

    def _report_silence(self) -> None:
        """Say why this host ends its ranks, for a coordinator that was only slow and still listens."""
        message = f"it heard nothing from the launcher for {self._silence_s:g} s and ended its ranks"
        with contextlib.suppress(OSError):  # nobody may read it any more
            print(message, file=sys.stderr, flush=True)

    def request(self) -> dict[str, Any] | None:
        """Wait for the next request and return it; None when the connection has ended."""
        return self._requests.get()
