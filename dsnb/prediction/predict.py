"""`dsnb.predict`: memory, speed and cost of settings without runs, each with the error of such figures."""

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dsnb.base.errors import SettingsError
from dsnb.base.formulas import metrics, planning
from dsnb.base.formulas.memory import MemoryParts
from dsnb.base.system.hardware import GIB
from dsnb.prediction import (
    accuracy,
    calibration,
    gpus,
    host_memory,
    loop,
    nearest,
    probed,
    speed_range,
)
from dsnb.prediction.accuracy import DEFAULT_COVERAGE, Coverage, Errors
from dsnb.prediction.calibration import Measured, measured, of_one_loop, unknown_settings
from dsnb.prediction.gpus import GpuSpec, Link
from dsnb.prediction.loop import Calibrated
from dsnb.prediction.memory import peak_memory, room_gib
from dsnb.prediction.reserved import rule as reserved_rule
from dsnb.prediction.shapes import shape
from dsnb.prediction.speed_range import SpeedRanges
from dsnb.prediction.step_time import (
    DEFAULT,
    Constants,
    StepCounts,
    StepTime,
    check,
    count_step,
    stack,
)
from dsnb.prediction.step_time import parts as step_parts
from dsnb.prediction.traces import MemoryTrace, traces
from dsnb.prediction.work import trained_parameters
from dsnb.settings.experiment import Experiment
from dsnb.settings.programs import DSNB

if TYPE_CHECKING:
    import pandas as pd


TIGHT = "not promised: memory is tight"
SLOWER = ("step_time_s", "days", "gpu_hours", "cost", *StepTime.__dataclass_fields__)
FASTER = ("tokens_per_s", "mfu")
"""Figures that are larger and smaller of a slower training."""
"""In place of the settings that the error of a speed was measured on."""
PARTS = {
    "weights_gib": "weights",
    "gradients_gib": "gradients",
    "optimizer_gib": "optimizer",
    "activations_gib": "activations",
    "logits_gib": "output",
    "buffers_gib": "buffers",
    "workspace_gib": "workspace",
}
"""Columns of the parts of a predicted peak."""


@dataclass(frozen=True)
class Hardware:
    """The GPU and link that settings are predicted for, and the time model: constants, what they cover, its errors."""

    gpu: GpuSpec
    link: Link
    constants: Constants = DEFAULT
    covered: Coverage = DEFAULT_COVERAGE
    errors: Errors | None = (
        None  # ranges by kind of setting of runs that it was calibrated on; else the stated ones
    )
    probe: str = ""  # the probe of a machine that the constants were adjusted by
    loop: Calibrated | None = None  # the runs that it was calibrated on
    host_gib: float = math.nan  # memory of each host; NaN where it is unknown

    def calibrated(self, runs: Sequence[Measured]) -> "Hardware":
        """Return the same, calibrated on measured runs and their host, with the error on models that were left out."""
        found = loop.of_runs(runs)
        launch_ratio = statistics.median(run.launch_ratio for run in runs)
        return replace(
            self,
            constants=found.constants.on_host(launch_ratio),
            probe="",
            covered=Coverage.of(runs, self.link),
            errors=found.errors,
            loop=found,
        )

    def probed(self) -> "Hardware":
        """Return the same with constants adjusted by the stored probe of the GPU, if there is one, and its name."""
        record = probed.stored(self.gpu.name)
        if not record:
            return self
        by = probed.ratios(record, probed.REFERENCE)
        if not self.link.nvlink:
            by.pop("link_efficiency", None)
        if not by:
            return self
        rate = ""
        if "host_launch_us" in by:
            rate = f", which launches {1 / by['host_launch_us']:.2g} times as fast as usual"
        words = f"probe of {record.get('host')}{rate}, {str(record.get('date_utc'))[:10]}"
        return replace(self, constants=probed.adjusted(self.constants, by), probe=words)

    def speed_ranges(self, experiment: Experiment, by_cpu: bool) -> SpeedRanges:
        """Return the ranges of a predicted speed, in times of it."""
        gpu = self.gpu.name
        if self.errors and gpu in self.covered.names[accuracy.GPU]:
            kinds = accuracy.kinds(experiment, by_cpu)
            own = speed_range.of_error(accuracy.expected_error(kinds, self.errors))
            return SpeedRanges(own, own)
        nodes = self.link.nodes(experiment)
        if self.loop and self.loop.program != DSNB:  # and too few runs to tell their own
            of_others = speed_range.others(gpu, nodes)
            return SpeedRanges(of_others, others=of_others)
        return speed_range.of_setting(experiment, gpu, by_cpu, nodes)


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
        `nvlink` or `pcie` within a node; `ib:400` for 400 Gbit/s for each GPU between nodes,
        `ib:100/node` for a network that the GPUs of a node share; `eth:10/node` for Ethernet
        without RDMA, through sockets.
    calibrate
        Measured runs of one loop, as `dsnb.load_runs` returns them, that the time model is
        calibrated on: by one factor of their loop, or by a fit of all constants where that predicts
        settings better that are left out (`dsnb.prediction.loop`). By default, the constants are
        those of dsnb's loop on H200.
    tokens
        Tokens to train on, for `days`, `gpu_hours` and `cost`; by default 20 per parameter of the
        model, and 50 million with LoRA or pretrained weights.
    price
        Price of a GPU-hour, for `cost`.
    probe
        Whether to use what `dsnb probe` has measured of this GPU on this machine, if it has; runs
        to calibrate with replace it.
    host_memory
        GiB of memory of each host, for `fits`; by default this machine's if it has such a GPU,
        otherwise unknown.

    Returns
    -------
    pandas.DataFrame
        One row per setting, in order. `fits` says whether tensors and a reserve
        (`dsnb.prediction.memory.room_gib`) are within the GPU's memory, with `headroom_gib` to
        spare, and `host_memory_gib`, the need of the fullest node, within 95 % of its host's; it is
        None where offload depends on a host whose memory is unknown. `peak_reserved_gib` is what
        torch's allocator holds where there is room. A setting whose tensors fit but not that is
        `tight`: the allocator may return memory in every step, so that its speed has no error and
        its days no upper end. `peak_allocated_gib` with its parts `weights_gib`, `gradients_gib`,
        `optimizer_gib`, `activations_gib`, `logits_gib` and `buffers_gib` at the `moment` of the
        peak; `step_time_s` with its parts, `limited_by` (`CPU` or `GPU`), `tokens_per_s`, `mfu`;
        for the `tokens` to train on, `days`, `gpu_hours` and `cost`. The speed has a range that
        covers 80 % of such predictions (`tokens_per_s_low`, `tokens_per_s_high`), as have the days
        (`days_low`, `days_high`), and `tokens_per_s_error_pct` is its larger side as a factor: at
        25 %, 1.25 or 1 / 1.25 times as much. `own_low` and `own_high` are the range by dsnb's own
        runs, `others_low` and `others_high` that by other programs, where they were measured.
        Predicted memory has its mean error in `..._error_pct`; `..._error_on` gives the number and
        kind of the measured settings.
        `nearest` is the measured run that is nearest to the setting, with the error of its own
        prediction, `outside` says what the calibration has not seen, `probe` which machine's probe
        the times were adjusted by.

    Raises
    ------
    SettingsError
        If the GPU, the link or a model is unknown, nothing can be calibrated, or the tokens or
        the price are no finite number of an allowed size.

    Examples
    --------
    13 billion weights of 2 bytes are 24 GiB, or 3 GiB on each of 8 GPUs. With gradients and
    optimizer states, they fit into the 140 GiB of an H200 only where ranks share them:

    >>> settings = [dsnb.Experiment(model="opt-13b", gpus=8, zero_stage=n) for n in (0, 3)]
    >>> table = dsnb.predict(settings, "H200")
    >>> print(table[["experiment", "fits", "weights_gib"]].round(0).to_string())
                             experiment   fits  weights_gib
    0  opt-13b_zs0_bf16_gpus8_bs8_sl128  False         24.0
    1  opt-13b_zs3_bf16_gpus8_bs8_sl128   True          3.0
    """
    planning.check(1 if tokens is None else tokens, {}, price=price)
    experiments = [experiment.model_copy(update={"device": "cuda"}) for experiment in experiments]
    hardware = on_gpu(gpu, link, calibrate, probe, host_memory)
    for experiment in experiments:  # before the model of any is counted
        check(experiment, hardware.link)
    # Refuses before anything is traced.
    counts = [count_step(experiment, hardware.gpu, hardware.link) for experiment in experiments]
    table = tabulated(
        experiments, counts, traces(experiments), hardware, tokens=tokens, price=price
    )
    return bounded(table).assign(nearest=[nearest_run(one, hardware) for one in experiments])


def nearest_run(experiment: Experiment, hardware: Hardware) -> str:
    """Return the nearest measured run of a setting in words, and how far its own prediction was off."""
    return nearest.sentence(experiment, hardware.gpu, hardware.link.nodes(experiment))


def on_gpu(
    gpu: str,
    link: str,
    calibrate: "pd.DataFrame | None" = None,
    probe: bool = True,
    host_gib: float | None = None,
) -> Hardware:
    """Return the hardware of `predict` from its arguments; `host_gib` is its `host_memory`."""
    spec = gpus.find(gpu)
    hardware = Hardware(spec, gpus.link(link), host_gib=host_memory.known_gib(spec, host_gib))
    if calibrate is None:
        return hardware.probed() if probe else hardware
    runs = of_one_loop(measured(calibrate, hardware.link))
    if not runs:
        problem = "no run to calibrate with: give successful runs on known GPUs"
        unknown = unknown_settings(calibrate)
        if unknown:
            problem += f"; unknown to the model of time: {', '.join(unknown)}"
        raise SettingsError(problem)
    return hardware.calibrated(runs)


def tabulated(
    experiments: Sequence[Experiment],
    step_counts: Sequence[StepCounts],
    model_traces: Sequence[MemoryTrace | None],
    hardware: Hardware,
    *,
    tokens: float | None,
    price: float | None = None,
) -> "pd.DataFrame":
    """Return the table of `predict`; without a trace, memory, `fits`, `mfu` and the usual tokens are missing."""
    import pandas as pd

    if not step_counts:
        return pd.DataFrame()
    counts = stack(step_counts)
    times = step_parts(counts, hardware.constants)
    by_cpu = calibration.limited_by_cpu(counts, hardware.constants).tolist()
    parts_s = pd.DataFrame(vars(times)).to_dict("records")
    steps_s = np.asarray(times.step_time_s).tolist()
    rows = []
    steps = zip(experiments, model_traces, by_cpu, steps_s, parts_s, strict=True)
    for experiment, trace, is_by_cpu, step_s, parts in steps:
        kind = accuracy.host_kind(experiment)
        row = {
            "experiment": experiment.name_with_model,
            "host_memory_gib": host_memory.of_node(experiment, hardware.link),
            **accuracy.expected_error([kind], accuracy.HOST_ERRORS).columns("host_memory"),
        }
        if trace:
            row |= _memory_columns(experiment, trace, hardware, row["host_memory_gib"])
        is_tight = row.get("tight", False)
        tokens_per_s = experiment.tokens_per_step / step_s
        flops = flops_per_token(experiment, trace)
        tflops = metrics.tflops(flops, tokens_per_s / experiment.gpus)
        mfu = metrics.mfu(tflops, hardware.gpu.peak_flops(experiment.precision) / 1e12) or math.inf
        row |= {
            "tokens_per_s": tokens_per_s,
            **_speed_columns(experiment, hardware, tokens_per_s, mfu, is_by_cpu, is_tight),
            "step_time_s": step_s,
            "limited_by": "CPU" if is_by_cpu else "GPU",
            **parts,
        }
        usual_tokens = math.nan
        if trace:
            row["mfu"] = mfu
            is_fine_tuning = planning.is_fine_tuning(vars(experiment))
            usual_tokens = planning.usual_tokens(trace.parameters, is_fine_tuning)
        to_train = usual_tokens if tokens is None else tokens
        days = metrics.days(to_train, tokens_per_s) or math.nan
        gpu_hours = metrics.gpu_hours(to_train, tokens_per_s, experiment.gpus) or math.nan
        outside = hardware.covered.outside(experiment, hardware.gpu.name, hardware.link)
        row |= {
            "tokens": to_train,
            "days": days,
            "days_low": metrics.days(to_train, row["tokens_per_s_high"]) or math.nan,
            "days_high": metrics.days(to_train, row["tokens_per_s_low"]) or math.nan,
            "gpu_hours": gpu_hours,
            "cost": math.nan if price is None else gpu_hours * price,
            "probe": hardware.probe,
            "outside": "; ".join(outside),
        }
        rows.append(row)
    return pd.DataFrame(rows)


def bounded(table: "pd.DataFrame") -> "pd.DataFrame":
    """Return predictions of which none is faster than its range: then it is the range's end.

    The order of settings is that of the speeds as predicted: the bound would make several of them equal.
    """
    if not len(table):
        return table
    ends = table["tokens_per_s_high"].fillna(table["tokens_per_s"])
    longer = (table["tokens_per_s"] / ends).clip(lower=1.0)
    changed = {}
    for name in set(SLOWER).intersection(table):
        changed[name] = table[name] * longer
    for name in set(FASTER).intersection(table):
        changed[name] = table[name] / longer
    return table.assign(**changed)


def _speed_columns(
    experiment: Experiment,
    hardware: Hardware,
    tokens_per_s: float,
    mfu: float,
    by_cpu: bool,
    tight: bool,
) -> dict[str, Any]:
    """Return the range of a predicted speed, and that of other programs where they were measured as well."""
    gpu = hardware.gpu
    if tight:
        return {
            "tokens_per_s_low": math.nan,
            "tokens_per_s_high": tokens_per_s,
            "tokens_per_s_error_pct": math.nan,
            "step_time_error_pct": math.nan,
            "step_time_error_on": TIGHT,
        }
    most = speed_range.best_mfu(gpu.name, experiment) / mfu
    found = hardware.speed_ranges(experiment, by_cpu).at_most(most)
    printed = found.printed
    columns = {
        "tokens_per_s_low": printed.low * tokens_per_s,
        "tokens_per_s_high": printed.high * tokens_per_s,
        "tokens_per_s_error_pct": printed.error_pct,
        "step_time_error_pct": printed.error_pct,
        "step_time_error_on": printed.on,
    }
    for basis, one in (("own", found.own), ("others", found.others)):
        columns[f"{basis}_low"] = one.low * tokens_per_s if one else math.nan
        columns[f"{basis}_high"] = one.high * tokens_per_s if one else math.nan
    return columns


def flops_per_token(experiment: Experiment, trace: MemoryTrace | None = None) -> float:
    """Return the model's own FLOPs of a token, as they are counted of a run: of experts, those that work on it."""
    model = shape(experiment.model)
    parameters, trainable = model.parameters, trained_parameters(experiment)
    if trace:
        parameters, trainable = trace.parameters, trace.trainable
    active = parameters - model.layers * (model.experts - model.grouped)
    attention = 0.0
    for (width, window, _), layers in Counter(model.attention).items():
        attention += metrics.attention_flops_per_token(layers, width, experiment.seq_len, window)
    return metrics.flops_per_token(active, min(active, trainable), attention)


class Fit(NamedTuple):
    """Whether a setting fits, and by how much."""

    peak: MemoryParts
    columns: dict[str, Any]
    """The columns of `predict` that decide."""


def fit(
    experiment: Experiment, trace: MemoryTrace, hardware: Hardware, host_need_gib: float
) -> Fit:
    """Return the predicted peak of a setting, and whether it fits."""
    peak = peak_memory(experiment, trace)
    peak_gib = peak.gib
    if hardware.loop:
        peak_gib += hardware.loop.more_gib(experiment)
    left_gib = room_gib(experiment, hardware.gpu.memory_gib)
    fits: bool | None = False
    if peak_gib <= left_gib:
        fits = host_memory.fits(experiment, host_need_gib, hardware.host_gib)
    reserved_gib = reserved_rule(experiment).reserved_gib(experiment, peak_gib)
    columns = {
        "fits": fits,
        "tight": peak_gib <= left_gib < reserved_gib,
        "headroom_gib": left_gib - peak_gib,
        "peak_allocated_gib": peak_gib,
        "peak_reserved_gib": reserved_gib,
    }
    return Fit(peak, columns)


def _memory_columns(
    experiment: Experiment, trace: MemoryTrace, hardware: Hardware, host_need_gib: float
) -> dict[str, Any]:
    peak, columns = fit(experiment, trace, hardware, host_need_gib)
    reserved_gib = columns.pop("peak_reserved_gib")
    return {
        **columns,
        **accuracy.peak_error(experiment).columns("peak_allocated"),
        "peak_reserved_gib": reserved_gib,
        **reserved_rule(experiment).expected.columns("peak_reserved"),
        "moment": peak.moment,
        **{column: getattr(peak, part) / GIB for column, part in PARTS.items()},
    }
