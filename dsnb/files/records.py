"""Reading and writing the JSON of a run folder, so that a crash at any moment leaves no half-written truth.

It knows how bytes reach the disk and come back; what the records mean is for others.
"""

import json
import math
import os
import secrets
import stat
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dsnb.errors import DsnbWarning
from dsnb.files import json_text

MAX_BYTES = 2**31
"""A larger file is not read into memory."""
MAX_JSON_BYTES = 2**26


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step: readers see the old file or the new one, never a part."""
    write_bytes(path, text.encode("utf-8", "replace"))  # no file can hold half a character


def write_bytes(path: Path, raw: bytes) -> None:
    """Replace the content of `path` in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")  # unlike mkstemp's, it follows the umask
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
    write_text(path, json.dumps(_finite(record), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_bytes(path: Path | str, most_bytes: int = MAX_BYTES) -> bytes | None:
    """Read a whole file with as few system calls as can be; None where there is none, with a warning if unreadable."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe without a writer must not hang
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        _left_out(path, error.strerror)
        return None
    try:
        return read_regular(handle, most_bytes)
    except (OSError, ValueError) as error:
        _left_out(path, error.strerror if isinstance(error, OSError) else error)
        return None
    finally:
        os.close(handle)


def read_regular(handle: int, most_bytes: int) -> bytes:
    """Read an open file that may be a pipe, a device or a folder, or longer than its size said a moment ago.

    Raises
    ------
    OSError
        If it cannot be read, or is a folder.
    ValueError
        If it is no regular file, or longer than `most_bytes`.
    """
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode) and not stat.S_ISDIR(about.st_mode):
        raise ValueError("it is no regular file")
    wanted = about.st_size + 1
    if wanted <= most_bytes + 1:
        raw = os.read(handle, wanted)
        if len(raw) < wanted:
            return raw
    else:
        raw = b""
    while len(raw) <= most_bytes and (more := os.read(handle, 2**20)):  # it grew meanwhile
        raw += more
    if len(raw) > most_bytes:
        raise ValueError(f"it has more than {most_bytes:,} bytes")
    return raw


def read_end(path: Path | str, size: int) -> bytes | None:
    """Read the last `size` bytes of a file, or all of a shorter one; None where there is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe without a writer must not hang
    except OSError:
        return None
    try:
        return os.pread(handle, size, max(0, os.fstat(handle).st_size - size))
    except OSError:
        return None
    finally:
        os.close(handle)


def warn(sentence: str) -> None:
    """Warn of something that was left out."""
    warnings.warn(sentence, DsnbWarning, stacklevel=3)


def _left_out(path: Path | str, why: object) -> None:
    warnings.warn(f"{path} is left out: {why}", DsnbWarning, stacklevel=3)


def read_json(path: Path | str) -> dict[str, Any] | None:
    """Read one JSON object; None where there is no file, with a warning where it is no JSON object."""
    raw = read_bytes(path, MAX_JSON_BYTES)
    if raw is None:
        return None
    try:
        record = json_text.parse(raw)
    except ValueError as error:
        warnings.warn(f"{path} is left out: it cannot be read as JSON ({error})", DsnbWarning, stacklevel=2)
        return None
    if not isinstance(record, dict):
        warnings.warn(f"{path} is left out: it holds no JSON object", DsnbWarning, stacklevel=2)
        return None
    return record


def line(record: dict[str, Any]) -> str:
    """Return one line of a `.jsonl` file, newline included."""
    return json.dumps(_finite(record), ensure_ascii=False, allow_nan=False) + "\n"


def write_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Replace a `.jsonl` file atomically."""
    write_text(path, "".join(line(record) for record in records))


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Append one record in a single write, so that several processes may share the file."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(handle, line(record).encode("utf-8", "replace"))
    finally:
        os.close(handle)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a `.jsonl` file; a line that is cut off or damaged is left out with one warning that names it."""
    records, bad = [], []
    for number, raw in enumerate((read_bytes(path) or b"").splitlines(), start=1):
        try:
            record = json_text.parse(raw)
        except ValueError:
            record = None
        if isinstance(record, dict):
            records.append(record)
        elif raw.strip():
            bad.append(number)
    if bad:
        where = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
        warnings.warn(
            f"{path}: {len(bad)} line(s) left out, cut off or damaged (line {where})", DsnbWarning, stacklevel=2
        )
    return records


class Tail:
    """Follows a growing `.jsonl` file: each call returns the complete records added since the last."""

    def __init__(self, path: Path) -> None:
        self.path, self._offset, self._rest = path, 0, b""

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield the records that came since the last call; damaged lines are passed over."""
        try:
            with open(self.path, "rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:  # written anew
                    self._offset, self._rest = 0, b""
                file.seek(self._offset)
                added = file.read()
        except FileNotFoundError:
            return
        self._offset += len(added)
        *lines, self._rest = (self._rest + added).split(b"\n")
        for raw in lines:
            try:
                record = json_text.parse(raw)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record


def _finite(value: object) -> object:
    """Replace NaN and infinities, which JSON does not know, by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
