"""The memory of this process, as Linux counts it."""

import contextlib
import re
from pathlib import Path

from dsnb.base.system.hardware import GIB

_PROCESS = Path("/proc/self")


def reset_peak() -> None:
    """Reset the peak memory of this process, if the system allows it."""
    with contextlib.suppress(OSError):
        (_PROCESS / "clear_refs").write_text("5")


def gib(file: str, name: str) -> float:
    """Return a memory figure of this process in GiB; 0 if the system does not report it."""
    with contextlib.suppress(OSError):
        content = (_PROCESS / file).read_text()
        match = re.search(rf"^{name}:\s+(\d+) kB", content, re.MULTILINE)
        if match:
            return int(match[1]) * 1024 / GIB
    return 0.0
