"""Cache of loaded tables: the next load of an unchanged folder is fast.

Only tables that took long to load are cached, in the user's cache folder (`$DSNB_CACHE`, else `dsnb` below
`$XDG_CACHE_HOME`). A cached table is valid while the change time, size and inode of all examined files and folders, and
dsnb's own code, are unchanged. Without pyarrow there is no cache.
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
"""Loads that take longer are cached."""
MAX_FILES = 64
SETTLED_S = 0.05
"""A file changed more recently than this may change again without a new time stamp: file systems' clocks are coarse."""


def cached(kind: str, root: Path, load: Callable[[], tuple[pd.DataFrame, list[str]]]) -> pd.DataFrame:
    """Return a cached table, or load it, and cache it if that took long.

    Parameters
    ----------
    kind
        Which table of the folder, `runs` or `steps`.
    root
        The folder or log that is loaded.
    load
        Loads the table; also returns the files and folders whose change would change it.
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
    with _without_garbage_collection():
        table, examined = load()
    if file and time.time_ns() - began_ns > SLOW_S * 1e9:
        stamps = _stamps(examined)
        if stamps[:, 0].max(initial=0) < began_ns - SETTLED_S * 1e9:  # nothing changed while it was loaded
            _write(file, examined, stamps, table)
    return table


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Defer garbage collection: it would scan the many small records, all still in use, again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _stamps(examined: Sequence[str]) -> np.ndarray:
    """Return change time in ns, size and inode of each path, shape (paths, 3); -1 for a missing path.

    Unlike the modification time, the change time (ctime) cannot be set back by a program.
    """
    stat, numbers = os.stat, list[int]()
    for path in examined:
        try:
            about = stat(path)
            numbers += (about.st_ctime_ns, about.st_size, about.st_ino & (2**63 - 1))
        except OSError:
            numbers += (-1, -1, -1)
    return np.array(numbers, dtype=np.int64).reshape(-1, 3)


def _code() -> bytes:
    """Return when dsnb's code last changed: other code may read the same log differently."""
    return str(max(file.stat().st_mtime_ns for file in paths.PACKAGE.rglob("*.py"))).encode()


def _read(file: Path) -> pd.DataFrame | None:
    """Return a cached table; None if there is none, if something changed, or if it cannot be read."""
    with contextlib.suppress(Exception):  # a broken cache must never make a load fail
        import pyarrow as pa

        with open(file, "rb") as source:
            examined = pa.ipc.open_stream(source).read_all()
            if (examined.schema.metadata or {}).get(b"code") != _code():
                return None
            now = _stamps(examined["path"].to_pylist())
            before = np.column_stack([examined[name].to_numpy() for name in ("ctime_ns", "size", "ino")])
            if not np.array_equal(now, before):
                return None
            content = pa.ipc.open_stream(source).read_all()
        content.validate(full=True)  # damaged data could crash pyarrow later
        table: pd.DataFrame = content.to_pandas()
        with contextlib.suppress(OSError):  # it may belong to another user
            os.utime(file)
        return table
    return None


def _write(file: Path, examined: list[str], stamps: np.ndarray, table: pd.DataFrame) -> None:
    """Cache a table; if that fails (a full disk, mixed types in a column), it is not cached."""
    temporary = file.with_suffix(f".{os.getpid()}-{secrets.token_hex(4)}")
    with contextlib.suppress(Exception):
        import pyarrow as pa

        numbers = dict(zip(("ctime_ns", "size", "ino"), stamps.T, strict=True))
        about = pa.table({"path": examined, **numbers}).replace_schema_metadata({b"code": _code()})
        content = pa.Table.from_pandas(table, preserve_index=False)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(temporary, "wb") as sink:
            for part in (about, content):
                with pa.ipc.new_stream(sink, part.schema) as writer:
                    writer.write_table(part)
        os.replace(temporary, file)
        for old in sorted(file.parent.glob("*.arrow"), key=lambda one: one.stat().st_mtime)[:-MAX_FILES]:
            old.unlink(missing_ok=True)
    with contextlib.suppress(OSError, ValueError):
        temporary.unlink()
