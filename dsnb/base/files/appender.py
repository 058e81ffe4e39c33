"""Appends records to a `.jsonl` file in a thread, so that a slow disk never delays the caller.

A record is in the file `EVERY_S` later at the latest, if the disk keeps up. The thread wakes up
that rarely because it needs Python's lock for what it does, except for writing itself.
"""

import os
import queue
import threading
from pathlib import Path
from typing import Any

from dsnb.base.files import json_files

EVERY_S = 0.25


class Appender:
    """A new `.jsonl` file that records are appended to; several calls of `close` do no harm."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        self._records: queue.Queue[dict[str, Any]] = queue.Queue()
        self._soon, self._closing = threading.Event(), False
        self._error: Exception | None = None
        self._thread = threading.Thread(
            target=self._run, daemon=True
        )  # a hanging disk does not keep the process
        self._thread.start()

    def append(self, record: dict[str, Any]) -> None:
        """Append a record soon; raise the error of an earlier record that could not be written."""
        if self._error:
            raise self._error
        self._records.put(record)

    def flush(self) -> None:
        """Wait until all records are in the file; raise OSError if one could not be written."""
        self._soon.set()
        self._records.join()
        self._soon.clear()
        if self._error:
            raise self._error

    def close(self) -> None:
        """Write the remaining records and close the file; raise OSError if one could not be written."""
        if self._closing:
            return
        self._closing = True
        self._soon.set()
        self._thread.join()
        os.close(self._handle)
        if self._error:
            raise self._error

    def _run(self) -> None:
        while not self._closing:
            self._soon.wait(EVERY_S)
            self._write_waiting()
        self._write_waiting()

    def _write_waiting(self) -> None:
        waiting = [self._records.get() for _ in range(self._records.qsize())]
        try:
            if waiting and not self._error:
                self._write("".join(map(json_files.line, waiting)).encode())
        except Exception as error:  # raised where the caller can see it
            self._error = error
        finally:
            for _ in waiting:
                self._records.task_done()

    def _write(self, raw: bytes) -> None:
        while raw:  # a nearly full disk may take a part
            raw = raw[os.write(self._handle, raw) :]
