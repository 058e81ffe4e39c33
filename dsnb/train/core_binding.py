"""Bind the threads of a rank that launch GPU work to one core.

Python's main thread and autograd's work in turn: on one core they share a cache and need not wake each other.
"""

import os
from pathlib import Path

AUTOGRAD = "pt_autograd"
"""Beginning of the names of torch's threads for the backward pass."""
TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def own_core(rank: int, ranks: int) -> int:
    """Return a logical core for one of the ranks on this host, on a physical core of its own if there are enough.

    It is the last of the rank's share, because the first cores of a host serve most interrupts.
    """
    first_threads = list({_siblings(core): core for core in sorted(os.sched_getaffinity(0), reverse=True)}.values())
    cores = sorted(first_threads)
    return cores[max(1, (rank + 1) * len(cores) // ranks) - 1]


def bind(core: int) -> None:
    """Bind the main thread and autograd's threads, as far as they have started; those of NCCL and OpenMP stay free."""
    for thread in Path("/proc/self/task").iterdir():
        if int(thread.name) == os.getpid() or (thread / "comm").read_text().startswith(AUTOGRAD):
            os.sched_setaffinity(int(thread.name), {core})


def _siblings(core: int) -> str:
    """Return the logical cores that share a physical one with this core, or the core itself if that is unknown."""
    try:
        return Path(TOPOLOGY.format(core)).read_text()
    except OSError:
        return str(core)
