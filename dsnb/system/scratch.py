"""Private temporary folders for sockets and scratch files, and removal of those that killed processes left.

The owner of a folder holds a lock (flock) on a file in it. The system releases the lock however the owner ends, so a
folder whose lock can be taken has no owner, whatever process has its process ID by now.
"""

import contextlib
import fcntl
import os
import shutil
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
    for lock in Path(home).glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError), open(lock, "r+b") as file:  # the system refuses those of other users
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file.fileno()).st_uid == os.geteuid():
                shutil.rmtree(lock.parent, ignore_errors=True)
