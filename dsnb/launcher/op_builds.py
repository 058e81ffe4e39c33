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


def stale_locks() -> list[Path]:
    """Return the locks whose folder is no process's working folder; ninja and compilers run inside the op's folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or cache / "torch_extensions")
    old = [lock for lock in [*root.glob("*/lock"), *root.glob("*/*/lock")] if _age_s(lock) > MIN_AGE_S]
    if not old:
        return []
    folders = {Path(cwd).resolve() for process in psutil.process_iter(["cwd"]) if (cwd := process.info["cwd"])}
    return [lock for lock in old if not any(lock.parent in {folder, *folder.parents} for folder in folders)]


def remove_stale_locks() -> None:
    """Remove the stale locks, and print their paths."""
    for lock in stale_locks():
        with contextlib.suppress(OSError):
            lock.unlink()
            print(f"removed the stale lock of a killed compilation: {lock}")


def _age_s(lock: Path) -> float:
    try:
        return time.time() - lock.stat().st_mtime
    except OSError:
        return 0.0
