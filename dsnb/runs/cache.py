"""Keeps large tables that were loaded, so that the next load of an unchanged folder is quick.

Only what took long is kept, in the user's cache folder (`$DSNB_CACHE`, else `dsnb` below `$XDG_CACHE_HOME`). It is
taken again only if none of the files and folders that were looked at has another time, size or file number, and dsnb's
own code is the same. Without pyarrow nothing is kept.
"""

import contextlib
import gc
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from dsnb.run_folder import paths

SLOW_S = 0.25
MOST_FILES = 64
SETTLED_S = 0.05
"""A file that changed as recently as this may change again without a new time: clocks of file systems tick slowly."""


def kept(kind: str, root: Path, load: Callable[[], tuple[pd.DataFrame, list[str]]]) -> pd.DataFrame:
    """Give a table as it was kept, or load it, and keep it if that took long.

    Parameters
    ----------
    kind
        Which table of the folder.
    root
        The folder that it was loaded from.
    load
        Makes the table, and names the files and folders whose change would change it.
    """
    home = paths.cache_home()
    file = (
        home / f"{hashlib.sha256(f'{kind} {root.absolute()}'.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}.arrow"
        if home
        else None
    )
    if file and (table := _read(file)) is not None:
        return table
    began_ns = time.time_ns()
    with _no_collection():
        table, looked_at = load()
    if file and time.time_ns() - began_ns > SLOW_S * 1e9:
        stamps = _stamps(looked_at)
        if stamps[:, 0].max(initial=0) < began_ns - SETTLED_S * 1e9:  # nothing changed while it was loaded
            _write(file, looked_at, stamps, table)
    return table


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Put off garbage collection: it would look through the many small records, all still in use, again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _stamps(looked_at: Sequence[str]) -> np.ndarray:
    """Give what tells whether a path changed: shape (paths, 3) of time in ns, size, file number; -1 if it is gone.

    The time is that of the last change of content or name, which no program can set back as it can the modification's.
    """
    stat, numbers = os.stat, list[int]()
    for path in looked_at:
        try:
            about = stat(path)
            numbers += (about.st_ctime_ns, about.st_size, about.st_ino & (2**63 - 1))
        except OSError:
            numbers += (-1, -1, -1)
    return np.array(numbers, dtype=np.int64).reshape(-1, 3)


def _code() -> bytes:
    """Say when dsnb's code last changed: another reader may read the same log otherwise."""
    return str(max(file.stat().st_mtime_ns for file in paths.PACKAGE.rglob("*.py"))).encode()


def _read(file: Path) -> pd.DataFrame | None:
    """Read a kept table; None if there is none, if something changed, or if it cannot be read."""
    with contextlib.suppress(Exception):  # a cache is never a reason to fail
        import pyarrow as pa

        with open(file, "rb") as source:
            looked_at = pa.ipc.open_stream(source).read_all()
            if (looked_at.schema.metadata or {}).get(b"code") != _code():
                return None
            now = _stamps(looked_at["path"].to_pylist())
            before = np.column_stack([looked_at[name].to_numpy() for name in ("ctime_ns", "size", "ino")])
            if not np.array_equal(now, before):
                return None
            content = pa.ipc.open_stream(source).read_all()
        content.validate(full=True)  # else what is damaged could crash pyarrow itself
        table: pd.DataFrame = content.to_pandas()
        with contextlib.suppress(OSError):  # it may be another user's
            os.utime(file)
        return table
    return None


def _write(file: Path, looked_at: list[str], stamps: np.ndarray, table: pd.DataFrame) -> None:
    """Keep a table; where that cannot be (a full disk, mixed types in a column), it is just not kept."""
    temporary = file.with_suffix(f".{os.getpid()}-{secrets.token_hex(4)}")
    with contextlib.suppress(Exception):
        import pyarrow as pa

        numbers = dict(zip(("ctime_ns", "size", "ino"), stamps.T, strict=True))
        about = pa.table({"path": looked_at, **numbers}).replace_schema_metadata({b"code": _code()})
        content = pa.Table.from_pandas(table, preserve_index=False)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(temporary, "wb") as sink:
            for part in (about, content):
                with pa.ipc.new_stream(sink, part.schema) as writer:
                    writer.write_table(part)
        os.replace(temporary, file)
        for old in sorted(file.parent.glob("*.arrow"), key=lambda one: one.stat().st_mtime)[:-MOST_FILES]:
            old.unlink(missing_ok=True)
    with contextlib.suppress(OSError, ValueError):
        temporary.unlink()
