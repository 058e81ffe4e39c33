"""What a form comes to: a table with a row for each setting, and the params file of those that can be run."""

import html
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from dsnb.analysis.texts import predicted_figures
from dsnb.errors import SettingsError
from dsnb.files import plain_yaml
from dsnb.prediction.predict import predict
from dsnb.prediction.step_time import problem
from dsnb.runs import labels
from dsnb.settings import params_file
from dsnb.settings.experiment import Experiment
from dsnb.settings.params_file import validated
from dsnb.sweep.params import Sweep, load_sweep

START_S = 20.0
"""Usual time of a run outside its steps."""
MAX_ROWS = 200
"""Settings that the form shows."""
STYLE = "<style>.dsnb-plan * { padding-right: 1em } .dsnb-plan td:not(:last-child) { white-space: nowrap }</style>"


@dataclass
class Plan:
    """The settings of a form. Those that are refused are left out of the params file and of the sweep."""

    table: pd.DataFrame = field(default_factory=pd.DataFrame)
    """A row for each combination: its axes, `experiment` and `refused`, why; empty if it can be run."""
    experiments: dict[int, Experiment] = field(default_factory=dict)
    """Row -> experiment, without refused ones."""
    problems: list[str] = field(default_factory=list)
    """Why there is no sweep."""
    text: str = ""
    """The params file."""
    sweep: Sweep | None = None


def plan(content: dict[str, Any], path: Path, output: Path) -> Plan:
    """Return what the content of a params file comes to.

    Parameters
    ----------
    content
        As in a params file, without `exclude`.
    path, output
        The params file, for messages, and the folder of the sweep.
    """
    made = Plan()
    try:
        combinations = params_file.combinations(validated(content, path))
        refused = [""] * len(combinations)
        for number, settings in enumerate(combinations):
            try:
                made.experiments[number] = Experiment(**settings)
            except SettingsError as error:
                refused[number] = "; ".join(error.problems)
        several_models = len({each.model for each in made.experiments.values()}) > 1
        names = {
            number: each.name_with_model if several_models else each.name for number, each in made.experiments.items()
        }
        axes = [{axis: settings[axis] for axis in content["grid"]} for settings in combinations]
        table = pd.DataFrame(axes, index=range(len(axes)), dtype=object)
        made.table = table.assign(experiment=pd.Series(names, dtype=object), refused=refused)
        if not made.experiments:
            raise SettingsError("every setting is refused: change one")
        exclude = [chosen for chosen, reason in zip(axes, refused, strict=True) if reason]
        made.text = plain_yaml.dump({key: part for key, part in {**content, "exclude": exclude}.items() if part})
        made.sweep = load_sweep(validated(plain_yaml.parse(made.text), path), output=output)
    except SettingsError as error:
        made.problems = error.problems
    return made


def predicted(made: Plan, gpu: str, link: str, tokens: float) -> pd.DataFrame:
    """Return the table of a plan with the columns of `dsnb.predict`, `cost`, and `note`, why nothing is predicted.

    A model, a micro-batch or a sequence length that is new is traced first, which takes seconds.
    """
    notes = {number: problem(experiment, gpu, link) for number, experiment in made.experiments.items()}
    numbers = [number for number, note in notes.items() if not note]
    rows = pd.DataFrame()
    if numbers:
        try:
            rows = predict([made.experiments[number] for number in numbers], gpu, link=link, tokens=tokens)
            rows = rows.drop(columns=made.table.columns, errors="ignore").set_axis(numbers)
            prices = [made.experiments[number].price_per_gpu_hour or math.nan for number in numbers]
            rows["cost"] = rows["gpu_hours"] * prices
        except Exception as error:  # such as a model that cannot be traced; a thread has nobody else to tell
            notes = dict.fromkeys(notes, f"nothing is predicted: {error}")
    return made.table.join(rows).assign(note=pd.Series(notes, dtype=object))


def shown(made: Plan, table: pd.DataFrame) -> str:
    """Return a plan with its table, as `predicted` returns it or without figures, as HTML; everything is escaped."""
    problems = "".join(f"<li>{html.escape(line)}</li>" for line in made.problems)
    texts = _texts(made, table.head(MAX_ROWS))
    rows = texts.to_html(index=False, border=0, justify="left", classes="dsnb-plan") if len(texts) else ""
    more = f"<p>and {len(table) - MAX_ROWS:,} more</p>" if len(table) > MAX_ROWS else ""
    parts = [f"<p>{_summary(made, table)}</p><ul>{problems}</ul>", f'<div style="overflow-x: auto">{rows}</div>{more}']
    return f'{STYLE}<div role="status" style="line-height: normal">{"".join(parts)}</div>'


def _summary(made: Plan, table: pd.DataFrame) -> str:
    """Return the number of runs and the time that they are predicted to take, one after the other."""
    if made.sweep is None:
        return ""
    experiments = {run.name: run.experiment for run in made.sweep.runs}
    repeats = len(made.sweep.runs) // len(experiments)
    runs = f"{labels.count(len(made.sweep.runs), 'run')}: {labels.count(len(experiments), 'experiment')} x {repeats}"
    if "step_time_s" not in table or table["step_time_s"].isna().all():
        return runs
    step_s = dict(zip(table["experiment"], table["step_time_s"], strict=True))
    run_s = [step_s[name] * (each.warmup_steps + each.steps) + START_S for name, each in experiments.items()]
    least = "at least" if any(map(math.isnan, run_s)) else "about"
    return f"{runs}, {least} {math.ceil(repeats * sum(s for s in run_s if not math.isnan(s)) / 60):,} min"


def _texts(made: Plan, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table as it is read: figures with their errors, and why something is missing."""
    if made.table.empty:
        return made.table
    axes = list(made.table.columns[:-2])
    texts = table[axes or ["experiment"]].fillna("").map(labels.text)
    notes = "refused: " + table["refused"].where(table["refused"].ne(""))
    if "fits" in table:
        texts = texts.join(predicted_figures(table)[["fits", "GiB", "tokens/s", "days", "cost"]])
        notes = notes.fillna(table["note"])
    return texts.assign(why=notes).replace("", math.nan).dropna(axis="columns", how="all").fillna("")
