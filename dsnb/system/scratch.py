"""Private folders in the temporary folder, for sockets and scratch files, and what killed processes left of them.

A folder's owner holds a lock (flock) on a file in it. The system releases the lock however the owner ends, so a folder
whose lock can be taken has no owner any more, whatever process has its number by now.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "dsnb-"
LOCK = ".dsnb-owner"
MAX_HOME_BYTES = 60
"""The name of a socket may have 107 bytes at most, and some clusters have temporary folders with very long names."""


class Scratch:
    """A new private folder, which lives until `remove` or, if this process is killed, until the next one starts.

    Parameters
    ----------
    home
        The folder in which it is made, by default one in which the names of sockets are short enough.
    """

    def __init__(self, home: str | None = None) -> None:
        home = home or socket_home()
        remove_abandoned(home)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=home))
        self._lock = -1
        try:
            self._lock = os.open(self.path / f"{LOCK}.new", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            os.rename(self.path / f"{LOCK}.new", self.path / LOCK)  # nobody sees it unlocked while its owner lives
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Remove the folder; a second call does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Make a private folder for the `with` block."""
    made = Scratch()
    try:
        yield made.path
    finally:
        made.remove()


def socket_home() -> str:
    """Return the folder in which folders for sockets are made: the temporary one unless its name is too long."""
    usual = tempfile.gettempdir()
    return usual if len(usual) < MAX_HOME_BYTES else "/tmp"  # noqa: S108  (mkdtemp makes private folders there)


def remove_abandoned(home: str) -> None:
    """Remove this user's private folders whose owners are gone."""
    with contextlib.suppress(OSError), os.scandir(home) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX):
                with contextlib.suppress(OSError), _lock_of_owner(entry.path):
                    shutil.rmtree(entry.path, ignore_errors=True)


@contextlib.contextmanager
def _lock_of_owner(path: str) -> Iterator[None]:
    """Hold the lock of a folder whose owner is gone.

    Raises
    ------
    OSError
        If the owner lives, or if this is no private folder of this user's.
    """
    with contextlib.ExitStack() as handles:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        handles.callback(os.close, folder)
        lock = os.open(LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        handles.callback(os.close, lock)
        for about in (os.fstat(folder), os.fstat(lock)):
            if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o077:
                raise PermissionError(f"{path} is open to others")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
