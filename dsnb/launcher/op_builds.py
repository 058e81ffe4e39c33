"""Locks that a killed compilation of a DeepSpeed op left behind.

torch builds an op under a `lock` file and every other process waits for that file to go, for ever and without a
word. A lock that nobody is building under any more is removed before a launch.
"""

import os
import time
from pathlib import Path

import psutil

AGE_S = 10.0
"""A younger lock is left alone: its owner may not have started the compiler yet."""


def folder() -> Path:
    """Return the folder that torch builds extensions in: `$TORCH_EXTENSIONS_DIR`, or its default."""
    if chosen := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "torch_extensions"


def stale_locks() -> list[Path]:
    """List the locks that no process of this machine builds under."""
    old = [lock for lock in _locks(folder()) if _age_s(lock) > AGE_S]
    busy = _working_folders() if old else set()
    return [lock for lock in old if not any(lock.parent in {cwd, *cwd.parents} for cwd in busy)]


def remove_stale_locks() -> list[Path]:
    """Remove the stale locks and give them."""
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
    """Return the working folders of all processes: ninja and the compiler run inside the op's folder."""
    folders = set()
    for process in psutil.process_iter(["cwd"]):
        if cwd := process.info["cwd"]:
            folders.add(Path(cwd).resolve())
    return folders
