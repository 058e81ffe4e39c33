"""Starts Python, always this interpreter, never with modules from the current folder, and makes folders for sockets.

`python -m` puts the current folder first on `sys.path`. A `random.py` beside somebody's results would then be imported
instead of the standard library's.
"""

import os
import sys
import tempfile

SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""Keeps the current folder off `sys.path`, in a process and in the processes that it starts."""

MAX_PARENT_BYTES = 60
"""The path of a socket may have at most 107 bytes, and some clusters have temporary folders with long paths."""


def command(*words: str) -> list[str]:
    """Return the command that runs this interpreter with these arguments and without the current folder on its path."""
    return [sys.executable, "-P", *words]


def script(name: str) -> str:
    """Return the path of a program that a package has installed beside this interpreter."""
    return os.path.join(os.path.dirname(sys.executable), name)


def drop_current_folder() -> None:
    """Remove the folder that `python -m` has put on `sys.path`; for modules that run as programs."""
    if sys.flags.safe_path:
        return
    del sys.path[0]
    home = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
    if home not in sys.path:  # run from a checkout: child processes must find the package, too
        sys.path.append(home)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), home]))


def private_folder() -> tempfile.TemporaryDirectory[str]:
    """Create a private folder, in the temporary folder or, if its path is too long, in /tmp."""
    usual = tempfile.gettempdir()
    parent = usual if len(usual) < MAX_PARENT_BYTES else "/tmp"  # noqa: S108  (the folder in it is private)
    return tempfile.TemporaryDirectory(prefix="dsnb-", dir=parent, ignore_cleanup_errors=True)
