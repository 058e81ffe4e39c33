"""`dsnb.predict`: memory, speed and cost of settings without runs, each with the error of such figures."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dsnb.base.errors import SettingsError
from dsnb.base.formulas import metrics, planning
from dsnb.prediction import calibration, gpus, host_memory, probed
from dsnb.prediction.calibration import (
    DEFAULT_COVERAGE,
    TIME_ERRORS,
    Coverage,
    Errors,
    Measured,
    measured,
)
from dsnb.prediction.calibration import calibrate as fit
from dsnb.prediction.gpus import GpuSpec, Link
from dsnb.prediction.memory import GIB, peak_memory, room_gib
from dsnb.prediction.reserved import peak_reserved_gib
from dsnb.prediction.reserved import rule as reserved_rule
from dsnb.prediction.shapes import shape
from dsnb.prediction.step_time import DEFAULT, Constants, Setting, check, setting, stack
from dsnb.prediction.step_time import parts as step_parts
from dsnb.prediction.traces import MemoryTrace, traces
from dsnb.settings.experiment import Experiment

if TYPE_CHECKING:
    import pandas as pd


TIGHT = "not promised: memory is tight"
"""In place of the settings that the error of a speed was measured on."""


@dataclass(frozen=True)
class On:
    """The GPU and link that settings are predicted for, and the time model: constants, what they cover, its errors."""

    gpu: GpuSpec
    link: Link
    constants: Constants = DEFAULT
    covered: Coverage = DEFAULT_COVERAGE
    errors: Errors | None = (
        None  # by default those on runs that the default constants have not seen
    )
    probe: str = ""  # the probe of a machine that the constants were adjusted by
    host_gib: float = math.nan  # memory of each host; NaN where it is unknown

    def calibrated(self, runs: Sequence[Measured]) -> "On":
        """Return the same, calibrated on measured runs and their host, with the error on models that were left out."""
        fitted = fit(runs)
        constants = fitted.on_host(statistics.median(run.launch_ratio for run in runs))
        errors = calibration.by_kind(runs, calibration.left_out(runs), fitted)
        return replace(
            self, constants=constants, probe="", covered=Coverage.of(runs, self.link), errors=errors
        )

    def probed(self) -> "On":
        """Return the same with constants adjusted by the stored probe of the GPU, if there is one, and its name."""
        record = probed.stored(self.gpu.name)
        by = probed.ratios(record, probed.REFERENCE) if record else {}
        if not self.link.nvlink:
            by.pop("link_efficiency", None)
        if not record or not by:
            return self
        rate = (
            f", which launches {1 / by['host_launch_us']:.2g} times as fast as usual"
            if "host_launch_us" in by
            else ""
        )
        words = f"probe of {record.get('host')}{rate}, {str(record.get('date_utc'))[:10]}"
        return replace(self, constants=probed.adjusted(self.constants, by), probe=words)


def predict(
    experiments: Sequence[Experiment],
    gpu: str = "H200",
    *,
    link: str = "nvlink",
    calibrate: "pd.DataFrame | None" = None,
    tokens: float | None = None,
    price: float | None = None,
    probe: bool = True,
    host_memory: float | None = None,
) -> "pd.DataFrame":
    """Predict memory, speed and cost of settings; no GPU is needed.

    Models are traced once with torch, which takes seconds each, and kept in the user's cache.

    Parameters
    ----------
    experiments
        Settings to predict.
    gpu
        Name of the GPU: `H200`, `A100-40GB`, or as NVML writes it.
    link
        `nvlink` or `pcie` within a node; `ib:400` for 400 Gbit/s for each GPU between nodes, `ib:100/node` for a
        network that the GPUs of a node share.
    calibrate
        Measured runs, as `dsnb.load_runs` returns them, that the constants of the time model are fitted to; by default
        they are those of H200.
    tokens
        Tokens to train on, for `days`, `gpu_hours` and `cost`; by default 20 per parameter of the model, and 50
        million with LoRA or pretrained weights.
    price
        Price of a GPU-hour, for `cost`.
    probe
        Whether to use what `dsnb probe` has measured of this GPU on this machine, if it has; runs to calibrate with
        replace it.
    host_memory
        GiB of memory of each host, for `fits`; by default this machine's if it has such a GPU, otherwise unknown.

    Returns
    -------
    pandas.DataFrame
        One row per setting, in order. `fits` says whether tensors and a reserve (`dsnb.prediction.memory.room_gib`) are
        within the GPU's memory, with `headroom_gib` to spare, and `host_memory_gib`, the need of the fullest node,
        within 95 % of its host's; it is None where offload depends on a host whose memory is unknown.
        `peak_reserved_gib` is what torch's allocator holds where there is room. A setting whose tensors fit but not
        that is `tight`: the allocator may return memory in every step, so that its speed has no error and its days no
        upper end.
        `peak_allocated_gib` with its parts `weights_gib`, `gradients_gib`, `optimizer_gib`, `activations_gib`,
        `logits_gib` and `buffers_gib` at the `moment` of the peak; `step_time_s` with its parts, `limited_by` (`CPU` or
        `GPU`), `tokens_per_s`, `mfu`; for the `tokens` to train on, `days` with the range that the error of tokens/s
        leaves (`days_low`, `days_high`), `gpu_hours` and `cost`. Each predicted figure has its mean error in
        `..._error_pct`; `..._error_on` gives the number and kind of the measured settings. The error of a time or
        speed is a factor: at 25 %, 1.25 or 1 / 1.25 times as much.
        `outside` says what the calibration has not seen, `probe` which machine's probe the times were adjusted by.

    Raises
    ------
    SettingsError
        If the GPU, the link or a model is unknown, nothing can be calibrated, or the tokens or
        the price are no finite number of an allowed size.
    """
    planning.check(1 if tokens is None else tokens, {}, price=price)
    experiments = [experiment.model_copy(update={"device": "cuda"}) for experiment in experiments]
    on = on_gpu(gpu, link, calibrate, probe, host_memory)
    for experiment in experiments:  # before the model of any is counted
        check(experiment, on.link)
    settings = [
        setting(experiment, on.gpu, on.link) for experiment in experiments
    ]  # refuses before anything is traced
    return tabulated(experiments, settings, traces(experiments), on, tokens=tokens, price=price)


def on_gpu(
    gpu: str,
    link: str,
    calibrate: "pd.DataFrame | None" = None,
    probe: bool = True,
    host_gib: float | None = None,
) -> On:
    """Return the target of `predict` from its arguments; `host_gib` is its `host_memory`."""
    spec = gpus.find(gpu)
    on = On(spec, gpus.link(link), host_gib=host_memory.known_gib(spec, host_gib))
    on = on.probed() if probe else on
    if calibrate is None:
        return on
    if not (runs := measured(calibrate, on.link)):
        raise SettingsError("no run to calibrate with: give successful runs on known GPUs")
    return on.calibrated(runs)


def tabulated(
    experiments: Sequence[Experiment],
    settings: Sequence[Setting],
    model_traces: Sequence[MemoryTrace | None],
    on: On,
    *,
    tokens: float | None,
    price: float | None = None,
) -> "pd.DataFrame":
    """Return the table of `predict`; without a trace, memory, `fits`, `mfu` and the usual tokens are missing."""
    import pandas as pd

    if not settings:
        return pd.DataFrame()
    together = stack(settings)
    times = step_parts(together, on.constants)
    by_cpu = calibration.limited_by_cpu(together, on.constants)
    names, seconds = list(vars(times)), np.array([*vars(times).values()]).T.tolist()
    rows = []
    for experiment, trace, parts, total, waits in zip(
        experiments,
        model_traces,
        seconds,
        np.asarray(times.step_time_s).tolist(),
        by_cpu.tolist(),
        strict=True,
    ):
        if on.gpu.name in on.covered.names[calibration.GPU]:
            kind, error = calibration.expected_error(
                calibration.kinds(experiment, waits), on.errors or TIME_ERRORS
            )
        else:
            kinds = calibration.kinds_elsewhere(experiment, on.gpu.name, on.link.nodes(experiment))
            kind, error = calibration.expected_error(kinds, calibration.ELSEWHERE)
        tokens_per_s = experiment.tokens_per_step / total
        row: dict[str, Any] = {"experiment": experiment.name_with_model}
        row |= _host_columns(experiment, on)
        row |= _memory_columns(experiment, trace, on, row["host_memory_gib"]) if trace else {}
        is_tight = row.get("tight", False)
        error_pct = math.nan if is_tight else error.mean_pct
        row |= {
            "tokens_per_s": tokens_per_s,
            "tokens_per_s_error_pct": error_pct,
            "step_time_s": total,
            "step_time_error_pct": error_pct,
            "step_time_error_on": TIGHT if is_tight else f"{error.settings} settings, {kind}",
            "limited_by": "CPU" if waits else "GPU",
            **dict(zip(names, parts, strict=True)),
        }
        if trace:
            achieved = metrics.tflops(
                _flops_per_token(experiment, trace), tokens_per_s / experiment.gpus
            )
            row["mfu"] = metrics.mfu(achieved, on.gpu.peak_flops(experiment.precision) / 1e12)
        is_fine_tuning = planning.is_fine_tuning(vars(experiment))
        usual = planning.usual_tokens(trace.parameters, is_fine_tuning) if trace else math.nan
        to_train = usual if tokens is None else tokens
        days = metrics.days(to_train, tokens_per_s) or math.nan
        hours = metrics.gpu_hours(to_train, tokens_per_s, experiment.gpus) or math.nan
        row |= {
            "tokens": to_train,
            "days": days,
            "days_low": days if is_tight else days / (1 + error_pct / 100),
            "days_high": days * (1 + error_pct / 100),
            "gpu_hours": hours,
            "cost": math.nan if price is None else hours * price,
            "probe": on.probe,
            "outside": "; ".join(calibration.outside(experiment, on.gpu.name, on.covered, on.link)),
        }
        rows.append(row)
    return pd.DataFrame(rows)


def _flops_per_token(experiment: Experiment, trace: MemoryTrace) -> float:
    """Return the model's own FLOPs of a token, as they are counted of a run: of experts, those that work on it."""
    model = shape(experiment.model)
    active = trace.parameters - model.layers * (model.experts - model.grouped)
    of_blocks = (
        metrics.attention_flops_per_token(1, wide, experiment.seq_len, most)
        for wide, most, _ in model.attention
    )
    return metrics.flops_per_token(active, min(active, trace.trainable), sum(of_blocks))


def _host_columns(experiment: Experiment, on: On) -> dict[str, Any]:
    kind, error = calibration.host_error(experiment)
    return {
        "host_memory_gib": host_memory.of_node(experiment, on.link),
        "host_memory_error_pct": error.mean_pct,
        "host_memory_error_on": f"{error.settings} settings, {kind}",
    }


def _memory_columns(
    experiment: Experiment, trace: MemoryTrace, on: On, host_need_gib: float
) -> dict[str, Any]:
    moment = peak_memory(experiment, trace)
    kind, error = calibration.peak_error(experiment)
    left, peak = room_gib(experiment, on.gpu.memory_gib), moment.peak_allocated_gib
    parts = {f"{name}_gib": size / GIB for name, size in moment.parts().items()}
    reserved, (reserved_kind, rule) = peak_reserved_gib(experiment, peak), reserved_rule(experiment)
    return {
        "fits": host_memory.fits(experiment, host_need_gib, on.host_gib) if peak <= left else False,
        "tight": peak <= left < reserved,
        "headroom_gib": left - peak,
        "peak_allocated_gib": peak,
        "peak_allocated_error_pct": error.mean_pct,
        "peak_allocated_error_on": f"{error.settings} settings, {kind}",
        "peak_reserved_gib": reserved,
        "peak_reserved_error_pct": rule.error.mean_pct,
        "peak_reserved_error_on": f"{rule.error.settings} settings, {reserved_kind}",
        "moment": moment.name,
        **parts,
        "workspace_gib": peak - sum(parts.values()),
    }
