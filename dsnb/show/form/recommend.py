"""`dsnb.recommend`: the best settings by prediction or by short runs on this machine, and files that hold them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from dsnb.base.errors import SettingsError
from dsnb.base.files import json_files, plain_yaml
from dsnb.base.formulas import model_shapes, planning
from dsnb.base.system import hardware
from dsnb.measure.sweep.params import is_params, load_sweep
from dsnb.prediction import by_gpu
from dsnb.prediction import recommend as predicted
from dsnb.prediction.calibration import MIN_CALIBRATED
from dsnb.prediction.gpus import known_gpu
from dsnb.prediction.recommend import Scope
from dsnb.prediction.target import USUAL_GPU, Budget, Objective, Target, budgets
from dsnb.results.answers.answer import Answer
from dsnb.results.answers.lines import note
from dsnb.results.answers.sentences import Sentence, say
from dsnb.results.runs import labels
from dsnb.results.statistics.comparisons import differences
from dsnb.settings import flat_keys, programs
from dsnb.settings.exchange import files
from dsnb.settings.experiment import Experiment
from dsnb.settings.records import paths

if TYPE_CHECKING:
    from dsnb.show.form.measure import Measuring

ALTERNATIVES = 2
"""Alternatives whose files for other programs are written."""
NEEDED = ("model", "seq_len")
"""Settings without which no prediction orders the settings of a command."""
OF_COMMANDS = "dsnb's defaults for settings that are neither stated nor passed to the command"
REPLACED = ("alternative", "runner_up", "outside")
"""Roles of sentences that measurements replace."""


@dataclass(frozen=True)
class Measurement:
    """The number of settings to run on this machine, the time for it, and the folder of the runs."""

    count: int = 0
    minutes: float | None = None
    output: str | Path | None = None


def recommend(
    target: str | Path | Sequence[Experiment],
    gpu: str | Sequence[str] = "",
    *,
    gpus: int | None = None,
    seq_len: int | None = None,
    global_batch: int | None = None,
    settings: Mapping[str, Any] | None = None,
    least_gpus: bool = False,
    objective: Objective = "days",
    currency: str = "$",
    link: str = "nvlink",
    tokens: float | None = None,
    price: float | Mapping[str, float] | None = None,
    calibrate: pd.DataFrame | None = None,
    host_memory: float | None = None,
    measure: int = 0,
    minutes: float | None = None,
    output: str | Path | None = None,
) -> Answer:
    """Return the best setting of a task that is predicted to fit.

    For a model, compare all settings that train the same: how GPUs share the work, micro-batches,
    recomputation, formats, compilation, and offload if nothing else fits. Settings of different
    tasks, such as two models, are never compared with each other. Settings within 2 % of the best
    count as equal; the simplest of them is recommended.

    Parameters
    ----------
    target
        A preset, a configuration file or its folder; a params file; or settings, all of one task.
    gpu
        Name of the GPU, as `dsnb.predict` takes it; by default this machine's, or `H200`. A list of names
        compares GPUs.
    gpus
        Number of GPUs; by default those of this machine, of the params file, or 8.
    seq_len, global_batch
        Tokens of a sequence, and sequences of an optimizer step; by default the model's length up to 4,096, and as many
        as are usual for its size (Brown et al. 2020, table 2.1).
    settings
        Settings that are fixed; a list is what may be chosen from.
    least_gpus
        Use the smallest power of two of GPUs on which a setting fits, in place of `gpus`.
    objective
        `days` or `cost` of the training, `tokens_per_s` of all GPUs, or `memory` of a GPU.
    currency
        Sign in front of the cost.
    link, tokens, calibrate, host_memory
        As `dsnb.predict` takes them.
    price
        Price of a GPU-hour, or a mapping by names of GPUs.
    measure
        Number of the best settings to run on this machine (with CPU ranks if it has no GPU) until the best is decided;
        0 for prediction alone. Runs are short and repeated up to six times, the settings in turn. A setting that fails
        is replaced by the next one. Call again with the same arguments to resume.
    minutes
        End after this time: a run that would end later is not started, and one that lasts longer is stopped. No limit
        by default.
    output
        Folder of the runs; by default `outputs/recommend_MODEL_...`. `dsnb.write_report` reports on it.

    Returns
    -------
    Answer
        Ten lines, as text (`print`, `text`) and in a notebook: what to train with, time, speed and memory with their
        ranges, and alternatives. `sentences` give the reasons. `table` has the best
        setting and three alternatives, of other kinds where there are some, in the columns of `dsnb.predict`, and
        `worse_pct`: by how many per cent each is worse than the best in the objective. It is empty if a model does not
        fit with any setting. `experiments` has the settings, and further ones that fit. With several GPUs, lines and
        table have the setting recommended for each, the best first.

    Raises
    ------
    SettingsError
        If no given setting is predicted to fit or they are of several tasks, a name is unknown, the global batch cannot
        be shared equally among the GPUs, the objective is unknown, `cost` is asked for without a price, or an argument
        does not apply to the target.

    Examples
    --------
    ZeRO 0 does not fit: 13 billion parameters of 16 bytes each are 194 GiB, and an H200 has 140:

    >>> settings = [dsnb.Experiment(model="opt-13b", gpus=8, zero_stage=n) for n in (0, 3)]
    >>> answer = dsnb.recommend(settings, "H200")
    >>> answer.experiments[0].zero_stage
    3
    >>> print(answer)
    opt-13b on 8 H200: 260 billion tokens, 64 sequences of ... a step *
    Train with  ZeRO 3, bf16, micro-batch 8
      time ...
    * Assumed: 260 billion tokens, 20 per parameter.
    """
    scope = Scope(target, gpus, seq_len, global_batch, settings or {}, least_gpus)
    names = [gpu] if isinstance(gpu, str) else gpu
    targets = [Target(name, link, calibrate, host_memory) for name in names]
    costs = budgets(targets, price, tokens, currency, objective)
    measurement = Measurement(measure, minutes, output)
    return only_task(on_gpus(scope, targets, costs, measurement), "recommend")


def on_gpus(
    scope: Scope,
    targets: Sequence[Target],
    costs: Sequence[Budget],
    measurement: Measurement,
) -> list[Answer]:
    """Return the answer of `recommend` for each task, or one that compares several GPUs."""
    if len(targets) == 1:
        return answers(scope, targets[0], costs[0], measurement)
    if measurement.count:
        raise SettingsError("measure runs on the GPU of this machine: leave out the other GPUs")
    is_model = isinstance(scope.what, str | Path) and not is_params(scope.what)
    if is_model and not (scope.least_gpus or scope.gpus):
        scope = replace(scope, gpus=predicted.USUAL_GPUS)
    found = {}
    for target, budget in zip(targets, costs, strict=True):
        name = target.hardware.gpu.name
        found[name] = only_task(answers(scope, target, budget, measurement), "a list of GPUs")
    return [by_gpu.compared(found, costs[0], scope.gpus or 0)]


def answers(scope: Scope, target: Target, budget: Budget, measurement: Measurement) -> list[Answer]:
    """Return the answer of `recommend` for each task; the task with most settings comes first."""
    what = scope.what
    file: str | Path = ""
    if isinstance(what, str | Path) and is_params(what):
        file = what
    if file or not isinstance(what, str | Path):
        _refuse_unused(scope, bool(file))
    if scope.settings.get("device") == "cpu" and not measurement.count:
        raise SettingsError(
            "device is 'cpu', but speeds are predicted for GPUs: leave it out, or give measure"
        )
    commands: dict[str, Experiment] = {}
    if file:
        settings, _ = settings_of_file(file, scope.settings, scope.gpus)
        scope = replace(scope, what=[as_predicted(one) for one in settings.values()])
        for one in settings.values():
            if one.command:
                commands[one.complete.name_with_model] = one
    if measurement.count:
        found = [_measured(scope, target, budget, measurement, commands)]
    else:
        found = predicted.recommend(scope, target, budget)
    if commands:
        assumed = say("assumed", what=OF_COMMANDS)
        found = [replace(one, sentences=(*one.sentences, assumed)) for one in found]
    return found


def as_predicted(experiment: Experiment) -> Experiment:
    """Return settings that can be predicted: those of a command with defaults for what is unknown."""
    if not experiment.command:
        return experiment
    unknown = [name for name in NEEDED if getattr(experiment, name) is None]
    if unknown:
        named = " and ".join(unknown)
        raise SettingsError(
            f"predictions need {named}: state what your script has below 'defaults:'"
        )
    return experiment.complete


def _measured(
    scope: Scope,
    target: Target,
    budget: Budget,
    measurement: Measurement,
    commands: Mapping[str, Experiment],
) -> Answer:
    """Return the best setting by runs on this machine; `commands` are those of settings with them, by their names."""
    from dsnb.show.form.measure import Measuring, decide_by_runs  # loads what runs settings

    number = measurement.count
    if not (planning.is_whole(number) and number > 0):
        raise SettingsError(f"measure is {number!r}: give the number of settings to run, such as 3")
    target = _this_machine(target)
    if budget.objective == "memory" and target.device == "cpu":
        raise SettingsError(
            "objective is 'memory', but CPU ranks are measured here: use days or tokens_per_s"
        )
    settings = {**scope.settings, "device": target.device}
    gpus = scope.gpus or hardware.default_world_size(target.device)
    scope = replace(scope, settings=settings, gpus=gpus)
    first = only_task(predicted.recommend(scope, target, budget), "measure")
    if first.table.empty:
        return first
    can_calibrate = target.device == "cuda" and known_gpu(hardware.gpus()[0].name) is not None

    def following(runs: pd.DataFrame | None) -> list[Experiment]:
        answer = first
        if runs is not None and can_calibrate:
            timed = runs[runs["status"] == "ok"]["experiment"].nunique()
            if timed >= MIN_CALIBRATED:
                on_runs = replace(target, calibrate=runs)
                answer = only_task(predicted.recommend(scope, on_runs, budget), "measure")
        asked = [commands.get(one.name_with_model, one) for one in answer.experiments]
        return [one.model_copy(update={"device": target.device}) for one in asked]

    best = first.experiments[0]
    model = model_shapes.slug(best.model)
    batch = best.global_batch_size
    name = f"recommend_{model}_gpus{best.gpus}_sl{best.seq_len}_gb{batch}"
    folder = Path(measurement.output or paths.outputs_root() / name)
    measuring = Measuring(folder, target.hardware, settings, measurement.minutes)
    runs, end = decide_by_runs(measuring, number, following)
    answer, sentences = _by_runs(measuring, runs, target, budget)
    decided = say("measured", runs=len(runs), settings=len(measuring.started), end=end)
    kept = [sentence for sentence in answer.sentences if sentence.role not in REPLACED]
    basis = {"measured": note(decided)}
    return replace(
        answer,
        task=first.task,
        sentences=(*kept, decided, *sentences),
        folder=folder,
        lines=tuple(basis.get(one.role, one) for one in answer.lines),
        assumed=first.assumed,
    )


def _this_machine(target: Target) -> Target:
    """Return this machine as a target; an unknown GPU orders settings as `USUAL_GPU` does. Refuse another GPU."""
    here = hardware.gpus()
    known = known_gpu(here[0].name) if here else None
    if target.gpu and not (known and known_gpu(target.gpu) == known):
        what = here[0].name if here else "no GPU"
        raise SettingsError(
            f"gpu is {target.gpu!r}, but runs are measured on this machine, which has {what}: leave it out"
        )
    if not here:
        return replace(target, gpu=USUAL_GPU, device="cpu")
    name = here[0].name if known else USUAL_GPU
    return replace(target, gpu=name, gpu_memory_gib=here[0].memory_gib)


def settings_of_file(
    params: str | Path, overrides: Mapping[str, Any], gpus: int | None = None
) -> tuple[dict[str, Experiment], Sequence[tuple[str, str]]]:
    """Return the settings of a params file by name, on GPUs even if this machine has none, and the refused ones."""
    overrides = {"order": "listed", **overrides, "device": "cuda"}
    if gpus is not None:
        overrides["gpus"] = gpus
    sweep = load_sweep(params, overrides, auto_gpus=gpus or 1, leave_out_refused=True)
    return {run.name: run.experiment for run in sweep.runs}, sweep.refused


def _refuse_unused(scope: Scope, is_file: bool) -> None:
    """Refuse arguments that only a model takes; a params file also takes `gpus` and `settings`, a list neither."""
    unused = ["seq_len", "global_batch", "least_gpus"]
    takes = "models and files"
    what = "a params file has its own settings"
    if is_file:
        takes = "models"
    else:
        unused += ["gpus", "settings"]
        what = "change the experiments of the list"
    for name in unused:
        value = getattr(scope, name)
        if value:
            raise SettingsError(f"{name} is {value!r}: it applies to {takes}; {what}")


def only_task(found: Sequence[Answer], option: str) -> Answer:
    """Return the answer for the only task; a SettingsError names the tasks if there are several."""
    if len(found) > 1:
        titles = "; ".join(answer.task for answer in found)
        raise SettingsError(
            f"{option} is for one task, but there are {len(found)} ({titles}): ask for one at a time"
        )
    return found[0]


def _by_runs(
    measuring: "Measuring", runs: pd.DataFrame, target: Target, budget: Budget
) -> tuple[Answer, list[Sentence]]:
    """Return the recommendation among what was measured, and sentences on the runs."""
    failed = measuring.failed(runs)
    ended = set(runs["experiment"]) - set(failed)
    alive = {name: one for name, one in measuring.started.items() if name in ended}
    good = runs[runs["experiment"].isin(list(alive))]
    wholes = {name: candidate.whole.complete for name, candidate in alive.items()}
    rows = [wholes[name].model_dump(exclude=set(flat_keys.NAMES)) for name in good["experiment"]]
    known = pd.DataFrame(rows, index=good.index).drop(columns="device")
    # The figures are of these settings, whatever program and defaults a script has.
    whole = good.assign(gpu_name=target.gpu, **known, program=programs.DSNB)
    scope = Scope(list(wholes.values()))
    (answer,) = predicted.recommend(scope, target, budget, whole)
    sentences = []
    for name, row in differences(good, figure="tokens_per_s").iterrows():
        sentences.append(say("difference", name=name, base=row["base"], verdict=row["words"]))
    for name, cause in failed.items():
        sentences.append(say("failed", name=name, cause=cause))
    shortened = sum(one.run.grad_accum != one.whole.grad_accum for one in alive.values())
    if shortened:
        sentences.append(say("shortened", settings=shortened))
    return answer, sentences


def write(folder: str | Path, answer: Answer) -> list[str]:
    """Write a recommendation into a folder, and return sentences on what was written and what it lacks.

    That is a params file of the recommended setting and its alternatives, and for other programs
    the files of the setting, and of two alternatives in folders of their own.
    """
    from dsnb.show.form.measure import params_of

    if answer.table.empty:
        raise SettingsError(f"nothing is written to {folder}: no setting fits")
    experiments = answer.experiments[: len(answer.table)]
    best, *others = experiments
    name = f"recommend_{model_shapes.slug(best.model)}"
    question = f"Which of the settings recommended for {answer.task} is the fastest?"
    content = params_of(name, question, experiments, repeats=4)
    params = Path(folder) / "params.yaml"
    params.parent.mkdir(parents=True, exist_ok=True)
    json_files.write_text(params, plain_yaml.dump(content.model_dump(exclude_defaults=True)))
    sentences = [f"Written: {params}; to verify it by runs: dsnb sweep {params}"]
    files.write(best, params.parent)
    sentences.append(_of_files(params.parent, best))
    places = [params.parent / f"alternative_{number}" for number in range(1, ALTERNATIVES + 1)]
    for place in places:
        files.remove(place)  # that of an earlier recommendation
    for place, other in zip(places, others, strict=False):
        files.write(other, place)
        sentences.append(f"Written: {place}, the same for {labels.setting(vars(other))}")
    return [*sentences, *_left_out(params.parent, best)]


def _of_files(folder: Path, experiment: Experiment) -> str:
    """Return the sentence on the files of a setting for other programs."""
    names = list(files.files(experiment))
    said = f"Written: {folder} has {', '.join(names)}"
    return f"{said}: the recommended setting for other programs"


def _left_out(folder: Path, experiment: Experiment) -> list[str]:
    """Return sentences on what the files for the Trainer do not say, and on what applies it."""
    missing = files.not_said(experiment)
    by_call = [one.text for one in missing if one.adapted]
    by_hand = [one.text for one in missing if not one.adapted]
    call = f'dsnb.adapt(model, "{folder / files.SETTINGS_FILE}")'
    sentences = [
        f"Not in the Trainer's files, and done by model = {call}: {' '.join(by_call)}",
        f"Not in the Trainer's files, and yours to do: {' '.join(by_hand)}",
    ]
    if experiment.parallel_strategy.is_deepspeed:
        named = {one.name for one in missing}
        of_engine = files.not_said(experiment, "deepspeed")
        more = [one.text for one in of_engine if one.name not in named]
        sentences.append(f"Nor in {files.PLAIN_FILE}, which has no comments: {' '.join(more)}")
    return sentences
