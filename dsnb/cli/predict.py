"""`dsnb predict` and `dsnb recommend`: memory, speed and cost of a params file on GPUs that you do not have."""

from pathlib import Path
from typing import Annotated, Any

from dsnb.cli.printing import Format, say, say_line, show
from dsnb.cli.sweep import Params, Set, option, parse_overrides
from dsnb.errors import SettingsError
from dsnb.settings.experiment import Experiment
from dsnb.sweep.params import left_out_lines, load_sweep

GpuName = Annotated[str, option("NAME", "GPU to predict for, such as H100, A100-40GB or V100.", default=True)]
Gpus = Annotated[int | None, option("NUMBER", "GPUs of each setting, in place of the file's.")]
LinkName = Annotated[
    str, option("LINK", "Link of the GPUs: nvlink, pcie, ib:400 (Gbit/s for each GPU) or ib:100/node.", default=True)
]
Tokens = Annotated[float, option("NUMBER", "Tokens to train on.", default=True)]
Price = Annotated[float | None, option("NUMBER", "Price of a GPU-hour, for the cost.")]
Calibrate = Annotated[Path | None, option("FOLDER", "Folder of measured runs to calibrate speed with.")]
Verbose = Annotated[bool, option(None, "Name every setting that is left out.", "--verbose", "-v")]
TableFormat = Annotated[Format, option(None, "Format of the table.", "--format", default=True)]


def predict(
    params: Params,
    gpu: GpuName = "H200",
    gpus: Gpus = None,
    link: LinkName = "nvlink",
    tokens: Tokens = 100e9,
    price: Price = None,
    calibrate: Calibrate = None,
    set_: Set = None,
    format_: TableFormat = Format.table,
    verbose: Verbose = False,
) -> None:
    """Predict memory, speed and cost of every setting of a params file, with errors; no GPU is needed."""
    from dsnb.prediction.predict import predict as predicted

    asked = _experiments(params, gpus, set_, gpu, link, verbose)
    table = predicted(asked, gpu, **_options(link, tokens, price, calibrate))
    _show(table, format_)
    if any(one.allocator == "default" for one in asked):
        note = "allocator is 'default': fragmentation can need more memory than is predicted"
        say(note, err=format_ in {Format.csv, Format.json})


def recommend(
    params: Params,
    gpu: GpuName = "H200",
    gpus: Gpus = None,
    objective: Annotated[str, option("NAME", "days, tokens_per_s, memory or cost.", default=True)] = "days",
    link: LinkName = "nvlink",
    tokens: Tokens = 100e9,
    price: Price = None,
    calibrate: Calibrate = None,
    set_: Set = None,
    format_: TableFormat = Format.table,
    verbose: Verbose = False,
) -> None:
    """Recommend a setting for each task of a params file by prediction: how sure that is, and the alternatives."""
    from dsnb.analysis.recommend import recommend as recommended

    options = _options(link, tokens, price, calibrate)
    asked = _experiments(params, gpus, set_, gpu, link, verbose)
    found = recommended(asked, gpu, objective=objective, **options)  # type: ignore[arg-type]
    in_one = format_ in {Format.csv, Format.json}
    for place, one in enumerate(found):
        for line in (*([""] if place else []), f"{one.task}:", *one.sentences):
            say_line(line, err=in_one)
        if len(one.table) and not in_one:
            _show(one.table, format_)
    if in_one:
        import pandas as pd

        _show(pd.concat([one.table.assign(task=one.task) for one in found if len(one.table)]), format_)


def _options(link: str, tokens: float, price: float | None, calibrate: Path | None) -> dict[str, Any]:
    from dsnb.runs.load import load_runs

    return {"link": link, "tokens": tokens, "price": price, "calibrate": load_runs(calibrate) if calibrate else None}


def _experiments(
    params: Path, gpus: int | None, set_: list[str] | None, gpu: str, link: str, verbose: bool
) -> list[Experiment]:
    """Return the settings of a params file, each once, for GPUs, whatever this machine has; say which are left out."""
    from dsnb.prediction.step_time import problem

    overrides = {"device": "cuda", **parse_overrides(set_ or []), **({} if gpus is None else {"gpus": gpus})}
    sweep = load_sweep(params, overrides, auto_gpus=gpus or 1, leave_out_refused=True)
    asked = {run.name: run.experiment for run in sweep.runs}
    problems = {name: why for name, one in asked.items() if (why := problem(one, gpu, link))}
    if len(problems) == len(asked):
        raise SettingsError(list(dict.fromkeys(problems.values())))
    known = {name: one for name, one in asked.items() if name not in problems}
    others = [*sweep.refused, *problems.items()]
    for line in left_out_lines(others, len(known) + len(others), verbose):
        say(line, err=True)
    return list(known.values())


def _show(table: Any, format_: Format) -> None:
    from dsnb.analysis.texts import predicted_figures

    numbers = table.set_index("experiment")
    texts = predicted_figures(numbers)
    if "worse_pct" in numbers:
        texts.insert(0, "worse", [f"{worse:.1f} %" for worse in numbers["worse_pct"]])
    show(numbers, texts.loc[:, (texts != "").any()], format_)
    for line in filter(None, dict.fromkeys(numbers["outside"])):
        say(f"not covered by the calibration: {line}", err=format_ in {Format.csv, Format.json})
