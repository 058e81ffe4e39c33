"""The lock of a sweep's folder: one sweep at a time writes there, and none goes on after the folder was replaced."""

import contextlib
import os
import socket
import tempfile
from collections.abc import Collection, Iterator

from filelock import FileLock, Timeout

from dsnb.errors import LaunchError, SettingsError
from dsnb.files import plain_text
from dsnb.run_folder.paths import SweepPaths
from dsnb.sweep.params import Run
from dsnb.sweep.schedule import Executor, Job

ATTEMPTS = 100
LONGEST_HOLDER_BYTES = 200


class Lock:
    """The lock of one sweep's folder; the operating system releases it when the process ends, however it ends.

    A lock file without `flock` would outlive a killed process, so file systems without `flock` are refused.
    """

    def __init__(self, sweep: SweepPaths) -> None:
        self._sweep = sweep
        self._locked_file: os.stat_result | None = None
        self._lock = FileLock(
            sweep.lock, timeout=0, thread_local=False, fallback_to_soft=False, on_acquired=self._write_holder
        )

    def _write_holder(self, handle: int) -> None:
        self._locked_file = os.fstat(handle)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)

    def acquire(self) -> None:
        """Take the lock without waiting.

        Raises
        ------
        filelock.Timeout
            If another process holds it.
        OSError
            If the lock file cannot be written.
        """
        self._lock.acquire()

    def release(self) -> None:
        """Release the lock; the file stays."""
        self._lock.release()

    def is_in_place(self) -> bool:
        """Return whether the path of the lock still leads to the locked file; only then does it exclude others."""
        try:
            found = os.stat(self._sweep.lock)
        except OSError:
            return False
        return self._locked_file is not None and os.path.samestat(found, self._locked_file)

    def check(self) -> None:
        """Make sure that the folder still belongs to this sweep.

        Raises
        ------
        LaunchError
            If the folder or its lock was removed or replaced: another sweep may be using it.
        """
        if not self.is_in_place():
            raise LaunchError(
                f"{self._sweep.dir} or its lock was removed or replaced while the sweep ran: nothing more is written "
                "there; start the sweep again"
            )


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
        raise _not_writable(sweep, error) from error


def _not_writable(sweep: SweepPaths, error: OSError) -> LaunchError:
    return LaunchError(f"{sweep.dir} cannot be written: {error.strerror}; choose another --output")


@contextlib.contextmanager
def locked(sweep: SweepPaths) -> Iterator[Lock]:
    """Hold the lock of a sweep's folder; the folder is created if necessary.

    Raises
    ------
    SettingsError
        If another sweep holds the lock.
    LaunchError
        If the folder cannot be written.
    """
    check_writable(sweep)
    lock = _acquired(sweep)
    try:
        yield lock
    finally:
        lock.release()


def _acquired(sweep: SweepPaths) -> Lock:
    for _ in range(ATTEMPTS):
        try:
            sweep.dir.mkdir(parents=True, exist_ok=True)
            lock = Lock(sweep)
            lock.acquire()
        except Timeout:
            if holder := _holder(sweep):
                raise SettingsError(
                    f"{sweep.dir} is in use by another sweep ({holder}): wait for it, or choose another --output"
                ) from None
            continue
        except OSError as error:
            raise _not_writable(sweep, error) from error
        if lock.is_in_place():
            return lock
        lock.release()  # the file was removed after it was opened and before it was locked
    raise LaunchError(f"{sweep.dir} keeps being removed: choose another --output")


def _holder(sweep: SweepPaths) -> str | None:
    """Return who holds the lock, as its file says; None if the file has been removed."""
    try:
        with open(sweep.lock, "rb") as file:
            text = file.read(LONGEST_HOLDER_BYTES).decode("utf-8", errors="replace").strip()
    except FileNotFoundError:
        return None
    except OSError:
        text = ""
    return plain_text.line(text) or "another process"


class GuardedExecutor:
    """An executor that starts no run once the sweep's folder has been removed or replaced."""

    def __init__(self, executor: Executor, lock: Lock) -> None:
        self._executor, self._lock = executor, lock

    def lane(self, run: Run) -> str:
        """Return the lane of a run."""
        return self._executor.lane(run)

    def start(self, run: Run) -> Job | None:
        """Start a run.

        Raises
        ------
        LaunchError
            If the folder was removed or replaced.
        """
        self._lock.check()
        return self._executor.start(run)

    def cancel(self, jobs: Collection[Job]) -> None:
        """Cancel all jobs."""
        self._executor.cancel(jobs)
