"""Compare measured settings with their predictions, and predict settings that were not run, for the explorer.

A measured setting counts once, with the medians of its runs; its step time is predicted without the runs of its model.
Nothing is fitted to measured memory, so its prediction leaves nothing out; it needs an existing trace of the model.
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
from dsnb.prediction import calibration, gpus, traces
from dsnb.prediction.calibration import ALL, MIN_CALIBRATED, of_record, recorded
from dsnb.prediction.gpus import GpuSpec, Link
from dsnb.prediction.memory import peak_memory, room_gib
from dsnb.prediction.predict import On, tabulated
from dsnb.prediction.step_time import problem, setting
from dsnb.prediction.traces import MemoryTrace, can_trace
from dsnb.results.answers.decide import is_probe
from dsnb.results.runs import labels
from dsnb.results.runs.table import as_runs, numbers
from dsnb.settings import deepspeed_keys
from dsnb.settings.experiment import Experiment
from dsnb.settings.params_file import combinations, experiments, read_params
from dsnb.settings.records.columns import ENDED, FORMER_FIGURES, SETTINGS
from dsnb.settings.records.paths import SweepPaths
from dsnb.settings.strategies import strategy

NEEDED = ["model", "strategy", "precision", "gpus", "seq_len", "micro_batch_size"]
"""Columns that must be known: with defaults instead, another setting would be predicted."""
NEEDED_IF_COLUMNS = ["zero_stage", "grad_accum", "activation_checkpointing"]
"""The same in tables that have them; the stage only where there is ZeRO."""
COMPARED = {"step_time": "step_time_mean_s", "peak_allocated": "peak_allocated_gib"}
"""Compared figures: the prefix of the error columns, and the figure's column."""
READ_KEYS = {"zero_optimization.reduce_bucket_size", "zero_optimization.stage3_max_live_parameters"}
"""Keys of DeepSpeed's configuration that the memory rules know; others may change memory in unknown ways."""
MEDIANS = (
    "step_time_mean_s",
    "tokens_per_s",
    "peak_allocated_gib",
    "gpu_memory_gib",
    "timed_steps",
)
MAX_SETTINGS = 500
"""Settings that are compared, evenly spaced: 1,500 would take ten seconds."""
Asked = str | Path | Experiment
MAX_PREDICTED = 2000
"""Settings that are predicted; the page holds all of them."""
OWN_RUNS = "dsnb's own runs on H200"
ERROR = "± is the mean error of such predictions."
ANY_TOKENS = 1e9
"""The explorer computes days itself."""
FIGURES = {
    "tokens_per_s": "tokens_per_s",
    "step_time_mean_s": "step_time",
    "peak_allocated_gib": "peak_allocated",
    "mfu": "step_time",
}
"""Predicted columns of runs, and the prefix of their error column in `dsnb.predict`."""
PER_GPU = "tokens_per_s_per_gpu"


def parity(runs: pd.DataFrame, link: str = "nvlink") -> pd.DataFrame | None:
    """Return measured settings beside their predictions; None if no run on a known GPU can be compared.

    One row per setting on a known GPU: `experiment`, `model`, `kind` (`dsnb.prediction.calibration.kind`), `ran` (False
    if all runs ran out of memory), `has_rules` (for memory), `fits` (as predicted; None if unknown), and for each of
    `COMPARED` the measured column, `predicted_...`, and `..._error_pct`, above 0 if the prediction is too high.
    """
    settings = by_setting(runs, gpus.link(link))
    settings = [record for record in settings if record["status"] == "oom" or record["measured"]]
    if not settings:
        return None
    places = np.linspace(0, len(settings) - 1, min(len(settings), MAX_SETTINGS)).astype(int)
    table = pd.DataFrame(_rows([settings[place] for place in places]))
    for name, column in COMPARED.items():
        table[f"{name}_error_pct"] = 100 * (table[f"predicted_{column}"] / table[column] - 1)
    has_predictions = (
        table[[f"predicted_{column}" for column in COMPARED.values()]].notna().any(axis=None)
    )
    return table if has_predictions or table["has_rules"].any() else None


def by_setting(runs: pd.DataFrame, link: Link) -> list[dict[str, Any]]:
    """Return a record of each setting on a known GPU that ran or ran out of memory, with the medians of its runs.

    It has the columns of the first run, `experiment` as dsnb names the settings, `known_gpu`, `asked` (the settings),
    and `measured` (None if no run succeeded, or its time cannot be predicted).
    """
    runs = as_runs(runs)
    if not {*NEEDED, "gpu_name", "experiment", "status"} <= {*runs}:
        return []
    needed = [name for name in (*NEEDED, *NEEDED_IF_COLUMNS) if name in runs]
    is_known = np.array([_is_known(row) for row in runs[needed].to_dict("records")], dtype=bool)
    runs = runs[runs["status"].isin(["ok", "oom"]) & is_known]
    known_gpus = {name: known_gpu(name) for name in runs["gpu_name"].unique()}
    runs = runs[~is_probe(runs) & runs["gpu_name"].map(known_gpus).notna()]
    runs = runs.assign(
        sweep=runs.get("sweep", ""), **{name: numbers(runs, name) for name in MEDIANS}
    )
    settings = []
    for (_, _, gpu_name), group in runs.groupby(
        ["sweep", "experiment", "gpu_name"], sort=False, dropna=False
    ):
        ok = group[group["status"] == "ok"]
        kept = ok if len(ok) else group
        record = {str(name): value for name, value in kept.iloc[0].items()}
        record |= {name: float(kept[name].median()) for name in MEDIANS}
        asked = recorded(record).model_copy(update={"device": "cuda"})
        record |= {
            "experiment": asked.name_with_model,
            "known_gpu": known_gpus[gpu_name],
            "asked": asked,
        }
        settings.append({**record, "measured": of_record(record, link) if len(ok) else None})
    return settings


def _is_known(row: Mapping[Any, Any]) -> bool:
    """Return whether a run's row has what its prediction depends on."""
    has_zero = strategy(row.get("strategy")).has_zero_stages
    further = [
        name for name in NEEDED_IF_COLUMNS if name in row and (has_zero or name != "zero_stage")
    ]
    return all(labels.text(row.get(name)) != "-" for name in (*NEEDED, *further))


def known_gpu(name: object) -> GpuSpec | None:
    """Return a GPU by its name in runs; None if dsnb has no data sheet of it."""
    try:
        return gpus.find(str(name))
    except SettingsError:
        return None


def _rows(settings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    kept = traces_of([record["asked"] for record in settings], make=False)
    for record, step_time_s, trace in zip(settings, _step_times(settings), kept, strict=True):
        peak_gib, fits = math.nan, None
        if trace:
            capacity_gib = (
                record["gpu_memory_gib"]
                if record["gpu_memory_gib"] > 0
                else record["known_gpu"].memory_gib
            )
            peak_gib = peak_memory(record["asked"], trace).peak_allocated_gib
            fits = peak_gib <= room_gib(record["asked"], capacity_gib)
        ran = record["status"] == "ok"
        rows.append(
            {
                "experiment": record["experiment"],
                "model": record["model"],
                "kind": calibration.kind(record["asked"]),
                "ran": ran,
                "has_rules": is_covered(record["asked"]),
                "step_time_mean_s": record["measured"].step_time_s
                if record["measured"]
                else math.nan,
                "peak_allocated_gib": record["peak_allocated_gib"] if ran else math.nan,
                "predicted_step_time_mean_s": step_time_s,
                "predicted_peak_allocated_gib": peak_gib,
                "fits": fits,
            }
        )
    return rows


def traces_of(experiments: Sequence[Experiment], make: bool = True) -> list[MemoryTrace | None]:
    """Return the trace of each setting; None without rules for its memory, or if it cannot be traced."""
    covered = [place for place, experiment in enumerate(experiments) if is_covered(experiment)]
    made = dict(
        zip(covered, traces.attempts([experiments[place] for place in covered], make), strict=True)
    )
    return [
        trace if isinstance(trace := made.get(place), MemoryTrace) else None
        for place in range(len(experiments))
    ]


def _step_times(settings: Sequence[dict[str, Any]]) -> list[float]:
    """Return the predicted step time of each setting; constants are fitted to settings on the same GPU."""
    predicted_s = [math.nan] * len(settings)
    for gpu in {record["known_gpu"] for record in settings if record["measured"]}:
        places = [
            at
            for at, record in enumerate(settings)
            if record["measured"] and record["known_gpu"] == gpu
        ]
        timed = [settings[place]["measured"] for place in places]
        for place, run, error_pct in zip(places, timed, calibration.left_out(timed), strict=True):
            predicted_s[place] = run.step_time_s * (1 + error_pct / 100)
    return predicted_s


def errors(table: pd.DataFrame) -> pd.DataFrame:
    """Return the errors in a table of `parity` by kind of setting, `all` last; NaN if there are none.

    For each of `COMPARED`: `..._settings`, `..._mean_pct` and `..._worst_pct` of absolute errors, `..._bias_pct`.
    """
    by_kind: dict[str, dict[str, float]] = {}
    for kind, part in [*table.groupby("kind"), (ALL, table)]:
        summary: dict[str, float] = {}
        for name in COMPARED:
            error_pct = part[f"{name}_error_pct"].dropna()
            summary |= {f"{name}_settings": len(error_pct), f"{name}_bias_pct": error_pct.mean()}
            summary |= {
                f"{name}_mean_pct": error_pct.abs().mean(),
                f"{name}_worst_pct": error_pct.abs().max(),
            }
        by_kind[str(kind)] = summary
    return pd.DataFrame.from_dict(by_kind, orient="index").rename_axis("kind")


@dataclass(frozen=True)
class Unmeasured:
    """Predicted settings that were not run."""

    table: pd.DataFrame = field(default_factory=pd.DataFrame)
    """One row per setting: settings and `gpu_name` as in `load_runs`, predicted figures, their mean errors as
    `..._error_pct`, `fits` (None if unknown), `tight` (no room for what torch reserves), `outside`."""
    notes: tuple[str, ...] = ()
    """The GPU, the basis of the predictions, and what was left out."""

    def without(self, runs: pd.DataFrame) -> pd.DataFrame:
        """Return the settings that have no finished run among these."""
        return (
            self.table[~self.table["experiment"].isin(_ended(runs))]
            if len(self.table)
            else self.table
        )


def unmeasured(
    runs: pd.DataFrame, asked: Asked | Sequence[Asked], link: str = "nvlink"
) -> Unmeasured:
    """Predict settings that were not run, on the GPU of most runs; three settings measured on it calibrate predictions.

    `asked` are params files, folders of sweeps (for their params files) or settings. Raises SettingsError for those
    that cannot be used, and if no run is on a known GPU.
    """
    runs, path = as_runs(runs), gpus.link(link)
    on_gpu, gpu_name = _on_one_gpu(runs, path)
    spec = on_gpu[0]["known_gpu"]
    wanted, notes = _wanted(asked, on_gpu)
    ended = _ended(runs)
    wanted = [experiment for experiment in wanted if experiment.name_with_model not in ended]
    problems = [problem(experiment, spec.name, link) for experiment in wanted]
    shown = [experiment for experiment, why in zip(wanted, problems, strict=True) if not why]
    if len(shown) > MAX_PREDICTED:
        notes.append(
            f"{MAX_PREDICTED:,} of {len(shown):,} settings are predicted, the first of the file."
        )
    shown = shown[:MAX_PREDICTED]
    notes += _left_out(filter(None, problems))
    if not shown:
        return Unmeasured(notes=tuple(notes))
    timed = [row["measured"] for row in on_gpu if row["measured"]]
    is_calibrated = len(timed) >= MIN_CALIBRATED
    on = On(spec, path).calibrated(timed) if is_calibrated else On(spec, path)
    traced = traces_of(shown, make=can_trace())
    steps = [setting(experiment, spec, path) for experiment in shown]
    figures = tabulated(shown, steps, traced, on, tokens=ANY_TOKENS)
    source = Counter(labels.text(row.get("source")) for row in on_gpu).most_common(1)[0][0]
    table = _as_runs(shown, figures).assign(gpu_name=gpu_name, source=source)
    measured = (
        f"the {len(timed):,} settings that were measured on it here" if is_calibrated else OWN_RUNS
    )
    basis = f"Predicted for {gpu_name}, with a time model that is fitted to {measured}. {ERROR}"
    if missing := traced.count(None):
        lacks = "torch or transformers, with which models are traced, is missing"
        why = "they cannot be traced, or there are no rules for it" if can_trace() else lacks
        notes.append(
            f"The memory of {labels.count(missing, 'predicted setting')} is unknown: {why}."
        )
    return Unmeasured(table, (basis, *notes))


def check(runs: pd.DataFrame, asked: Asked | Sequence[Asked], link: str = "nvlink") -> None:
    """Raise the SettingsError that `unmeasured` would raise, without predicting anything."""
    _wanted(asked, _on_one_gpu(runs, gpus.link(link))[0])


def is_covered(experiment: Experiment) -> bool:
    """Return whether there are rules for the memory of a setting."""
    return (
        experiment.compile != "deepcompile"
        and experiment.zeropp == "none"
        and experiment.matmul == "auto"
        and not experiment.offload.endswith("nvme")
        and set(experiment.deepspeed) <= READ_KEYS
        and bool(facts(experiment.model).get("family"))
    )


def _on_one_gpu(runs: pd.DataFrame, link: Link) -> tuple[list[dict[str, Any]], str]:
    """Return the settings that ran on the most common GPU, and its name."""
    rows = by_setting(runs, link)
    if not rows:
        names = sorted(
            {labels.text(name) for name in runs.get("gpu_name", []) if not pd.isna(name)}
        )
        where = f"these runs were on {', '.join(names) or 'no GPU'}"
        raise SettingsError(
            f"predict: no run has succeeded, or run out of memory, on a GPU that dsnb knows: {where}; leave it out"
        )
    gpu_name = Counter(str(row["gpu_name"]) for row in rows).most_common(1)[0][0]
    return [row for row in rows if row["gpu_name"] == gpu_name], gpu_name


def _ended(runs: pd.DataFrame) -> set[str]:
    """Return the dsnb names of settings with a finished run."""
    ended = runs[runs["status"].isin(ENDED)]
    ended = ended.assign(sweep=ended.get("sweep", "")).drop_duplicates(["sweep", "experiment"])
    return {
        recorded({str(name): value for name, value in row.items()}).name_with_model
        for _, row in ended.iterrows()
    }


def _wanted(
    asked: Asked | Sequence[Asked], on_gpu: Sequence[Mapping[str, Any]]
) -> tuple[list[Experiment], list[str]]:
    """Return the settings without duplicates, `gpus: auto` as in the runs, and notes on refused ones."""
    number = max(int(row["asked"].gpus) for row in on_gpu)
    wanted: list[Experiment] = []
    refused: list[str] = []
    for source in [asked] if isinstance(asked, Asked) else asked:
        if isinstance(source, Experiment):
            wanted.append(source.model_copy(update={"device": "cuda"}))
            continue
        file = SweepPaths(Path(source)).params if Path(source).is_dir() else Path(source)
        chosen = combinations(read_params(file))
        accepted, reasons = allowed(
            row | ({"gpus": number} if row.get("gpus") == "auto" else {}) for row in chosen
        )
        wanted += accepted
        refused += reasons
    return list(
        {experiment.name_with_model: experiment for experiment in wanted}.values()
    ), _left_out(refused)


def allowed(settings: Iterable[Mapping[str, Any]]) -> tuple[list[Experiment], list[str]]:
    """Return valid settings on GPUs, and the problems of the others; raise SettingsError if none is valid."""
    accepted, problems = experiments({**values, "device": "cuda"} for values in settings)
    refused = ["; ".join(reasons) for reasons in problems.values()]
    if not accepted:
        raise SettingsError(
            [*dict.fromkeys(refused)] or "no combination of settings is left: give each one a value"
        )
    return [*accepted.values()], refused


def _left_out(reasons: Iterable[str]) -> list[str]:
    return [
        f"Left out {labels.count(number, 'setting')}: {why}."
        for why, number in Counter(reasons).items()
    ]


def _as_runs(experiments: Sequence[Experiment], figures: pd.DataFrame) -> pd.DataFrame:
    """Return predicted settings as rows of a table of runs, with figures and their errors."""
    rows = [
        {
            "experiment": experiment.name_with_model,
            **{name: getattr(experiment, name) for name in SETTINGS},
        }
        | {f"{deepspeed_keys.PREFIX}{key}": value for key, value in experiment.deepspeed.items()}
        for experiment in experiments
    ]
    figures = figures.rename(columns=FORMER_FIGURES)  # the prediction of a mean
    figures = figures.reindex(columns=[*figures, *({"fits", "tight", *FIGURES} - {*figures})])
    errors = {
        f"{name}_error_pct": numbers(figures, f"{error}_error_pct")
        for name, error in FIGURES.items()
    }
    fits = figures["fits"].astype(object)
    table = (
        pd.DataFrame(rows)
        .join(figures[[*FIGURES, "outside"]])
        .assign(**errors, tight=figures["tight"].eq(True))
    )
    per_gpu = {
        PER_GPU: table["tokens_per_s"] / table["gpus"],
        f"{PER_GPU}_error_pct": errors["tokens_per_s_error_pct"],
    }
    return table.assign(fits=fits.where(fits.notna(), None), **per_gpu)


def experiment_of(row: Mapping[str, Any]) -> Experiment | None:
    """Return the settings of a run's row; None if one that is needed is unknown, or another program's."""
    if not _is_known(row):
        return None
    try:
        return recorded(dict(row)).model_copy(update={"device": "cuda"})
    except (TypeError, ValueError):
        return None
