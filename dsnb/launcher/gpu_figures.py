"""Computes the GPU figures of a run from energy counters and NVML samples, over all hosts."""

import math
from statistics import fmean
from typing import Any

from dsnb.formulas.metrics import UTILIZATION_S

JOULES_PER_KWH = 3.6e6
Sample = dict[str, Any]


def gpu_figures(samples: list[Sample], worker: dict[str, Any], gpus: int) -> dict[str, float | None]:
    """Return the GPU figures of a run.

    Parameters
    ----------
    samples
        The records of `gpu.jsonl`.
    worker
        The content of `worker.json`; empty if the ranks did not finish.
    gpus
        Number of GPUs of the run.

    Returns
    -------
    dict
        `device_memory_gib`, the maximum in use on any GPU during training; `gpu_util_pct` and `sm_clock_mhz`, means
        over the timed steps, the former missing if they took less than `UTILIZATION_S`; `energy_j`, of all GPUs over
        the timed steps; `power_w`, its mean per GPU; `run_energy_kwh`, of all GPUs from launch to end. Means are over
        GPUs, not samples: a host that was sampled less often has the same weight as the others.
    """
    steps_s = worker.get("steps_from_s", 0.0), worker.get("timed_to_s", worker.get("ended_s", math.inf))
    timed_s = worker.get("timed_from_s", math.inf), worker.get("timed_to_s", -math.inf)
    timed = _within(samples, *timed_s)
    used_gib = [row["memory_used_gib"] for row in _within(samples, *steps_s) if row.get("memory_used_gib") is not None]
    used_gib += [worker["device_memory_gib"]] if worker.get("device_memory_gib") is not None else []
    return {
        "device_memory_gib": max(used_gib, default=None),
        "gpu_util_pct": _mean(timed, "util_pct") if (timed_wall_s(worker) or 0.0) >= UTILIZATION_S else None,
        "sm_clock_mhz": _mean(timed, "sm_clock_mhz"),
        **_power(worker, gpus),
        "run_energy_kwh": _run_energy_kwh(samples),
    }


def timed_wall_s(worker: dict[str, Any]) -> float | None:
    """Return the wall time of the timed steps; None if they did not end."""
    timed_s: float | None = (worker.get("phases_s") or {}).get("timed")
    return timed_s


def _within(samples: list[Sample], first_s: float, last_s: float) -> list[Sample]:
    return [row for row in samples if first_s <= row["t_s"] <= last_s]


def _by_gpu(samples: list[Sample], key: str) -> list[list[float]]:
    """Return the values of each GPU, in the order of the samples."""
    values: dict[object, list[float]] = {}
    for row in samples:
        if row.get(key) is not None:
            values.setdefault((row.get("host"), row.get("gpu")), []).append(row[key])
    return list(values.values())


def _mean(samples: list[Sample], key: str) -> float | None:
    values = _by_gpu(samples, key)
    return fmean(map(fmean, values)) if values else None


def _power(worker: dict[str, Any], gpus: int) -> dict[str, float | None]:
    """Return energy and mean power of the timed steps; None if they were too short to measure, or without a counter."""
    timed_s, energy_j = timed_wall_s(worker), worker.get("energy_j")
    return {"energy_j": energy_j, "power_w": energy_j / timed_s / gpus if energy_j is not None and timed_s else None}


def _run_energy_kwh(samples: list[Sample]) -> float | None:
    counters = _by_gpu(samples, "energy_j")
    spent = [values[-1] - values[0] for values in counters if len(values) > 1]
    return sum(spent) / JOULES_PER_KWH if spent and len(spent) == len(counters) else None
