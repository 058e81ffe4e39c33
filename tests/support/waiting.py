"""Wait for what other processes and threads do."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import psutil

WAIT_S = 150.0
"""Long enough for a busy machine: a test that passes never waits that long."""
POLL_S = 0.03
"""Polling takes time from the processes that are waited for: going through all processes takes 1 ms."""


def wait_until(condition: Callable[[], Any], what: str, limit_s: float = WAIT_S) -> Any:
    """Return what a condition returns, as soon as that is true."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {limit_s:g} s not yet: {what}")
        time.sleep(POLL_S)
    return found


def is_running(pid: int) -> bool:
    """Return whether a process is running; a zombie is not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until_ended(pids: Iterable[int]) -> None:
    """Wait until no process is running any more."""
    left = list(pids)
    wait_until(lambda: not any(map(is_running, left)), f"processes {left} have ended")
