"""Which settings to train each task with: measured ones, predicted ones (`recommend`), or both (`forecast`).

All three make one table of candidates with a column `basis`, let `dsnb.results.answers.decide` rank it, and word the result
with `dsnb.results.answers.words`. `recommend` chooses from given settings, or from all of `dsnb.prediction.space`.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from dsnb.base.errors import SettingsError
from dsnb.base.formulas import planning
from dsnb.base.formulas.model_shapes import PRESETS, local_config
from dsnb.prediction import gpus, space
from dsnb.prediction.advice import Adviser, Recommendation, by_task, runs_on
from dsnb.prediction.calibration import MIN_CALIBRATED, measured
from dsnb.prediction.predicted import allowed
from dsnb.prediction.shapes import shape
from dsnb.prediction.space import Training
from dsnb.results.answers import words
from dsnb.results.answers.decide import BASES, CPU, Decision, Question, candidates, decide
from dsnb.results.runs.labels import count
from dsnb.results.runs.texts import amount, usual_tokens_words
from dsnb.results.statistics.tasks import is_fine_tuning, tasks
from dsnb.settings.experiment import Experiment

Objective = Literal["days", "tokens_per_s", "memory", "cost"]
OBJECTIVES = {"days": "time", "tokens_per_s": "time", "memory": "memory", "cost": "cost"}
"""Objective of `recommend` -> objective of `dsnb.results.answers.decide`."""
LEAST = {
    "time": "Fewest days",
    "gpu_hours": "Fewest GPU-hours",
    "cost": "Lowest cost of the settings with a price",
}
FORECAST = [
    "experiment", "basis", "fits", "tight", "peak_allocated_gib", "peak_allocated_error_pct", "peak_reserved_gib",
    "host_memory_gib", "tokens_per_s", "tokens_per_s_error_pct", "days", "days_low", "days_high", "gpu_hours", "cost",
    "outside",
]  # fmt: skip
"""Columns of the tables of `forecast`."""
USUAL_GPUS = 8
FINE_TUNED = "as usual with LoRA or pretrained weights"


def recommend(
    target: str | Path | Sequence[Experiment],
    gpu: str = "",
    *,
    gpus: int | None = None,
    seq_len: int | None = None,
    global_batch: int | None = None,
    settings: Mapping[str, Any] | None = None,
    least_gpus: bool = False,
    objective: Objective = "days",
    currency: str = "$",
    runs: pd.DataFrame | None = None,
    **options: Any,
) -> list[Recommendation]:
    """Return what `dsnb.recommend` does of a model or settings; figures of measured `runs` replace predicted ones."""
    if objective not in OBJECTIVES:
        raise SettingsError(f"objective is {objective!r}: use one of {', '.join(OBJECTIVES)}")
    if objective == "cost" and not options.get("price"):
        raise SettingsError(
            "objective is 'cost', but price is missing or 0: give the price of a GPU-hour"
        )
    device = (settings or {}).get("device", "cuda")
    adviser = Adviser(gpu, OBJECTIVES[objective], currency, runs, device=device, **options)
    if isinstance(target, str | Path):
        training, assumed = _training(
            str(target), adviser, gpus, seq_len, global_batch, settings or {}, least_gpus
        )
        if least_gpus:
            least = adviser.smallest(training)
            if not least:
                batch = count(training.global_batch, "sequence")
                raise SettingsError(
                    f"no power of two of GPUs shares {batch} a step and fits: give another global_batch"
                )
            training = replace(training, gpus=least)
            adviser.with_network(least)
        return [adviser.of_model(training, [*adviser.assumed, *assumed])]
    if not target:
        raise SettingsError("there is no setting to choose from: give at least one")
    answers = [
        adviser.among(experiments)[0] for _, experiments in by_task(adviser.predictable(target))
    ]
    if all(answer.table.empty for answer in answers):
        raise SettingsError(
            [
                f"{answer.task}: {text[0].lower()}{text[1:-1]}"
                for answer in answers
                for text in answer.sentences
            ]
        )
    return answers


def _training(
    model: str,
    adviser: Adviser,
    gpus: int | None,
    seq_len: int | None,
    global_batch: int | None,
    fixed: Mapping[str, Any],
    least_gpus: bool,
) -> tuple[Training, list[str]]:
    """Return what to train, and what was assumed for that.

    With `least_gpus`, the number of GPUs only sets the usual batch, so it is not an assumption.
    """
    fixed, assumed = dict(fixed), []
    preset = next((name for name, entry in PRESETS.items() if entry.hub_id == model), model)
    model = Experiment(model=str(Path(model).absolute()) if local_config(model) else preset).model
    device = fixed.pop("device", "cuda")
    number = fixed.pop("gpus", gpus)
    if number is None:
        number = adviser.installed or USUAL_GPUS
        if not least_gpus:
            where = " of this machine" if adviser.installed else ", one node"
            assumed.append(f"{count(number, 'GPU')}{where}")
    length = fixed.pop("seq_len", seq_len)
    if length is None:
        length = space.usual_length(model)
        assumed.append(f"sequences of {length} tokens")
    numbers = {
        "gpus": number,
        "seq_len": length,
        "global_batch": 1 if global_batch is None else global_batch,
    }
    for name, value in numbers.items():
        if not (planning.is_whole(value) and value >= 1):
            raise SettingsError(f"{name} is {value!r}: give a whole number of at least 1")
    half = "bf16" if adviser.has_bf16 else "fp16"
    precision = fixed.pop("precision", "fp32" if device == "cpu" else half)
    training = Training(model, number, length, global_batch or number, precision, device, fixed)
    adviser.check(training, least_gpus)
    if global_batch is None:
        parameters = shape(model).parameters
        global_batch = space.usual_batch(parameters, length, number, training.is_fine_tuning)
        tokens, size = (
            amount(float(f"{value:.2g}")) for value in (global_batch * length, parameters)
        )
        usual = f"as usual for {size} parameters (Brown et al. 2020, table 2.1)"
        usual = FINE_TUNED if training.is_fine_tuning else usual
        assumed.append(f"{count(global_batch, 'sequence')} a step ({tokens} tokens), {usual}")
    return replace(training, global_batch=global_batch), assumed


def measured_plans(
    runs: pd.DataFrame,
    tokens: float | None,
    prices: Mapping[str, float] | None = None,
    power_w: float | None = None,
    currency: str = "$",
) -> list[Recommendation]:
    """Return for each task what training takes with each measured setting, and the best ones in words.

    Without `tokens`, they are those that are usual for the task (`dsnb.base.formulas.planning.usual_tokens`).
    `prices` of a GPU-hour are by `gpu_name`; the key `""` is for all others. `power_w` is the mean power of a GPU for
    runs without measured power. Without these, costs and energy are missing.

    Returns
    -------
    list of Recommendation
        Each table has a row per `experiment`, the fastest first, with the columns of `dsnb.results.answers.decide.candidates`
        and `costed`. Without a GPU, the `gpu_name` is `CPU`, and `gpus` and `gpu_hours` are ranks and rank-hours.
    """
    questions = {
        name: Question(tokens or 0, name, prices=prices or {}, currency=currency) for name in LEAST
    }
    planning.check(tokens or planning.DEFAULT_TOKENS, {}, power_w=power_w)
    plans = []
    for task in tasks(runs):
        measured_settings = candidates(task.runs, power_w)
        usual = task.parameters, is_fine_tuning(task.runs)
        decisions = {
            name: decide(measured_settings, question, *usual)
            for name, question in questions.items()
        }
        table = decisions["time"].table
        table = table.assign(
            gpu_name=table["gpu_name"].astype(object).mask(table["kind"] == CPU, CPU)
        )
        table = table.rename_axis("experiment").reset_index()
        sentences = list(_least(decisions, words.memory_name(task.runs)))
        if sentences and not tokens:
            sentences.append(f"Assumed: {usual_tokens_words(*usual)}.")
        plans.append(Recommendation(task.title, table, tuple(sentences)))
    return plans


def _least(decisions: Mapping[str, Decision], memory: str) -> Iterator[str]:
    """Yield the best setting of each objective, or that none is fast enough; and how many are too unstable to rank."""
    fastest = decisions["time"]
    if fastest.is_beyond:
        facts = words.figures(fastest.options.iloc[0], fastest.question)
        yield words.say("beyond", {"what": "measured setting", **facts})
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
    tokens: float | None = None,
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
    axes = [value if isinstance(value, list) else [value] for value in settings.values()]
    experiments, refused = allowed(
        dict(zip(settings, values, strict=True)) for values in itertools.product(*axes)
    )
    same_gpu = runs_on(runs, gpus.find(gpu)) if runs is not None else pd.DataFrame()
    timed = len({run.experiment.name_with_model for run in measured(same_gpu, link)})
    calibrate = same_gpu if timed >= MIN_CALIBRATED else None
    options: dict[str, Any] = {
        "link": link,
        "tokens": tokens,
        "price": price,
        "calibrate": calibrate,
    }
    adviser = Adviser(gpu, "time", currency, runs, **options)
    answers = []
    for _, of_task in by_task(
        list({experiment.name_with_model: experiment for experiment in experiments}.values())
    ):
        answer, table = adviser.among(of_task, trace_all=True)
        fits, spec = (
            table["fits"].eq(True),
            adviser.on.gpu,
        )  # without those whose host may be too small
        number = table["basis"][fits].value_counts()
        bases = ", ".join(f"{number[basis]} {basis}" for basis in BASES if basis in number)
        fitting = f"{fits.sum()} of {count(len(table), 'setting')} fit on {spec.name}, which has "
        fitting += f"{spec.memory_gib:.0f} GiB ({bases or 'none'})."
        order = table["fits"].map({True: 0, False: 2}).fillna(1)
        table = table.loc[order.sort_values(kind="stable").index, FORECAST]
        answers.append(
            replace(
                answer, table=table.reset_index(drop=True), sentences=(fitting, *answer.sentences)
            )
        )
    notes = [f"Refused and left out: {reason}." for reason in dict.fromkeys(refused)]
    if timed >= MIN_CALIBRATED:
        notes.append(
            f"Predicted speeds follow from {timed} measured settings on {adviser.on.gpu.name}."
        )
    return answers, notes
