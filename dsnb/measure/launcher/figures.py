"""The figures of a run, from the files in its folder. A figure that was not measured is missing, never estimated."""

from contextlib import suppress
from math import nan
from statistics import fmean, median
from typing import Any

from dsnb.base.errors import SettingsError
from dsnb.base.formulas import metrics
from dsnb.base.system import hardware
from dsnb.measure.launcher.kernel_needs import needed_s
from dsnb.settings import programs
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.advice import NOTES
from dsnb.settings.records.columns import MASKED, PARTLY_MASKED
from dsnb.settings.records.run_record import RunRecord
from dsnb.settings.records.slow_kernels import slow_kernels

MEASURED_BY_WORKER = (
    "step_skew", "forward_skew", "cpu_bound", "launch_us", "host_memory_gib", "rank_host_memory_gib", "update_rms",
    "alloc_retries", "recompilations", "graph_breaks", "parameters", "trainable_parameters", "active_parameters",
    "attention_kernel",
)  # fmt: skip
"""The fields of `worker.json` that are figures already."""
OF_SHORTAGE = ("phase", "step", "allocated_gib", "requested_gib")
"""The fields of the failure of a rank that ran out of memory; as figures they begin with `oom_`."""
PROFILED = (
    "forward_s", "backward_s", "optimizer_s", "communication_s", "attention_kernels_s", "loss_kernels_s",
)  # fmt: skip
BEFORE_RANKS_S = 0.5
"""Ranks use no GPU memory in their first half second."""
MAX_IDLE_GIB = 1.0
"""An idle GPU has up to 0.1 GiB in use, or what a screen takes."""
Rows = list[dict[str, Any]]


def summarize_run(record: RunRecord) -> dict[str, Any]:
    """Return the figures of one run, which the column reference describes."""
    if record.is_bandwidth_test:
        return {}
    experiment = record.experiment
    worker = record.worker
    steps = [step for step in record.steps if "step" in step]
    warmup = [step for step in steps if step.get("phase") == "warmup"]
    timed = [step for step in steps if step.get("phase") == "timed"]
    samples = [sample for sample in record.samples if "t_s" in sample]
    shortages = [failure for failure in record.failures if failure.get("status") == "oom"]
    shortage: dict[str, Any] = next(iter(shortages), {})
    speed = _speed(experiment, timed)
    gpu = gpu_figures(samples, worker, experiment.gpus)
    figures = {
        **{name: worker.get(name) for name in MEASURED_BY_WORKER},
        **speed,
        **_flops(experiment, worker, speed["tokens_per_s_per_gpu"]),
        "peak_allocated_gib": _peak(steps, worker, shortage, "allocated_gib"),
        "peak_reserved_gib": _peak(steps, worker, shortage, "reserved_gib"),
        **{f"oom_{name}": shortage.get(name) for name in OF_SHORTAGE},
        "needed_gib": _needed_gib(shortage),
        **gpu,
        **_losses(record, steps),
        "grad_norm_last": next(iter(_known(steps, "grad_norm")[-1:]), None),
        "skipped_warmup_steps": _skipped(warmup),
        "attention_used": worker.get("attention"),
        "note": _note(experiment, timed, gpu, worker, samples),
    }
    figures |= _profile(record)
    notes = [figures["note"], *slow_kernels(figures)]
    figures["note"] = "; ".join(filter(None, notes)) or None
    return figures


def _speed(experiment: Experiment, timed: Rows) -> dict[str, float | None]:
    times_s = list(_times_s(timed).values())
    skipped = _skipped(timed)
    rate = metrics.tokens_per_s(_tokens_per_step(experiment, timed), times_s)
    per_gpu = trained = mean_s = median_s = slow_steps = None
    if times_s:
        mean_s = fmean(times_s)
        median_s = median(times_s)
        slow_steps = len(_slow_steps(timed))
    if rate is not None:
        per_gpu = rate / experiment.gpus
    if rate is not None and skipped is not None:  # skipped steps are processed, but not trained on
        trained = rate * (1 - skipped / len(timed))
    return {
        "tokens_per_s": rate,
        "trained_tokens_per_s": trained,
        "tokens_per_s_per_gpu": per_gpu,
        "step_time_mean_s": mean_s,
        "step_time_median_s": median_s,
        "skipped_steps": skipped,
        "slow_steps": slow_steps,
        "timed_steps": len(times_s),
    }


def _tokens_per_step(experiment: Experiment, timed: Rows) -> float | None:
    """Return the mean tokens of the steps that have a time: they differ where sequences are padded or packed."""
    tokens = [step.get("tokens") for step in timed if "step_time_s" in step]
    known = [count for count in tokens if count is not None]
    if tokens and len(known) == len(tokens):
        return fmean(known)
    with suppress(SettingsError):  # another program's sizes may be unknown
        return experiment.tokens_per_step
    return None


def _times_s(timed: Rows) -> dict[int, float]:
    """Return step -> time, without steps that have no time."""
    return {step["step"]: step["step_time_s"] for step in timed if "step_time_s" in step}


def _skipped(steps: Rows) -> int | None:
    """Return the number of skipped steps; None if a step does not say whether it was."""
    if any("skipped" not in step for step in steps):
        return None
    return sum(step["skipped"] for step in steps)


def _slow_steps(timed: Rows) -> dict[int, float]:
    """Return step -> multiple of the median time, for steps that took over twice the median."""
    times_s = _times_s(timed)
    median_s = median(times_s.values()) if times_s else 0.0
    return {
        step: time_s / median_s
        for step, time_s in times_s.items()
        if 0 < metrics.SLOW_STEP * median_s < time_s
    }


def _flops(
    experiment: Experiment, worker: dict[str, Any], per_gpu: float | None
) -> dict[str, float | None]:
    flops = worker.get("flops_per_token")
    again = worker.get("recomputed_flops_per_token")
    masked = worker.get("masked_flops_per_token")
    if not flops or again is None or masked is None:
        names = ("tflops_per_gpu", "hardware_tflops_per_gpu", "mfu", "masked_flops_pct")
        return dict.fromkeys(names)
    model = metrics.tflops(flops, per_gpu)
    peak = hardware.peak_tflops(worker.get("gpu_name"), experiment.precision)
    return {
        "tflops_per_gpu": model,
        "hardware_tflops_per_gpu": metrics.tflops(flops + again, per_gpu),
        "mfu": metrics.mfu(model, peak),
        "masked_flops_pct": 100 * masked / flops,
    }


def _peak(steps: Rows, worker: dict[str, Any], shortage: dict[str, Any], key: str) -> float | None:
    """Return the peak memory of a run, including that at a failed allocation, whose step has no row."""
    peaks = [worker.get(f"peak_{key}")]
    if peaks == [None]:
        peaks = [step.get(key) for step in steps]
    if "reserved_gib" in shortage:  # of a GPU
        peaks.append(shortage.get(key))
    return max((peak for peak in peaks if peak is not None), default=None)


def _needed_gib(shortage: dict[str, Any]) -> float | None:
    allocated_gib = shortage.get("allocated_gib")
    requested_gib = shortage.get("requested_gib")
    if allocated_gib is None or requested_gib is None:
        return None
    return float(allocated_gib + requested_gib)


def _losses(record: RunRecord, steps: Rows) -> dict[str, float | None]:
    """Return the first and the last loss; None if they are rank 0's alone.

    Ranks average them when a run ends; the engine of a pipeline averages them in each step.
    """
    experiment = record.experiment
    in_each_step = experiment.gpus == 1
    with suppress(SettingsError):
        in_each_step |= experiment.data_parallel == 1 or experiment.pipeline_parallel > 1
    if not steps or not (record.worker or in_each_step):
        return {"loss_first": None, "loss_last": None}
    losses = [step.get("loss") for step in steps]  # one that is missing was no number
    if not programs.is_own(record.settings):  # others log some steps only
        losses = _known(steps, "loss") or [None]
    return {"loss_first": losses[0], "loss_last": losses[-1]}


def _known(steps: Rows, name: str) -> list[Any]:
    """Return a figure of the steps that have it."""
    return [step[name] for step in steps if step.get(name) is not None]


def _profile(record: RunRecord) -> dict[str, Any]:
    if not record.experiment.profile:
        return {}
    profile = record.profile or {"missing": {"profile": "the ranks ended before it began"}}
    missing = [f"{part}: {why}" for part, why in profile.get("missing", {}).items()]
    figures = {name: profile.get(name) for name in PROFILED}
    for part, seconds in needed_s(record.experiment, record.worker).items():
        figures[f"{part}_needed_s"] = seconds if figures[f"{part}_kernels_s"] else None
    return {**figures, "profile_missing": "; ".join(missing) or None}


def _note(
    experiment: Experiment,
    timed: Rows,
    gpu: dict[str, Any],
    worker: dict[str, Any],
    samples: Rows,
) -> str | None:
    """Return the caveats of the figures, whose words are in `advice.toml`."""
    facts = {**worker, "timed": len(timed), "skipped": _skipped(timed)}
    used_gib = _by_gpu(_within(samples, 0.0, BEFORE_RANKS_S), "memory_used_gib")
    facts["busy_gib"] = max((values[0] for values in used_gib), default=0.0)
    facts["is_busy"] = facts["busy_gib"] > MAX_IDLE_GIB
    slow = _slow_steps(timed)
    facts["slow"] = len(slow)
    facts["slowest"] = max(slow, key=lambda step: slow[step], default=None)
    facts["slowest_times"] = slow.get(facts["slowest"])
    facts["is_unfused"] = (
        experiment.attention != "eager" and worker.get("attention_kernel") == "math"
    )
    facts["has_own_mask"] = _has_own_mask(worker)
    facts["timed_s"] = worker.get("phases_s", {}).get("timed") or nan
    facts["lacks_power"] = worker.get("power_source") and gpu["power_w"] is None
    notes = [text.format(**facts) for fact, text in NOTES.items() if facts.get(fact)]
    return "; ".join(notes) or None


def _has_own_mask(worker: dict[str, Any]) -> bool:
    """Return whether attention was given masks that neither windows nor ALiBi explain."""
    kernel = worker.get("attention_kernel") or ""
    windowed = worker.get("windowed_share")  # of the layers
    if windowed is None or "ALiBi" in (worker.get("attention") or ""):
        return False
    if kernel.endswith(PARTLY_MASKED):
        return windowed == 0
    return kernel.endswith(MASKED) and windowed < 1


def gpu_figures(samples: Rows, worker: dict[str, Any], gpus: int) -> dict[str, float | None]:
    """Return the GPU figures of a run from the records of `gpu.jsonl` and `worker.json`.

    Means are over GPUs, not samples, so that hosts with fewer samples have the same weight.
    Utilization, clocks and power are those of the timed steps; `run_energy_kwh` is that of the
    whole run. Without a record of the worker, the run was cut short, and memory in use is that of
    the whole run as well.
    """
    in_steps = samples
    if worker:
        in_steps = _within(samples, worker.get("steps_from_s"), worker.get("timed_to_s"))
    used_gib = [row.get("memory_used_gib") for row in in_steps]
    used_gib.append(worker.get("device_memory_gib"))
    timed = _within(samples, worker.get("timed_from_s"), worker.get("timed_to_s"))
    timed_s = worker.get("phases_s", {}).get("timed") or 0.0
    energy_j = worker.get("energy_j")
    power_w = util_pct = None
    if energy_j is not None and timed_s:
        power_w = energy_j / timed_s / gpus
    if timed_s >= metrics.UTILIZATION_S:
        util_pct = _mean(timed, "util_pct")
    return {
        "device_memory_gib": max((gib for gib in used_gib if gib is not None), default=None),
        "gpu_util_pct": util_pct,
        "sm_clock_mhz": _mean(timed, "sm_clock_mhz"),
        "energy_j": energy_j,
        "power_w": power_w,
        "run_energy_kwh": _run_energy_kwh(samples, gpus),
    }


def _run_energy_kwh(samples: Rows, gpus: int) -> float | None:
    """Return the energy of all GPUs from their counters; None if one is missing or was reset."""
    counters = _by_gpu(samples, "energy_j")
    spent_j = [values[-1] - values[0] for values in counters if len(values) > 1]
    if len(spent_j) != gpus or min(spent_j) < 0:
        return None
    return sum(spent_j) / 3.6e6


def _within(samples: Rows, first_s: float | None, last_s: float | None) -> Rows:
    """Return the samples of a span of time; none if one of its ends is unknown."""
    if first_s is None or last_s is None:
        return []
    return [row for row in samples if first_s <= row["t_s"] <= last_s]


def _by_gpu(samples: Rows, key: str) -> list[list[float]]:
    """Return the values of each GPU, in the order of the samples."""
    values: dict[object, list[float]] = {}
    for row in samples:
        if row.get(key) is not None:
            values.setdefault((row.get("host"), row.get("gpu")), []).append(row[key])
    return list(values.values())


def _mean(samples: Rows, key: str) -> float | None:
    values = _by_gpu(samples, key)
    return fmean(map(fmean, values)) if values else None
