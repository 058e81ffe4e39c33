"""Reads and writes JSON files; a crash at any moment leaves either the old file or the new one."""

import json
import os
import secrets
import stat
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson

from dsnb.base.errors import DsnbWarning

MAX_BYTES = 2**31 - 2**12
"""Maximum size of a file to read: what Linux reads in one call."""
MAX_JSON_BYTES = 2**26
MAX_DEPTH = 64
"""Maximum nesting of a record; deeper ones could raise RecursionError in code that walks them."""
_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE


def write_text(path: Path, text: str) -> None:
    """Replace the content of `path` atomically: readers see the old file or the new one."""
    write_bytes(path, text.encode("utf-8", "replace"))  # UTF-8 cannot encode a lone surrogate


def write_bytes(path: Path, raw: bytes) -> None:
    """Replace the content of `path` atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(
        f".{path.name}.{secrets.token_hex(4)}"
    )  # unlike a file of mkstemp, it follows the umask
    try:
        with open(temporary, "xb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, record: object) -> None:
    """Write one JSON object atomically; numbers that are not finite become null."""
    write_bytes(path, orjson.dumps(record, option=_OPTIONS | orjson.OPT_INDENT_2))


def read_bytes(path: Path | str, max_bytes: int = MAX_BYTES) -> bytes | None:
    """Return the content of a file; None if it is missing or, with a warning, unreadable."""
    try:
        return read_file(path, max_bytes)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        warn(f"{path} is left out: {getattr(error, 'strerror', None) or error}")
        return None


def read_file(path: Path | str, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a file; raise ValueError if it is not a regular one, or longer than `max_bytes`."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe without a writer must not hang
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise ValueError("it is not a regular file")
        if about.st_size > max_bytes:
            raise ValueError(f"it has more than {max_bytes:,} bytes")
        return os.read(handle, about.st_size)
    finally:
        os.close(handle)


def read_end(path: Path | str, size: int) -> bytes | None:
    """Return up to `size` bytes from the end of a file; None if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(-min(size, os.fstat(file.fileno()).st_size), os.SEEK_END)
            return file.read(size)
    except OSError:
        return None


def warn(sentence: str) -> None:
    """Warn that something was left out."""
    warnings.warn(sentence, DsnbWarning, stacklevel=3)


def parse_json(raw: bytes) -> Any:
    """Parse one record; raise ValueError if it is not JSON or nested too deeply."""
    try:
        record = orjson.loads(raw)  # stricter than the standard library, and four times as fast
    except ValueError:
        try:  # NaN and infinities become None, as in records that dsnb writes
            record = orjson.loads(json.dumps(json.loads(raw, parse_constant=lambda _: None)))
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
    level = [record] if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH else []
    for _ in range(MAX_DEPTH if level else 0):
        inner = [[*value.values()] if isinstance(value, dict) else value for value in level]
        level = [item for items in inner if isinstance(items, list) for item in items]
    if level:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    return record


def read_json(path: Path | str) -> dict[str, Any] | None:
    """Read one JSON object; None if the file is missing or, with a warning, holds no JSON object."""
    raw = read_bytes(path, MAX_JSON_BYTES)
    if raw is None:
        return None
    try:
        record = parse_json(raw)
    except ValueError as error:
        warn(f"{path} is left out: it cannot be read as JSON ({error})")
        return None
    if not isinstance(record, dict):
        warn(f"{path} is left out: it holds no JSON object")
        return None
    return record


def line(record: dict[str, Any]) -> str:
    """Return one line of a `.jsonl` file, newline included."""
    return orjson.dumps(record, option=_OPTIONS).decode()


def write_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Replace a `.jsonl` file atomically."""
    write_text(path, "".join(line(record) for record in records))


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Append one record in a single write, so that several processes can append to one file."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(handle, line(record).encode())
    finally:
        os.close(handle)


def _parse_line(raw: bytes) -> dict[str, Any] | None:
    """Parse one line of a `.jsonl` file; None if it is damaged."""
    try:
        record = parse_json(raw)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a `.jsonl` file; damaged lines are left out, with one warning that names the first ones."""
    records = []
    damaged = []
    for number, raw in enumerate((read_bytes(path) or b"").splitlines(), start=1):
        record = _parse_line(raw)
        if record is not None:
            records.append(record)
        elif raw.strip():
            damaged.append(str(number))
    if damaged:
        warn(
            f"{path}: {len(damaged)} line(s) left out, cut off or damaged (line {', '.join(damaged[:5])})"
        )
    return records


class Tail:
    """Follows a growing `.jsonl` file."""

    def __init__(self, path: Path) -> None:
        self.path, self._offset, self._rest = path, 0, b""

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield the complete records added since the last call; damaged lines are skipped."""
        try:
            with open(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                about = os.fstat(file.fileno())
                if not stat.S_ISREG(about.st_mode):  # a device or pipe may have no end
                    return
                if about.st_size < self._offset:  # rewritten
                    self._offset, self._rest = 0, b""
                file.seek(self._offset)
                added = file.read(about.st_size - self._offset)
        except (FileNotFoundError, IsADirectoryError):
            return
        self._offset += len(added)
        *lines, self._rest = (self._rest + added).split(b"\n")
        yield from filter(None, map(_parse_line, lines))
