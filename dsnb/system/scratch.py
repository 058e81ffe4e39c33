"""Private temporary folders for sockets and scratch files, and removal of those that killed processes left.

The owner of a folder holds a lock (flock) on a file in it. The system releases the lock however the owner ends, so a
folder whose lock can be taken has no owner, whatever process has its process ID by now.
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
"""The path of a socket may have at most 107 bytes, and some clusters have temporary folders with long paths."""


class Scratch:
    """A new private folder, which exists until `remove` or, if this process is killed, until another is created.

    Parameters
    ----------
    home
        The parent folder, by default one in which the paths of sockets are short enough.
    """

    def __init__(self, home: str | None = None) -> None:
        home = home or socket_home()
        remove_abandoned(home)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=home))
        self._lock = -1
        try:
            self._lock = os.open(self.path / f"{LOCK}.new", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            os.rename(self.path / f"{LOCK}.new", self.path / LOCK)  # it is never visible without its lock
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
    """Create a private folder for the `with` block."""
    made = Scratch()
    try:
        yield made.path
    finally:
        made.remove()


def socket_home() -> str:
    """Return the parent of folders for sockets: the temporary folder, or /tmp if its path is too long."""
    usual = tempfile.gettempdir()
    return usual if len(usual) < MAX_HOME_BYTES else "/tmp"  # noqa: S108  (mkdtemp creates private folders there)


def remove_abandoned(home: str) -> None:
    """Remove this user's private folders whose owners have ended."""
    with contextlib.suppress(OSError), os.scandir(home) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX):
                with contextlib.suppress(OSError), _lock_of_owner(entry.path):
                    shutil.rmtree(entry.path, ignore_errors=True)


@contextlib.contextmanager
def _lock_of_owner(path: str) -> Iterator[None]:
    """Hold the lock of a folder whose owner has ended.

    Raises
    ------
    OSError
        If the owner is alive, or this is not a private folder of this user.
    """
    with contextlib.ExitStack() as handles:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        handles.callback(os.close, folder)
        lock = os.open(LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        handles.callback(os.close, lock)
        for about in (os.fstat(folder), os.fstat(lock)):
            if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o077:
                raise PermissionError(f"{path} is accessible to other users")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
