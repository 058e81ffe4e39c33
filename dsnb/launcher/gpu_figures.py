"""Samples of a run's GPUs, on however many hosts -> its figures."""

import math
from statistics import fmean
from typing import Any


def gpu_figures(samples: list[dict[str, Any]], worker: dict[str, Any]) -> dict[str, float | None]:
    """Give NVML's figures: memory until the steps are over, utilization and power over the timed steps alone.

    A mean is one over GPUs, not over samples: a host that was sampled less often counts as much as the others.
    """
    samples = [row for row in samples if row["t_s"] <= worker.get("ended_s", math.inf)]
    start, end = worker.get("timed_from_s"), worker.get("timed_to_s")
    timed = [row for row in samples if start is not None and end is not None and start <= row["t_s"] <= end]

    def mean(key: str) -> float | None:
        of_gpu: dict[object, list[float]] = {}
        for row in timed:
            if row.get(key) is not None:
                of_gpu.setdefault((row.get("host"), row.get("gpu")), []).append(row[key])
        return fmean(map(fmean, of_gpu.values())) if of_gpu else None

    used_gib = [row["memory_used_gib"] for row in samples if row.get("memory_used_gib") is not None]
    return {
        "device_memory_gib": max(used_gib, default=None),
        "gpu_util_pct": mean("util_pct"),
        "power_w": mean("power_w"),
        "sm_clock_mhz": mean("sm_clock_mhz"),
    }
