"""`dsnb.recommend`: the best settings by prediction or by short runs on this machine, and files that hold them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from dsnb.base.errors import DsnbError, SettingsError
from dsnb.base.files import json_files, plain_yaml
from dsnb.base.formulas import model_shapes, planning
from dsnb.base.system import hardware
from dsnb.measure.sweep.params import is_params, load_sweep
from dsnb.prediction import recommend as predicted
from dsnb.prediction.advice import USUAL_GPU, Recommendation
from dsnb.prediction.calibration import MIN_CALIBRATED
from dsnb.prediction.gpus import known_gpu
from dsnb.prediction.predict import on_gpu
from dsnb.prediction.recommend import Objective
from dsnb.results.runs.labels import count
from dsnb.results.statistics.comparisons import differences
from dsnb.settings.experiment import Experiment
from dsnb.settings.records import paths

if TYPE_CHECKING:
    from dsnb.show.form.measure import Measuring


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
    link: str = "nvlink",
    tokens: float | None = None,
    price: float | None = None,
    calibrate: pd.DataFrame | None = None,
    host_memory: float | None = None,
    measure: int = 0,
    minutes: float | None = None,
    output: str | Path | None = None,
) -> list[Recommendation]:
    """Return the best setting of each task that is predicted to fit; the task with most settings comes first.

    For a model, compare all settings that train the same: how GPUs share the work, micro-batches, recomputation,
    formats, compilation, and offload if nothing else fits. Settings of different tasks, such as two models, are never
    compared with each other. Settings within 2 % of the best count as equal; the simplest of them is recommended.

    Parameters
    ----------
    target
        A preset, a configuration file or its folder; a params file; or settings.
    gpu
        Name of the GPU, as `dsnb.predict` takes it; by default this machine's, or `H200`.
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
    link, tokens, price, calibrate, host_memory
        As `dsnb.predict` takes them.
    measure
        Number of the best settings to run on this machine (with CPU ranks if it has no GPU) until the best is decided;
        0 for prediction alone. Runs are short and repeated up to six times, the settings in turn. A setting that fails
        is replaced by the next one. Call again with the same arguments to resume.
    minutes
        End after this time: a run that would end later is not started, and one that lasts longer is stopped. No limit
        by default.
    output
        Folder of the runs and their report; by default `outputs/recommend_MODEL_...`.

    Returns
    -------
    list of Recommendation
        Each table has the best setting and three alternatives, of other kinds where there are some, in the columns of
        `dsnb.predict`, and `worse_pct`: by how many per cent each is worse than the best in the objective. It is empty
        if no setting of the task fits.

    Raises
    ------
    SettingsError
        If no setting of any task is predicted to fit, a name is unknown, the global batch cannot be shared equally
        among the GPUs, the objective is unknown, `cost` is asked for without a price, an argument does not apply to
        the target, or `measure` is given for several tasks.
    """
    options: dict[str, Any] = {
        "link": link,
        "tokens": tokens,
        "price": price,
        "calibrate": calibrate,
    }
    options |= {"host_memory": host_memory, "objective": objective, "currency": currency}
    chosen: dict[str, Any] = {
        "gpus": gpus,
        "seq_len": seq_len,
        "global_batch": global_batch,
        "least_gpus": least_gpus,
    }
    if not isinstance(target, str | Path) or is_params(target):
        _refuse_unused(target, settings=settings, **chosen)
    if (settings or {}).get("device") == "cpu" and not measure:
        raise SettingsError(
            "device is 'cpu', but speeds are predicted for GPUs: leave it out, or give measure"
        )
    if isinstance(target, str | Path) and is_params(target):
        target = list(settings_of_file(target, settings or {}, gpus)[0].values())
    if not measure:
        return predicted.recommend(target, gpu, settings=settings, **chosen, **options)
    from dsnb.show.form.measure import (  # here, because it loads what runs settings
        Measuring,
        decide_by_runs,
    )

    if not (planning.is_whole(measure) and measure > 0):
        raise SettingsError(
            f"measure is {measure!r}: give the number of settings to run, such as 3"
        )
    here = hardware.gpus()
    if gpu and not (here and known_gpu(here[0].name) and known_gpu(gpu) == known_gpu(here[0].name)):
        what = here[0].name if here else "no GPU"
        raise SettingsError(
            f"gpu is {gpu!r}, but runs are measured on this machine, which has {what}: leave it out"
        )
    device = "cuda" if here else "cpu"
    if objective == "memory" and not here:
        raise SettingsError(
            "objective is 'memory', but CPU ranks are measured here: use days or tokens_per_s"
        )
    settings = {**(settings or {}), "device": device}
    is_known_gpu = bool(here and known_gpu(here[0].name))
    gpu = here[0].name if is_known_gpu else USUAL_GPU
    options["gpu_memory_gib"] = here[0].memory_gib if here else None
    chosen["gpus"] = gpus or hardware.default_world_size(device)

    def ranked(**more: Any) -> Recommendation:
        return only_task(
            predicted.recommend(target, gpu, settings=settings, **chosen, **options | more),
            "measure",
        )

    first = ranked()
    if first.table.empty:
        return [first]

    def following(runs: pd.DataFrame | None) -> list[Experiment]:
        is_enough = (
            runs is not None
            and runs[runs["status"] == "ok"]["experiment"].nunique() >= MIN_CALIBRATED
        )
        answer = ranked(calibrate=runs) if is_enough and is_known_gpu else first
        return [
            experiment.model_copy(update={"device": device}) for experiment in answer.experiments
        ]

    best = first.experiments[0]
    name = f"recommend_{model_shapes.slug(best.model)}_gpus{best.gpus}_sl{best.seq_len}_gb{best.global_batch_size}"
    folder = Path(output) if output else paths.outputs_root() / name
    measuring = Measuring(
        folder, on_gpu(gpu, link, calibrate, host_gib=host_memory), settings, minutes
    )
    runs, end = decide_by_runs(measuring, measure, following)
    return [_by_runs(first, measuring, runs, end, gpu, settings, options)]


def settings_of_file(
    params: str | Path, overrides: Mapping[str, Any], gpus: int | None = None
) -> tuple[dict[str, Experiment], Sequence[tuple[str, str]]]:
    """Return the settings of a params file by name, on GPUs even if this machine has none, and the refused ones."""
    overrides = {
        "order": "listed",
        **overrides,
        "device": "cuda",
        **({} if gpus is None else {"gpus": gpus}),
    }
    sweep = load_sweep(params, overrides, auto_gpus=gpus or 1, leave_out_refused=True)
    return {run.name: run.experiment for run in sweep.runs}, sweep.refused


def _refuse_unused(target: str | Path | Sequence[Experiment], **arguments: Any) -> None:
    """Refuse arguments that only a model takes; a params file also takes `gpus` and `settings`, a list neither."""
    is_file = isinstance(target, str | Path)
    for name, value in arguments.items():
        if value and not (is_file and name in {"gpus", "settings"}):
            what = (
                "a params file has its own settings"
                if is_file
                else "change the experiments of the list"
            )
            raise SettingsError(
                f"{name} is {value!r}: it applies to models{'' if is_file else ' and files'}; {what}"
            )


def only_task(answers: Sequence[Recommendation], option: str) -> Recommendation:
    """Return the answer for the only task; a SettingsError names the tasks if there are several."""
    if len(answers) > 1:
        titles = "; ".join(answer.task for answer in answers)
        raise SettingsError(
            f"{option} is for one task, but there are {len(answers)} ({titles}): ask for one at a time"
        )
    return answers[0]


def _by_runs(
    first: Recommendation,
    measuring: "Measuring",
    runs: pd.DataFrame,
    end: str,
    gpu: str,
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Recommendation:
    """Return the recommendation among what was measured, with the verdict of the runs and the path of their report."""
    failed = measuring.failed(runs)
    ended = set(runs["experiment"]) - set(failed)
    alive = {name: candidate for name, candidate in measuring.started.items() if name in ended}
    good = runs[runs["experiment"].isin(alive)]
    whole = good.assign(
        gpu_name=gpu, grad_accum=[alive[name].whole.grad_accum for name in good["experiment"]]
    )
    (answer,) = predicted.recommend(
        [candidate.whole for candidate in alive.values()],
        gpu,
        settings=settings,
        runs=whole,
        **options,
    )
    replaced = ("Alternative", "Runner-up", "Less certain")
    sentences = [sentence for sentence in answer.sentences if not sentence.startswith(replaced)]
    sentences.append(
        f"Measured: {count(len(runs), 'run')} of {count(len(measuring.started), 'setting')}; {end}."
    )
    for name, row in differences(good, figure="tokens_per_s").iterrows():
        sentences.append(f"{name} beside {row['base']}: {row['words']}.")
    sentences += [
        f"Not recommended because it failed: {name}: {cause}." for name, cause in failed.items()
    ]
    if shortened := sum(
        candidate.run.grad_accum != candidate.whole.grad_accum for candidate in alive.values()
    ):
        sentences.append(
            f"Runs of {count(shortened, 'setting')} had fewer micro-batches a step; their speed with all of them "
            "follows from the ratio of two predictions."
        )
    from dsnb.show.report import write_report  # here, because it loads the explorer

    try:
        sentences.append(f"Report: {write_report(measuring.paths.dir)}.")
    except DsnbError as error:  # the runs are there all the same
        sentences.append(f"Runs: {measuring.paths.dir}, without a report: {error}.")
    return Recommendation(first.task, answer.table, tuple(sentences), answer.experiments)


def write(folder: str | Path, answer: Recommendation) -> list[str]:
    """Write a recommendation into a folder, and return sentences on what was written and how to verify it.

    That is a params file of the recommended setting and its alternatives, and DeepSpeed's configuration of the former.
    """
    from dsnb.measure.launcher.folder import deepspeed_config
    from dsnb.show.form.measure import params_of

    if answer.table.empty:
        raise SettingsError(f"nothing is written to {folder}: no setting fits")
    folder, experiments = Path(folder), answer.experiments[: len(answer.table)]
    question = f"Which of the settings recommended for {answer.task} is the fastest?"
    file, best = folder / "params.yaml", experiments[0]
    content = params_of(
        f"recommend_{model_shapes.slug(best.model)}", question, experiments, repeats=4
    )
    folder.mkdir(parents=True, exist_ok=True)
    json_files.write_text(file, plain_yaml.dump(content.model_dump(exclude_defaults=True)))
    sentences = [f"Written: {file}; to verify it by runs: dsnb sweep {file}"]
    (folder / "deepspeed.json").unlink(missing_ok=True)  # that of an earlier recommendation
    if best.strategy == "deepspeed":
        json_files.write_json(folder / "deepspeed.json", deepspeed_config(best))
        sentences.append(
            f"Written: {folder / 'deepspeed.json'}, DeepSpeed's configuration of the recommended setting"
        )
    return sentences
