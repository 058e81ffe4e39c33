"""Measured settings beside their predictions, each made without the runs of its own model: how good predictions are.

A setting counts once, with the medians of its runs. Nothing is fitted to measured memory, so that its prediction needs
nothing left out; it needs a trace of the model, which this module makes only if it is asked to.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dsnb.errors import SettingsError
from dsnb.prediction import accuracy, gpus, traces
from dsnb.prediction.accuracy import ALL
from dsnb.prediction.constants import DEFAULT, PRIOR, Constants
from dsnb.prediction.fit import is_covered
from dsnb.prediction.gpus import GpuSpec, Link
from dsnb.prediction.measured import Measured, of_record, recorded
from dsnb.prediction.memory import RULES, peak_memory, room
from dsnb.prediction.traces import Trace
from dsnb.run_folder.paths import PROBE
from dsnb.runs import labels
from dsnb.runs.columns import numbers
from dsnb.runs.table import as_runs
from dsnb.settings.experiment import Experiment

NEEDED = ("model", "strategy", "precision", "gpus", "seq_len", "micro_batch_size")
"""What a row must tell: defaults in place of unknown settings would predict another one."""
FIGURES = {"step_time": "step_time_s", "peak_allocated": "peak_allocated_gib"}
"""What is compared: the beginning of the columns of its error, and its own column."""
MEDIANS = ("step_time_s", "tokens_per_s", "peak_allocated_gib", "gpu_memory_gib", "timed_steps")
PROBED = re.compile(rf"{PROBE}\d+$")
"""Names of the short runs that look for a micro-batch."""
MOST = 500
"""Settings that are compared; of more, every second, third, ... one."""
OWN_TABLES = frozenset({"published: h200_gpt2_zero_precision", "published: h200_memory", "published: h200"})
"""Sources of runs that `DEFAULT` was fitted to: their predictions start from `PRIOR`, which knows none of them."""


@dataclass(frozen=True)
class Parity:
    """Measured settings beside their predictions.

    Attributes
    ----------
    table
        One row per setting on a known GPU: `experiment`, `gpu`, `kind` (`dsnb.prediction.accuracy.kind`), `ran`
        (whether any run succeeded; the others ran out of memory), `timed_steps` of a run, `has_rules` (whether there
        are rules for its memory), `fits` (whether it is predicted to; None if unknown), and for each of `FIGURES` the
        measured column, `predicted_...`, and `..._error_pct`, above 0 if more was predicted; NaN where one of both is
        unknown.
    left_out
        What each setting was predicted without: `model`, `setting`, or `nothing` where there is no other setting.
    starts_from_own
        Whether the constants start from those that dsnb's runs on H200 were fitted to.
    found
        Number of settings, of which `table` has at most `MOST`.
    """

    table: pd.DataFrame
    left_out: str
    starts_from_own: bool
    found: int

    @property
    def untraced(self) -> int:
        """Settings whose memory could be predicted, but whose models were not traced."""
        return int((self.table["has_rules"] & self.table["predicted_peak_allocated_gib"].isna()).sum())


def parity(runs: pd.DataFrame, trace: bool = False, link: str = "nvlink") -> Parity | None:
    """Return measured settings beside their predictions; None if no run on a known GPU can be compared.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` returns it.
    trace
        Trace the models that were not traced before, which takes seconds each, where torch is installed.
    link
        How GPUs are connected, as `dsnb.predict` takes it: runs on several nodes need a network.
    """
    rows, found = by_setting(runs, gpus.link(link))
    records = [record for record in rows if record["status"] == "oom" or record["measured"]]
    if not records:
        return None
    own = any(record.get("source") in OWN_TABLES for record in records)
    rows_of_memory = zip(map(_described, records), _memory(records, trace), strict=True)
    table = pd.DataFrame([{**described, **memory} for described, memory in rows_of_memory])
    table["predicted_step_time_s"] = _step_times(records, PRIOR if own else DEFAULT)
    for name, column in FIGURES.items():
        table[f"{name}_error_pct"] = 100 * (table[f"predicted_{column}"] / table[column] - 1)
    if (
        table[[f"predicted_{column}" for column in FIGURES.values()]].isna().all(axis=None)
        and not table["has_rules"].any()
    ):
        return None
    timed = [record["measured"] for record in records if record["measured"]]
    left_out = "model" if accuracy.by_model(timed) else "setting" if len(timed) > 1 else "nothing"
    return Parity(table, left_out, not own, found)


def by_setting(runs: pd.DataFrame, link: Link) -> tuple[list[dict[str, Any]], int]:
    """Return a record for each setting on a known GPU that ran or ran out of memory, with the medians of its runs.

    Of more than `MOST` settings these are every second, third, ... one; the second value is the number of all.

    Each has the columns of its first run, `experiment` as dsnb names its settings, `known_gpu` (the GPU by its data
    sheet), `asked` (the settings), and `measured` (None if no run succeeded, or its time cannot be predicted).
    """
    known = as_runs(runs)
    if not {*NEEDED, "gpu_name", "experiment", "status"} <= {*known}:
        return [], 0
    known = known[known["status"].isin(["ok", "oom"]) & known[list(NEEDED)].notna().all(axis=1)]
    known = known[known["gpu_name"].map(lambda name: _gpu(name) is not None).astype(bool)]
    known = known[~known["experiment"].map(lambda name: bool(PROBED.search(labels.text(name)))).astype(bool)]
    known = known.assign(sweep=known.get("sweep", ""), **{name: numbers(known, name) for name in MEDIANS})
    groups = [group for _, group in known.groupby(["sweep", "experiment", "gpu_name"], sort=False, dropna=False)]
    return [_setting(group, link) for group in groups[:: math.ceil(len(groups) / MOST) or 1]], len(groups)


def _gpu(name: object) -> GpuSpec | None:
    try:
        return gpus.find(str(name))
    except SettingsError:
        return None


def _setting(runs: pd.DataFrame, link: Link) -> dict[str, Any]:
    ok = runs[runs["status"] == "ok"]
    kept = ok if len(ok) else runs
    record = {str(name): value for name, value in kept.iloc[0].items()}
    record |= {name: float(kept[name].median()) for name in MEDIANS}
    experiment = recorded(record).model_copy(update={"device": "cuda"})
    names = {"experiment": experiment.name_with_model, "known_gpu": _gpu(record["gpu_name"]), "asked": experiment}
    return {**record, **names, "measured": of_record(record, link) if len(ok) else None}


def _described(record: dict[str, Any]) -> dict[str, Any]:
    one: Measured | None = record["measured"]
    return {
        "experiment": record["experiment"],
        "gpu": record["known_gpu"].name,
        "kind": accuracy.kind(record["asked"]),
        "ran": record["status"] == "ok",
        "timed_steps": record["timed_steps"],
        "step_time_s": one.step_time_s if one else math.nan,
        "peak_allocated_gib": record["peak_allocated_gib"] if record["status"] == "ok" else math.nan,
    }


def _step_times(records: Sequence[dict[str, Any]], start: Constants) -> list[float]:
    """Return the predicted step time of each setting; constants are fitted to settings on the same GPU."""
    found = [math.nan] * len(records)
    for gpu in dict.fromkeys(record["known_gpu"].name for record in records):
        own = [place for place, one in enumerate(records) if one["measured"] and one["known_gpu"].name == gpu]
        timed = [records[place]["measured"] for place in own]
        for place, one, error in zip(own, timed, accuracy.left_out(timed, start), strict=True):
            found[place] = one.step_time_s * (1 + error / 100)
    return found


def _memory(records: Sequence[dict[str, Any]], trace: bool) -> list[dict[str, Any]]:
    """Return the predicted peak of each setting, and whether it fits; NaN and None without rules or a trace."""
    nothing = {"predicted_peak_allocated_gib": math.nan, "fits": None, "has_rules": False}
    found: list[dict[str, Any]] = [dict(nothing) for _ in records]
    known = [place for place, one in enumerate(records) if is_covered(one["asked"]) and one["asked"].strategy in RULES]
    asked = [records[place]["asked"] for place in known]
    for place, one, model in zip(known, asked, known_traces(asked, trace), strict=True):
        found[place]["has_rules"] = True
        if model:
            capacity = records[place]["gpu_memory_gib"]
            left = room(one, capacity if capacity > 0 else records[place]["known_gpu"].memory_gib).tensors_gib
            peak = peak_memory(one, model).peak_allocated_gib
            found[place] |= {"predicted_peak_allocated_gib": peak, "fits": peak <= left}
    return found


def known_traces(experiments: Sequence[Experiment], make: bool) -> list[Trace | None]:
    """Return the trace of each setting; None for one that is not kept and, if it is to be made, cannot be."""
    if make:
        try:
            found = traces.attempts(experiments)
            return [one if isinstance(one, Trace) else None for one in found]
        except SettingsError:  # torch is missing
            pass
    return traces.kept(experiments)


def errors(table: pd.DataFrame) -> pd.DataFrame:
    """Return the errors of each kind of setting and of all, as `Parity.table` has them.

    Returns
    -------
    pandas.DataFrame
        Indexed by kind, `all` last: for each of `FIGURES` `..._settings`, and `..._mean_pct` and `..._worst_pct` of the
        absolute errors, and `..._bias_pct`; NaN where there is none.
    """
    kinds = [*sorted(set(table["kind"])), ALL] if len(table) else []
    rows = [_errors(table if name == ALL else table[table["kind"] == name]) for name in kinds]
    return pd.DataFrame(rows, index=pd.Index(kinds, name="strategy"))


def _errors(table: pd.DataFrame) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in FIGURES:
        known = table[f"{name}_error_pct"].dropna()
        sizes = known.abs()
        found |= {f"{name}_settings": len(known), f"{name}_mean_pct": sizes.mean(), f"{name}_worst_pct": sizes.max()}
        found[f"{name}_bias_pct"] = known.mean()
    return found
