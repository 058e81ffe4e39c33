"""Removes stale locks that a killed compilation of a DeepSpeed op left behind.

torch creates a `lock` file while it builds an op, and every other process silently waits until the file is gone. Locks
without a compiler at work are removed before a launch.
"""

import os
import time
from pathlib import Path

import psutil

AGE_S = 10.0
"""Younger locks are kept: their owner may not have started the compiler yet."""


def folder() -> Path:
    """Return the folder in which torch builds extensions: `$TORCH_EXTENSIONS_DIR`, or its default."""
    if chosen := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "torch_extensions"


def stale_locks() -> list[Path]:
    """Return the locks whose folder is no process's working folder."""
    old = [lock for lock in _locks(folder()) if _age_s(lock) > AGE_S]
    busy = _working_folders() if old else set()
    return [lock for lock in old if not any(lock.parent in {cwd, *cwd.parents} for cwd in busy)]


def remove_stale_locks() -> list[Path]:
    """Remove the stale locks and return their paths."""
    removed = []
    for lock in stale_locks():
        try:
            lock.unlink()
        except OSError:
            continue
        removed.append(lock)
    return removed


def _locks(root: Path) -> list[Path]:
    return [*root.glob("*/lock"), *root.glob("*/*/lock")]


def _age_s(lock: Path) -> float:
    try:
        return time.time() - lock.stat().st_mtime
    except OSError:
        return 0.0


def _working_folders() -> set[Path]:
    """Return the working folders of all processes; ninja and the compiler run inside the op's folder."""
    folders = set()
    for process in psutil.process_iter(["cwd"]):
        if cwd := process.info["cwd"]:
            folders.add(Path(cwd).resolve())
    return folders
