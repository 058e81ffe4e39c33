"""Ends processes with all that they have started."""

import contextlib
import os
import signal

import psutil


def kill_family(parent: psutil.Process) -> None:
    """Kill the descendants of a process with their process groups, and wait until they are gone."""
    family = parent.children(recursive=True)
    for process in family:
        with contextlib.suppress(OSError):  # it leads no group
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(family, timeout=10)
