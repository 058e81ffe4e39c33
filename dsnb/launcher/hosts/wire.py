"""The protocol between a run's coordinator and its agents: one JSON object per line, in both directions.

Both sides send a heartbeat every `HEARTBEAT_S` and treat the other as lost after `silence_s()` without a message. This
detects a cut link, which the operating system does not report.
"""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from dsnb.files import records

HEARTBEAT_S = 1.0
MAX_LINE_BYTES = 8 * 2**20
CHUNK_BYTES = 256 * 1024
MAX_BYTES = 2**30
"""Longest file that is accepted from a host."""


def silence_s() -> float:
    """Return the seconds without a message after which the other side counts as lost: `$DSNB_SILENCE_S`, or 20."""
    try:
        return max(3.0, float(os.environ.get("DSNB_SILENCE_S", "20")))
    except ValueError:
        return 20.0


class Sender:
    """Sends records from several threads; they are dropped if the other side has closed the pipe."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._lock = file, threading.Lock()

    def __call__(self, **record: Any) -> None:
        """Send one record."""
        raw = records.line(record).encode("utf-8", "replace")
        with self._lock:
            try:
                self._file.write(raw)
                self._file.flush()
            except (OSError, ValueError):
                pass


def receive(file: IO[bytes]) -> dict[str, Any] | None:
    """Return the next record, None at the end; other lines, such as a greeting of a login shell, are skipped."""
    while raw := file.readline(MAX_LINE_BYTES):
        try:
            record = json.loads(raw)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            return record
    return None


class FileTail:
    """Reads what was appended to a file since the last call; a file that was replaced is read from its start."""

    def __init__(self, path: Path) -> None:
        self.path, self._known, self._sent = path, (0, 0), 0

    def new(self) -> tuple[int, bytes] | None:
        """Return the offset and the content of the next chunk, at most `CHUNK_BYTES`; None if there is nothing new."""
        try:
            with open(self.path, "rb") as file:
                found = os.fstat(file.fileno())
                if (found.st_dev, found.st_ino) != self._known or found.st_size < self._sent:
                    self._known, self._sent = (found.st_dev, found.st_ino), 0
                file.seek(self._sent)
                added = file.read(CHUNK_BYTES)
        except OSError:
            return None
        if not added:
            return None
        offset, self._sent = self._sent, self._sent + len(added)
        return offset, added

    def chunks(self, max_chunks: int) -> Iterator[tuple[int, bytes]]:
        """Yield up to `max_chunks` new chunks with their offsets."""
        for _ in range(max_chunks):
            if (chunk := self.new()) is None:
                return
            yield chunk
