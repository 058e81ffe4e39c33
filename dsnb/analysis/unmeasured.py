"""Settings that were not run, predicted for the GPU of runs that were: what the explorer shows beside them."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from dsnb.analysis.parity import by_setting, known_traces
from dsnb.errors import SettingsError
from dsnb.prediction import gpus
from dsnb.prediction.calibration import MIN_SETTINGS
from dsnb.prediction.fit import is_covered
from dsnb.prediction.gpus import Link
from dsnb.prediction.measured import recorded
from dsnb.prediction.predict import On, tabulated
from dsnb.prediction.step_time import Setting, setting
from dsnb.prediction.traces import Trace, can_trace
from dsnb.run_folder.columns import SETTINGS
from dsnb.run_folder.finished import ENDED
from dsnb.run_folder.paths import SweepPaths
from dsnb.runs import labels
from dsnb.runs.table import as_runs
from dsnb.settings import deepspeed_keys, grid
from dsnb.settings.experiment import Experiment
from dsnb.settings.params_file import read_params

Asked = str | Path | Experiment
MOST = 2000
"""Settings that are predicted; a page holds each of them."""
ANY_TOKENS = 1e9
"""The explorer computes days itself."""
FIGURES = {
    "tokens_per_s": "tokens_per_s",
    "step_time_s": "step_time",
    "peak_allocated_gib": "peak_allocated",
    "mfu": "step_time",
}
"""Predicted columns of runs, and the beginning of the column of their error in `dsnb.predict`."""
PER_GPU = "tokens_per_s_per_gpu"


@dataclass(frozen=True)
class Unmeasured:
    """Predicted settings that were not run.

    Attributes
    ----------
    table
        One row per setting: `experiment`, the settings and `gpu_name` in the columns of `load_runs`, predicted figures,
        the mean error of each as `..._error_pct`, `fits` (None if unknown), `outside`.
    notes
        Sentences: for which GPU, from what, and what was left out.
    """

    table: pd.DataFrame = field(default_factory=pd.DataFrame)
    notes: tuple[str, ...] = ()

    def without(self, runs: pd.DataFrame) -> pd.DataFrame:
        """Return the settings of which none of these runs has ended."""
        return self.table[~self.table["experiment"].isin(_ended(runs))] if len(self.table) else self.table


def unmeasured(runs: pd.DataFrame, asked: Asked | Sequence[Asked], link: str = "nvlink") -> Unmeasured:
    """Predict the settings that were not run.

    Parameters
    ----------
    runs
        Runs as `dsnb.load_runs` returns them. Predictions are for the GPU of most of them, and calibrated on them if
        three settings or more were measured on it.
    asked
        Params files, folders of sweeps (for their own params files), or settings.
    link
        How the GPUs of these runs are connected, as `dsnb.predict` takes it.

    Raises
    ------
    SettingsError
        If a params file cannot be used, the link is unknown, or no run was on a GPU that can be predicted for.
    """
    runs, path = as_runs(runs), gpus.link(link)
    own, gpu_name = _on_one_gpu(runs, path)
    wanted, notes = _wanted(asked, max(int(row["asked"].gpus) for row in own))
    done = _ended(runs)
    wanted = {name: one for name, one in wanted.items() if name not in done}
    timed = [row["measured"] for row in own if row["measured"]]
    on = On(own[0]["known_gpu"], path)
    on = on.calibrated(timed) if len(timed) >= MIN_SETTINGS else on
    settings, refused = _settings(wanted, on)
    if len(settings) > MOST:
        notes.append(f"{MOST:,} of {len(settings):,} settings are predicted, the first of the file.")
    shown = [wanted[name] for name in settings][:MOST]
    traces = _traces(shown)
    table = tabulated(shown, list(settings.values())[:MOST], traces, on, tokens=ANY_TOKENS).to_dict("records")
    source = _most_common([labels.text(row.get("source")) for row in own])
    rows = [_row(one, figures, gpu_name, source) for one, figures in zip(shown, table, strict=True)]
    basis = [_basis(gpu_name, len(timed))] if rows else []
    return Unmeasured(pd.DataFrame(rows), (*basis, *notes, *refused, *_untraced(traces)))


def check(runs: pd.DataFrame, asked: Asked | Sequence[Asked], link: str = "nvlink") -> None:
    """Raise a SettingsError as `unmeasured` would, before anything is predicted."""
    own, _ = _on_one_gpu(runs, gpus.link(link))
    _wanted(asked, max(int(row["asked"].gpus) for row in own))


def _on_one_gpu(runs: pd.DataFrame, link: Link) -> tuple[list[dict[str, Any]], str]:
    """Return the settings that were run on the GPU of most of them, and its name."""
    rows, _ = by_setting(runs, link)
    if not runs["status"].isin(["ok", "oom"]).any():
        raise SettingsError("predict: no run has succeeded yet, or run out of memory, that tells the GPU; leave it out")
    if not rows:
        names = sorted({labels.text(name) for name in runs.get("gpu_name", []) if not pd.isna(name)})
        where = f"on {', '.join(names)}" if names else "on no GPU"
        raise SettingsError(f"predict: these runs were {where}, for which nothing can be predicted; leave it out")
    gpu_name = _most_common([str(row["gpu_name"]) for row in rows])
    return [row for row in rows if row["gpu_name"] == gpu_name], gpu_name


def _most_common(names: Sequence[str]) -> str:
    return max(dict.fromkeys(names), key=names.count)


def _ended(runs: pd.DataFrame) -> set[str]:
    """Return the settings of which a run has ended, by the names that dsnb gives them."""
    ended = runs[runs["status"].isin(ENDED)]
    ended = ended.assign(sweep=ended.get("sweep", "")).drop_duplicates(["sweep", "experiment"])
    return {recorded({str(name): value for name, value in row.items()}).name_with_model for _, row in ended.iterrows()}


def _wanted(asked: Asked | Sequence[Asked], gpus: int) -> tuple[dict[str, Experiment], list[str]]:
    """Return the settings by name, and what was left out of the files because it is refused."""
    found: list[Experiment] = []
    refused: list[str] = []
    for one in [asked] if isinstance(asked, Asked) else asked:
        own, why = ([one], []) if isinstance(one, Experiment) else _of_file(Path(one), gpus)
        found += own
        refused += why
    on_gpus = (one.model_copy(update={"device": "cuda"}) for one in found)
    return {one.name_with_model: one for one in on_gpus}, _left_out(refused)


def _of_file(path: Path, gpus: int) -> tuple[list[Experiment], list[str]]:
    """Return the settings of a params file, with `gpus: auto` as in the runs, and why others are refused."""
    file = SweepPaths(path).params if path.is_dir() else path
    found, refused = [], []
    for given in grid.combinations(read_params(file)):
        settings = {**given, "device": "cuda"}
        settings |= {"gpus": gpus} if settings.get("gpus") == "auto" else {}
        try:
            found.append(Experiment(**settings))
        except SettingsError as error:
            refused.append("; ".join(error.problems))
    if refused and not found:
        raise SettingsError(list(dict.fromkeys(refused)))
    return found, refused


def _settings(wanted: dict[str, Experiment], on: On) -> tuple[dict[str, Setting], list[str]]:
    """Return the counts of each setting by name, and why others cannot be predicted."""
    found: dict[str, Setting] = {}
    problems: list[str] = []
    for name, one in wanted.items():
        try:
            found[name] = setting(one, on.gpu, on.link)
        except SettingsError as error:
            problems.append(str(error))
    return found, _left_out(problems)


def _left_out(reasons: Iterable[str]) -> list[str]:
    every = list(reasons)
    return [f"Left out {labels.count(every.count(why), 'setting')}: {why}." for why in dict.fromkeys(every)]


def _traces(experiments: Sequence[Experiment]) -> list[Trace | None]:
    """Return the trace of each setting; None where there are no rules for its memory, or it cannot be traced."""
    covered = [is_covered(one) for one in experiments]
    found = iter(known_traces(list(itertools.compress(experiments, covered)), make=True))
    return [next(found) if has_rules else None for has_rules in covered]


def _row(one: Experiment, figures: dict[Any, Any], gpu_name: str, source: str) -> dict[str, Any]:
    """Return a setting as a row of a table of runs, with its predicted figures and their errors."""
    own = {name: getattr(one, name) for name in SETTINGS}
    own |= {f"{deepspeed_keys.PREFIX}{key}": value for key, value in one.deepspeed.items()}
    found = {name: figures.get(name, math.nan) for name in FIGURES}
    found |= {f"{name}_error_pct": figures.get(f"{error}_error_pct", math.nan) for name, error in FIGURES.items()}
    found |= {PER_GPU: found["tokens_per_s"] / one.gpus, f"{PER_GPU}_error_pct": found["tokens_per_s_error_pct"]}
    fits = figures.get("fits")
    known = {"fits": None if fits is None or pd.isna(fits) else bool(fits), "outside": figures["outside"]}
    return {"experiment": one.name_with_model, **own, "gpu_name": gpu_name, "source": source, **found, **known}


def _basis(gpu_name: str, timed: int) -> str:
    measured = (
        f"the {timed:,} settings that were measured on it here" if timed >= MIN_SETTINGS else "dsnb's own runs on H200"
    )
    return (
        f"Predicted for {gpu_name}, with a time model that is fitted to {measured}. "
        "± is the mean error of such predictions."
    )


def _untraced(traces: Sequence[object]) -> list[str]:
    missing = sum(trace is None for trace in traces)
    if not missing:
        return []
    why = "they cannot be traced, or there are no rules for it"
    if not can_trace():
        why = "torch or transformers, with which models are traced, is missing"
    return [f"The memory of {labels.count(missing, 'predicted setting')} is unknown: {why}."]
