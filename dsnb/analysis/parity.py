"""Measured settings beside their predictions, each made without the runs of its own model: how good predictions are.

A setting counts once, with the medians of its runs. Nothing is fitted to measured memory, so that its prediction needs
nothing left out; it needs a trace of the model, which is not made here.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from dsnb.analysis.decide import is_probe
from dsnb.errors import SettingsError
from dsnb.prediction import accuracy, gpus, traces
from dsnb.prediction.accuracy import ALL
from dsnb.prediction.calibration import of_record, recorded
from dsnb.prediction.fit import is_covered
from dsnb.prediction.gpus import GpuSpec, Link
from dsnb.prediction.memory import peak_memory, room
from dsnb.prediction.traces import Trace
from dsnb.runs.table import as_runs, numbers
from dsnb.settings.experiment import Experiment

NEEDED = ["model", "strategy", "precision", "gpus", "seq_len", "micro_batch_size"]
"""What a row must tell: defaults in place of unknown settings would predict another one."""
FIGURES = {"step_time": "step_time_s", "peak_allocated": "peak_allocated_gib"}
"""What is compared: the beginning of the columns of its error, and its own column."""
MEDIANS = ("step_time_s", "tokens_per_s", "peak_allocated_gib", "gpu_memory_gib", "timed_steps")
MAX_SETTINGS = 500
"""Settings that are compared, evenly spaced among more: 1,500 take ten seconds."""


def parity(runs: pd.DataFrame, link: str = "nvlink") -> pd.DataFrame | None:
    """Return measured settings beside their predictions; None if no run on a known GPU can be compared.

    Returns
    -------
    pandas.DataFrame
        One row per setting on a known GPU: `experiment`, `model`, `kind` (`dsnb.prediction.accuracy.kind`), `ran`
        (whether any run succeeded; the others ran out of memory), `has_rules` (whether there are rules for its memory),
        `fits` (whether it is predicted to; None if unknown), and for each of `FIGURES` the measured column,
        `predicted_...`, and `..._error_pct`, above 0 if more was predicted; NaN where one of both is unknown.
    """
    settings = by_setting(runs, gpus.link(link))
    settings = [record for record in settings if record["status"] == "oom" or record["measured"]]
    if not settings:
        return None
    places = np.linspace(0, len(settings) - 1, min(len(settings), MAX_SETTINGS)).astype(int)
    table = pd.DataFrame(_rows([settings[place] for place in places]))
    for name, column in FIGURES.items():
        table[f"{name}_error_pct"] = 100 * (table[f"predicted_{column}"] / table[column] - 1)
    has_predictions = table[[f"predicted_{column}" for column in FIGURES.values()]].notna().any(axis=None)
    return table if has_predictions or table["has_rules"].any() else None


def by_setting(runs: pd.DataFrame, link: Link) -> list[dict[str, Any]]:
    """Return a record for each setting on a known GPU that ran or ran out of memory, with the medians of its runs.

    Each has the columns of its first run, `experiment` as dsnb names its settings, `known_gpu` (the GPU by its data
    sheet), `asked` (the settings), and `measured` (None if no run succeeded, or its time cannot be predicted).
    """
    runs = as_runs(runs)
    if not {*NEEDED, "gpu_name", "experiment", "status"} <= {*runs}:
        return []
    runs = runs[runs["status"].isin(["ok", "oom"]) & runs[NEEDED].notna().all(axis=1)]
    known_gpus = {name: known_gpu(name) for name in runs["gpu_name"].unique()}
    runs = runs[~is_probe(runs) & runs["gpu_name"].map(known_gpus).notna()]
    runs = runs.assign(sweep=runs.get("sweep", ""), **{name: numbers(runs, name) for name in MEDIANS})
    settings = []
    for (_, _, gpu_name), group in runs.groupby(["sweep", "experiment", "gpu_name"], sort=False, dropna=False):
        ok = group[group["status"] == "ok"]
        kept = ok if len(ok) else group
        record = {str(name): value for name, value in kept.iloc[0].items()}
        record |= {name: float(kept[name].median()) for name in MEDIANS}
        asked = recorded(record).model_copy(update={"device": "cuda"})
        record |= {"experiment": asked.name_with_model, "known_gpu": known_gpus[gpu_name], "asked": asked}
        settings.append({**record, "measured": of_record(record, link) if len(ok) else None})
    return settings


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
            capacity_gib = record["gpu_memory_gib"] if record["gpu_memory_gib"] > 0 else record["known_gpu"].memory_gib
            peak_gib = peak_memory(record["asked"], trace).peak_allocated_gib
            fits = peak_gib <= room(record["asked"], capacity_gib).tensors_gib
        ran = record["status"] == "ok"
        rows.append(
            {
                "experiment": record["experiment"],
                "model": record["model"],
                "kind": accuracy.kind(record["asked"]),
                "ran": ran,
                "has_rules": is_covered(record["asked"]),
                "step_time_s": record["measured"].step_time_s if record["measured"] else math.nan,
                "peak_allocated_gib": record["peak_allocated_gib"] if ran else math.nan,
                "predicted_step_time_s": step_time_s,
                "predicted_peak_allocated_gib": peak_gib,
                "fits": fits,
            }
        )
    return rows


def traces_of(experiments: Sequence[Experiment], make: bool = True) -> list[Trace | None]:
    """Return the trace of each setting; None where there are no rules for its memory, or it cannot be traced."""
    covered = [is_covered(one) for one in experiments]
    found = iter(traces.attempts(list(itertools.compress(experiments, covered)), make))
    tried = (next(found) if has_rules else None for has_rules in covered)
    return [trace if isinstance(trace, Trace) else None for trace in tried]


def _step_times(settings: Sequence[dict[str, Any]]) -> list[float]:
    """Return the predicted step time of each setting; constants are fitted to settings on the same GPU."""
    predicted_s = [math.nan] * len(settings)
    on_gpus: dict[str, list[int]] = {}
    for place, record in enumerate(settings):
        if record["measured"]:
            on_gpus.setdefault(record["known_gpu"].name, []).append(place)
    for places in on_gpus.values():
        timed = [settings[place]["measured"] for place in places]
        for place, run, error_pct in zip(places, timed, accuracy.left_out(timed), strict=True):
            predicted_s[place] = run.step_time_s * (1 + error_pct / 100)
    return predicted_s


def errors(table: pd.DataFrame) -> pd.DataFrame:
    """Return the errors in a table of `parity` by kind of setting, `all` last; NaN where there is none.

    For each of `FIGURES` there is `..._settings`, `..._mean_pct` and `..._worst_pct` of the absolute errors, and
    `..._bias_pct`.
    """
    by_kind: dict[str, dict[str, float]] = {}
    for kind, part in [*table.groupby("kind"), (ALL, table)]:
        summary: dict[str, float] = {}
        for name in FIGURES:
            error_pct = part[f"{name}_error_pct"].dropna()
            summary |= {f"{name}_settings": len(error_pct), f"{name}_bias_pct": error_pct.mean()}
            summary |= {f"{name}_mean_pct": error_pct.abs().mean(), f"{name}_worst_pct": error_pct.abs().max()}
        by_kind[str(kind)] = summary
    return pd.DataFrame.from_dict(by_kind, orient="index").rename_axis("strategy")
