"""How a run ended, and its figures, from the records in its folder.

A status other than ok has a cause. A figure that was not measured is missing, never estimated.
"""

import shutil
import signal
from collections.abc import Iterator, Mapping
from math import nan
from statistics import fmean, median
from types import MappingProxyType
from typing import Any

from dsnb.base.formulas import metrics
from dsnb.base.system import hardware, signals
from dsnb.settings.experiment import Experiment
from dsnb.settings.records import record_schema
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.result import last_lines

PHASES = {
    "build": "building the model",
    "forward": "the forward pass",
    "loss": "the loss",
    "backward": "the backward pass",
    "optimizer": "the optimizer step",
    "communication": "communication between pipeline stages",
}
"""Phase of a failed rank -> its name in a sentence."""

MACHINE_FAULTS = {
    "address already in use": "leave master_port at 0 for any free port",
    "it is in use there": "choose another",
    "is in use by process": "wait until it is free",
    "torchrun was stopped by": "find out who sent the signal",
    "Too many open files": "raise the limit of open files (`ulimit -n`)",
    "can't start new thread": "raise the limit of processes (`ulimit -u`)",
    "Resource temporarily unavailable": "raise the limit of processes (`ulimit -u`)",
    "No space left on device": "make room on the disk",
    "Disk quota exceeded": "make room on the disk",
    "Read-only file system": "check the file system",
    "Input/output error": "check the disk and the file system (`dmesg` shows them)",
    "Stale file handle": "check the file system",
    "devices are busy or unavailable": "end the program that holds the GPU (`nvidia-smi` shows it)",
    "uncorrectable ECC error": "check the GPU (`nvidia-smi -q -d ECC`)",
    "CUDA driver initialization failed": "check the driver (`nvidia-smi`)",
    "no CUDA-capable device is detected": "check the driver (`nvidia-smi`)",
    "system not yet initialized": "start NVIDIA's fabric manager",
    "GPU is lost": "check the GPU (`dmesg`), and restart the machine",
}
"""Texts of errors that the machine causes, not the settings, and what to do."""
FROM_OUTSIDE = (*signals.STOPPING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""Signals from users, schedulers and limits of the machine, never from the settings of a run."""
FULL_BYTES = 2**20
"""A disk with less room than this takes no record of a failure."""
MEASURED_BY_WORKER = (
    *(
        "step_skew",
        "forward_skew",
        "cpu_bound",
        "launch_us",
        "host_memory_gib",
        "rank_host_memory_gib",
        "update_rms",
    ),
    "alloc_retries",
    *(
        "recompilations",
        "graph_breaks",
        "parameters",
        "trainable_parameters",
        "active_parameters",
        "attention_kernel",
    ),
)
"""The fields of `worker.json` that are figures already."""
BEFORE_RANKS_S, MAX_IDLE_GIB = 0.5, 1.0
"""Ranks use no GPU memory in their first half second; an idle GPU has up to 0.1 GiB in use, or what a screen takes."""


def without_machine_faults(status: str, cause: str | None) -> tuple[str, str | None]:
    """Return status and cause; a failure caused by the machine becomes an interruption, which the next call repeats."""
    fault = machine_fault(str(cause))
    if status not in {"failed", "interrupted"} or fault is None:
        return status, cause
    advice = MACHINE_FAULTS[fault]
    return "interrupted", cause if advice in str(
        cause
    ) else f"{cause}; {advice} and start the sweep again"


def machine_fault(text: str) -> str | None:
    """Return the words of `MACHINE_FAULTS` in a text; None if there are none."""
    lowered = text.lower()
    return next((words for words in MACHINE_FAULTS if words.lower() in lowered), None)


def settled(
    experiment: Experiment, paths: RunPaths, status: str, cause: str | None
) -> tuple[str, str | None]:
    """Return the final status and cause of a run.

    A run that was cut short by the machine, by dsnb or by the user says nothing about its settings: it is interrupted.
    If all of its steps are recorded, it is finished, even if its processes had to be ended.
    """
    status, cause = without_machine_faults(status, cause)
    if status not in {"interrupted", "timeout"}:
        return status, cause
    worker = record_schema.read(paths.worker)
    is_profiled = (
        not experiment.profile
        or (record_schema.read(paths.profile) or {}).get("ended_s") is not None
    )
    if worker is None or not is_profiled or not _has_all_steps(experiment, paths):
        return status, cause
    return _training_status(experiment, paths, worker)


def run_status(
    experiment: Experiment,
    paths: RunPaths,
    exit_codes: dict[int, int],
    host_oom_kills: int,
    host_of: Mapping[int, str] = MappingProxyType({}),
) -> tuple[str, str | None]:
    """Return the status and cause of a run from its ranks' exit codes, in the order in which the ranks ended.

    `host_oom_kills` is the number of out-of-memory kills by the hosts' kernels; `host_of` names each rank's host.
    """
    worker = record_schema.read(paths.worker)
    if (
        experiment.profile and worker is not None
    ):  # the record is complete: only the profile can have failed
        return _training_status(experiment, paths, worker)
    nonzero = {rank: code for rank, code in exit_codes.items() if code != 0}
    failures = record_schema.read_lines(paths.failures)
    own = [failure for failure in failures if failure.get("in_communication") is False]
    first = next(iter(own or failures), None)
    killed = _killed(nonzero, failures)
    if killed is None and first is not None:
        name, cause = _name(first.get("rank"), host_of), first.get("cause")
        return first.get("status") or "failed", f"{name}: {_out_of_memory(first)}{cause}"
    if nonzero:
        rank = next(iter(nonzero)) if killed is None else killed
        return _exit_status(rank, nonzero[rank], paths, host_oom_kills, host_of)
    return _training_status(experiment, paths, worker)


def _killed(nonzero: dict[int, int], failures: list[dict[str, Any]]) -> int | None:
    """Return the rank whose death by a signal is the cause of a failed run; None if there is none.

    The errors of its peers, which lose their connections to it, are consequences. SIGKILL always comes from outside.
    Another signal may be a consequence itself: NCCL, for instance, aborts a process whose peer is gone.
    """
    from_outside = [rank for rank, code in nonzero.items() if code == -signal.SIGKILL]
    if from_outside:
        return from_outside[0]
    raised = {failure.get("rank") for failure in failures}
    signalled = [rank for rank, code in nonzero.items() if code < 0 and rank not in raised]
    if not signalled or any(failure.get("in_communication") is False for failure in failures):
        return None
    is_first = signalled[0] == next(iter(nonzero))
    lost_a_peer = bool(failures) and all(failure.get("in_communication") for failure in failures)
    return signalled[0] if is_first or lost_a_peer else None


def _name(rank: int | None, host_of: Mapping[int, str]) -> str:
    return (
        f"rank {rank} on {host_of[rank]}"
        if rank is not None and rank in host_of
        else f"rank {rank}"
    )


def _out_of_memory(failure: dict[str, Any]) -> str:
    """Return where memory ran out, and how much was allocated and requested; empty if unknown."""
    allocated_gib, reserved_gib, requested_gib = (
        failure.get(f"{kind}_gib") for kind in ("allocated", "reserved", "requested")
    )
    if failure.get("status") != "oom" or allocated_gib is None:
        return ""
    step = "" if failure.get("step") is None else f" of step {failure['step']}"
    text = f"out of memory in {PHASES.get(str(failure.get('phase')), 'an unknown phase')}{step}"
    text += f", with {allocated_gib:.2f} GiB allocated"
    text += "" if reserved_gib is None else f" ({reserved_gib:.2f} GiB reserved)"
    if requested_gib is not None:
        needed_gib = allocated_gib + requested_gib
        text += (
            f" and {requested_gib:.2f} GiB more requested ({needed_gib:.2f} GiB needed at least)"
        )
    return f"{text}: "


def _exit_status(
    rank: int, code: int, paths: RunPaths, host_oom_kills: int, host_of: Mapping[int, str]
) -> tuple[str, str]:
    """Return the status and cause of a run whose rank ended with this code and without a recorded exception."""
    name, lines = _name(rank, host_of), last_lines(paths.console, 200)
    if host_oom_kills and code == -signal.SIGKILL:
        return "oom", f"{name} was killed by the kernel: the machine's memory ran out"
    if -code in FROM_OUTSIDE:
        return "interrupted", f"{name} was {signals.killed_by(-code)}"
    if any("out of memory" in line.lower() for line in lines):
        return "oom", f"{name} ended with exit code {code} after an out-of-memory error"
    if fault := next(filter(None, map(machine_fault, lines)), None):
        return "failed", f"{name} ended with exit code {code} after '{fault}'"
    if (
        code > 0 and shutil.disk_usage(paths.dir).free < FULL_BYTES
    ):  # it could not write why it failed
        return "failed", f"{name} ended with exit code {code} after 'No space left on device'"
    return (
        "failed",
        f"{name} was {signals.killed_by(-code)}"
        if code < 0
        else f"{name} ended with exit code {code}",
    )


def _training_status(
    experiment: Experiment, paths: RunPaths, worker: dict[str, Any] | None
) -> tuple[str, str | None]:
    """Return the status and cause of a run whose ranks all succeeded."""
    steps = record_schema.read_lines(paths.steps)
    if worker is None or not _has_all_steps(experiment, paths):
        timed, expected = _timed_and_expected(experiment, paths)
        return (
            "failed",
            f"the ranks ended after {timed} of {expected} timed steps without an error message",
        )
    if worker.get("first_bad_step") is not None:
        return "nan", f"the loss was not a finite number at step {worker['first_bad_step']}"
    if worker.get("compiled_graphs") == 0:
        return (
            "failed",
            f"compile is {experiment.compile!r}: torch.compile captured no graph, so nothing was compiled",
        )
    if worker.get("weights_moved") is False:
        all_skipped = all(step.get("skipped") for step in steps)
        reason = (
            "all updates were skipped"
            if all_skipped
            else "no gradient changed them beyond weight decay"
        )
        return "untrained", f"the weights did not move in {len(steps)} steps: {reason}"
    return "ok", None


def _has_all_steps(experiment: Experiment, paths: RunPaths) -> bool:
    timed, expected = _timed_and_expected(experiment, paths)
    return timed == expected


def _timed_and_expected(experiment: Experiment, paths: RunPaths) -> tuple[int, int]:
    """Return the number of recorded timed steps and that of the settings; an all-reduce test has no steps."""
    timed = sum(step.get("phase") == "timed" for step in record_schema.read_lines(paths.steps))
    return timed, 0 if paths.bandwidth_plan.exists() else experiment.steps


def summarize_run(experiment: Experiment, paths: RunPaths) -> dict[str, Any]:
    """Return the figures of one run, which the column reference describes."""
    if paths.bandwidth_plan.exists():
        return {}
    worker = record_schema.read(paths.worker) or {}
    steps = [step for step in record_schema.read_lines(paths.steps) if step.get("step") is not None]
    samples = [
        sample for sample in record_schema.read_lines(paths.gpu) if sample.get("t_s") is not None
    ]
    failures = record_schema.read_lines(paths.failures)
    failed = next((failure for failure in failures if failure.get("status") == "oom"), {})
    timed = [step for step in steps if step.get("phase") == "timed"]
    gpu = gpu_figures(samples, worker, experiment.gpus)
    times_s, skipped = list(_times_s(timed).values()), _skipped(timed)
    rate = metrics.tokens_per_s(experiment.tokens_per_step, times_s)
    rate_per_gpu = rate / experiment.gpus if rate is not None else None
    needed_gib = [failed.get("allocated_gib"), failed.get("requested_gib")]
    return {
        **{name: worker.get(name) for name in MEASURED_BY_WORKER},
        "tokens_per_s": rate,
        # tokens of skipped steps are processed, but not trained on
        "trained_tokens_per_s": None
        if rate is None or skipped is None
        else rate * (1 - skipped / len(timed)),
        "tokens_per_s_per_gpu": rate_per_gpu,
        "step_time_mean_s": fmean(times_s) if times_s else None,
        "step_time_median_s": median(times_s) if times_s else None,
        **_flops(experiment, worker, rate_per_gpu),
        "peak_allocated_gib": _peak(steps, worker, failed, "allocated_gib"),
        "peak_reserved_gib": _peak(steps, worker, failed, "reserved_gib"),
        **{
            f"oom_{name}": failed.get(name)
            for name in ("phase", "step", "allocated_gib", "requested_gib")
        },
        "needed_gib": None if None in needed_gib else sum(needed_gib),
        **gpu,
        **_losses(experiment, steps, ended=bool(worker)),
        "grad_norm_last": steps[-1].get("grad_norm") if steps else None,
        "skipped_steps": skipped,
        "skipped_warmup_steps": _skipped([step for step in steps if step.get("phase") == "warmup"]),
        "slow_steps": len(slow_steps(timed)) if times_s else None,
        "timed_steps": len(times_s),
        "attention_used": worker.get("attention"),
        "note": "; ".join(_notes(experiment, timed, gpu, worker, samples)) or None,
        **(_profile(paths) if experiment.profile else {}),
    }


def _losses(
    experiment: Experiment, steps: list[dict[str, Any]], ended: bool
) -> dict[str, float | None]:
    """Return the first and the last loss; None if they are rank 0's alone: ranks average them when a run ends."""
    is_mean = (
        ended or experiment.data_parallel == 1 or experiment.pipeline_parallel > 1
    )  # whose engine averages them
    if not steps or not is_mean:
        return {"loss_first": None, "loss_last": None}
    return {"loss_first": steps[0].get("loss"), "loss_last": steps[-1].get("loss")}


def _times_s(timed: list[dict[str, Any]]) -> dict[int, float]:
    """Return step -> time, without steps that have no time."""
    return {
        step["step"]: step["step_time_s"]
        for step in timed
        if isinstance(step.get("step_time_s"), int | float)
    }


def _skipped(steps: list[dict[str, Any]]) -> int | None:
    """Return the number of skipped steps; None if a step does not say whether it was."""
    skipped = [step.get("skipped") for step in steps]
    return None if None in skipped else sum(map(bool, skipped))


def slow_steps(timed: list[dict[str, Any]]) -> dict[int, float]:
    """Return step -> multiple of the median time, for steps that took over twice the median."""
    times_s = _times_s(timed)
    median_s = median(times_s.values()) if times_s else 0.0
    return {
        step: time_s / median_s
        for step, time_s in times_s.items()
        if 0 < metrics.SLOW_STEP * median_s < time_s
    }


def _notes(
    experiment: Experiment,
    timed: list[dict[str, Any]],
    gpu: dict[str, Any],
    worker: dict[str, Any],
    samples: list[dict[str, Any]],
) -> Iterator[str]:
    """Yield caveats of the figures."""
    used_gib = _by_gpu(_within(samples, 0.0, BEFORE_RANKS_S), "memory_used_gib")
    if (most_gib := max((values[0] for values in used_gib), default=0.0)) > MAX_IDLE_GIB:
        yield (
            f"{most_gib:.1f} GiB of a GPU were in use before the run began: another process may have slowed it down; "
            "end that process (`nvidia-smi` shows it) and repeat the run"
        )
    if skipped := _skipped(timed):
        yield (
            f"{skipped} of {len(timed)} timed steps were skipped by the loss scaler: tokens/s counts their tokens, "
            "trained tokens/s does not"
        )
    if slow := slow_steps(timed):
        longest = max(slow, key=lambda step: slow[step])
        yield f"{len(slow)} timed steps took over twice the median, step {longest} {slow[longest]:.1f} times the median"
    if count := worker.get("alloc_retries"):
        yield (
            f"the allocator returned memory {count:,.0f} times in {len(timed)} timed steps: the GPU's memory was "
            "nearly full, so the speed is not that of the setting"
        )
    if count := worker.get("recompilations"):
        yield f"torch.compile compiled {count} graphs during the timed steps: use more warm-up steps"
    if count := worker.get("graph_breaks"):
        yield f"torch.compile left its graph for {count} different reasons: TORCH_LOGS=graph_breaks prints them"
    if experiment.attention != "eager" and worker.get("attention_kernel") == "math":
        yield "attention was not fused: torch has no fused kernel for these settings and computed it with its math one"
    if missing := worker.get("flops_missing"):
        yield missing
    if worker.get("power_source") and gpu["power_w"] is None:
        timed_s = (worker.get("phases_s") or {}).get("timed") or nan
        yield f"no power: the timed steps took {timed_s:.2f} s, too short to measure it"


def _peak(
    steps: list[dict[str, Any]], worker: dict[str, Any], failed: dict[str, Any], key: str
) -> float | None:
    """Return the peak memory of a run, including that at a failed allocation, whose step has no row."""
    recorded = (
        [row.get(key) for row in steps]
        if worker.get(f"peak_{key}") is None
        else [worker[f"peak_{key}"]]
    )
    on_gpu = failed.get(key) if failed.get("reserved_gib") is not None else None
    return max((value for value in [*recorded, on_gpu] if value is not None), default=None)


def _profile(paths: RunPaths) -> dict[str, Any]:
    profile = record_schema.read(paths.profile) or {
        "missing": {"profile": "the ranks ended before it began"}
    }
    missing = "; ".join(f"{part}: {why}" for part, why in (profile.get("missing") or {}).items())
    parts = ("forward_s", "backward_s", "optimizer_s", "communication_s")
    return {**{name: profile.get(name) for name in parts}, "profile_missing": missing or None}


def _flops(
    experiment: Experiment, worker: dict[str, Any], per_gpu: float | None
) -> dict[str, float | None]:
    flops, again, masked = (
        worker.get(f"{kind}flops_per_token") for kind in ("", "recomputed_", "masked_")
    )
    if not flops or again is None or masked is None:
        return dict.fromkeys(
            ("tflops_per_gpu", "hardware_tflops_per_gpu", "mfu", "masked_flops_pct")
        )
    model = metrics.tflops(flops, per_gpu)
    peak = hardware.peak_tflops(worker.get("gpu_name"), experiment.precision)
    return {
        "tflops_per_gpu": model,
        "hardware_tflops_per_gpu": metrics.tflops(flops + again, per_gpu),
        "mfu": metrics.mfu(model, peak),
        "masked_flops_pct": 100 * masked / flops,
    }


def gpu_figures(
    samples: list[dict[str, Any]], worker: dict[str, Any], gpus: int
) -> dict[str, float | None]:
    """Return the GPU figures of a run from the records of `gpu.jsonl` and `worker.json`.

    Means are over GPUs, not samples, so that hosts with fewer samples have the same weight. Utilization, clocks and
    power are those of the timed steps; `run_energy_kwh` is that of the whole run. Without a record of the worker, the
    run was cut short, and memory in use is that of the whole run as well.
    """
    in_steps = (
        _within(samples, worker.get("steps_from_s"), worker.get("timed_to_s"))
        if worker
        else samples
    )
    timed = _within(samples, worker.get("timed_from_s"), worker.get("timed_to_s"))
    timed_s, energy_j = (worker.get("phases_s") or {}).get("timed"), worker.get("energy_j")
    used_gib = [row.get("memory_used_gib") for row in in_steps] + [worker.get("device_memory_gib")]
    is_long = timed_s is not None and timed_s >= metrics.UTILIZATION_S
    return {
        "device_memory_gib": max((gib for gib in used_gib if gib is not None), default=None),
        "gpu_util_pct": _mean(timed, "util_pct") if is_long else None,
        "sm_clock_mhz": _mean(timed, "sm_clock_mhz"),
        "energy_j": energy_j,
        "power_w": energy_j / timed_s / gpus if energy_j is not None and timed_s else None,
        "run_energy_kwh": _run_energy_kwh(samples, gpus),
    }


def _run_energy_kwh(samples: list[dict[str, Any]], gpus: int) -> float | None:
    """Return the energy of all GPUs from their counters; None if one is missing or was reset."""
    counters = _by_gpu(samples, "energy_j")
    spent_j = [values[-1] - values[0] for values in counters if len(values) > 1]
    if len(spent_j) != gpus or min(spent_j) < 0:
        return None
    return sum(spent_j) / 3.6e6


def _within(
    samples: list[dict[str, Any]], first_s: float | None, last_s: float | None
) -> list[dict[str, Any]]:
    """Return the samples of a span of time; none if one of its ends is unknown."""
    if first_s is None or last_s is None:
        return []
    return [row for row in samples if first_s <= row["t_s"] <= last_s]


def _by_gpu(samples: list[dict[str, Any]], key: str) -> list[list[float]]:
    """Return the values of each GPU, in the order of the samples."""
    values: dict[object, list[float]] = {}
    for row in samples:
        if row.get(key) is not None:
            values.setdefault((row.get("host"), row.get("gpu")), []).append(row[key])
    return list(values.values())


def _mean(samples: list[dict[str, Any]], key: str) -> float | None:
    values = _by_gpu(samples, key)
    return fmean(map(fmean, values)) if values else None
