"""The lock of a sweep's folder: one sweep at a time writes there, and none goes on once the folder is another's."""

import contextlib
import fcntl
import os
import socket
from collections.abc import Collection, Iterator
from typing import TextIO

from dsnb.errors import LaunchError, SettingsError
from dsnb.run_folder.paths import SweepPaths
from dsnb.sweep.params import Run
from dsnb.sweep.schedule import Executor, Job

ATTEMPTS = 100


class Lock:
    """A lock that is held; it goes with the process, however that ends."""

    def __init__(self, sweep: SweepPaths, file: TextIO) -> None:
        self._sweep, self._file = sweep, file

    def is_in_place(self) -> bool:
        """Say whether the lock's path still names the file that is locked: nobody else can hold another one then."""
        try:
            there = os.stat(self._sweep.lock)
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(self._file.fileno()))

    def check(self) -> None:
        """Make sure that the folder is still this sweep's.

        Raises
        ------
        LaunchError
            If the folder, or the lock in it, was removed or replaced: another sweep may work there by now.
        """
        if not self.is_in_place():
            raise LaunchError(
                f"{self._sweep.dir} or its lock was removed or replaced while the sweep ran: nothing more is written "
                "there; start the sweep again"
            )


@contextlib.contextmanager
def locked(sweep: SweepPaths) -> Iterator[Lock]:
    """Hold the sweep's folder.

    Raises
    ------
    SettingsError
        If another sweep holds it.
    LaunchError
        If it cannot be written.
    """
    for _ in range(ATTEMPTS):
        try:
            sweep.dir.mkdir(parents=True, exist_ok=True)
            file = open(sweep.lock, "a+", encoding="utf-8", errors="replace")  # noqa: SIM115
        except OSError as error:
            raise LaunchError(f"{sweep.dir} cannot be written: {error.strerror}; choose another --output") from error
        with file:
            _hold(sweep, file)
            lock = Lock(sweep, file)
            if not lock.is_in_place():  # removed between being opened and being locked
                continue
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()
            yield lock
            return
    raise LaunchError(f"{sweep.dir} is removed again and again: choose another --output")


def _hold(sweep: SweepPaths, file: TextIO) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read(200).strip() or "another process"
        raise SettingsError(
            f"{sweep.dir} is in use by another sweep ({holder}): wait for it, or choose another --output"
        ) from None


class GuardedExecutor:
    """Makes jobs as another executor does, as long as the sweep's folder is its own."""

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
            If the folder is another's.
        """
        self._lock.check()
        return self._executor.start(run)

    def cancel(self, jobs: Collection[Job]) -> None:
        """Tell all jobs to end."""
        self._executor.cancel(jobs)
