"""A digest of dsnb's own files, by which hosts of a run are compared: an edited checkout keeps its version."""

import functools
import hashlib

from dsnb.settings.records.paths import PACKAGE

PATTERNS = ("**/*.py", "**/*.toml", "measure/**/*.json", "base/**/*.json", "base/**/*.csv")
"""The files that decide what a run does: the code and its tables."""


@functools.cache
def digest() -> str:
    """Return a digest of the names and contents of the files that decide what a run does."""
    content = hashlib.sha256()
    for path in sorted(path for pattern in PATTERNS for path in PACKAGE.glob(pattern)):
        content.update(f"{path.relative_to(PACKAGE).as_posix()}\0".encode())
        content.update(hashlib.sha256(path.read_bytes()).digest())
    return content.hexdigest()[:16]
