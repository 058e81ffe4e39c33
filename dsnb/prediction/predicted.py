"""Compare measured settings with their predictions, and predict settings that were not run, for the explorer.

A measured setting counts once, with the medians of its runs; its step time is predicted without the
runs of its model. Nothing is fitted to measured memory, so its prediction leaves nothing out; it
needs an existing trace of the model.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dsnb.base.errors import SettingsError
from dsnb.base.formulas.model_shapes import facts
from dsnb.prediction import accuracy, calibration, gpus, traces
from dsnb.prediction.accuracy import ALL
from dsnb.prediction.calibration import MIN_CALIBRATED, Measured, of_record
from dsnb.prediction.gpus import GpuSpec, Link, known_gpu
from dsnb.prediction.memory import peak_memory, room_gib
from dsnb.prediction.predict import Hardware, bounded, nearest_run, tabulated
from dsnb.prediction.step_time import count_step, problem
from dsnb.prediction.traces import MemoryTrace, can_trace
from dsnb.results.answers.decide import is_probe
from dsnb.results.runs import labels
from dsnb.results.runs.table import as_runs, numbers
from dsnb.settings import deepspeed_keys, known, programs
from dsnb.settings.experiment import Experiment
from dsnb.settings.params_file import combinations, experiments, read_params
from dsnb.settings.records.columns import ENDED, FORMER_FIGURES, SETTINGS
from dsnb.settings.records.paths import SweepPaths
from dsnb.settings.strategies import strategy

REQUIRED_COLUMNS = ["model", "strategy", "precision", "gpus", "seq_len", "micro_batch_size"]
"""Columns that must be known: with defaults instead, another setting would be predicted."""
REQUIRED_IF_COLUMNS = ["zero_stage", "grad_accum", "activation_checkpointing"]
"""The same in tables that have them; the stage only where there is ZeRO."""
COMPARED = {"step_time": "step_time_mean_s", "peak_allocated": "peak_allocated_gib"}
"""Compared figures: the prefix of the error columns, and the figure's column."""
READ_KEYS = {"zero_optimization.reduce_bucket_size", "zero_optimization.stage3_max_live_parameters"}
"""Keys of DeepSpeed's configuration that the memory rules know; others may change memory in unknown
ways."""
MEDIANS = ("step_time_mean_s", "tokens_per_s", "peak_allocated_gib", "gpu_memory_gib")
MAX_SETTINGS = 500
"""Settings that are compared, evenly spaced: 1,500 would take ten seconds."""
Asked = str | Path | Experiment
MAX_PREDICTED = 2000
"""Settings that are predicted; the page holds all of them."""
OWN_RUNS = "dsnb's own runs on H200"
ERROR = "Ranges of speed cover 80 % of such predictions; ± is the mean error of memory."
ANY_TOKENS = 1e9
"""The explorer computes days itself."""
FIGURES = {
    "tokens_per_s": "tokens_per_s",
    "step_time_mean_s": "step_time",
    "peak_allocated_gib": "peak_allocated",
    "mfu": "step_time",
}
"""Predicted columns of runs, and the prefix of their error column in `dsnb.predict`."""
PEAK = "peak_allocated_gib"
PER_GPU = "tokens_per_s_per_gpu"


@dataclass(frozen=True)
class MeasuredSetting:
    """A setting on a known GPU that ran or ran out of memory, with the medians of its runs."""

    experiment: Experiment
    gpu: GpuSpec
    record: Mapping[str, Any]
    """The columns of its first run, with medians of `MEDIANS`."""
    measured: Measured | None
    """None if no run succeeded, or its time cannot be predicted."""

    @property
    def is_own(self) -> bool:
        """Whether dsnb's own loop trained."""
        return programs.is_own(self.record)

    @property
    def ran(self) -> bool:
        """Whether a run succeeded."""
        return bool(self.record["status"] == "ok")


def parity(runs: pd.DataFrame, link: str = "nvlink") -> pd.DataFrame | None:
    """Return measured settings beside their predictions; None if no run on a known GPU can be compared.

    One row per setting on a known GPU: `experiment`, `model`, `kind`
    (`dsnb.prediction.accuracy.kind`), `ran` (False if all runs ran out of memory), `has_rules` (for
    memory), `fits` (as predicted; None if unknown), and for each of `COMPARED` the measured column,
    `predicted_...`, and `..._error_pct`, above 0 if the prediction is too high.
    """
    settings = [one for one in by_setting(runs, gpus.link(link)) if one.measured or not one.ran]
    if not settings:
        return None
    places = np.linspace(0, len(settings) - 1, min(len(settings), MAX_SETTINGS)).astype(int)
    settings = [settings[place] for place in places]
    kept = traces_of([one.experiment for one in settings], make=False)
    table = pd.DataFrame(map(_compared, settings, kept, _step_times(settings)))
    predicted = [f"predicted_{column}" for column in COMPARED.values()]
    for name, column in COMPARED.items():
        table[f"{name}_error_pct"] = 100 * (table[f"predicted_{column}"] / table[column] - 1)
    has_predictions = table[predicted].notna().any(axis=None)
    if has_predictions or table["has_rules"].any():
        return table
    return None


def _compared(
    one: MeasuredSetting, trace: MemoryTrace | None, predicted_s: float
) -> dict[str, Any]:
    """Return a row of `parity` without errors."""
    step_time_s = one.measured.step_time_s if one.measured else math.nan
    peak_gib = one.record["peak_allocated_gib"] if one.ran else math.nan
    predicted_gib = math.nan
    fits = None
    if trace:
        recorded_gib = one.record["gpu_memory_gib"]
        capacity_gib = recorded_gib if recorded_gib > 0 else one.gpu.memory_gib
        predicted_gib = peak_memory(one.experiment, trace).gib
        fits = predicted_gib <= room_gib(one.experiment, capacity_gib)
    return {
        "experiment": one.experiment.name_with_model,
        "model": one.record["model"],
        "kind": accuracy.kind(one.experiment),
        "ran": one.ran,
        "has_rules": is_covered(one.experiment),
        "step_time_mean_s": step_time_s,
        "peak_allocated_gib": peak_gib,
        "predicted_step_time_mean_s": predicted_s,
        "predicted_peak_allocated_gib": predicted_gib,
        "fits": fits,
    }


def by_setting(runs: pd.DataFrame, link: Link) -> list[MeasuredSetting]:
    """Return the settings on known GPUs that ran or ran out of memory."""
    runs = as_runs(runs)
    if not {*REQUIRED_COLUMNS, "gpu_name", "experiment", "status"} <= {*runs}:
        return []
    needed = [name for name in (*SETTINGS, "program", "source") if name in runs]
    is_known = [_is_known(row) for row in runs[needed].to_dict("records")]
    runs = runs[runs["status"].isin(["ok", "oom"]) & np.array(is_known, dtype=bool)]
    has_gpu = [known_gpu(name) is not None for name in runs["gpu_name"]]
    runs = runs[~is_probe(runs) & np.array(has_gpu, dtype=bool)]
    medians = {name: numbers(runs, name) for name in MEDIANS}
    runs = runs.assign(sweep=runs.get("sweep", ""), **medians)
    settings = []
    keys = ["sweep", "experiment", "program", "gpu_name"]
    runs = runs.reindex(columns=dict.fromkeys([*runs, "program"]))
    for (_, _, _, gpu_name), group in runs.groupby(keys, sort=False, dropna=False):
        succeeded = group[group["status"] == "ok"]
        kept = succeeded if len(succeeded) else group
        record: dict[Any, Any] = kept.iloc[0].to_dict()
        record |= {name: float(kept[name].median()) for name in MEDIANS}
        experiment = known.completed(Experiment.of_row(record))
        experiment = experiment.model_copy(update={"device": "cuda"})
        measured = of_record(record, link) if len(succeeded) else None
        settings.append(MeasuredSetting(experiment, gpus.find(gpu_name), record, measured))
    return settings


def _is_known(row: Mapping[Any, Any]) -> bool:
    """Return whether a run's row has what its prediction depends on."""
    if unknown_columns(row):
        return False
    return programs.has_defaults(row) or not known.unknown(Experiment.of_row(row))


def unknown_columns(row: Mapping[Any, Any]) -> list[str]:
    """Return the settings that must be known and that a run's row does not have."""
    required = [*REQUIRED_COLUMNS, *(name for name in REQUIRED_IF_COLUMNS if name in row)]
    if "zero_stage" in row and not strategy(row.get("strategy")).has_zero_stages:
        required.remove("zero_stage")
    return [name for name in required if labels.text(row.get(name)) == "-"]


def experiment_of(row: Mapping[str, Any]) -> Experiment | None:
    """Return the settings of a run's row; None if one that is needed is unknown, or another program's."""
    if not _is_known(row):
        return None
    try:
        experiment = known.completed(Experiment.of_row(row))
        return experiment.model_copy(update={"device": "cuda"})
    except (TypeError, ValueError):
        return None


def traces_of(experiments: Sequence[Experiment], make: bool = True) -> list[MemoryTrace | None]:
    """Return the trace of each setting; None without rules for its memory, or if it cannot be traced."""
    covered = [experiment for experiment in experiments if is_covered(experiment)]
    attempts = iter(traces.attempts(covered, make))
    found = []
    for experiment in experiments:
        trace = next(attempts) if is_covered(experiment) else None
        found.append(trace if isinstance(trace, MemoryTrace) else None)
    return found


def _step_times(settings: Sequence[MeasuredSetting]) -> list[float]:
    """Return the predicted step time of each setting.

    Constants are fitted to settings on the same GPU that the same program trained.
    """
    predicted_s = [math.nan] * len(settings)
    alike: dict[tuple[GpuSpec, str], dict[int, Measured]] = {}
    for place, one in enumerate(settings):
        if one.measured:
            alike.setdefault((one.gpu, one.measured.loop), {})[place] = one.measured
    for timed in alike.values():
        errors_pct = calibration.left_out(list(timed.values()))
        for (place, run), error_pct in zip(timed.items(), errors_pct, strict=True):
            predicted_s[place] = run.step_time_s * (1 + error_pct / 100)
    return predicted_s


def errors(table: pd.DataFrame) -> pd.DataFrame:
    """Return the errors in a table of `parity` by kind of setting, `all` last; NaN if there are none.

    For each of `COMPARED`: `..._settings`, `..._mean_pct` and `..._worst_pct` of absolute errors,
    `..._bias_pct`.
    """
    by_kind: dict[str, dict[str, float]] = {}
    for kind, part in [*table.groupby("kind"), (ALL, table)]:
        summary: dict[str, float] = {}
        for name in COMPARED:
            error_pct = part[f"{name}_error_pct"].dropna()
            summary[f"{name}_settings"] = len(error_pct)
            summary[f"{name}_bias_pct"] = error_pct.mean()
            summary[f"{name}_mean_pct"] = error_pct.abs().mean()
            summary[f"{name}_worst_pct"] = error_pct.abs().max()
        by_kind[str(kind)] = summary
    return pd.DataFrame.from_dict(by_kind, orient="index").rename_axis("kind")


@dataclass(frozen=True)
class Unmeasured:
    """Predicted settings that were not run."""

    table: pd.DataFrame = field(default_factory=pd.DataFrame)
    """One row per setting: settings and `gpu_name` as in `load_runs`, predicted figures, their mean
    errors as `..._error_pct`, `fits` (None if unknown), `tight` (no room for what torch reserves),
    `outside`."""
    notes: tuple[str, ...] = ()
    """The GPU, the basis of the predictions, and what was left out."""

    def without(self, runs: pd.DataFrame) -> pd.DataFrame:
        """Return the settings that have no finished run among these."""
        if self.table.empty:
            return self.table
        return self.table[~self.table["experiment"].isin(_ended(runs))]


def unmeasured(
    runs: pd.DataFrame, asked: Asked | Sequence[Asked], link: str = "nvlink"
) -> Unmeasured:
    """Predict settings that were not run, on the GPU of most runs; three settings measured on it calibrate predictions.

    `asked` are params files, folders of sweeps (for their params files) or settings. Raises
    SettingsError for those that cannot be used, and if no run is on a known GPU.
    """
    runs = as_runs(runs)
    path = gpus.link(link)
    on_gpu = _on_one_gpu(runs, path)
    hardware = Hardware(on_gpu[0].gpu, path)
    gpu_name = str(on_gpu[0].record["gpu_name"])
    wanted, notes = _wanted(asked, on_gpu)
    ended = _ended(runs)
    shown = []
    problems = []
    for experiment in wanted:
        if experiment.name_with_model in ended:
            continue
        if why := problem(experiment, hardware.gpu, link):
            problems.append(why)
        else:
            shown.append(experiment)
    if len(shown) > MAX_PREDICTED:
        notes.append(
            f"{MAX_PREDICTED:,} of {len(shown):,} settings are predicted, the first of the file."
        )
    shown = shown[:MAX_PREDICTED]
    notes += _left_out(problems)
    if not shown:
        return Unmeasured(notes=tuple(notes))
    timed = [one.measured for one in on_gpu if one.measured and one.is_own]
    fitted_to = OWN_RUNS
    if len(timed) >= MIN_CALIBRATED:
        hardware = hardware.calibrated(timed)
        fitted_to = f"the {len(timed):,} settings that were measured on it here"
    traced = traces_of(shown, make=can_trace())
    counts = [count_step(experiment, hardware.gpu, path) for experiment in shown]
    figures = bounded(tabulated(shown, counts, traced, hardware, tokens=ANY_TOKENS))
    sources = Counter(labels.text(one.record.get("source")) for one in on_gpu if one.is_own)
    sources.update([programs.DSNB])
    table = _as_runs(shown, figures, hardware)
    table = table.assign(
        gpu_name=gpu_name, source=sources.most_common(1)[0][0], program=programs.DSNB
    )
    notes.insert(
        0, f"Predicted for {gpu_name}, with a time model that is fitted to {fitted_to}. {ERROR}"
    )
    if missing := traced.count(None):
        why = "they cannot be traced, or there are no rules for it"
        if not can_trace():
            why = "torch or transformers, with which models are traced, is missing"
        unknown = labels.count(missing, "predicted setting")
        notes.append(f"The memory of {unknown} is unknown: {why}.")
    return Unmeasured(table, tuple(notes))


def check(runs: pd.DataFrame, asked: Asked | Sequence[Asked], link: str = "nvlink") -> None:
    """Raise the SettingsError that `unmeasured` would raise, without predicting anything."""
    _wanted(asked, _on_one_gpu(runs, gpus.link(link)))


def is_covered(experiment: Experiment) -> bool:
    """Return whether there are rules for the memory of a setting."""
    return (
        not known.unknown(experiment)
        and experiment.compile != "deepcompile"
        and experiment.zeropp == "none"
        and not experiment.offload.endswith("nvme")
        and set(experiment.deepspeed) <= READ_KEYS
        and bool(facts(experiment.model).get("family"))
    )


def _on_one_gpu(runs: pd.DataFrame, link: Link) -> list[MeasuredSetting]:
    """Return the settings that ran on the most common GPU, of dsnb's own loop if any did."""
    settings = by_setting(runs, link)
    if not settings:
        names = {labels.text(name) for name in runs.get("gpu_name", []) if not pd.isna(name)}
        where = f"these runs were on {', '.join(sorted(names)) or 'no GPU'}"
        raise SettingsError(
            f"predict: no run has succeeded, or run out of memory, on a GPU that dsnb knows: {where}; leave it out"
        )
    settings = [one for one in settings if one.is_own] or settings
    on_each = Counter(one.record["gpu_name"] for one in settings)
    most_common = on_each.most_common(1)[0][0]
    return [one for one in settings if one.record["gpu_name"] == most_common]


def _ended(runs: pd.DataFrame) -> set[str]:
    """Return the names of settings with a finished run of dsnb."""
    is_own = [programs.is_own(row) for row in runs.reindex(columns=["program"]).to_dict("records")]
    ended = runs[runs["status"].isin(ENDED) & np.array(is_own, dtype=bool)]
    ended = ended.assign(sweep=ended.get("sweep", "")).drop_duplicates(["sweep", "experiment"])
    return {Experiment.of_row(row).name_with_model for row in ended.to_dict("records")}


def _wanted(
    asked: Asked | Sequence[Asked], on_gpu: Sequence[MeasuredSetting]
) -> tuple[list[Experiment], list[str]]:
    """Return the settings without duplicates, `gpus: auto` as in the runs, and notes on refused ones."""
    most_gpus = max(one.experiment.gpus for one in on_gpu)
    wanted: list[Experiment] = []
    refused: list[str] = []
    for source in [asked] if isinstance(asked, Asked) else asked:
        if isinstance(source, Experiment):
            wanted.append(source.model_copy(update={"device": "cuda"}))
            continue
        file = SweepPaths(Path(source)).params if Path(source).is_dir() else Path(source)
        chosen = combinations(read_params(file))
        for row in chosen:
            if row.get("gpus") == "auto":
                row["gpus"] = most_gpus
        accepted, reasons = allowed(chosen)
        wanted += accepted
        refused += reasons
    once = {experiment.name_with_model: experiment for experiment in wanted}
    return list(once.values()), _left_out(refused)


def allowed(settings: Iterable[Mapping[str, Any]]) -> tuple[list[Experiment], list[str]]:
    """Return valid settings on GPUs, and the problems of the others; raise SettingsError if none is valid."""
    accepted, problems = experiments({**values, "device": "cuda"} for values in settings)
    refused = ["; ".join(reasons) for reasons in problems.values()]
    if not accepted:
        none_left = "no combination of settings is left: give each one a value"
        raise SettingsError(list(dict.fromkeys(refused)) or none_left)
    return list(accepted.values()), refused


def _left_out(reasons: Iterable[str]) -> list[str]:
    times = Counter(reasons).items()
    return [f"Left out {labels.count(number, 'setting')}: {why}." for why, number in times]


def _as_runs(
    experiments: Sequence[Experiment], figures: pd.DataFrame, hardware: Hardware
) -> pd.DataFrame:
    """Return predicted settings as rows of a table of runs, with figures and their errors."""
    rows = []
    for experiment in experiments:
        row = {name: getattr(experiment, name) for name in SETTINGS}
        keys = experiment.deepspeed.items()
        row |= {f"{deepspeed_keys.PREFIX}{key}": value for key, value in keys}
        rows.append({"experiment": experiment.name_with_model, **row})
    figures = figures.rename(columns=FORMER_FIGURES)  # the prediction of a mean
    table = pd.DataFrame(rows)
    for name in FIGURES:
        table[name] = numbers(figures, name)
    table["outside"] = figures["outside"]
    table["nearest"] = [nearest_run(one, hardware) for one in experiments]
    for name, error in FIGURES.items():
        table[f"{name}_error_pct"] = numbers(figures, f"{error}_error_pct")
        low, high = _share_range(figures, name)
        table[f"{name}_low"] = low * table[name]
        table[f"{name}_high"] = high * table[name]
    unknown = pd.Series(None, figures.index, dtype=object)
    fits = figures.get("fits", unknown).astype(object)
    table["tight"] = figures.get("tight", unknown).eq(True)
    table["fits"] = fits.where(fits.notna(), None)
    table[PER_GPU] = table["tokens_per_s"] / table["gpus"]
    for end in ("low", "high"):
        table[f"{PER_GPU}_{end}"] = table[f"tokens_per_s_{end}"] / table["gpus"]
    table[f"{PER_GPU}_error_pct"] = table["tokens_per_s_error_pct"]
    return table


def _share_range(figures: pd.DataFrame, name: str) -> tuple["pd.Series[float]", "pd.Series[float]"]:
    """Return both ends of the range of a figure in times of it: that of the speed, or the mean error of memory."""
    if name == PEAK:
        factor = 1 + numbers(figures, "peak_allocated_error_pct") / 100
        return 1 / factor, factor
    rates = numbers(figures, "tokens_per_s")
    low = numbers(figures, "tokens_per_s_low") / rates
    high = numbers(figures, "tokens_per_s_high") / rates
    if name == "step_time_mean_s":
        return 1 / high, 1 / low
    return low, high
