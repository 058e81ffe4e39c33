"""Writes what the hosts of a run send to the run folder: console lines, GPU samples, records, and how each ended."""

import base64
import threading
from pathlib import Path
from typing import Any

from dsnb.files import records
from dsnb.launcher.hosts.node import Node
from dsnb.launcher.hosts.wire import MAX_BYTES
from dsnb.run_folder import node_comparison
from dsnb.run_folder.paths import RunPaths

MAX_LINE = 2**16
"""Longest part of an unfinished line, such as a progress bar, that is held back, in characters."""


class NodeRecords:
    """Writes the records of all hosts of a run; it is called from several threads."""

    def __init__(self, run: RunPaths) -> None:
        self._run, self._lock = run, threading.Lock()
        self._files = {path.name: path for path in run.written_by_ranks}
        self._rest: dict[str, str] = {}
        self.shared: dict[str, bool] = {}

    def take(self, node: Node, record: dict[str, Any]) -> None:
        """Write one record to its file."""
        with self._lock:
            if "console" in record:
                self._console(node.host.name, str(record["console"]))
            elif isinstance(record.get("gpu"), dict):
                records.append_line(self._run.gpu, {**record["gpu"], "host": node.host.name})
            elif "file" in record:
                self._file(record, node.number == 0)

    def _console(self, host: str, text: str) -> None:
        """Append complete lines, prefixed with the host as pdsh does."""
        *lines, self._rest[host] = (self._rest.get(host, "") + text).split("\n")
        if len(self._rest[host]) > MAX_LINE:
            lines, self._rest[host] = [*lines, self._rest[host]], ""
        if lines:
            with open(self._run.console, "a", encoding="utf-8", errors="replace") as file:
                file.write("".join(f"{host}: {line}\n" for line in lines))

    def _file(self, record: dict[str, Any], is_first: bool) -> None:
        """Write a part of a file; unknown file names and excessive offsets are ignored."""
        path = self._files.get(str(record["file"]))
        try:
            raw, offset = base64.b64decode(str(record["data"]), validate=True), int(record["offset"])
        except (KeyError, TypeError, ValueError, OverflowError):
            return
        if path == self._run.failures:
            _append(path, raw)
        elif path and is_first and 0 <= offset <= MAX_BYTES:
            _write(path, offset, raw)

    def write(self, nodes: list[Node]) -> None:
        """Write `nodes.json`."""
        for host, rest in self._rest.items():
            if rest:
                self._console(host, "\n")
        first = 0
        rows = []
        for node in nodes:
            ranks = list(range(first, first + len(node.host.devices)))
            first += len(ranks)
            rows.append(_row(node, ranks))
        compared = [(row["host"], row["environment"]) for row in rows]
        content = {
            "shared_storage": all(self.shared.values()) if self.shared else None,
            "nodes": rows,
            "differences": list(node_comparison.differences(compared).values()),
        }
        records.write_json(self._run.nodes, content)


def _row(node: Node, ranks: list[int]) -> dict[str, Any]:
    return {
        "host": node.host.name,
        "address": node.hello.get("address"),
        "interface": node.hello.get("interface"),
        "ranks": ranks,
        "devices": list(node.host.devices),
        "exit_codes": {str(rank): code for rank, code in sorted(node.codes.items())},
        "lost": node.lost or node.error,
        "oom_kills": node.oom_kills,
        "clock_offset_s": node.hello.get("clock_offset_s"),
        "environment": node.hello.get("environment", {}),
    }


def _append(path: Path, raw: bytes) -> None:
    with open(path, "ab") as file:
        file.write(raw)


def _write(path: Path, offset: int, raw: bytes) -> None:
    with open(path, "r+b" if offset and path.exists() else "wb") as file:
        file.seek(offset)
        file.write(raw)
