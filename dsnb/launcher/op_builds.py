"""Removes stale locks that a killed compilation of a DeepSpeed op left behind.

torch creates a `lock` file while it builds an op, and every other process silently waits until the file is gone. Locks
without a compiler at work are removed before a launch.
"""

import contextlib
import os
import time
from pathlib import Path

import psutil

MIN_AGE_S = 10.0
"""Younger locks are kept: their owner may not have started the compiler yet."""


def remove_stale_locks() -> None:
    """Remove the stale locks, and print their paths."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or cache / "torch_extensions")
    for lock in [*root.glob("*/lock"), *root.glob("*/*/lock")]:
        with contextlib.suppress(OSError):  # another launch has removed it
            if time.time() - lock.stat().st_mtime > MIN_AGE_S and not _is_compiled_in(lock.parent):
                lock.unlink()
                print(f"removed the stale lock of a killed compilation: {lock}")


def _is_compiled_in(folder: Path) -> bool:
    """Return whether a process works in the folder of an op, as ninja and compilers do."""
    working = (Path(cwd).resolve() for process in psutil.process_iter(["cwd"]) if (cwd := process.info["cwd"]))
    return any(folder in {place, *place.parents} for place in working)
