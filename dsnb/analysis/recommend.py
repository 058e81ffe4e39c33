"""Which settings to train each task with: measured ones, predicted ones (`recommend`), or both (`forecast`).

All three make one table of candidates with a column `basis`, let `dsnb.analysis.decide` rank it, and word the result
with `dsnb.analysis.words`.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from dsnb.analysis import ratio_errors, words, would_fit
from dsnb.analysis.decide import BASES, CPU, MEASURED, PREDICTED, Decision, Question, candidates, decide
from dsnb.analysis.predicted import allowed, known_gpu
from dsnb.analysis.ratio_errors import Ratios
from dsnb.analysis.tasks import settings_of, tasks
from dsnb.analysis.texts import significant
from dsnb.errors import SettingsError
from dsnb.formulas import planning
from dsnb.formulas.planning import MAX_DAYS
from dsnb.prediction import gpus
from dsnb.prediction.calibration import MIN_CALIBRATED, measured, recorded
from dsnb.prediction.predict import predict
from dsnb.runs.labels import MEMORY, count
from dsnb.runs.table import as_runs
from dsnb.settings.experiment import Experiment

Objective = Literal["days", "tokens_per_s", "memory", "cost"]
OBJECTIVES = {"days": "time", "tokens_per_s": "time", "memory": "memory", "cost": "cost"}
"""Objectives of `recommend`, and what they are in `dsnb.analysis.decide`."""
LEAST = {
    "time": "Fewest days",
    "gpu_hours": "Fewest GPU-hours",
    "cost": "Lowest cost of the settings with a price",
}
ALTERNATIVES = 3
NOTHING_FITS = "No setting fits: those that were predicted to fit ran out of memory. Take the next smaller micro-batch."
FORECAST = [
    "experiment", "basis", "fits", "peak_allocated_gib", "peak_allocated_error_pct", "tokens_per_s",
    "tokens_per_s_error_pct", "days", "days_low", "days_high", "gpu_hours", "cost", "outside",
]  # fmt: skip
"""Columns of the tables of `forecast`."""


@dataclass(frozen=True)
class Recommendation:
    """A choice among the settings of one task."""

    task: str
    """What is trained, as in "opt-1.3b, sequence 2048"."""
    table: pd.DataFrame
    """Settings with their figures."""
    sentences: tuple[str, ...]
    """What to train with, how sure that is, and what would decide it; or what would make a setting fit."""


def recommend(
    experiments: Sequence[Experiment],
    gpu: str = "H200",
    *,
    objective: Objective = "days",
    currency: str = "$",
    **options: Any,
) -> list[Recommendation]:
    """Return for each task the best of its settings that is predicted to fit; the task with most settings comes first.

    Settings of different tasks, such as two models, are never compared with each other.

    Parameters
    ----------
    experiments, gpu, options
        As `dsnb.predict` takes them.
    objective
        `days` or `cost` of the training, `tokens_per_s` of all GPUs, or `memory` of a GPU.
    currency
        Sign in front of the cost.

    Returns
    -------
    list of Recommendation
        Each table has the best setting and the three nearest in the columns of `dsnb.predict`, and `worse_pct`: by how
        many per cent each is worse than the best in the objective. It is empty if no setting of the task fits.

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
    asked, spec = {one.name_with_model: one for one in experiments}, gpus.find(gpu)
    predicted = predict(list(asked.values()), gpu, **options).set_axis(list(asked))
    ratios = ratio_errors.known_for(gpu, options.get("link", "nvlink"), options.get("calibrate"))
    prices = {} if options.get("price") is None else {"": options["price"]}
    answers, problems = [], []
    for task, names in _by_task(asked):
        own = predicted.loc[names]
        candidates_of_task = _candidates(own, asked, spec)
        tokens = float(own["tokens"].iloc[0])
        question = Question(tokens, OBJECTIVES[objective], prices=prices, currency=currency, max_days=math.inf)
        ranked = decide(candidates_of_task, question).options
        if ranked.empty:
            reasons = would_fit.sentences([asked[name] for name in names], own.reset_index(drop=True), gpu, **options)
            problems += [f"{task}: {reason}" for reason in reasons]
            answers.append(Recommendation(task, own.head(0), _capitalized(reasons)))
            continue
        table = own.loc[ranked.index[: 1 + ALTERNATIVES]]
        table.insert(1, "worse_pct", _worse_pct(ranked, question).head(len(table)))
        said = [words.say("plan", {"what": "Train with", **words.figures(ranked.iloc[0], question)})]
        if ranked["days"].iloc[0] > MAX_DAYS:
            said.append(words.say("too_slow", words.needed_gpus(ranked, question)))
        said += _fitting(candidates_of_task, spec) if len(ranked) < len(own) else []
        said += _doubts(ranked, asked, question, ratios)
        answers.append(Recommendation(task, table.reset_index(drop=True), tuple(said)))
    if not predicted["fits"].any():
        raise SettingsError(problems)
    return answers


def _by_task(asked: Mapping[str, Experiment]) -> list[tuple[str, list[str]]]:
    """Return the title of each task and the names of its settings, as `dsnb.analysis.tasks` tells tasks apart."""
    settings = settings_of(list(asked.values())).set_axis(list(asked))
    return [(task.title, task.runs.index.tolist()) for task in tasks(settings)]


def _candidates(predicted: pd.DataFrame, asked: Mapping[str, Experiment], spec: gpus.GpuSpec) -> pd.DataFrame:
    """Return predicted settings as candidates, indexed by name."""
    known = {"gpus": [asked[str(name)].gpus for name in predicted.index], "gpu_name": spec.name, "kind": ""}
    figures = {"memory_gib": predicted["peak_allocated_gib"], "energy_kwh": math.nan}
    return predicted.assign(basis=PREDICTED, is_unstable=False, **known, **figures)


def _worse_pct(ranked: pd.DataFrame, question: Question) -> "pd.Series[float]":
    amounts = ranked[question.column]
    return 100 * (amounts / amounts.iloc[0] - 1)


def _capitalized(sentences: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences)


def _doubts(ranked: pd.DataFrame, asked: Mapping[str, Experiment], question: Question, ratios: Ratios) -> Iterator[str]:
    """Yield how sure the best of some settings is: what comes next, and what its figures may miss."""
    if len(ranked) > 1:
        yield _how_sure(ranked, asked, question, ratios)
    for name, best in ranked.head(1).iterrows():
        if best["basis"] == PREDICTED and asked[str(name)].allocator == "default":
            yield "Its allocator is torch's default one: fragmentation can need more memory than is predicted."
        if best["outside"]:
            yield f"Less sure than that: {best['outside']}."


def _how_sure(ranked: pd.DataFrame, asked: Mapping[str, Experiment], question: Question, ratios: Ratios) -> str:
    """Return how far the second setting is from the first, and whether that is more than the doubt about the pair.

    Of two predicted settings the doubt is the error of predicted ratios, of one it is the error of its own figure.
    """
    pair = ranked.head(2)
    second, worse = pair.iloc[1], float(_worse_pct(pair, question).iloc[1])
    difference = f"Next is {second.name} ({second['basis']}), {worse:.1f} % "
    difference += "slower" if question.objective == "time" else "worse"
    predicted = pair[pair["basis"] == PREDICTED]
    if predicted.empty:
        return f"{difference}; both were measured, and 20_compare says whether that is more than noise."
    if len(predicted) == 2 and question.objective != "memory":
        experiments = [asked[str(name)] for name in pair.index]
        doubt_pct, doubt = ratio_errors.doubt(experiments, list(pair["limited_by"] == "CPU"), ratios)
    else:
        figure = "peak_allocated" if question.objective == "memory" else "tokens_per_s"
        doubt_pct = float(predicted[f"{figure}_error_pct"].max())
        doubt = f"the error of {doubt_pct:.1f} %"
    if worse > doubt_pct:
        return f"{difference}, more than {doubt}."
    return f"{difference}, within {doubt}: run {' and '.join(map(str, predicted.index))} to decide."


def measured_plans(
    runs: pd.DataFrame,
    tokens: float,
    prices: Mapping[str, float] | None = None,
    power_w: float | None = None,
    currency: str = "$",
) -> list[Recommendation]:
    """Return for each task what training takes with each measured setting, and the best ones in words.

    `prices` of a GPU-hour are by `gpu_name`; the key `""` is for all others. `power_w` is the mean power of a GPU for
    runs without measured power. Without these, costs and energy are missing.

    Returns
    -------
    list of Recommendation
        Each table has a row per `experiment`, the fastest first, with the columns of `dsnb.analysis.decide.candidates`
        and `costed`. Without a GPU, the `gpu_name` is `CPU`, and `gpus` and `gpu_hours` are ranks and rank-hours.
    """
    questions = {name: Question(tokens, name, prices=prices or {}, currency=currency) for name in LEAST}
    planning.check(tokens, {}, power_w=power_w)
    plans = []
    for task in tasks(runs):
        measured_settings = candidates(task.runs, power_w)
        decisions = {name: decide(measured_settings, question) for name, question in questions.items()}
        table = decisions["time"].table
        table = table.assign(gpu_name=table["gpu_name"].astype(object).mask(table["kind"] == CPU, CPU))
        table = table.rename_axis("experiment").reset_index()
        plans.append(Recommendation(task.title, table, tuple(_least(decisions, words.memory_name(task.runs)))))
    return plans


def _least(decisions: Mapping[str, Decision], memory: str = "GPU memory") -> Iterator[str]:
    """Yield the best setting of each objective, or that none is fast enough; and how many are too unstable to rank."""
    fastest = decisions["time"]
    if fastest.is_beyond:
        what = "setting" if "fits" in fastest.table else "measured setting"
        yield words.say("beyond", {"what": what, **words.figures(fastest.options.iloc[0], fastest.question)})
        yield words.say("needed", words.needed_gpus(fastest.options, fastest.question))
    named: set[object] = set()
    for objective, decision in decisions.items():
        if decision.options.empty or decision.is_beyond or fastest.is_beyond:
            continue
        best = decision.options.iloc[0]
        facts = words.figures(best, decision.question, memory)
        what = f"{LEAST[objective].replace('GPU', facts['unit'])}:"
        yield words.say("plan.again" if best.name in named else "plan", {"what": what, **facts})
        named.add(best.name)
    if fastest.unstable:
        yield words.say("note.unstable", {"unstable": fastest.unstable})


def forecast(
    settings: Mapping[str, Any],
    gpu: str,
    runs: pd.DataFrame | None = None,
    *,
    tokens: float = 100e9,
    price: float | None = None,
    link: str = "nvlink",
    currency: str = "$",
) -> tuple[list[Recommendation], list[str]]:
    """Return what training would take with each combination of settings: measured where it was, otherwise predicted.

    A list among the settings is an axis; combinations that are refused are left out. Of the runs on the same GPU, the
    same settings count in place of the prediction, and three settings or more calibrate the predicted speeds. `tokens`,
    `price` and `link` are those of `dsnb.predict`; `currency` is the sign in front of amounts.

    Returns
    -------
    recommendations
        One for each task. Its table has a row per setting with the columns `FORECAST`, the fewest days first and those
        that do not fit last: `basis` is `measured`, `published` or `predicted`, the rest as `dsnb.predict` returns it.
        Measured figures are medians over runs, and their error is NaN.
    notes
        Why combinations were refused, and on how many measured settings predicted speeds were calibrated.
    """
    spec = gpus.find(gpu)
    axes = [value if isinstance(value, list) else [value] for value in settings.values()]
    experiments, refused = allowed(dict(zip(settings, values, strict=True)) for values in itertools.product(*axes))
    asked = {one.name_with_model: one for one in experiments}
    same_gpu = _on_gpu(runs, spec) if runs is not None else pd.DataFrame()
    timed = len({run.experiment.name_with_model for run in measured(same_gpu, link)})
    options: dict[str, Any] = {"link": link, "calibrate": same_gpu if timed >= MIN_CALIBRATED else None}
    predicted = predict(list(asked.values()), gpu, **options, tokens=tokens, price=price).set_axis(list(asked))
    table = _with_measured(_candidates(predicted, asked, spec), same_gpu)
    prices = {} if price is None else {"": price}
    # On one kind of GPU, the cheapest setting is that with the fewest GPU-hours.
    questions = {name: Question(tokens, name, prices=prices, currency=currency) for name in ("time", "gpu_hours")}
    answers = []
    for task, names in _by_task(asked):
        decisions = {name: decide(table.loc[names], question) for name, question in questions.items()}
        said = [*_fitting(table.loc[names], spec), *_least(decisions)]
        ranked = decisions["time"].options
        ratios = ratio_errors.known_for(gpu, **options) if len(ranked) > 1 else {}
        said += _doubts(ranked, asked, questions["time"], ratios)
        if not table.loc[names, "fits"].any():
            lacking = predicted.loc[names].reset_index(drop=True)
            own = [asked[name] for name in names]
            instead = () if lacking["fits"].any() else would_fit.sentences(own, lacking, gpu, **options)
            said += _capitalized(instead) or [NOTHING_FITS]
        shown = decisions["time"].table.sort_values("fits", ascending=False, kind="stable")
        answers.append(Recommendation(task, shown[FORECAST].reset_index(drop=True), tuple(said)))
    notes = [f"Refused and left out: {reason}." for reason in dict.fromkeys(refused)]
    if timed >= MIN_CALIBRATED:
        notes.append(f"Predicted speeds follow from {timed} measured settings on {spec.name}.")
    return answers, notes


def _on_gpu(runs: pd.DataFrame, spec: gpus.GpuSpec) -> pd.DataFrame:
    """Return the runs on a GPU that tell how fast a setting is, or that it does not fit."""
    known = as_runs(runs)
    known = known.reindex(columns=[*known, *({"status", "tokens_per_s", "peak_allocated_gib", "gpu_name"} - {*known})])
    known = known[known["status"].eq("oom") | (known["status"].eq("ok") & known["tokens_per_s"].notna())]
    return known[[known_gpu(name) == spec for name in known["gpu_name"]]]


def _with_measured(table: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return candidates with the medians of runs in place of predictions; a setting that only ran out does not fit."""
    names = [recorded(row).name_with_model for row in runs.to_dict("records")]
    known = runs.assign(experiment=names, sweep="").drop(columns=[*MEMORY[1:]], errors="ignore")
    known = known[known["experiment"].isin(table.index)]
    if known.empty:
        return table
    medians = candidates(known).reindex(known["experiment"].unique())
    known = medians[["tokens_per_s", "memory_gib"]].assign(
        basis=medians["basis"].astype(object).fillna(MEASURED), is_unstable=medians["is_unstable"].eq(True),
        fits=medians["n"].gt(0), peak_allocated_gib=medians["memory_gib"], peak_allocated_error_pct=math.nan,
        tokens_per_s_error_pct=math.nan, outside="",
    )  # fmt: skip
    table.loc[known.index, known.columns] = known
    return table


def _fitting(table: pd.DataFrame, spec: gpus.GpuSpec) -> Iterator[str]:
    """Yield how many settings of a task fit, and what the smallest of the others lacks."""
    is_fitting = table["fits"].astype(bool)
    bases = table["basis"][is_fitting].value_counts()
    counts = ", ".join(f"{bases[basis]} {basis}" for basis in BASES if basis in bases)
    yield (
        f"{is_fitting.sum()} of {count(len(table), 'setting')} fit on {spec.name}, which has "
        f"{spec.memory_gib:.0f} GiB ({counts or 'none'})."
    )
    others = table[~is_fitting].dropna(subset="memory_gib")
    if len(others):
        least = others.loc[others["memory_gib"].idxmin()]
        facts = {"name": least.name, "memory": significant(least["memory_gib"])}
        yield words.say("too_large", {**facts, "memory_error": words.error(least["peak_allocated_error_pct"])})
