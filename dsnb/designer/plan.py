"""What a draft comes to: its runs, what is refused and why, what is predicted not to fit, its time and its cost."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from dsnb.designer import predicted
from dsnb.designer.draft import Draft, entries
from dsnb.designer.predicted import BEST, PREDICTING, START_S, Predict
from dsnb.errors import SettingsError
from dsnb.files import plain_yaml
from dsnb.settings import checks, grid
from dsnb.settings.experiment import Experiment
from dsnb.settings.params_file import ParamsFile, validated
from dsnb.sweep.params import Sweep, planned


@dataclass
class Plan:
    """What a draft comes to; without a sweep, `problems` says why."""

    problems: list[str] = field(default_factory=list)
    refused: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Reason -> the combinations of the axes that it refuses."""
    unfit: list[str] = field(default_factory=list)
    """Experiments that are predicted not to fit into memory."""
    text: str = ""
    """The params file."""
    sweep: Sweep | None = None
    unsupported: list[str] = field(default_factory=list)
    """Why this machine cannot run it."""
    predicted: pd.DataFrame = field(default_factory=pd.DataFrame)
    """One row per experiment of the sweep, with `gpus`, `tokens_per_s_per_gpu`, and `run_s` of each of its runs."""
    note: str = ""
    """Why nothing is predicted; empty if something is."""

    @property
    def is_predicting(self) -> bool:
        """Whether a prediction is being made, so that what does not fit is not known yet."""
        return self.note == PREDICTING

    @property
    def unknown_runs(self) -> int:
        """The number of runs whose time is not predicted."""
        return int(self.predicted["run_s"].isna().sum()) * self.repeats if self.sweep else 0

    @property
    def repeats(self) -> int:
        """Runs per experiment."""
        return max((run.repeat for run in self.sweep.runs), default=0) if self.sweep else 0

    @property
    def seconds(self) -> float:
        """Predicted time of all runs whose time is known, one after the other."""
        return float(self.predicted["run_s"].sum()) * self.repeats

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of the same runs."""
        return float((self.predicted["run_s"] * self.predicted["gpus"]).sum()) * self.repeats / 3600

    @property
    def cost(self) -> float:
        """Cost of the same runs; 0 without a price."""
        return float(self.predicted["cost"].sum()) * self.repeats

    def best(self, objective: str) -> dict[str, pd.Series]:
        """Return the best predicted experiment of each task that fits, by the task's title; without unknown ones."""
        column, _ = BEST[objective]
        if self.predicted.empty:
            return {}
        known = self.predicted[self.predicted["fits"].ne(False) & self.predicted[column].notna()]
        return {
            str(title): own.loc[own[column].idxmin() if objective == "memory" else own[column].idxmax()]
            for title, own in known.groupby("task", sort=False)
        }


def plan(
    draft: Draft,
    path: Path,
    output: Path,
    predict: Predict,
    start_s: float = START_S,
    leave_out_unfit: bool = False,
) -> Plan:
    """Return what a draft comes to. Nothing is raised, written or started.

    Parameters
    ----------
    draft
        What the form says.
    path, output
        The params file and the sweep's folder, for messages and for the paths of the runs.
    predict
        Predicts memory and speed.
    start_s
        Seconds of a run outside its steps, for the estimate.
    leave_out_unfit
        Leave out what is predicted not to fit, like what is refused.
    """
    made = Plan()
    try:
        file = validated(draft.content(), path)
        combinations = grid.combinations(file)
        experiments = _Experiments()
        accepted = _accepted(combinations, file.grid, experiments, made)
        if not accepted:
            raise SettingsError("every combination is refused: change a setting")
        rows, made.note = predicted.rows(list(accepted.values()), predict, start_s)
        doomed = {place for place, fits in zip(accepted, rows["fits"], strict=True) if fits is False}
        made.unfit = list(rows["experiment"][rows["fits"].eq(False)])
        if leave_out_unfit and doomed:
            if len(doomed) == len(accepted):
                raise SettingsError("nothing is predicted to fit: change a setting")
            rows = rows[rows["fits"].ne(False)]
            accepted = {place: one for place, one in accepted.items() if place not in doomed}
        left_out = [place for place in _places(file.grid) if place not in accepted]
        _write(draft, file, path, output, left_out, experiments, made)
        made.predicted = rows.drop_duplicates("experiment", ignore_index=True)
    except SettingsError as error:
        made.problems = error.problems
    return made


def _places(axes: Mapping[str, list[Any]]) -> list[tuple[int, ...]]:
    """Return all combinations of the axes as positions of values, in the order of `grid.combinations`."""
    return list(product(*(range(len(values)) for values in axes.values())))


class _Experiments:
    """Makes experiments, each once: they are asked for again where the params file of the form is read back."""

    def __init__(self) -> None:
        self._made: dict[str, Experiment] = {}

    def __call__(self, **settings: Any) -> Experiment:
        """Return an experiment, or raise the SettingsError of its settings."""
        key = repr(sorted(settings.items()))
        if key not in self._made:
            self._made[key] = Experiment(**settings)
        return self._made[key]


def _accepted(
    combinations: list[dict[str, Any]], axes: Mapping[str, list[Any]], experiments: _Experiments, made: Plan
) -> dict[tuple[int, ...], Experiment]:
    """Return the experiments that can be run, by combination; note the reasons against the others."""
    accepted = {}
    for place, settings in zip(_places(axes), combinations, strict=True):
        try:
            accepted[place] = experiments(**settings)
        except SettingsError as error:
            chosen = {name: settings[name] for name in axes}
            for problem in error.problems:
                made.refused.setdefault(problem, []).append(chosen)
    return accepted


def _write(
    draft: Draft,
    file: ParamsFile,
    path: Path,
    output: Path,
    left_out: list[tuple[int, ...]],
    experiments: _Experiments,
    made: Plan,
) -> None:
    """Set the params file without these combinations, and the sweep that it is read as."""
    made.text = plain_yaml.dump(draft.content(entries(file.grid, left_out)))
    if (size := len(made.text.encode())) > plain_yaml.MAX_BYTES:
        raise SettingsError(f"the params file would have {size:,} bytes: at most {plain_yaml.MAX_BYTES:,} are allowed")
    made.sweep = planned(validated(plain_yaml.parse(made.text), path), path, output=output, make=experiments)
    found = {run.name: run.experiment for run in made.sweep.runs}
    # The check of DeepSpeed's keys imports DeepSpeed, which takes seconds: it is left to the start of the sweep.
    settings = [{**one.model_dump(), "deepspeed": {}} for one in found.values()]
    problems = [problem for one in settings for problem in checks.unsupported(one)]
    made.unsupported = list(dict.fromkeys(problems))
