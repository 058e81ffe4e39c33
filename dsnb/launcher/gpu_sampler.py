"""Samples utilization, memory, power and clock of a run's GPUs through NVML, from outside the ranks."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dsnb.system import hardware, launch_clock

INTERVAL_S = 0.25


@contextlib.contextmanager
def sampled(gpus: Sequence[int], take: Callable[[dict[str, Any]], None], launched_at_s: float) -> Iterator[None]:
    """Sample GPUs while the block runs; without GPUs do nothing.

    Parameters
    ----------
    gpus
        NVML's numbers of the run's GPUs.
    take
        Called with every sample, in a thread.
    launched_at_s
        Time of the launch on this host's monotonic clock: the origin of `t_s`.
    """
    ended = threading.Event()

    def sample() -> None:
        with hardware.nvml_session() as api:
            handles = {index: api.nvmlDeviceGetHandleByIndex(index) for index in gpus if api}
            while not ended.wait(INTERVAL_S):
                for index, handle in handles.items():
                    t_s = round(launch_clock.now_s() - launched_at_s, 3)
                    take({"t_s": t_s, "gpu": index, **hardware.gpu_sample(api, handle)})

    thread = threading.Thread(target=sample, daemon=True)
    if gpus:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if gpus:
            thread.join()
