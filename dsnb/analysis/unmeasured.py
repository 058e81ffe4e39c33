"""Settings that were not run, predicted for the GPU of runs that were: what the explorer shows beside them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from dsnb.analysis.parity import by_setting, traces_of
from dsnb.errors import SettingsError
from dsnb.prediction import gpus
from dsnb.prediction.calibration import MIN_SETTINGS, recorded
from dsnb.prediction.gpus import Link
from dsnb.prediction.predict import On, tabulated
from dsnb.prediction.step_time import problem, setting
from dsnb.prediction.traces import can_trace
from dsnb.run_folder.columns import SETTINGS
from dsnb.run_folder.paths import SweepPaths
from dsnb.run_folder.result import ENDED
from dsnb.runs import labels
from dsnb.runs.table import as_runs, numbers
from dsnb.settings import deepspeed_keys
from dsnb.settings.experiment import Experiment
from dsnb.settings.params_file import combinations, read_params

Asked = str | Path | Experiment
MAX_PREDICTED = 2000
"""Settings that are predicted; a page holds each of them."""
OWN_RUNS = "dsnb's own runs on H200"
ERROR = "± is the mean error of such predictions."
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
    """Predicted settings that were not run."""

    table: pd.DataFrame = field(default_factory=pd.DataFrame)
    """One row per setting: `experiment`, the settings and `gpu_name` in the columns of `load_runs`, predicted figures,
    the mean error of each as `..._error_pct`, `fits` (None if unknown), `outside`."""
    notes: tuple[str, ...] = ()
    """For which GPU, from what, and what was left out."""

    def without(self, runs: pd.DataFrame) -> pd.DataFrame:
        """Return the settings of which none of these runs has ended."""
        return self.table[~self.table["experiment"].isin(_ended(runs))] if len(self.table) else self.table


def unmeasured(runs: pd.DataFrame, asked: Asked | Sequence[Asked], link: str = "nvlink") -> Unmeasured:
    """Predict the settings that were not run, for the GPU of most runs.

    Three settings or more that were measured on it calibrate the predictions.

    Parameters
    ----------
    asked
        Params files, folders of sweeps (for their own params files), or settings.

    Raises
    ------
    SettingsError
        If a params file cannot be used, the link is unknown, or no run was on a GPU that can be predicted for.
    """
    runs, path = as_runs(runs), gpus.link(link)
    on_gpu, gpu_name = _on_one_gpu(runs, path)
    spec = on_gpu[0]["known_gpu"]
    wanted, notes = _wanted(asked, on_gpu)
    ended = _ended(runs)
    wanted = [one for one in wanted if one.name_with_model not in ended]
    problems = [problem(one, spec.name, link) for one in wanted]
    shown = [one for one, why in zip(wanted, problems, strict=True) if not why]
    if len(shown) > MAX_PREDICTED:
        notes.append(f"{MAX_PREDICTED:,} of {len(shown):,} settings are predicted, the first of the file.")
    shown = shown[:MAX_PREDICTED]
    notes += _left_out(filter(None, problems))
    if not shown:
        return Unmeasured(notes=tuple(notes))
    timed = [row["measured"] for row in on_gpu if row["measured"]]
    is_calibrated = len(timed) >= MIN_SETTINGS
    on = On(spec, path).calibrated(timed) if is_calibrated else On(spec, path)
    traces = traces_of(shown, make=can_trace())
    figures = tabulated(shown, [setting(one, spec, path) for one in shown], traces, on, tokens=ANY_TOKENS)
    source = Counter(labels.text(row.get("source")) for row in on_gpu).most_common(1)[0][0]
    table = _as_runs(shown, figures).assign(gpu_name=gpu_name, source=source)
    measured = f"the {len(timed):,} settings that were measured on it here" if is_calibrated else OWN_RUNS
    basis = f"Predicted for {gpu_name}, with a time model that is fitted to {measured}. {ERROR}"
    if missing := traces.count(None):
        why = "they cannot be traced, or there are no rules for it"
        if not can_trace():
            why = "torch or transformers, with which models are traced, is missing"
        notes.append(f"The memory of {labels.count(missing, 'predicted setting')} is unknown: {why}.")
    return Unmeasured(table, (basis, *notes))


def check(runs: pd.DataFrame, asked: Asked | Sequence[Asked], link: str = "nvlink") -> None:
    """Raise a SettingsError as `unmeasured` would, before anything is predicted."""
    _wanted(asked, _on_one_gpu(runs, gpus.link(link))[0])


def _on_one_gpu(runs: pd.DataFrame, link: Link) -> tuple[list[dict[str, Any]], str]:
    """Return the settings that were run on the GPU of most of them, and its name."""
    rows = by_setting(runs, link)
    if not rows:
        names = sorted({labels.text(name) for name in runs.get("gpu_name", []) if not pd.isna(name)})
        where = f"these runs were on {', '.join(names) or 'no GPU'}"
        raise SettingsError(
            f"predict: no run has succeeded, or run out of memory, on a GPU that dsnb knows: {where}; leave it out"
        )
    gpu_name = Counter(str(row["gpu_name"]) for row in rows).most_common(1)[0][0]
    return [row for row in rows if row["gpu_name"] == gpu_name], gpu_name


def _ended(runs: pd.DataFrame) -> set[str]:
    """Return the settings of which a run has ended, by the names that dsnb gives them."""
    ended = runs[runs["status"].isin(ENDED)]
    ended = ended.assign(sweep=ended.get("sweep", "")).drop_duplicates(["sweep", "experiment"])
    return {recorded({str(name): value for name, value in row.items()}).name_with_model for _, row in ended.iterrows()}


def _wanted(asked: Asked | Sequence[Asked], on_gpu: Sequence[Mapping[str, Any]]) -> tuple[list[Experiment], list[str]]:
    """Return the settings, each once, and what was left out of the files because it is refused."""
    number = max(int(row["asked"].gpus) for row in on_gpu)
    wanted: list[Experiment] = []
    refused: list[str] = []
    for source in [asked] if isinstance(asked, Asked) else asked:
        experiments, reasons = ([source], []) if isinstance(source, Experiment) else _of_file(Path(source), number)
        wanted += [one.model_copy(update={"device": "cuda"}) for one in experiments]
        refused += reasons
    return list({one.name_with_model: one for one in wanted}.values()), _left_out(refused)


def _of_file(path: Path, number: int) -> tuple[list[Experiment], list[str]]:
    """Return the settings of a params file, with `gpus: auto` as in the runs, and why others are refused."""
    file = SweepPaths(path).params if path.is_dir() else path
    experiments, refused = [], []
    for given in combinations(read_params(file)):
        settings = {**given, "device": "cuda"}
        settings |= {"gpus": number} if settings.get("gpus") == "auto" else {}
        try:
            experiments.append(Experiment(**settings))
        except SettingsError as error:
            refused.append("; ".join(error.problems))
    if refused and not experiments:
        raise SettingsError(list(dict.fromkeys(refused)))
    return experiments, refused


def _left_out(reasons: Iterable[str]) -> list[str]:
    return [f"Left out {labels.count(number, 'setting')}: {why}." for why, number in Counter(reasons).items()]


def _as_runs(experiments: Sequence[Experiment], figures: pd.DataFrame) -> pd.DataFrame:
    """Return predicted settings as rows of a table of runs, with their figures and the errors of these."""
    rows = [
        {"experiment": one.name_with_model, **{name: getattr(one, name) for name in SETTINGS}}
        | {f"{deepspeed_keys.PREFIX}{key}": value for key, value in one.deepspeed.items()}
        for one in experiments
    ]
    figures = figures.reindex(columns=[*figures, *({"fits", *FIGURES} - {*figures})])
    errors = {f"{name}_error_pct": numbers(figures, f"{error}_error_pct") for name, error in FIGURES.items()}
    fits = figures["fits"].astype(object)
    table = pd.DataFrame(rows).join(figures[[*FIGURES, "outside"]]).assign(**errors)
    per_gpu = {PER_GPU: table["tokens_per_s"] / table["gpus"], f"{PER_GPU}_error_pct": errors["tokens_per_s_error_pct"]}
    return table.assign(fits=fits.where(fits.notna(), None), **per_gpu)
