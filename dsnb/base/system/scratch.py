"""Private temporary folders for sockets."""

import tempfile

MAX_PARENT_BYTES = 60
"""A socket's path may have at most 107 bytes, and some clusters have temporary folders with long
paths."""


def folder() -> tempfile.TemporaryDirectory[str]:
    """Create a private folder, in the temporary folder or, if its path is too long, in /tmp."""
    usual = tempfile.gettempdir()
    parent = usual if len(usual) < MAX_PARENT_BYTES else "/tmp"  # noqa: S108  (the folder in it is private)
    return tempfile.TemporaryDirectory(prefix="dsnb-", dir=parent, ignore_cleanup_errors=True)
