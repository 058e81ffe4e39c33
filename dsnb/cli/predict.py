"""`dsnb predict` and `dsnb recommend`: memory, speed and cost of settings on GPUs that you do not have."""

import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import dsnb
from dsnb.base.errors import SettingsError
from dsnb.base.system import signals
from dsnb.cli.printing import Format, say, say_line, show
from dsnb.cli.sweep import Params, Set, option, parse_overrides
from dsnb.measure.sweep.params import is_params, left_out_lines
from dsnb.results.runs.labels import count
from dsnb.results.runs.texts import significant
from dsnb.settings.experiment import Experiment

GpuName = Annotated[
    str, option("NAME", "GPU to predict for, such as H100, A100-40GB or V100.", default=True)
]
Gpus = Annotated[int | None, option("NUMBER", "GPUs per setting, instead of the file's.")]
LinkName = Annotated[
    str,
    option(
        "LINK",
        "Link of the GPUs: nvlink, pcie, ib:400 (Gbit/s for each GPU) or ib:100/node.",
        default=True,
    ),
]
USUAL_TOKENS = "20 per parameter; 50M with LoRA or pretrained weights"
SLOW = ("dsnb.prediction.traces", "dsnb.show.form.measure")
"""Modules that log what takes long."""
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

    options = _options(link, tokens, price, calibrate, host_memory)
    asked = _experiments(params, gpus, set_, gpu, link, verbose, traced=True)
    table = predicted(asked, gpu, probe=not no_probe, **options)
    order = table["fits"].map({True: 0, False: 2}).fillna(1)
    table = table.assign(order=order).sort_values(["order", "days"]).drop(columns="order")
    _show(table, format_, currency, gpu)
    for note in _notes(table, asked, tokens):
        say(note, err=format_ in {Format.csv, Format.json})


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
        str, option("NAME", "GPU, such as H100.", default="of this machine, or H200")
    ] = "",
    gpus: Annotated[
        int | None, option("NUMBER", "Number of GPUs.", default="of this machine or file, or 8")
    ] = None,
    tokens: Tokens = None,
    price: Price = None,
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
            "FOLDER", "Write DeepSpeed's configuration and a params file of the settings there."
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
    format_: TableFormat = Format.table,
    verbose: Verbose = False,
) -> None:
    """Recommend settings for a model, or one of a params file, with cost, reasons and alternatives.

    Without a params file, all settings that train the same are compared. Prediction alone takes seconds; with
    `--measure`, the best are run on this machine. After Ctrl-C, the same command continues.
    """
    if not is_params(target):
        from dsnb.prediction import traces

        say(f"comparing settings for {target}", err=True)
        traces.start(str(target))
    from dsnb.show.form import recommend as designer

    options: dict[str, Any] = _options(link, tokens, price, calibrate, host_memory)
    options |= {
        "gpus": gpus,
        "seq_len": seq_len,
        "global_batch": global_batch,
        "least_gpus": least_gpus,
    }
    options |= {
        "settings": parse_overrides(set_ or []),
        "measure": measure,
        "minutes": minutes,
        "output": output,
    }
    if is_params(target):
        _experiments(
            target, gpus, set_, gpu or "H200", link, verbose
        )  # names the settings that are left out
    try:
        answers = designer.recommend(
            str(target),
            gpu,
            objective=objective,  # type: ignore[arg-type]
            currency=currency,
            **options,
        )
    except KeyboardInterrupt:
        kept = ": finished runs are kept, start the same command again to go on" if measure else ""
        say(f"interrupted{kept}", err=True)
        raise typer.Exit(signals.INTERRUPTED) from None
    if write:
        designer.only_task(answers, "write")
    in_one = format_ in {Format.csv, Format.json}
    for place, answer in enumerate(answers):
        for line in (*([""] if place else []), f"{answer.task}:", *answer.sentences):
            say_line(line, err=in_one)
        if len(answer.table) and not in_one:
            _show(answer.table, format_, currency)
    if in_one:
        import pandas as pd

        tables = [answer.table.assign(task=answer.task) for answer in answers if len(answer.table)]
        _show(pd.concat(tables or [answers[0].table]), format_, currency)
    if not any(len(answer.table) for answer in answers):
        raise typer.Exit(1)
    for line in designer.write(write, answers[0]) if write else []:
        say(line, err=in_one)


def _notes(table: Any, asked: Sequence[Experiment], tokens: float | None) -> Iterator[str]:
    """Yield what a table of predictions leaves open or assumes."""
    if tokens is None:
        yield f"tokens were not given: {USUAL_TOKENS}"
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
        experiment.optimizer == "adamw" and experiment.strategy == "deepspeed"
        for experiment in asked
    ):
        yield "assumed: adamw is DeepSpeed's FusedAdam, or CPUAdam with offload; other versions need different memory"
    if any(experiment.allocator == "default" for experiment in asked):
        yield "allocator is 'default': fragmentation can need more memory than is predicted"


def _options(
    link: str,
    tokens: float | None,
    price: float | None,
    calibrate: Path | None,
    host_memory: float | None,
) -> dict[str, Any]:
    for name in SLOW:
        logging.getLogger(name).handlers = [_Progress()]
        logging.getLogger(name).setLevel(logging.INFO)
    runs = dsnb.load_runs(calibrate) if calibrate else None
    return {
        "link": link,
        "tokens": tokens,
        "price": price,
        "calibrate": runs,
        "host_memory": host_memory,
    }


def _experiments(
    params: Path,
    gpus: int | None,
    set_: list[str] | None,
    gpu: str,
    link: str,
    verbose: bool,
    *,
    traced: bool = False,
) -> list[Experiment]:
    """Return the settings of a params file that can be predicted, or `traced` as well; print which are left out."""
    from dsnb.prediction.step_time import problem
    from dsnb.prediction.traces import attempts
    from dsnb.show.form.recommend import settings_of_file

    asked, refused = settings_of_file(params, parse_overrides(set_ or []), gpus)
    problems = {
        name: why for name, experiment in asked.items() if (why := problem(experiment, gpu, link))
    }
    if traced:
        timed = {name: experiment for name, experiment in asked.items() if name not in problems}
        tried = zip(timed, attempts(list(timed.values())), strict=True)
        problems |= {name: str(why) for name, why in tried if isinstance(why, SettingsError)}
    if len(problems) == len(asked):
        raise SettingsError(list(dict.fromkeys(problems.values())))
    predictable = {name: experiment for name, experiment in asked.items() if name not in problems}
    others = [*refused, *problems.items()]
    for line in left_out_lines(others, len(predictable) + len(others), verbose):
        say(line, err=True)
    return list(predictable.values())


class _Progress(logging.Handler):
    """Prints what takes long, beside the results."""

    def emit(self, record: logging.LogRecord) -> None:
        say_line(record.getMessage(), err=True)


def _show(table: Any, format_: Format, currency: str, gpu: str = "") -> None:
    """Print a table of predictions; `gpu` is named with its memory above it."""
    from dsnb.prediction import gpus
    from dsnb.results.runs.texts import predicted_figures

    numbers = table.set_index("experiment")
    texts = predicted_figures(numbers, currency)
    if gpu and format_ in {Format.table, Format.markdown}:
        spec, left = gpus.find(gpu), (numbers["peak_allocated_gib"] + numbers["headroom_gib"]).min()
        say(f"{spec.name}: {spec.memory_gib:.1f} GiB, {left:.1f} of them for tensors")
    if "worse_pct" in numbers:
        texts.insert(0, "worse", [f"{worse:.1f} %" for worse in numbers["worse_pct"]])
    show(numbers, texts.loc[:, (texts != "").any()], format_)
    for line in filter(None, dict.fromkeys(numbers["outside"])):
        say(f"not covered by the calibration: {line}", err=format_ in {Format.csv, Format.json})
    for line in filter(None, dict.fromkeys(numbers.get("probe", ()))):
        say(f"adjusted by the {line}", err=format_ in {Format.csv, Format.json})
