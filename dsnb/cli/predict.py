"""`dsnb predict` and `dsnb recommend`: memory, speed and cost of settings on GPUs that you do not have."""

import logging
import math
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import dsnb
from dsnb.base.errors import SettingsError
from dsnb.base.system import signals
from dsnb.cli.known import print_known
from dsnb.cli.printing import UNLIMITED, Format, say, say_line, show, table_width
from dsnb.cli.sweep import Params, Set, option, parse_overrides
from dsnb.measure.sweep.params import is_params, left_out_lines
from dsnb.results.runs.labels import count
from dsnb.results.runs.number_text import significant
from dsnb.settings.experiment import Experiment

GpuName = Annotated[
    str, option("NAME", "GPU to predict for, such as H100, or a CSV file of one.", default=True)
]
Gpus = Annotated[int | None, option("NUMBER", "GPUs per setting, instead of the file's.")]
LinkName = Annotated[
    str,
    option(
        "LINK",
        "Link of the GPUs: nvlink, pcie, ib:400 (Gbit/s for each GPU), ib:100/node, or eth:10/node.",
        default=True,
    ),
]
USUAL_TOKENS = "20 per parameter; 50M with LoRA or pretrained weights"
SLOW = ("dsnb.prediction.traces", "dsnb.show.form.measure")
"""Modules that log what takes long."""
CAVEATS = {
    "nearest": ("nearest run to the first,", 1),
    "outside": ("not covered by the calibration:", 3),
    "probe": ("adjusted by the", 3),
}
"""Columns of predictions that say how their figures came about, words before them, and how many
different ones are printed, those of the first settings; JSON and CSV have all."""
SIZES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def parse_tokens(text: str) -> float:
    """Return a number of tokens, written as `20e9` or `20B`."""
    size = SIZES.get(text[-1:].upper())
    try:
        return float(text[:-1] if size else text) * (size or 1)
    except ValueError as error:
        raise typer.BadParameter(
            f"{text[:50]!r}: write a number such as 300e9, 300B or 1.5T"
        ) from error


def parse_price(text: str) -> tuple[str, float]:
    """Return a GPU and its price, written as `H100=2.50`, or as `2.50` for all others."""
    name, _, number = text.rpartition("=")
    try:
        return name, float(number)
    except ValueError as error:
        raise typer.BadParameter(
            f"{text[:50]!r}: write a price such as 2.50, or H100=2.50"
        ) from error


Tokens = Annotated[
    float | None,
    option(
        "NUMBER", "Tokens to train on, such as 300B.", default=USUAL_TOKENS, parser=parse_tokens
    ),
]
Price = Annotated[float | None, option("NUMBER", "Price of a GPU-hour, for the cost.")]
Currency = Annotated[str, option("SIGN", "Sign in front of the cost.", default=True)]
HostMemory = Annotated[
    float | None,
    option(
        "GIB", "Memory of each host, which offload needs.", default="this machine's for its GPUs"
    ),
]
Calibrate = Annotated[
    Path | None, option("FOLDER", "Folder of measured runs to calibrate speed with.")
]
Verbose = Annotated[bool, option("", "Name every setting that is left out.", "--verbose", "-v")]
TableFormat = Annotated[Format, option(None, "Format of the table.", "--format", default=True)]


def predict(
    params: Params,
    gpu: GpuName = "H200",
    gpus: Gpus = None,
    link: LinkName = "nvlink",
    tokens: Tokens = None,
    price: Price = None,
    currency: Currency = "$",
    calibrate: Calibrate = None,
    set_: Set = None,
    host_memory: HostMemory = None,
    no_probe: Annotated[
        bool, option("", "Ignore the probe of this machine.", "--no-probe")
    ] = False,
    format_: TableFormat = Format.table,
    verbose: Verbose = False,
) -> None:
    """Predict memory, speed and cost of every setting of a params file, with errors; no GPU is needed."""
    from dsnb.prediction.predict import predict as predicted

    runs = _measured(calibrate)
    asked = _experiments(params, gpus, parse_overrides(set_ or []), gpu, link, verbose, traced=True)
    table = predicted(
        asked,
        gpu,
        link=link,
        calibrate=runs,
        tokens=tokens,
        price=price,
        probe=not no_probe,
        host_memory=host_memory,
    )
    order = table["fits"].map({True: 0, False: 2}).fillna(1)
    table = table.assign(order=order).sort_values(["order", "days"]).drop(columns="order")
    _show(table, format_, currency, gpu)
    for note in _notes(table, asked, tokens):
        say(note, err=format_.is_data)
    if runs is not None:
        say_line(_of_loop(runs, link), err=format_.is_data)
    say_line(f"Next: dsnb recommend {params} --gpu {gpu}", err=format_.is_data)


def _of_loop(runs: Any, link: str) -> str:
    """Return how long the loop of measured runs takes, in words."""
    from dsnb.prediction.calibration import measured, of_one_loop
    from dsnb.prediction.loop import of_runs

    return of_runs(of_one_loop(measured(runs, link))).sentence


def recommend(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="TARGET",
            help="Model (preset, config.json or its folder), or params file (YAML).",
            show_default=False,
        ),
    ],
    gpu: Annotated[
        list[str] | None,
        option(
            "NAME",
            "GPU, such as H100, or a CSV file; given several times, GPUs are compared.",
            default="of this machine, or H200",
        ),
    ] = None,
    gpus: Annotated[
        int | None, option("NUMBER", "Number of GPUs.", default="of this machine or file, or 8")
    ] = None,
    tokens: Tokens = None,
    price: Annotated[
        list[Any] | None,
        option(
            "[NAME=]NUMBER",
            "Price of a GPU-hour, for the cost; with a name, that of one GPU.",
            parser=parse_price,
        ),
    ] = None,
    seq_len: Annotated[
        int | None, option("NUMBER", "Tokens per sequence.", default="the model's, up to 4096")
    ] = None,
    global_batch: Annotated[
        int | None,
        option("NUMBER", "Sequences per optimizer step.", default="as usual for the model's size"),
    ] = None,
    objective: Annotated[
        str, option("NAME", "days, tokens_per_s, memory or cost.", default=True)
    ] = "days",
    least_gpus: Annotated[
        bool,
        option(
            "", "Use the smallest power of two of GPUs on which a setting fits.", "--least-gpus"
        ),
    ] = False,
    link: LinkName = "nvlink",
    currency: Currency = "$",
    calibrate: Calibrate = None,
    host_memory: HostMemory = None,
    set_: Annotated[
        list[str] | None,
        option("KEY=VALUE", "A setting that is fixed; a list is what to choose from.", "--set"),
    ] = None,
    write: Annotated[
        Path | None,
        option(
            "FOLDER",
            "Write a params file there, and files for Trainer, accelerate, axolotl, LLaMA-Factory and DeepSpeed.",
        ),
    ] = None,
    measure: Annotated[
        int,
        option("NUMBER", "Run this number of the best settings here until one is clearly best."),
    ] = 0,
    minutes: Annotated[
        float | None, option("NUMBER", "Limit of these runs in minutes.", default="no limit")
    ] = None,
    output: Annotated[
        Path | None,
        option("FOLDER", "Folder of these runs.", default="outputs/recommend_MODEL_..."),
    ] = None,
    all_: Annotated[
        bool, option("", "Print a table of these settings with their names and peaks.", "--all")
    ] = False,
    why: Annotated[bool, option("", "Print the reasons in sentences.", "--why")] = False,
    format_: TableFormat = Format.table,
    verbose: Verbose = False,
    list_: Annotated[
        bool,
        typer.Option(
            "--list",
            help="Print the models and GPUs that are known by name.",
            callback=print_known,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Recommend settings for a model, or one of a params file, with cost, reasons and alternatives.

    Without a params file, all settings that train the same are compared. Prediction alone takes
    seconds; with `--measure`, the best are run on this machine. After Ctrl-C, the same command
    continues.
    """
    from dsnb.prediction.recommend import Scope
    from dsnb.prediction.target import Target, budgets
    from dsnb.results.answers.lines import note
    from dsnb.show.form import recommend as form

    fixed = parse_overrides(set_ or [])
    if is_params(target):  # names the settings that are left out
        _experiments(target, gpus, fixed, (gpu or ["H200"])[0], link, verbose)
    else:
        from dsnb.prediction import traces

        say(f"comparing settings for {target}", err=True)
        traces.start(str(target))
    scope = Scope(str(target), gpus, seq_len, global_batch, fixed, least_gpus)
    names = _names(gpu, write)
    runs = _measured(calibrate)
    targets = [Target(name, link, runs, host_memory) for name in names]
    costs = budgets(targets, dict(price or []), tokens, currency, objective)
    is_one = len(targets) == 1
    measurement = form.Measurement(measure, minutes, output)
    try:
        answers = form.on_gpus(scope, targets, costs, measurement)
    except KeyboardInterrupt:
        kept = ""
        if measure:
            kept = ": finished runs are kept, start the same command again to go on"
        say(f"interrupted{kept}", err=True)
        raise typer.Exit(signals.INTERRUPTED) from None
    if write:
        form.only_task(answers, "write")
    is_data = format_.is_data
    _print_answers(answers, why, err=is_data)
    is_shown = all_ or format_ is not Format.table
    if is_shown:
        _show_tables(answers, format_, currency)
    fits = [answer for answer in answers if len(answer.table)]
    for sentence in form.write(write, answers[0]) if write and fits else []:
        _say_lines([note(sentence)], is_data)
    useful = {
        **_where_nothing_fits(scope, answers),
        "--write plan": False,  # of a single answer
        "--all": bool(fits) and not is_shown,
        "--why": is_one and not why,
        "one --gpu for its alternatives": not is_one,
    }
    if write and fits:
        useful = {f"dsnb sweep {write / 'params.yaml'}": True, **useful}
    there = ""
    if is_one and len(answers) == len(fits) == 1:
        there = _going_further(useful, write, measure, bool(targets[0].installed))
    _print_next(answers[0].assumed, useful, there, is_data)
    if not fits:
        raise typer.Exit(1)


def _names(gpu: Sequence[str] | None, write: Path | None) -> Sequence[str]:
    """Return the names of the GPUs to compare; an empty one is the GPU of this machine."""
    names = gpu or [""]
    if write and len(names) > 1:
        raise SettingsError("write is for one GPU: give --gpu once")
    return names


def _print_answers(answers: Sequence[Any], why: bool, err: bool) -> None:
    """Print each answer in short, and where its runs are; the reasons as well with `why`."""
    from dsnb.results.answers.lines import note

    for place, answer in enumerate(answers):
        if place:
            say_line("", err=err)
        _say_lines(answer.lines, err)
        if answer.folder:
            say_line(_report(answer.folder), err=err)
        if why:
            say_line("", err=err)
            _say_lines([note(sentence) for sentence in answer.sentences], err)


def _where_nothing_fits(scope: Any, answers: Sequence[Any]) -> dict[str, bool]:
    """Return the options that may help a model that fits with no setting."""
    if is_params(scope.what) or any(len(answer.table) for answer in answers):
        return {}
    can_fit = bool(answers[0].about("least_gpus"))
    return {
        "--least-gpus": can_fit and not scope.least_gpus,
        "--set lora_rank=16": "lora_rank" not in scope.settings,
    }


def _going_further(useful: dict[str, bool], write: Path | None, measure: int, has_gpu: bool) -> str:
    """Add to the useful options those that write and measure a setting; return the one for a machine with such GPUs."""
    if not write:
        useful["--write plan"] = True
    if measure:
        return ""
    if not has_gpu:
        return "--measure 3"
    useful["--measure 3"] = True
    return ""


def _print_next(assumed: Sequence[str], options: dict[str, bool], there: str, err: bool) -> None:
    """Print the options whose values were assumed, and those to go on with here and `there`, with such GPUs."""
    from dsnb.results.answers.lines import line

    names = ", ".join(f"--{name.replace('_', '-')}" for name in assumed)
    following = ", ".join(name for name, is_useful in options.items() if is_useful)
    _say_lines([line("next", assumed=names, options=following, there=there)], err)


def _say_lines(lines: Sequence[Any], err: bool) -> None:
    """Print the lines of an answer as wide as the terminal."""
    from dsnb.results.answers.lines import text

    say(text(lines, table_width()), err=err)


def _show_tables(answers: Sequence[Any], format_: Format, currency: str) -> None:
    """Print the table of each answer; as CSV or JSON they are one."""
    said = {one.facts["outside"] for answer in answers for one in answer.about("outside")}
    if format_.is_data:
        import pandas as pd

        tables = [answer.table.assign(task=answer.task) for answer in answers if len(answer.table)]
        _show(pd.concat(tables or [answers[0].table]), format_, currency, said=said)
        return
    for answer in answers:
        if len(answer.table):
            say_line("")
            _show(answer.table, format_, currency, said=said)


def _report(folder: Path) -> str:
    """Write the report on runs, and return a sentence on it."""
    try:
        return f"Report: {dsnb.write_report(folder)}."
    except dsnb.DsnbError as error:  # the runs are there all the same
        return f"Runs: {folder}, without a report: {error}."


def _notes(table: Any, asked: Sequence[Experiment], tokens: float | None) -> Iterator[str]:
    """Yield what a table of predictions leaves open or assumes."""
    if tokens is None:
        yield f"tokens were not given: {USUAL_TOKENS}"
    yield from _range_notes(table)
    unknown = table[table["fits"].isna()]
    if len(unknown):
        need = unknown["host_memory_gib"].max()
        amount = (
            "an amount that is not predicted"
            if math.isnan(need)
            else f"up to {significant(need)} GiB"
        )
        yield (
            f"fits is unknown for {count(len(unknown), 'setting')}: offload needs {amount} of each host's memory; "
            "say what a host has with --host-memory GIB"
        )
    if any(
        experiment.optimizer == "adamw" and experiment.parallel_strategy.is_deepspeed
        for experiment in asked
    ):
        yield "assumed: adamw is DeepSpeed's FusedAdam, or CPUAdam with offload; other versions need different memory"
    if any(experiment.allocator == "default" for experiment in asked):
        yield "allocator is 'default': fragmentation can need more memory than is predicted"


def _range_notes(table: Any) -> Iterator[str]:
    """Yield what the range of the first setting with one was measured on, and the range on either basis."""
    from dsnb.prediction.explanation import bases

    promised = table[table["tokens_per_s_error_pct"].notna()]
    for first in promised.head(1).to_dict("records"):
        measured_on = first["step_time_error_on"]
        yield f"ranges of tokens/s and time cover 80 % of such predictions, the first by {measured_on}"
        yield from filter(None, [bases(first)])


def _measured(calibrate: Path | None) -> Any:
    """Return the runs to calibrate with, if any; log what takes long from now on."""
    for name in SLOW:
        logger = logging.getLogger(name)
        logger.handlers = [_Progress()]
        logger.setLevel(logging.INFO)
    return dsnb.load_runs(calibrate) if calibrate else None


def _experiments(
    params: Path,
    gpus: int | None,
    overrides: dict[str, Any],
    gpu: str,
    link: str,
    verbose: bool,
    *,
    traced: bool = False,
) -> list[Experiment]:
    """Return the settings of a params file that can be predicted, or `traced` as well; print which are left out."""
    from dsnb.prediction.step_time import problem
    from dsnb.prediction.traces import attempts
    from dsnb.show.form.recommend import as_predicted, settings_of_file

    settings, refused = settings_of_file(params, overrides, gpus)
    asked = {name: as_predicted(experiment) for name, experiment in settings.items()}
    reasons = {name: problem(experiment, gpu, link) for name, experiment in asked.items()}
    if traced:
        timed = [name for name in asked if not reasons[name]]
        tried = attempts([asked[name] for name in timed])
        for name, trace in zip(timed, tried, strict=True):
            reasons[name] = str(trace) if isinstance(trace, SettingsError) else ""
    if all(reasons.values()):
        raise SettingsError(list(dict.fromkeys(reasons.values())))
    left_out = [*refused, *((name, why) for name, why in reasons.items() if why)]
    predictable = [experiment for name, experiment in asked.items() if not reasons[name]]
    for line in left_out_lines(left_out, len(predictable) + len(left_out), verbose):
        say(line, err=True)
    return predictable


class _Progress(logging.Handler):
    """Prints what takes long, beside the results."""

    def emit(self, record: logging.LogRecord) -> None:
        say_line(record.getMessage(), err=True)


def _show(
    table: Any, format_: Format, currency: str, gpu: str = "", said: Collection[object] = ()
) -> None:
    """Print a table of predictions; `gpu` is named with its memory above it, caveats not yet `said` below it."""
    from dsnb.prediction import gpus
    from dsnb.show.render.predictions import predicted_figures

    numbers = table.set_index("experiment")
    texts = predicted_figures(numbers, currency)
    if "gpu" in numbers:
        texts.insert(0, "GPU", numbers["gpus"].astype(str) + " " + numbers["gpu"])
    if gpu and not format_.is_data:
        spec = gpus.find(gpu)
        left = (numbers["peak_allocated_gib"] + numbers["headroom_gib"]).min()
        say(f"{spec.name}: {spec.memory_gib:.1f} GiB, {left:.1f} of them for tensors")
    if "worse_pct" in numbers:
        texts.insert(0, "worse", [f"{worse:.1f} %" for worse in numbers["worse_pct"]])
    is_narrow = table_width() < UNLIMITED
    show(numbers, texts.loc[:, (texts != "").any()], format_, fit=is_narrow)
    for column, (about, most) in CAVEATS.items():
        if column == "nearest" and not gpu:  # a recommendation says it above its table
            continue
        caveats = [one for one in numbers.get(column, numbers.index[:0]).unique() if one]
        for caveat in caveats[:most]:
            if caveat not in said:
                say(f"{about} {caveat}", err=format_.is_data)
