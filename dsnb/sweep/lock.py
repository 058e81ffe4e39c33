"""The lock of a sweep's folder: one sweep at a time writes there."""

import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator

from filelock import FileLock, Timeout

from dsnb.errors import LaunchError, SettingsError
from dsnb.files import plain_text
from dsnb.run_folder.paths import SweepPaths

MAX_HOLDER_CHARS = 200


def check_writable(sweep: SweepPaths) -> None:
    """Make sure that a sweep's folder can be written, or created where it is missing; nothing is left there.

    Raises
    ------
    LaunchError
        If it cannot.
    """
    try:
        existing = next(path for path in (sweep.dir, *sweep.dir.parents) if path.exists())
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise LaunchError(f"{sweep.dir} cannot be written: {error.strerror}; choose another --output") from error


@contextlib.contextmanager
def locked(sweep: SweepPaths) -> Iterator[None]:
    """Hold the lock of a sweep's folder; the folder is created if necessary.

    The operating system releases the lock when the process ends, however it ends. A lock file without `flock` would
    outlive a killed process, so file systems without `flock` are refused.

    Raises
    ------
    SettingsError
        If another sweep holds the lock.
    LaunchError
        If the folder cannot be written.
    """
    check_writable(sweep)
    lock = FileLock(sweep.lock, timeout=0, thread_local=False, fallback_to_soft=False)
    try:
        sweep.dir.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        sweep.lock.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
    except Timeout:
        holder = plain_text.line(sweep.lock.read_text("utf-8", "replace")[:MAX_HOLDER_CHARS]) or "another process"
        raise SettingsError(
            f"{sweep.dir} is in use by another sweep ({holder}): wait for it, or choose another --output"
        ) from None
    except OSError as error:
        raise LaunchError(f"{sweep.dir} cannot be written: {error.strerror}; choose another --output") from error
    try:
        yield
    finally:
        lock.release()
