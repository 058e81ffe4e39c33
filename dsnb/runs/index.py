"""The index of a sweep: the table of its runs in one file, for a fast first load.

`dsnb sweep` writes it when it finishes. It is validated by modification times and sizes, which `rsync -a` and
`cp -a` preserve; the only change it misses is an edit that keeps a file's size and restores its modification time. An
index that does not match, is damaged or was written by another version is ignored. Without pyarrow there is no index.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dsnb.files import records
from dsnb.run_folder import paths
from dsnb.run_folder.columns import KEYS, RUN_COLUMNS, key_columns
from dsnb.run_folder.paths import RunPaths, SweepPaths

NAME = SweepPaths(Path()).index.name
COLUMNS = [name for name in RUN_COLUMNS if name not in {*KEYS, "run_dir"}]
"""Without the columns that depend on the folder's place."""
FOLDER, RUN, LOG = range(3)
LARGEST_BYTES = 2**30
_FILES = [getattr(RunPaths(Path()), name).name for name in ("experiment", "environment", "result", "nodes", "notebook")]
_RESULT = RunPaths(Path()).result.name
_ODD_PATH = r"(^|/)\.{0,2}(/|$)|\x00"
"""A path with an empty part, `.` or `..` could lead out of the folder."""


@dataclass(frozen=True)
class Index:
    """The content of an index, with absolute paths."""

    runs: list[str]
    """Sorted."""
    logs: list[str]
    """Files in subfolders that may be logs of other programs; they are not in the table."""
    examined: list[str]
    """Other subfolders, and run folders without a result."""
    results: list[str]
    table: Any
    """A pyarrow table: `COLUMNS` and keys of DeepSpeed's configuration, one row per run."""


def stamps(folder: str, runs: Sequence[str], folders: Sequence[str], logs: Sequence[str]) -> pd.DataFrame:
    """Return time stamps and sizes, by which a later change is detected.

    Parameters
    ----------
    folder
        The sweep's folder.
    runs, folders, logs
        Below it: the run folders, sorted, all other folders, and files in these that may be logs.

    Returns
    -------
    pandas.DataFrame
        `path` (relative), `role`, `mtime_ns`; for runs also `mtime_ns` and `size` of each file that a row is read
        from, -1 for a missing one.
    """
    of_folders = [(path, FOLDER) for path in folders] + [(path, RUN) for path in runs]
    rows = [(path.removeprefix(f"{folder}/"), role, os.stat(path).st_mtime_ns) for path, role in of_folders]
    table = pd.DataFrame(rows, columns=["path", "role", "mtime_ns"])
    for name in _FILES:
        numbers = [(-1, -1)] * len(folders) + [_stamp(f"{run}/{name}") for run in runs]
        table[[f"{name} mtime_ns", f"{name} size"]] = np.array(numbers, dtype=np.int64).reshape(-1, 2)
    others = pd.DataFrame({"path": [path.removeprefix(f"{folder}/") for path in logs], "role": LOG})
    return pd.concat([table, others.reindex(columns=table.columns, fill_value=-1)], ignore_index=True)


def _stamp(path: str) -> tuple[int, int]:
    try:
        about = os.stat(path)
    except FileNotFoundError:
        return -1, -1
    return about.st_mtime_ns, about.st_size


def write(folder: Path, examined: pd.DataFrame, runs: pd.DataFrame) -> None:
    """Write an index; if that fails (no pyarrow, a full disk, mixed types in a column), there is none.

    Parameters
    ----------
    folder
        The sweep's folder.
    examined
        Its `stamps`, taken before the runs were read.
    runs
        The table of its runs, in the same order.
    """
    with contextlib.suppress(ImportError, OSError, ValueError, TypeError, NotImplementedError):
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        about = pa.Table.from_pandas(examined, preserve_index=False).replace_schema_metadata({b"code": _code()})
        columns = [*COLUMNS, *key_columns(runs)]
        content = pa.Table.from_pandas(runs[columns], preserve_index=False).replace_schema_metadata(None)
        for part in (about, content):
            with pa.ipc.new_stream(sink, part.schema) as writer:
                writer.write_table(part)
        payload = sink.getvalue().to_pybytes()
        records.write_bytes(SweepPaths(folder).index, hashlib.sha256(payload).digest() + payload)


@cache
def _code() -> bytes:
    """Return a digest of dsnb's code: another version may read the same run differently."""
    files = sorted(paths.PACKAGE.rglob("*.py"))
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest().encode()


def read(folder: str, below: Sequence[str]) -> Index | None:
    """Read the index of a folder; None if it is missing or does not match the folder.

    Parameters
    ----------
    folder
        The sweep's folder, an absolute path.
    below
        The names of the folders in it.
    """
    with contextlib.suppress(Exception):  # whatever a damaged or malicious file causes
        file = Path(folder, NAME)
        raw = file.read_bytes() if file.stat().st_size < LARGEST_BYTES else b""
        if hashlib.sha256(raw[32:]).digest() == raw[:32]:
            return _checked(folder, below, raw[32:])
    return None


def _checked(folder: str, below: Sequence[str], payload: bytes) -> Index | None:
    import pyarrow as pa
    from pyarrow import compute

    source = pa.BufferReader(payload)
    about, content = pa.ipc.open_stream(source).read_all(), pa.ipc.open_stream(source).read_all()
    if (about.schema.metadata or {}).get(b"code") != _code():
        return None
    about.validate(full=True)  # damaged data could crash pyarrow later
    content.validate(full=True)
    if compute.any(compute.match_substring_regex(about["path"], _ODD_PATH)).as_py():
        return None
    seen = {name: about[name].to_pylist() for name in about.column_names}
    places = {role: [place for place, one in enumerate(seen["role"]) if one == role] for role in (FOLDER, RUN, LOG)}
    runs, folders, logs = ([f"{folder}/{seen['path'][place]}" for place in places[role]] for role in (RUN, FOLDER, LOG))
    allowed = (pa.types.is_primitive, pa.types.is_string, pa.types.is_large_string, pa.types.is_null)
    is_plain = all(any(is_a(one) for is_a in allowed) for one in content.schema.types)
    if content.column_names != [*COLUMNS, *key_columns(content.column_names)]:
        return None
    if len(content) != len(runs) or not is_plain or not _fits(folder, below, seen):
        return None
    has_result = [seen[f"{_RESULT} size"][place] >= 0 for place in places[RUN]]
    results = [f"{run}/{_RESULT}" for run, has in zip(runs, has_result, strict=True) if has]
    unfinished = [run for run, has in zip(runs, has_result, strict=True) if not has]
    return Index(runs, logs, folders + unfinished, results, content)


def _fits(folder: str, below: Sequence[str], seen: dict[str, list[Any]]) -> bool:
    """Return whether nothing changed: the same folders, none of them a link, and the same stamps."""
    known = {path for path, role in zip(seen["path"], seen["role"], strict=True) if role != LOG}
    if {path for path in known if "/" not in path} != set(below):
        return False
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for path, role, mtime_ns in zip(seen["path"], seen["role"], seen["mtime_ns"], strict=True):
            if "/" in path and path.rpartition("/")[0] not in known:
                return False
            if role != LOG:
                now = os.stat(path, dir_fd=handle, follow_symlinks=False)
                if now.st_mtime_ns != mtime_ns or not stat.S_ISDIR(now.st_mode):
                    return False
        for name in _FILES:
            for path, mtime_ns, size in zip(seen["path"], seen[f"{name} mtime_ns"], seen[f"{name} size"], strict=True):
                if size >= 0:  # a new file would have changed the stamp of its folder
                    now = os.stat(f"{path}/{name}", dir_fd=handle)
                    if now.st_mtime_ns != mtime_ns or now.st_size != size:
                        return False
    finally:
        os.close(handle)
    return True
