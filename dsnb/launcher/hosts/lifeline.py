"""An agent's connection to its coordinator, and the end of both the agent and its ranks when there is none any more."""

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from dsnb.launcher import fork
from dsnb.launcher.hosts.wire import HEARTBEAT_S, Sender, receive, silence_s
from dsnb.system import launch_clock

STARTING_S = 0.5
LAST_RESORT_S = 10.0
"""How long the main thread has for ending the ranks itself: while it starts them, and later."""


class Lifeline:
    """Reads what the coordinator says, beats back, and notices when nothing comes any more.

    All in threads of their own, because the main one may be stuck, writing into a pipe that nobody empties.
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
                self.cut.set()
        self._requests.put(None)
        time.sleep(self.patience_s)  # the main thread ends the process before that, unless it waits for something
        try:
            self.last_resort()
        finally:
            os._exit(1)

    def request(self) -> dict[str, Any] | None:
        """Wait for the next thing to do; None if there is none any more."""
        return self._requests.get()
