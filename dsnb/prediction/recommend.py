"""Which settings to train each task with: predicted ones, measured ones (`measured_plans`), or both (`forecast`).

All three make one table of candidates with a column `basis`, let `dsnb.results.answers.decide` rank
it, and return an `Answer`. Predicted settings are given ones, or all of
`dsnb.prediction.candidates`.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from dsnb.base.errors import SettingsError
from dsnb.base.formulas import planning
from dsnb.base.formulas.memory import HALF
from dsnb.base.formulas.model_shapes import PRESETS, local_config
from dsnb.base.system import hardware
from dsnb.prediction import brief, gpus
from dsnb.prediction import candidates as built_in
from dsnb.prediction.calibration import MIN_CALIBRATED, measured
from dsnb.prediction.candidates import Training
from dsnb.prediction.explanation import LIMITS, explanation, no_fit, out_of_reach
from dsnb.prediction.gpus import NODE_GPUS
from dsnb.prediction.in_place import measured_figures, runs_on
from dsnb.prediction.memory import need_gib, peak_memory, room_gib
from dsnb.prediction.predict import bounded, nearest_run
from dsnb.prediction.predicted import allowed
from dsnb.prediction.search import Search, SearchResult
from dsnb.prediction.shapes import shape
from dsnb.prediction.target import Budget, Target, usual_tokens
from dsnb.prediction.traces import traces
from dsnb.results.answers import card
from dsnb.results.answers import measured as by_runs
from dsnb.results.answers.answer import Answer
from dsnb.results.answers.decide import (
    BASES,
    CPU,
    PREDICTED,
    Question,
    candidates,
    decide,
)
from dsnb.results.answers.lines import note
from dsnb.results.answers.sentences import PHRASES, Sentence, say
from dsnb.results.runs import labels
from dsnb.results.runs.labels import count
from dsnb.results.runs.number_text import amount, significant
from dsnb.results.runs.table import named_runs
from dsnb.results.statistics.tasks import is_fine_tuning, settings_of, tasks
from dsnb.settings.experiment import Experiment

FORECAST = [
    "experiment", "setting", "basis", "fits", "tight", "peak_allocated_gib", "peak_allocated_error_pct",
    "peak_reserved_gib", "host_memory_gib", "tokens_per_s", "tokens_per_s_low", "tokens_per_s_high",
    "tokens_per_s_error_pct", "days", "days_low", "days_high", "gpu_hours", "cost", "outside",
]  # fmt: skip
"""Columns of the tables of `forecast`."""
OF_SEARCH = [
    "is_known", "is_unstable", "gpus", "gpu_name", "kind", "energy_kwh", "memory_gib", "basis", "spread_pct",
]  # fmt: skip
"""Columns of a search that recommendations leave out."""
OF_PREDICTIONS = ("step_time_error_pct", "own_low", "own_high", "others_low", "others_high")
USUAL_GPUS = 8
MAX_GPUS = 4096
MAX_TRIED = 20
"""Settings kept for measuring, in addition to those of the table."""


@dataclass(frozen=True)
class Scope:
    """What to train: a model, with what its settings share, or given settings."""

    what: str | Path | Sequence[Experiment]
    gpus: int | None = None
    seq_len: int | None = None
    global_batch: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that are fixed; a list is what may be chosen from."""
    least_gpus: bool = False
    """Whether to use the smallest power of two of GPUs on which a setting fits."""


def recommend(
    scope: Scope, target: Target, budget: Budget, runs: pd.DataFrame | None = None
) -> list[Answer]:
    """Return the best setting of each task that is predicted to fit; measured `runs` replace predicted figures."""
    if isinstance(scope.what, str | Path):
        return [_of_model(scope, target, budget)]
    if not scope.what:
        raise SettingsError("there is no setting to choose from: give at least one")
    answers = []
    for experiments in by_task(target.predictable(scope.what)):
        search = _search(experiments, target, budget, runs)
        answers.append(_among(search, search.best(), budget.assumed(experiments)))
    if all(answer.table.empty for answer in answers):
        refusals = []
        for answer in answers:
            (unfit,) = answer.about("no_fit")
            refusals.append(say("no_fit.refusal", task=answer.task, **unfit.facts))
        raise SettingsError(refusals)
    return answers


@dataclass(frozen=True)
class Found:
    """The search for the best setting of a model, and what was assumed for it."""

    search: Search
    result: SearchResult
    training: Training
    assumed: Sequence[str]
    """What was assumed, in words."""
    least_gpus: int
    """The smallest power of two of GPUs that fits; 0 if none does, or on CPUs."""


def found(scope: Scope, target: Target, budget: Budget) -> Found:
    """Find the best of all settings for a model; with offload if nothing else fits."""
    training, assumed = _training(scope, target)
    if scope.least_gpus:
        least = smallest(training, target)
        if not least:
            batch = count(training.global_batch, "sequence")
            raise SettingsError(
                f"no power of two of GPUs shares {batch} a step and fits: give another global_batch"
            )
        training = replace(training, gpus=least)
        target.assume_network(least)
    asked = built_in.candidates(training)
    target.predictable(asked[:1])
    is_cpu = target.device == "cpu"
    search = _search(asked, target, budget, beside=[] if is_cpu else _lightest(training))
    result = search.refined(search.ranked(), training.pinned)
    offloaded = [] if result.chosen else built_in.candidates(training, offloaded=True)
    if offloaded:
        with_offload = _search(offloaded, target, budget)
        result = with_offload.best()
        if result.chosen or with_offload.table["fits"].notna().any():
            search = with_offload
    least = 0
    if not is_cpu:
        least = smallest(training, target)
    what = [*target.assumed, *assumed, *budget.assumed(asked)]
    return Found(search, result, training, what, least)


def _of_model(scope: Scope, target: Target, budget: Budget) -> Answer:
    """Return the answer for a model."""
    link = target.link
    one = found(scope, target, budget)
    more: list[Sentence] = []
    if target.device != "cpu":
        more.append(out_of_reach(one.search))
        more.append(say("least_gpus", least=one.least_gpus or ""))
    more.append(say("assumed", what="; ".join(one.assumed)))
    more = [sentence for sentence in more if sentence]
    given = {
        "gpu": target.gpu,
        "gpus": scope.gpus or scope.least_gpus,
        "link": target.link == link,
        "seq_len": scope.seq_len,
        "global_batch": scope.global_batch,
        "tokens": budget.tokens,
    }
    names = [name for name, value in given.items() if not value]
    least = one.least_gpus
    return _answer(one.search, one.result, more, offloaded=True, assumed=names, least_gpus=least)


def _training(scope: Scope, target: Target) -> tuple[Training, list[str]]:
    """Return what to train, and what was assumed for that.

    With `least_gpus`, the number of GPUs only sets the usual batch, so it is not an assumption.
    """
    fixed: dict[str, Any] = {"gpus": scope.gpus, "seq_len": scope.seq_len, **scope.settings}
    model = str(scope.what)
    if local_config(model):
        model = str(Path(model).absolute())
    of_hub = [preset for preset, entry in PRESETS.items() if entry.hub_id == model]
    model = Experiment(model=[*of_hub, model][0]).model
    assumed: list[str] = []
    number = fixed.pop("gpus")
    if number is None:
        number = target.installed or USUAL_GPUS
        where = " of this machine" if target.installed else ", one node"
        if not scope.least_gpus:
            assumed.append(f"{count(number, 'GPU')}{where}")
    length = fixed.pop("seq_len")
    if length is None:
        length = built_in.usual_length(model)
        assumed.append(f"sequences of {length} tokens")
    batch = scope.global_batch
    numbers = {"gpus": number, "seq_len": length, "global_batch": 1 if batch is None else batch}
    for name, value in numbers.items():
        if not (planning.is_whole(value) and value >= 1):
            raise SettingsError(f"{name} is {value!r}: give a whole number of at least 1")
    device = fixed.pop("device", "cuda")
    precision = "fp32" if device == "cpu" else target.half_precision
    precision = fixed.pop("precision", precision)
    training = Training(model, number, length, batch or number, precision, device, fixed)
    built_in.check(training)
    nodes = fixed.get("nodes", 1)
    if not scope.least_gpus and isinstance(nodes, int):
        target.hardware.link.check(number, max(nodes, math.ceil(number / NODE_GPUS)))
    if batch is not None:
        return training, assumed
    parameters = shape(model).parameters
    batch = built_in.usual_batch(parameters, length, number, training.is_fine_tuning)
    numbers = {"tokens": batch * length, "size": parameters}
    facts = {fact: amount(float(f"{value:.2g}")) for fact, value in numbers.items()}
    name = "usual_batch"
    if training.is_fine_tuning:
        name = "usual_batch.fine_tuning"
    assumed.append(say(name, batch=count(batch, "sequence"), **facts))
    return replace(training, global_batch=batch), assumed


def smallest(training: Training, target: Target) -> int:
    """Return the smallest power of two of GPUs on which a setting fits without offload; 0 if none does."""
    for power in range(MAX_GPUS.bit_length()):
        for setting in _lightest(replace(training, gpus=2**power)):
            room = room_gib(setting, target.hardware.gpu.memory_gib)
            if need_gib(setting) <= room:
                need = peak_memory(setting, *traces([setting]))
                if need.gib <= room:
                    return 2**power
    return 0


def _lightest(training: Training) -> list[Experiment]:
    """Return the settings without offload that need least: a sequence at a time, every block recomputed."""
    fixed: dict[str, Any] = {
        "strategy": "deepspeed",
        "tensor_parallel": 1,
        "micro_batch_size": 1,
        "compile": "off",
        "activation_checkpointing": True,
        "checkpoint_every": 1,
    }
    if training.precision in HALF:
        fixed["mixed_precision"] = "native"
    try:
        settings = built_in.candidates(replace(training, pinned={**fixed, **training.pinned}))
    except SettingsError:  # the global batch cannot be shared among these GPUs
        return []
    return [experiment for experiment in settings if experiment.loss == "chunked"] or settings


def _search(
    asked: Sequence[Experiment],
    target: Target,
    budget: Budget,
    runs: pd.DataFrame | None = None,
    beside: Sequence[Experiment] = (),
) -> Search:
    """Return a search among settings of one task."""
    if target.device == "cpu":
        asked = held_by_host(asked)
    figures = None if runs is None else measured_figures(runs, asked, target)
    return Search(asked, target, budget.question(asked), figures, beside)


def _among(search: Search, result: SearchResult, assumed: Sequence[Sentence]) -> Answer:
    """Return the answer of a search among given settings."""
    names = ["tokens"] if assumed else []
    if not search.target.gpu:
        names.insert(0, "gpu")
    if not result.chosen:
        assumed = []
    sentences = [say("assumed", what=what) for what in assumed]
    return _answer(search, result, sentences, assumed=names)


def _answer(
    search: Search,
    result: SearchResult,
    more: Iterable[Sentence],
    offloaded: bool = False,
    assumed: Sequence[str] = (),
    least_gpus: int = 0,
) -> Answer:
    """Return the answer of a search; `offloaded` says that offload was considered, too.

    `assumed` are the arguments that were not given, and `least_gpus` is the smallest power of two
    of GPUs that fits, if that is known.
    """
    title = tasks(settings_of(list(search.asked.values())[:1]))[0].title
    calibrated = search.target.hardware.loop
    if calibrated:
        more = [calibrated.sentence, *more]
    lines = tuple(brief.lines(search, result, assumed, least_gpus, offloaded))
    if not result.chosen:
        sentences = (no_fit(search, offloaded), *more)
        table = search.table.head(0)
        return Answer(title, table, sentences, lines=lines, assumed=tuple(assumed))
    options = result.options
    ranked = options.loc[result.chosen]
    column = search.question.column
    table = result.table.loc[result.chosen].drop(columns=OF_SEARCH)
    table = table.assign(**ranked[["days", "days_low", "days_high", "gpu_hours"]])
    is_measured = ranked["basis"] != PREDICTED
    predicted_only = [*itertools.chain(*LIMITS.values()), *OF_PREDICTIONS]
    table.loc[is_measured, predicted_only] = math.nan
    tokens = [search.asked[name].tokens_per_step for name in result.chosen]
    table["step_time_s"] = table["step_time_s"].where(~is_measured, tokens / ranked["tokens_per_s"])
    table.insert(1, "worse_pct", 100 * (ranked[column] / ranked[column].iloc[0] - 1))
    table.insert(2, "basis", ranked["basis"])
    table = bounded(table)
    hardware = search.target.hardware
    table["nearest"] = [nearest_run(search.asked[name], hardware) for name in result.chosen]
    to_try = dict.fromkeys([*result.chosen, *options.index[:MAX_TRIED]])
    experiments = tuple(search.asked[name] for name in to_try)
    sentences = (*explanation(search, result), *more)
    table = table.reset_index(drop=True)
    return Answer(title, table, sentences, experiments, lines=lines, assumed=tuple(assumed))


def held_by_host(asked: Sequence[Experiment]) -> list[Experiment]:
    """Return the settings whose CPU ranks are likely to fit into this machine's memory, by formulas alone.

    If none is likely to, return those that may; if none can, raise SettingsError: runs would take
    minutes to fail.
    """
    available = hardware.available_memory_gib()
    for is_likely in (True, False):
        needs = [one.gpus * need_gib(one, likely=is_likely) for one in asked]
        held = [one for one, need in zip(asked, needs, strict=True) if need <= available]
        if held:
            return held
    smallest = asked[needs.index(min(needs))]
    ranks = count(smallest.gpus, "CPU rank")
    raise SettingsError(
        f"{smallest.model} needs at least {significant(min(needs))} GiB of host memory "
        f"on {ranks} (by {smallest.name}), "
        f"and this machine has {significant(available)} GiB free: measure a smaller model, or predict without measure"
    )


def by_task(experiments: Sequence[Experiment]) -> list[list[Experiment]]:
    """Return the settings of each task (`dsnb.results.statistics.tasks`)."""
    found = tasks(settings_of(experiments))
    return [[experiments[place] for place in task.runs.index] for task in found]


def measured_plans(
    runs: pd.DataFrame,
    tokens: float | None,
    prices: Mapping[str, float] | None = None,
    power_w: float | None = None,
    currency: str = "$",
) -> list[Answer]:
    """Return for each task what training takes with each measured setting, and the best ones in words.

    Without `tokens`, they are those that are usual for the task
    (`dsnb.base.formulas.planning.usual_tokens`). `prices` of a GPU-hour are by `gpu_name`; the key
    `""` is for all others. `power_w` is the mean power of a GPU for runs without measured power.
    Without these, costs and energy are missing.

    Returns
    -------
    list of Answer
        Each table has a row per `experiment`, the fastest first, with the columns of
        `dsnb.results.answers.decide.candidates` and `costed`. Without a GPU, the `gpu_name` is `CPU`, and `gpus` and
        `gpu_hours` are ranks and rank-hours.
    """
    planning.check(tokens or planning.DEFAULT_TOKENS, {}, power_w=power_w)
    plans = []
    for task in tasks(runs):
        usual = task.parameters, is_fine_tuning(task.runs)
        settings = candidates(task.runs, power_w)
        named = named_runs(task.runs)
        decisions = {}
        for objective in PHRASES["plan"]:
            question = Question(tokens or 0, objective, prices=prices or {}, currency=currency)
            decisions[objective] = replace(decide(settings, question, *usual), runs=named)
        sentences = list(by_runs.sentences(decisions, card.memory_name(task.runs)))
        if sentences and not tokens:
            sentences.append(say("assumed", what=usual_tokens(*usual)))
        lines = by_runs.lines(decisions["time"], task.title, decisions)
        table = decisions["time"].table
        gpu_names = table["gpu_name"].astype(object).mask(table["kind"] == CPU, CPU)
        table = table.assign(gpu_name=gpu_names).rename_axis("experiment").reset_index()
        plans.append(Answer(task.title, table, tuple(sentences), lines=tuple(lines)))
    return plans


def forecast(
    settings: Mapping[str, Any],
    gpu: str,
    runs: pd.DataFrame | None = None,
    *,
    tokens: float | None = None,
    price: float | None = None,
    link: str = "nvlink",
    currency: str = "$",
) -> tuple[list[Answer], list[Sentence]]:
    """Return what training would take with each combination of settings: measured where it was, otherwise predicted.

    A list among the settings is an axis; combinations that are refused are left out. Of the runs on
    the same GPU, the same settings count in place of the prediction, and three settings or more
    calibrate the predicted speeds. `tokens`, `price` and `link` are those of `dsnb.predict`;
    `currency` is the sign in front of amounts.

    Returns
    -------
    answers
        One for each task. Its table has a row per setting with the columns `FORECAST`, the fewest days first and those
        that do not fit last: `basis` is `measured`, `published` or `predicted`, the rest as `dsnb.predict` returns it.
        Measured figures are medians over runs, and their error is NaN.
    notes
        Why combinations were refused, and on how many measured settings predicted speeds were calibrated.
    """
    combinations = itertools.product(*map(built_in.listed, settings.values()))
    experiments, refused = allowed(dict(zip(settings, one, strict=True)) for one in combinations)
    same_gpu = runs_on(runs, gpus.find(gpu)) if runs is not None else pd.DataFrame()
    timed = len({run.experiment.name_with_model for run in measured(same_gpu, link)})
    is_calibrated = timed >= MIN_CALIBRATED
    target = Target(gpu, link, same_gpu if is_calibrated else None)
    budget = Budget(tokens, price, currency)
    unique = {experiment.name_with_model: experiment for experiment in experiments}
    answers = []
    for of_task in by_task(list(unique.values())):
        search = _search(of_task, target, budget, runs)
        search.trace(list(search.asked))
        result = search.best()
        answer = _among(search, result, budget.assumed(of_task))
        table = decide(search.described(list(search.asked)), search.question).table
        fitting = _fitting(table, target)
        order = table["fits"].map({True: 0, False: 2}).fillna(1)
        words = [labels.setting(vars(search.asked[name])) for name in table["experiment"]]
        table = table.assign(setting=words)
        table = table.loc[order.sort_values(kind="stable").index, FORECAST]
        sentences = (fitting, *answer.sentences)
        lines = (*answer.lines, note(fitting))
        table = table.reset_index(drop=True)
        answers.append(replace(answer, table=table, sentences=sentences, lines=lines))
    notes = [say("refused", reason=reason) for reason in dict.fromkeys(refused)]
    if is_calibrated:
        notes.append(say("calibrated", settings=timed, gpu=target.hardware.gpu.name))
    return answers, notes


def _fitting(table: pd.DataFrame, target: Target) -> Sentence:
    """Return how many settings fit, without those whose host may be too small."""
    gpu = target.hardware.gpu
    fits = table["fits"].eq(True)
    number = table["basis"][fits].value_counts()
    bases = [f"{number[basis]} {basis}" for basis in BASES if basis in number]
    return say(
        "fitting",
        fitting=fits.sum(),
        settings=f"{len(table):,}",
        gpu=gpu.name,
        gib=f"{gpu.memory_gib:.0f}",
        bases=", ".join(bases) or "none",
    )
