"""`dsnb.predict`: memory, speed and cost of settings that nobody has run, each with the error of such figures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dsnb.errors import SettingsError
from dsnb.formulas import metrics
from dsnb.formulas.model_shapes import slug
from dsnb.prediction import gpus, links, memory_errors, time_errors
from dsnb.prediction.calibration import calibrate as fit
from dsnb.prediction.constants import DEFAULT, Constants
from dsnb.prediction.coverage import DEFAULT_COVERAGE, Coverage, outside
from dsnb.prediction.gpus import Gpu
from dsnb.prediction.links import Link
from dsnb.prediction.measured import Measured, measured
from dsnb.prediction.memory import GIB, Memory, peak_memory, room
from dsnb.prediction.moments import Trace
from dsnb.prediction.step_time import Setting, StepTime, setting, stack
from dsnb.prediction.step_time import parts as step_parts
from dsnb.prediction.time_errors import DEFAULT_ERRORS, Errors
from dsnb.prediction.traces import traces
from dsnb.settings import planning
from dsnb.settings.experiment import Experiment

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Known:
    """The constants of the time model, what they were fitted to, and how wrong they were on other models."""

    constants: Constants = DEFAULT
    covered: Coverage = DEFAULT_COVERAGE
    errors: Errors = field(default_factory=lambda: DEFAULT_ERRORS)


def predict(
    experiments: Sequence[Experiment],
    gpu: str = "H200",
    *,
    link: str = "nvlink",
    calibrate: "pd.DataFrame | None" = None,
    tokens: float = 100e9,
    price: float | None = None,
) -> "pd.DataFrame":
    """Predict memory, speed and cost of settings; no GPU is needed.

    Models are traced once with torch, which takes seconds each, and kept in the user's cache.

    Parameters
    ----------
    experiments
        Settings, with a number for `micro_batch_size`.
    gpu
        Name of the GPU: `H200`, `A100-40GB`, or as NVML writes it.
    link
        `nvlink` or `pcie` within a node; `ib:400` for 400 Gbit/s for each GPU between nodes, `ib:100/node` for a
        network that the GPUs of a node share.
    calibrate
        Measured runs, as `dsnb.load_runs` returns them, that the constants of the time model are fitted to; by default
        they are those of H200.
    tokens
        Tokens to train on, for `days`, `gpu_hours` and `cost`.
    price
        Price of a GPU-hour, for `cost`.

    Returns
    -------
    pandas.DataFrame
        One row per setting, in order. `fits`, whether the tensors and the reserve of `dsnb.prediction.memory.room` are
        within the GPU's memory, with `headroom_gib` to spare; with `allocator: default`, fragmentation can need more.
        `peak_allocated_gib` with its parts `weights_gib`, `gradients_gib`, `optimizer_gib`, `activations_gib`,
        `logits_gib` and `buffers_gib` at the `moment` of the peak; `step_time_s` with its parts, `limited_by` (`CPU` or
        `GPU`), `tokens_per_s`, `mfu`, `days` with the range that the error of tokens/s leaves (`days_low`,
        `days_high`), `gpu_hours`, `cost`. Each predicted figure has its mean error in `..._error_pct`, and
        `..._error_on` says on how many measured settings of which kind. The error of a time or speed is a factor: at
        25 %, 1.25 or 1 / 1.25 times as much.
        `outside` says what the calibration has not seen.

    Raises
    ------
    SettingsError
        If the GPU, the link or a model is unknown, a micro-batch is `auto`, nothing can be calibrated, or the tokens or
        the price are no finite number of an allowed size.
    """
    planning.check(tokens, {}, price=price)
    experiments = [one.model_copy(update={"device": "cuda"}) for one in experiments]  # whatever this machine has
    kind, path = gpus.find(gpu), links.link(link)
    known = Known() if calibrate is None else _calibrated(calibrate, path)
    settings = [setting(one, kind, path) for one in experiments]  # refuses before anything is traced
    return tabulated(experiments, settings, traces(experiments), On(kind, path, known), tokens=tokens, price=price)


@dataclass(frozen=True)
class On:
    """What settings are predicted for, and with what."""

    gpu: Gpu
    link: Link
    known: Known = field(default_factory=Known)


def tabulated(
    experiments: Sequence[Experiment],
    settings: Sequence[Setting],
    found: Sequence[Trace | None],
    on: On,
    *,
    tokens: float,
    price: float | None = None,
) -> "pd.DataFrame":
    """Return the table of `predict`; without a trace, memory, `fits` and `mfu` are missing."""
    import pandas as pd

    if not settings:
        return pd.DataFrame()
    together = stack(settings)
    times = step_parts(together, on.known.constants)
    by_cpu = time_errors.limited_by_cpu(together, on.known.constants)
    slugs = {model: slug(model) for model in {one.model for one in experiments}}
    rows = []
    parts = zip(*(values.tolist() for values in vars(times).values()), strict=True)
    for one, trace, seconds, waits in zip(experiments, found, parts, by_cpu, strict=True):
        memory = _memory_columns(one, peak_memory(one, trace), on.gpu) if trace else {}
        row = {
            "experiment": f"{slugs[one.model]}_{one.name}",
            **memory,
            **_time_columns(one, StepTime(*seconds), bool(waits), on),
        }
        row |= {"mfu": _mfu(one, trace, row["tokens_per_s"], on.gpu)} if trace else {}
        row |= _cost_columns(one, row["tokens_per_s"], row["tokens_per_s_error_pct"], tokens, price)
        rows.append({**row, "outside": "; ".join(outside(one, on.gpu.name, on.known.covered, on.link))})
    return pd.DataFrame(rows)


def _calibrated(runs: "pd.DataFrame", link: Link) -> Known:
    """Return what measured runs tell, with the error on models that were left out."""
    found = measured(runs, link)
    if not found:
        raise SettingsError("no run to calibrate with: give successful runs of GPT-2, OPT or BLOOM on known GPUs")
    return known_from(found, link)


def known_from(runs: Sequence[Measured], link: Link) -> Known:
    """Return what at least one measured run tells."""
    constants = fit(runs)
    errors = time_errors.by_kind(runs, time_errors.left_out(runs), constants)
    return Known(constants, Coverage.of(runs, link), errors)


def _memory_columns(experiment: Experiment, memory: Memory, gpu: Gpu) -> dict[str, Any]:
    kind, error = memory_errors.expected_error(experiment)
    left = room(experiment, gpu.memory_gib).tensors_gib
    peak = memory.peak_allocated_gib
    parts = {f"{name}_gib": size / GIB for name, size in memory.moment.parts().items()}
    return {
        "fits": peak <= left,
        "headroom_gib": left - peak,
        "peak_allocated_gib": peak,
        "peak_allocated_error_pct": error.mean_pct,
        "peak_allocated_error_on": f"{error.settings} settings, {kind}",
        "moment": memory.moment.name,
        **parts,
        "workspace_gib": peak - sum(parts.values()),
    }


def _time_columns(experiment: Experiment, time: StepTime, by_cpu: bool, on: On) -> dict[str, Any]:
    if on.gpu.name in on.known.covered.gpus:
        kinds, known = time_errors.kinds(experiment, by_cpu), on.known.errors
    else:
        kinds, known = time_errors.kinds_elsewhere(on.gpu.name, on.link.nodes(experiment)), time_errors.ELSEWHERE
    kind, error = time_errors.expected_error(kinds, known)
    return {
        "tokens_per_s": experiment.tokens_per_step / time.step_time_s,
        "tokens_per_s_error_pct": error.mean_pct,
        "step_time_s": time.step_time_s,
        "step_time_error_pct": error.mean_pct,
        "step_time_error_on": f"{error.settings} settings, {kind}",
        "limited_by": "CPU" if by_cpu else "GPU",
        **vars(time),
    }


def _mfu(experiment: Experiment, trace: Trace, tokens_per_s: float, gpu: Gpu) -> float | None:
    shape = int(trace.parameters), trace.layers, trace.hidden, experiment.seq_len, int(trace.trainable)
    achieved = metrics.tflops(metrics.model_flops_per_token(*shape), tokens_per_s / experiment.gpus)
    return metrics.mfu(achieved, gpu.peak_flops(experiment.precision) / 1e12)


def _cost_columns(
    experiment: Experiment, tokens_per_s: float, error_pct: float, tokens: float, price: float | None
) -> dict[str, Any]:
    hours = metrics.gpu_hours(tokens, tokens_per_s, experiment.gpus) or math.nan
    days = metrics.days(tokens, tokens_per_s) or math.nan
    return {
        "days": days,
        "days_low": days / (1 + error_pct / 100),
        "days_high": days * (1 + error_pct / 100),
        "gpu_hours": hours,
        "cost": math.nan if price is None else hours * price,
    }
