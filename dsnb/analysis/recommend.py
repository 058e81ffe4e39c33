"""Which settings to train each task with: measured ones, predicted ones (`recommend`), or both (`forecast`).

All three make one table of candidates with a column `basis`, let `dsnb.analysis.decide` rank it, and word the result
with `dsnb.analysis.words`. `recommend` chooses from settings that are given, or from all of `dsnb.analysis.space`.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from dsnb.analysis import space, words
from dsnb.analysis.advice import Adviser, Recommendation, by_task, runs_on
from dsnb.analysis.decide import BASES, CPU, Decision, Question, candidates, decide
from dsnb.analysis.predicted import allowed
from dsnb.analysis.space import Training
from dsnb.analysis.tasks import tasks
from dsnb.analysis.texts import amount, significant
from dsnb.errors import SettingsError
from dsnb.formulas import planning
from dsnb.formulas.model_shapes import PRESETS, local_config
from dsnb.prediction import gpus
from dsnb.prediction.calibration import MIN_CALIBRATED, measured
from dsnb.prediction.shapes import shape
from dsnb.runs.labels import count
from dsnb.settings.experiment import Experiment
from dsnb.settings.params_file import combinations, read_params
from dsnb.system import hardware

Objective = Literal["days", "tokens_per_s", "memory", "cost"]
OBJECTIVES = {"days": "time", "tokens_per_s": "time", "memory": "memory", "cost": "cost"}
"""Objectives of `recommend`, and what they are in `dsnb.analysis.decide`."""
LEAST = {
    "time": "Fewest days",
    "gpu_hours": "Fewest GPU-hours",
    "cost": "Lowest cost of the settings with a price",
}
NOTHING_FITS = "No setting fits: those that were predicted to fit ran out of memory. Take the next smaller micro-batch."
FORECAST = [
    "experiment", "basis", "fits", "peak_allocated_gib", "peak_allocated_error_pct", "tokens_per_s",
    "tokens_per_s_error_pct", "days", "days_low", "days_high", "gpu_hours", "cost", "outside",
]  # fmt: skip
"""Columns of the tables of `forecast`."""
USUAL_GPUS = 8


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
    """Return what `dsnb.recommend` does without measuring; figures of measured `runs` replace predicted ones."""
    if objective not in OBJECTIVES:
        raise SettingsError(f"objective is {objective!r}: use one of {', '.join(OBJECTIVES)}")
    if objective == "cost" and not options.get("price"):
        raise SettingsError("objective is 'cost', but price is missing or 0: give the price of a GPU-hour")
    device = (settings or {}).get("device", "cuda")
    adviser = Adviser(gpu, OBJECTIVES[objective], currency, runs, device=device, **options)
    if isinstance(target, str | Path) and not is_params(target):
        training, assumed = _training(str(target), adviser, gpus, seq_len, global_batch, settings or {}, least_gpus)
        if least_gpus:
            if not (least := adviser.smallest(training)):
                batch = count(training.global_batch, "sequence")
                raise SettingsError(
                    f"no power of two of GPUs shares {batch} a step and fits: give another global_batch"
                )
            training = replace(training, gpus=least)
        return [adviser.of_model(training, [*adviser.assumed, *assumed])]
    given = _of_file(target, gpus, settings or {}) if isinstance(target, str | Path) else list(target)
    if not given:
        raise SettingsError("there is no setting to choose from: give at least one")
    answers = [adviser.among(own) for _, own in by_task(adviser.predictable(given))]
    if all(one.table.empty for one in answers):
        raise SettingsError([f"{one.task}: {said[0].lower()}{said[1:-1]}" for one in answers for said in one.sentences])
    return answers


def is_params(target: str | Path) -> bool:
    """Return whether a target is a params file rather than a model."""
    path = Path(target)
    return path.suffix in {".yaml", ".yml"} or (path.is_file() and path.suffix != ".json")


def _of_file(path: str | Path, gpus: int | None, settings: Mapping[str, Any]) -> list[Experiment]:
    """Return the settings of a params file that are allowed, each once, for GPUs."""
    file = read_params(path)
    fixed = {**settings, **({} if gpus is None else {"gpus": gpus})}
    lists = {name: value if isinstance(value, list) else [value] for name, value in fixed.items()}
    chosen = [
        {**one, **({"gpus": 1} if one.get("gpus") == "auto" else {}), **dict(zip(lists, values, strict=True))}
        for one in combinations(file)
        for values in itertools.product(*lists.values())
    ]
    return list({one.name_with_model: one for one in allowed(chosen)[0]}.values())


def _training(
    model: str,
    adviser: Adviser,
    gpus: int | None,
    seq_len: int | None,
    global_batch: int | None,
    fixed: Mapping[str, Any],
    least_gpus: bool,
) -> tuple[Training, list[str]]:
    """Return what is to be trained with a model, and what was assumed for that, in words.

    For `least_gpus` the number of GPUs is only what the batch is shared among at first, so it is no assumption.
    """
    fixed, assumed = dict(fixed), []
    preset = next((name for name, known in PRESETS.items() if known.hub_id == model), model)
    asked = Experiment(model=str(Path(model).absolute()) if local_config(model) else preset)
    parameters = shape(asked.model).parameters
    device = fixed.pop("device", "cuda")
    number = fixed.pop("gpus", gpus)
    if number is None:
        here = len(hardware.gpus()) if adviser.is_here else 0
        number = here or USUAL_GPUS
        if not least_gpus:
            assumed.append(f"{count(number, 'GPU')}{' of this machine' if here else ', one node'}")
    length = fixed.pop("seq_len", seq_len)
    if length is None:
        length = space.usual_length(asked.model)
        assumed.append(f"sequences of {length} tokens")
    numbers = {"gpus": number, "seq_len": length, "global_batch": 1 if global_batch is None else global_batch}
    for name, value in numbers.items():
        if not (planning.is_whole(value) and value >= 1):
            raise SettingsError(f"{name} is {value!r}: give a whole number of at least 1")
    if global_batch is None:
        global_batch = space.usual_batch(parameters, length, number)
        assumed.append(
            f"{count(global_batch, 'sequence')} a step ({_about(global_batch * length)} tokens), as usual for "
            f"{_about(parameters)} parameters (Brown et al. 2020, table 2.1)"
        )
    half = "bf16" if adviser.has_bf16 else "fp16"
    precision = fixed.pop("precision", "fp32" if device == "cpu" else half)
    training = Training(asked.model, number, length, global_batch, precision, device, fixed)
    return training, assumed


def _about(number: float) -> str:
    return amount(float(f"{number:.2g}"))


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
    axes = [value if isinstance(value, list) else [value] for value in settings.values()]
    experiments, refused = allowed(dict(zip(settings, values, strict=True)) for values in itertools.product(*axes))
    same_gpu = runs_on(runs, gpus.find(gpu)) if runs is not None else pd.DataFrame()
    timed = len({run.experiment.name_with_model for run in measured(same_gpu, link)})
    calibrate = same_gpu if timed >= MIN_CALIBRATED else None
    options: dict[str, Any] = {"link": link, "tokens": tokens, "price": price, "calibrate": calibrate}
    adviser = Adviser(gpu, "time", currency, runs, **options)
    answers = []
    for title, own in by_task(list({one.name_with_model: one for one in experiments}.values())):
        table, lacks_room = adviser.everything(own)
        # On one kind of GPU, the cheapest setting is that with the fewest GPU-hours.
        decisions = {name: decide(table, adviser.question(tokens, name)) for name in ("time", "gpu_hours")}
        said = [*_fitting(table, adviser.on.gpu), *_least(decisions)]
        said += adviser.doubts(decisions["time"].options, own)
        if not table["fits"].any():
            said += adviser.among(own).sentences if lacks_room else [NOTHING_FITS]
        shown = decisions["time"].table.sort_values("fits", ascending=False, kind="stable")
        answers.append(Recommendation(title, shown[FORECAST].reset_index(drop=True), tuple(said)))
    notes = [f"Refused and left out: {reason}." for reason in dict.fromkeys(refused)]
    if timed >= MIN_CALIBRATED:
        notes.append(f"Predicted speeds follow from {timed} measured settings on {adviser.on.gpu.name}.")
    return answers, notes


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
