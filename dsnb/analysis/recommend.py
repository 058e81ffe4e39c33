"""`dsnb.recommend`: which of some settings to train each task with, how sure that is, and which two runs would tell."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from dsnb.analysis import ratio_errors, would_fit
from dsnb.analysis.tasks import settings_of, tasks
from dsnb.errors import SettingsError
from dsnb.prediction import predict
from dsnb.runs.labels import span
from dsnb.settings import planning
from dsnb.settings.experiment import Experiment

Objective = Literal["days", "tokens_per_s", "memory", "cost"]
COLUMNS: dict[str, tuple[str, bool]] = {
    "days": ("days", True),
    "tokens_per_s": ("tokens_per_s", False),
    "memory": ("peak_allocated_gib", True),
    "cost": ("cost", True),
}
"""The column of each objective, and whether less of it is better."""
ALTERNATIVES = 3


@dataclass(frozen=True)
class Recommendation:
    """A choice among the predicted settings of one task.

    Attributes
    ----------
    task
        What is trained, as in "opt-1.3b, sequence 2048".
    table
        The best setting and the three nearest, in the columns of `dsnb.predict` and `worse_pct`: by how many per cent
        each is worse than the best in the objective. Empty if no setting of the task is predicted to fit.
    sentences
        What to train with, how sure that is, and what would decide it; or what would make a setting fit.
    """

    task: str
    table: pd.DataFrame
    sentences: tuple[str, ...]


def recommend(
    experiments: Sequence[Experiment], gpu: str = "H200", *, objective: Objective = "days", **options: Any
) -> list[Recommendation]:
    """Return for each task the best of its settings that is predicted to fit; the task with most settings comes first.

    Settings of different tasks, such as two models, are never compared with each other.

    Parameters
    ----------
    experiments, gpu, options
        As `dsnb.predict` takes them.
    objective
        `days` or `cost` of the training, `tokens_per_s` of all GPUs, or `memory` of a GPU.

    Raises
    ------
    SettingsError
        If no setting of any task is predicted to fit, the objective is unknown, or `cost` is asked for without a price.
    """
    if objective not in COLUMNS:
        raise SettingsError(f"objective is {objective!r}: use one of {', '.join(COLUMNS)}")
    if objective == "cost" and options.get("price") is None:
        raise SettingsError("objective is 'cost', but price is missing: give the price of a GPU-hour")
    if not experiments:
        raise SettingsError("there is no setting to choose from: give at least one")
    found = predict.predict(experiments, gpu, **options)
    ratios = ratio_errors.known_for(gpu, options.get("link", "nvlink"), options.get("calibrate"))
    answers, problems = [], []
    for title, places in by_task(experiments):
        own, table = [experiments[place] for place in places], found.iloc[places].reset_index(drop=True)
        if table["fits"].any():
            answers.append(_choice(title, own, table, objective, ratios))
        else:
            said = would_fit.sentences(own, table, gpu, **options)
            problems += [f"{title}: {one}" for one in said]
            answers.append(Recommendation(title, table.head(0), tuple(f"{one[0].upper()}{one[1:]}." for one in said)))
    if not found["fits"].any():
        raise SettingsError(problems)
    return answers


def by_task(experiments: Sequence[Experiment]) -> list[tuple[str, list[int]]]:
    """Return the title of each task and the places of its settings, as `dsnb.analysis.tasks` tells tasks apart."""
    return [(task.title, task.runs.index.tolist()) for task in tasks(settings_of(experiments))]


def _choice(
    title: str, experiments: Sequence[Experiment], found: pd.DataFrame, objective: str, ratios: ratio_errors.Ratios
) -> Recommendation:
    name, less = COLUMNS[objective]
    fitting = found[found["fits"].astype(bool)]
    ranked = fitting.sort_values(name, ascending=less, kind="stable").head(1 + ALTERNATIVES)
    chosen = [experiments[place] for place in ranked.index]
    table = ranked.reset_index(drop=True)
    best = table[name].iloc[0]
    table.insert(1, "worse_pct", (100 * (table[name] / best - 1) if less else 100 * (best / table[name] - 1)))
    return Recommendation(title, table, tuple(_sentences(table, chosen, objective, ratios, len(found) - len(fitting))))


def _sentences(
    table: pd.DataFrame, chosen: Sequence[Experiment], objective: str, ratios: ratio_errors.Ratios, too_large: int
) -> Iterator[str]:
    best = table.iloc[0]
    yield (
        f"Train with {best['experiment']}: {best['tokens_per_s']:,.0f} tokens/s "
        f"(± {best['tokens_per_s_error_pct']:.1f} %), {best['peak_allocated_gib']:.1f} GiB "
        f"(± {best['peak_allocated_error_pct']:.1f} %), {span(best['days_low'], best['days_high'])} days."
    )
    if best["days"] > planning.MOST_DAYS:
        yield (
            f"That is more than {planning.MOST_DAYS:g} days: {planning.GOAL_DAYS:g} days would need "
            f"{planning.gpus_needed(best['gpu_hours']):,.0f} GPUs, if each sustained its speed."
        )
    if too_large:
        yield f"{too_large} {'setting does' if too_large == 1 else 'settings do'} not fit."
    if len(table) > 1:
        yield _how_sure(table, chosen, objective, ratios)
    if chosen[0].allocator == "default":
        yield "Its allocator is torch's default one: fragmentation can need more memory than is predicted."
    if best["outside"]:
        yield f"Less sure than that: {best['outside']}."


def _how_sure(table: pd.DataFrame, chosen: Sequence[Experiment], objective: str, ratios: ratio_errors.Ratios) -> str:
    best, second = table.iloc[0], table.iloc[1]
    within, error = _doubt(table, chosen, objective, ratios)
    difference = f"{second['experiment']} is {second['worse_pct']:.1f} % worse"
    if second["worse_pct"] <= within:
        return f"{difference}, within {error}: run {best['experiment']} and {second['experiment']} to decide."
    return f"{difference}, more than {error}."


def _doubt(
    table: pd.DataFrame, chosen: Sequence[Experiment], objective: str, ratios: ratio_errors.Ratios
) -> tuple[float, str]:
    """Return the error of a difference between the first two settings in per cent, and the same in words."""
    if objective == "memory":
        within = float(table["peak_allocated_error_pct"].head(2).max())
        return within, f"the error of {within:.1f} %"
    by_cpu = list(table["limited_by"].head(2) == "CPU")
    name, error = ratio_errors.expected(chosen[0], chosen[1], by_cpu, ratios)
    return error.mean_pct, ratio_errors.words(name, error)
