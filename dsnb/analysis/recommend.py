"""Which of some settings to train each task with, by prediction: `recommend`, and `forecast` beside measured runs."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd

from dsnb.analysis import ratio_errors, would_fit
from dsnb.analysis.decide import MEASURED, PREDICTED, Decision, Question, decide
from dsnb.analysis.ratio_errors import Ratios
from dsnb.analysis.summary import UNSTABLE
from dsnb.analysis.tasks import settings_of, tasks
from dsnb.errors import SettingsError
from dsnb.prediction import gpus
from dsnb.prediction.calibration import MIN_SETTINGS
from dsnb.prediction.measured import measured, recorded
from dsnb.prediction.predict import predict
from dsnb.runs.labels import span
from dsnb.runs.table import as_runs
from dsnb.settings import planning
from dsnb.settings.experiment import Experiment

Objective = Literal["days", "tokens_per_s", "memory", "cost"]
OBJECTIVES = {"days": "time", "tokens_per_s": "time", "memory": "memory", "cost": "cost"}
"""Objectives of `recommend`, and what they are in `dsnb.analysis.decide`."""
DECIDES = {"time": "days", "memory": "peak_allocated_gib", "cost": "cost"}
"""The column of `dsnb.predict` that decides."""
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
    if objective not in OBJECTIVES:
        raise SettingsError(f"objective is {objective!r}: use one of {', '.join(OBJECTIVES)}")
    if objective == "cost" and options.get("price") is None:
        raise SettingsError("objective is 'cost', but price is missing: give the price of a GPU-hour")
    if not experiments:
        raise SettingsError("there is no setting to choose from: give at least one")
    found = predict(experiments, gpu, **options)
    ratios = ratio_errors.known_for(gpu, options.get("link", "nvlink"), options.get("calibrate"))
    asked = {"tokens": options.get("tokens", 100e9), "price": options.get("price"), "objective": OBJECTIVES[objective]}
    answers, problems = [], []
    for title, places in by_task(experiments):
        own, table = [experiments[place] for place in places], found.iloc[places].reset_index(drop=True)
        decision = _decide(table, own, **asked)
        if len(decision.options):
            answers.append(_choice(title, own, table, decision, ratios))
        else:
            reasons = would_fit.sentences(own, table, gpu, **options)
            problems += [f"{title}: {reason}" for reason in reasons]
            said = tuple(f"{reason[0].upper()}{reason[1:]}." for reason in reasons)
            answers.append(Recommendation(title, table.head(0), said))
    if not found["fits"].any():
        raise SettingsError(problems)
    return answers


def by_task(experiments: Sequence[Experiment]) -> list[tuple[str, list[int]]]:
    """Return the title of each task and the places of its settings, as `dsnb.analysis.tasks` tells tasks apart."""
    return [(task.title, task.runs.index.tolist()) for task in tasks(settings_of(experiments))]


def _decide(
    table: pd.DataFrame,
    experiments: Sequence[Experiment],
    tokens: float,
    price: float | None,
    objective: str = "time",
    max_days: float = math.inf,
) -> Decision:
    """Rank settings that are predicted, or measured where that is so; `table` has their rows in order."""
    known = {"basis": PREDICTED, "is_unstable": False, **{name: table[name] for name in table}}
    known |= {"gpus": [one.gpus for one in experiments], "kind": "", "memory_gib": table["peak_allocated_gib"]}
    prices = {} if price is None else {"": price}
    return decide(pd.DataFrame(known), Question(tokens, objective, prices=prices, max_days=max_days))


def _choice(
    title: str, experiments: Sequence[Experiment], found: pd.DataFrame, decision: Decision, ratios: Ratios
) -> Recommendation:
    ranked = found.loc[decision.options.index[: 1 + ALTERNATIVES]]
    chosen = [experiments[place] for place in ranked.index]
    table = ranked.reset_index(drop=True)
    amounts = table[DECIDES[decision.question.objective]]
    table.insert(1, "worse_pct", 100 * (amounts / amounts.iloc[0] - 1))
    too_large = len(found) - int(found["fits"].sum())
    objective = decision.question.objective
    return Recommendation(title, table, tuple(_sentences(table, chosen, objective, ratios, too_large)))


def _sentences(
    table: pd.DataFrame, chosen: Sequence[Experiment], objective: str, ratios: Ratios, too_large: int
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


def _how_sure(table: pd.DataFrame, chosen: Sequence[Experiment], objective: str, ratios: Ratios) -> str:
    best, second = table.iloc[0], table.iloc[1]
    if objective == "memory":
        within = float(table["peak_allocated_error_pct"].head(2).max())
        error = f"the error of {within:.1f} %"
    else:
        doubt = ratio_errors.expected(chosen[0], chosen[1], list(table["limited_by"].head(2) == "CPU"), ratios)
        within, error = doubt[1].mean_pct, ratio_errors.words(*doubt)
    difference = f"{second['experiment']} is {second['worse_pct']:.1f} % worse"
    if second["worse_pct"] <= within:
        return f"{difference}, within {error}: run {best['experiment']} and {second['experiment']} to decide."
    return f"{difference}, more than {error}."


COLUMNS = [
    "task", "experiment", "gpus", "basis", "fits", "peak_allocated_gib", "peak_allocated_error_pct", "tokens_per_s",
    "tokens_per_s_error_pct", "days", "days_low", "days_high", "gpu_hours", "cost", "outside",
]  # fmt: skip


@dataclass(frozen=True)
class Forecast:
    """What a training would take.

    Attributes
    ----------
    gpu
        The GPU, by its data sheet.
    table
        One row per setting, task by task (`dsnb.analysis.tasks`, whose title is `task`), the fewest days first and
        those that do not fit last: `basis` is `measured` or `predicted`, the rest as `dsnb.predict` returns it.
        Measured figures are medians over runs, and their error is NaN.
    decisions
        By task: the settings ranked by time, and by GPU-hours.
    refused
        Why combinations of settings were left out.
    calibrated_on
        Number of measured settings on this GPU that the speeds of the others follow from; 0 if there were too few, and
        the predictions are those of `dsnb.predict` without any runs.
    doubts
        By task: on which pairs of settings the error of predicted ratios was measured, and that error, for the first
        two settings; None if not both are predicted.
    instead
        By task: what would fit, in sentences, if no setting does.
    """

    gpu: gpus.GpuSpec
    table: pd.DataFrame
    decisions: Mapping[str, tuple[Decision, Decision]]
    refused: tuple[str, ...]
    calibrated_on: int
    doubts: Mapping[str, tuple[str, ratio_errors.RatioError] | None] = field(default_factory=dict)
    instead: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def forecast(
    settings: Mapping[str, Any],
    gpu: str,
    runs: pd.DataFrame | None = None,
    *,
    tokens: float = 100e9,
    price: float | None = None,
    link: str = "nvlink",
) -> Forecast:
    """Return what training would take with each combination of settings: measured where it was, otherwise predicted.

    Parameters
    ----------
    settings
        Settings by name; a list is an axis. Combinations that are refused are left out.
    gpu
        Name of the GPU.
    runs
        Measured runs, as `dsnb.load_runs` and `dsnb.published` return them. Of those on the same GPU, the same settings
        count in place of the prediction, and all of them calibrate the predicted speeds.
    tokens, price
        Tokens to train on, and the price of a GPU-hour.
    link
        As `dsnb.predict` takes it.

    Raises
    ------
    SettingsError
        If every combination is refused, such as one of 0 GPUs, or as `dsnb.predict` does.
    """
    kind = gpus.find(gpu)
    experiments, refused = _combinations({**settings, "device": "cuda"})
    same_gpu = _of_gpu(runs, kind) if runs is not None else pd.DataFrame()
    known = len({run.experiment.name_with_model for run in measured(same_gpu, link)})
    calibrate = same_gpu if known >= MIN_SETTINGS else None
    options: dict[str, Any] = {"link": link, "calibrate": calibrate}
    predicted = predict(experiments, gpu, **options, tokens=tokens, price=price).assign(basis=PREDICTED)
    names = pd.Series([recorded(row).name_with_model for row in same_gpu.to_dict("records")], same_gpu.index, str)
    as_measured = {str(name): _as_measured(group) for name, group in same_gpu.groupby(names)}
    rows = [{**row, **as_measured.get(row["experiment"], {})} for row in predicted.to_dict("records")]
    found = pd.DataFrame(rows).assign(gpus=[one.gpus for one in experiments])
    parts, decisions, doubts, instead = [], {}, {}, {}
    for task in tasks(settings_of(experiments)):
        places = task.runs.index
        own = [experiments[place] for place in places]
        made = _decide(found.loc[places], own, tokens, price)
        fewest = _decide(found.loc[places], own, tokens, price, "gpu_hours", planning.MOST_DAYS)
        part = found.loc[places].assign(**{name: made.table[name] for name in ("days", "gpu_hours", "cost")})
        is_measured = part["basis"] == MEASURED
        for end in ("days_low", "days_high"):
            part[end] = part[end].mask(is_measured, part["days"])
        part = part.assign(task=task.title).sort_values(["fits", "days"], ascending=[False, True], kind="stable")
        parts.append(part)
        decisions[task.title] = made, fewest
        doubts[task.title] = _doubt(part, experiments, gpu, options)
        if not part["fits"].any() and not predicted.loc[places, "fits"].any():
            lacking = predicted.loc[part.index].reset_index(drop=True)
            ordered = [experiments[place] for place in part.index]
            instead[task.title] = would_fit.sentences(ordered, lacking, gpu, **options)
    chosen = pd.concat(parts, ignore_index=True)[COLUMNS]
    return Forecast(kind, chosen, decisions, refused, known if calibrate is not None else 0, doubts, instead)


def _doubt(
    part: pd.DataFrame, experiments: Sequence[Experiment], gpu: str, options: Mapping[str, Any]
) -> tuple[str, ratio_errors.RatioError] | None:
    """Return the error of the predicted ratio of a task's first two settings; None if one of them was measured."""
    pair = part[part["fits"].astype(bool)].head(2)
    if len(pair) < 2 or not pair["basis"].eq(PREDICTED).all():
        return None
    first, second = (experiments[place] for place in pair.index)
    by_cpu = list(pair["limited_by"] == "CPU")
    return ratio_errors.expected(first, second, by_cpu, ratio_errors.known_for(gpu, **options))


def _combinations(settings: Mapping[str, Any]) -> tuple[list[Experiment], tuple[str, ...]]:
    """Return the experiments, each once, and the reasons against the combinations that are none."""
    axes = [value if isinstance(value, list) else [value] for value in settings.values()]
    found: dict[str, Experiment] = {}
    problems: list[str] = []
    for values in itertools.product(*axes):
        try:
            experiment = Experiment(**dict(zip(settings, values, strict=True)))
        except SettingsError as error:
            problems += error.problems
        else:
            found[experiment.name_with_model] = experiment
    refused = tuple(dict.fromkeys(problems))
    if not found:
        raise SettingsError(refused or "no combination of settings is left: give each setting a value")
    return list(found.values()), refused


def _of_gpu(runs: pd.DataFrame, gpu: gpus.GpuSpec) -> pd.DataFrame:
    """Return the runs on a GPU that tell how fast a setting is, or that it does not fit."""
    known = as_runs(runs)
    known = known.reindex(columns=[*known, *({"status", "tokens_per_s", "peak_allocated_gib", "gpu_name"} - {*known})])
    known = known[known["status"].eq("oom") | (known["status"].eq("ok") & known["tokens_per_s"].notna())]
    return known[[_is(name, gpu) for name in known["gpu_name"]]]


def _is(name: object, gpu: gpus.GpuSpec) -> bool:
    try:
        return gpus.find(str(name)) == gpu
    except SettingsError:
        return False


def _as_measured(runs: pd.DataFrame) -> dict[str, Any]:
    """Return what replaces the prediction of a setting that was measured."""
    ok = runs[runs["status"] == "ok"]
    rates = ok["tokens_per_s"].astype(float)
    is_unstable = len(ok) > 0 and rates.max() > UNSTABLE * rates.min()
    return {
        "basis": MEASURED,
        "fits": len(ok) > 0,
        "peak_allocated_gib": float(ok["peak_allocated_gib"].astype(float).median()),
        "peak_allocated_error_pct": math.nan,
        "tokens_per_s": float(rates.median()),
        "tokens_per_s_error_pct": math.nan,
        "outside": f"its repeats differ by more than {UNSTABLE:g} times" if is_unstable else "",
    }
