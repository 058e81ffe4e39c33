"""Samples utilization, memory, power and clock of a run's GPUs through NVML, from outside the ranks."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from dsnb.system import launch_clock, nvml

INTERVAL_S = 0.25


class GpuSampler:
    """Samples the GPUs from construction until `stop()`; without GPUs it does nothing.

    Parameters
    ----------
    gpus
        NVML's numbers of the run's GPUs.
    take
        Called with every sample, in the sampler's thread.
    launched_at
        Time of the launch on this host's clock of `dsnb.system.launch_clock`: the origin of `t_s`.
    """

    def __init__(self, gpus: Sequence[int], take: Callable[[dict[str, Any]], None], launched_at: float) -> None:
        self._gpus, self._take, self._launched_at = gpus, take, launched_at
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        if gpus:
            self._thread.start()

    def stop(self) -> None:
        """Stop sampling, and wait for the last sample."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _sample(self) -> None:
        with nvml.session() as api:
            if api is None:
                return
            handles = {index: api.nvmlDeviceGetHandleByIndex(index) for index in self._gpus}
            while not self._stop.wait(INTERVAL_S):
                for index, handle in handles.items():
                    t_s = round(launch_clock.now_s() - self._launched_at, 3)
                    self._take({"t_s": t_s, "gpu": index, **nvml.sample(api, handle)})
