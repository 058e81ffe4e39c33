"""The data of the page: runs by column, controls, colours, candidates, sentences, and as many steps as fit.

Figures are in the units of their columns, with factor, unit and digits for display.
"""

import base64
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dsnb.base.files.plain_text import FORMULA
from dsnb.prediction.predicted import FIGURES, PEAK, PER_GPU
from dsnb.results.answers.decide import rate, without_probes
from dsnb.results.answers.sentences import say
from dsnb.results.literature.tables import SOURCE, is_own
from dsnb.results.runs import labels, sources
from dsnb.results.runs.number_text import significant, span
from dsnb.results.runs.table import json_numbers, numbers
from dsnb.results.statistics.setting_axes import group
from dsnb.results.statistics.summary import unstable
from dsnb.settings.records.paths import RunPaths
from dsnb.show.explorer import setting_names, single_runs
from dsnb.show.explorer.data import EVERY_TASK, Data, plain, run_place
from dsnb.show.explorer.state import DAYS, FORMER_NAMES, INPUTS, State, default, options
from dsnb.show.render import answer, palette
from dsnb.show.render.decision_data import PAGE, tasks_payload
from dsnb.show.render.predictions import fit
from dsnb.show.render.tables import ends

Json = dict[str, Any]
_RUN = RunPaths(Path())
FILES = {_RUN.notebook.name: "Executed notebook", _RUN.trace.name: "Trace of one step"}
"""The files of a run that the explorer links to -> texts of the links."""
SHAPES = ["circle", "square", "triangle-up", "diamond", "triangle-down", "triangle-right"]
"""Marks by value of the setting chosen for colour, so that colour is never the only difference."""
NEEDED = ("source", "gpu_name", "device", "model", "gpu_memory_gib")
ANSWERED = ("tokens_per_s", "tokens_per_s_per_gpu", "power_w", *labels.MEMORY)
"""Figures that the answer may use: every table has them, even if all values are missing."""
PREDICTED_DIGITS = 6
MEDIANS = ("step_time_mean_s", "mfu", "power_w")
"""Figures whose medians the page lists, in addition to speed and memory."""
SPEEDS = ("tokens_per_s", "tokens_per_s_per_gpu", "trained_tokens_per_s", "samples_per_s")
"""Figures of speed, of which a table shows one; a saved one has all."""
UNPRINTED = ("mfu", "power_w")
"""Those that are left out on a printed page."""
OF_A_TASK = ("colour", "along", "x", "y", "objective")
"""Controls that begin with other values in each task."""
MANY = 1000
"""From this number of runs on, a figure that is a multiple of another one is stored as such: six of
eleven are."""
SHORT_DIGITS = (6, 7)
"""Significant digits that 4 bytes may keep."""
MAX_FACTORS = 16
CLOSE = 1e-15
"""Maximum relative error of such a figure: the CSV has 15 digits."""
CITED = {
    "gpu_name": "",
    "dsnb": "dsnb ",
    "torch": "torch ",
    "deepspeed": "DeepSpeed ",
    "cuda": "CUDA ",
}
"""Columns cited in a saved picture -> words before their values."""


def payload(data: Data, state: State, home: Path | None) -> Json:
    """Return the data of the page, ready for JSON: without NaN and absolute paths.

    Links to the runs' files are relative to `home`; without `home` there are none.
    """
    runs = answered(data)
    names = list(dict.fromkeys(data.experiments))
    unit = labels.common_unit(data.runs)
    speed = rate(data.runs)
    memory = [name for name in labels.MEMORY if name in data.figures][:1]
    medians = [name for name in (speed, *MEDIANS, *memory) if name in data.figures]
    axes = [_axis(data, name) for name in data.values]
    figures = _figures(data)
    if unit == "rank":
        for shown in (*axes, *figures):
            _count_ranks(shown)
    series = single_runs.load_all(data)
    unusual, alone = single_runs.unusual(data, series)
    short, shared = setting_names.short_names(data)
    return {
        "runs": len(data.runs),
        "unit": unit,
        "axes": axes,
        "experimentAxes": data.axes,
        "figures": figures,
        "comparedFigures": [name for name in medians if name in (speed, *memory)],
        "medianFigures": medians,
        "unprinted": UNPRINTED,
        "otherSpeeds": [name for name in SPEEDS if name != speed],
        "experiments": _experiments(data, names, short, unstable(runs)),
        "repeats": json_numbers(numbers(data.runs, "repeat")),
        "causes": _causes(data),
        "remarks": single_runs.remarks(data, unusual),
        "alone": alone,
        "memory": single_runs.gpu_memory(data),
        "cite": citation(data),
        "files": _files(data, names, home),
        "constants": data.constant,
        "formula": FORMULA,
        "options": options(data),
        "formerNames": FORMER_NAMES,
        **PAGE,
        **_tasks(data, runs, names, short, shared),
        "sources": _sources(data),
        "taskCodes": data.codes["task"].tolist(),
        "inputs": INPUTS,
        "predicted": _predicted(data),
        "defaults": default(data),
        "state": state,
        "colours": {"unselected": palette.UNSELECTED, "predicted": palette.GREY, "run": palette.ONE_RUN},
        "series": series,
        "seriesCharts": single_runs.charts(),
    }  # fmt: skip


def _experiments(data: Data, names: list[str], short: dict[str, str], unsteady: list[str]) -> Json:
    """Return the experiments: full and short names, that of each run, and in which order they are the baseline."""
    neighbours = data.neighbours
    codes = {name: code for code, name in enumerate(names)}
    # the stable one with the most neighbours first
    bases = sorted(names, key=lambda name: (name in unsteady, -neighbours.get(name, -1)))
    return {
        "names": names,
        "short": [short.get(name) for name in names],
        "codes": [codes[name] for name in data.experiments],
        "bases": [codes[name] for name in bases],
    }


def answered(data: Data) -> pd.DataFrame:
    """Return the runs that the answer uses, with the figures of the page, so that both agree."""
    runs = data.runs.reset_index(drop=True)
    figures = data.figures.reset_index(drop=True).astype(float)
    figures = figures.reindex(columns=dict.fromkeys([*ANSWERED, *figures]))
    runs = runs.reindex(columns=dict.fromkeys([*runs, *NEEDED])).assign(
        **figures,
        experiment=data.experiments,
        status=runs["status"].map(labels.text),
        sweep="",
        gpus=numbers(runs, "gpus"),
    )
    return without_probes(runs) if len(runs) else runs


def _tasks(
    data: Data, runs: pd.DataFrame, names: list[str], short: dict[str, str], shared: dict[int, str]
) -> Json:
    """Return each task with its candidates, its initial controls, and remarks on its runs."""

    def controls(task: str) -> State:  # other choices are cleared
        fresh = default(data, task)
        return {name: fresh[name] for name in OF_A_TASK}

    codes = data.codes["task"].tolist()  # there may be tasks without runs
    shipped = tasks_payload(runs, codes, names, list(data.figures.columns), data.axes)
    shown = list(data.tasks.values())
    for code, task in enumerate(shipped["tasks"]):
        one = shown[code]
        own = runs[data.run_codes["task"].eq(code).to_numpy()[runs.index]]
        said = [short.get(name, name) for name in own["experiment"]]
        remarks = answer.remarks(own.assign(experiment=said)) if len(own) else []
        for name in ("title", "name", "length", "tokens"):
            task[name] = getattr(one, name)
        task |= {"controls": controls(one.title), "remarks": remarks}
        task["shared"] = say("shared", settings=shared.get(code, ""))
    if len(shown) < 2:
        return {**shipped, "allTasks": None, "menu": []}
    every_task = {"title": EVERY_TASK, "controls": controls(EVERY_TASK)}
    return {**shipped, "allTasks": every_task, "menu": data.menu}


def _sources(data: Data) -> list[Json]:
    """Return titles, authors, dates and links of the published data among the runs; the days of the runs if known."""
    if "source" not in data.runs:
        return []
    found = []
    for source, runs in data.runs.groupby("source", sort=False):
        known = sources.DATA.get(str(source).removeprefix(SOURCE))
        if known:
            days = runs.reindex(columns=["date_utc"])["date_utc"].dropna().astype(str).str[:10]
            date = known.date
            if len(days):
                date = ends(days.min(), days.max())
            role = "source"
            if is_own(str(source)):
                role = "source.own"
            found.append({**asdict(known), "about": say(role, by=known.by, date=date)})
    return found


def _predicted(data: Data) -> Json:
    """Return predicted settings by column.

    `names` are the `settings` without what all of a task share, `shared` by the code of the task.
    `kinds` are the GPUs as prices name them, and `outside` says how a setting differs from all runs
    that the time model is fitted to.
    """
    table = data.predicted
    rows = table.to_dict("records")
    names, shared = setting_names.predicted_names(data)
    return {
        "names": names,
        "shared": {code: say("shared.predicted", settings=text) for code, text in shared.items()},
        "settings": [labels.setting(row) for row in rows],
        "kinds": [str(row["gpu_name"]) for row in rows],
        "gpus": [int(row["gpus"]) for row in rows],
        "figures": {
            name: _predicted_figure(table, name)
            for name in (*FIGURES, PER_GPU)
            if name in table and table[name].notna().any()
        },
        "fit": [fit(row) or "unknown" for row in rows],
        "outside": [str(row["outside"]) for row in rows],
        "nearest": [str(row["nearest"]) for row in rows],
        "notes": list(data.notes),
    }


def _predicted_figure(table: pd.DataFrame, name: str) -> Json:
    """Return the heading of a predicted figure, its values, both ends of their ranges as shares of them, and texts.

    Without an error, memory is tight and the figure is only a limit.
    """
    metric = labels.METRIC_LABELS[name]
    values = numbers(table, name)
    low, high, errors = (numbers(table, f"{name}_{end}") for end in ("low", "high", "error_pct"))
    texts = []
    ends = zip(
        values * metric.factor, low * metric.factor, high * metric.factor, errors, strict=True
    )
    for value, least, most, error_pct in ends:
        error = f"({span(least, most)})"
        if math.isnan(error_pct):
            error = "not promised: memory is tight"
        elif name == PEAK:
            error = f"± {error_pct:.1f} %"
        texts.append("" if math.isnan(value) else f"{significant(value)} {error}")
    return {
        "heading": metric.heading,
        "texts": texts,
        "values": json_numbers(values, PREDICTED_DIGITS),
        "errors": json_numbers(errors, PREDICTED_DIGITS),
        "low": json_numbers(low / values, PREDICTED_DIGITS),
        "high": json_numbers(high / values, PREDICTED_DIGITS),
    }


def citation(data: Data) -> str:
    """Return the GPUs and versions that the runs were measured with, as far as they are known."""
    parts = []
    for name, before in CITED.items():
        known = data.runs[name].dropna().map(labels.text) if name in data.runs else ()
        if len(known):
            parts.append(before + ", ".join(sorted(set(known))))
    return "; ".join(parts)


def _axis(data: Data, name: str) -> Json:
    axis = labels.axis(name)
    values = data.values[name]
    count = len(values)
    fixed = {"precision": palette.PRECISIONS, "status": palette.STATUSES}.get(name, {})
    if name == labels.PARALLELISM:
        fixed = palette.parallelism([labels.text(value) for value in values])
    colours = palette.sequence(count)
    return {
        "name": name,
        "title": axis.title,
        "heading": axis.title,
        "group": group(name),
        "values": values,
        "labels": [axis.label(value) for value in values],
        "phrases": [axis.describe(value) for value in values],
        "onlyWith": axis.only_with,
        "isOn": [labels.is_on(name, value) for value in values],
        "unusual": ["" if value is None else axis.describe_unusual(value) for value in values],
        "colours": [fixed.get(str(value), colours[code]) for code, value in enumerate(values)],
        "shapes": [SHAPES[code % len(SHAPES)] for code in range(count)],
        "codes": data.codes[name].tolist(),
    }


def _figures(data: Data) -> list[Json]:
    """Return the names of figures, how to display them, and their values as in `stored`."""
    columns = stored(data.figures)
    metrics = {name: labels.METRIC_LABELS[name] for name in columns}
    if "tokens_per_s" in columns:
        metrics["days"] = DAYS
    return [
        {"name": name, "heading": metric.heading, **asdict(metric), **columns.get(name, {})}
        for name, metric in metrics.items()
    ]


def stored(figures: pd.DataFrame) -> dict[str, Json]:
    """Return each column as `columnOf` of `web/model.js` reads it.

    It has either `values` (base64 of 8 bytes for each run; of 4 if they have no more than `shortDigits`
    digits), or `of` (an earlier column), `factors`, and `codes` (the position in `factors` for each
    run; None if there is one factor).
    """
    columns: dict[str, Json] = {}
    in_full: list[str] = []
    for name in figures:
        values = figures[name].to_numpy()
        for other in in_full if len(values) >= MANY else ():
            multiple = _multiple(values, figures[other].to_numpy(), other)
            if multiple:
                columns[name] = multiple
                break
        else:
            columns[name] = _packed(values)
            in_full.append(name)
    return columns


def _packed(values: np.ndarray) -> Json:
    """Return values as base64, in half the space if they have few digits, as those of a table that was rounded."""
    with np.errstate(over="ignore"):  # it is found out below
        short = values.astype("<f4")
    for digits in SHORT_DIGITS:
        read = np.array([float(f"{value:.{digits}g}") for value in short])
        if np.array_equal(read, values, equal_nan=True):
            packed = base64.b64encode(short.tobytes())
            return {"values": packed.decode(), "shortDigits": digits}
    packed = base64.b64encode(values.astype("<f8").tobytes())
    return {"values": packed.decode()}


def _multiple(values: np.ndarray, base: np.ndarray, name: str) -> Json | None:
    """Return values as multiples of a base by a few factors; None if they are not."""
    finite = np.isfinite(values)
    are_alike = np.array_equal(finite, np.isfinite(base)) and (base[finite] > 0).all()
    if not finite.any() or not are_alike:
        return None
    ratios = values[finite] / base[finite]
    _, places, codes = np.unique(ratios.astype(np.float32), return_index=True, return_inverse=True)
    factors = ratios[places]
    products = factors[codes] * base[finite]
    if len(factors) > MAX_FACTORS or not np.allclose(products, values[finite], rtol=CLOSE, atol=0):
        return None
    packed: Json = {"of": name, "factors": factors.tolist(), "codes": None}
    if len(factors) > 1:
        every_code = np.zeros(len(values), int)
        every_code[finite] = codes
        packed["codes"] = every_code.tolist()
    return packed


def _count_ranks(shown: Json) -> None:
    """Replace GPUs by ranks in the titles of a setting or figure."""
    for name in ("title", "heading"):
        shown[name] = shown[name].replace("GPU", "rank")
    if shown["name"] == "gpus":
        for name in ("phrases", "unusual"):
            shown[name] = [text.replace("GPU", "rank") for text in shown[name]]


def _causes(data: Data) -> dict[int, str]:
    causes = {}
    for place, cause in enumerate(data.runs.get("cause", ())):
        if plain(cause) is not None and not data.is_ok[place]:
            causes[place] = str(plain(cause))
    return causes


def _files(data: Data, names: list[str], home: Path | None) -> Json:
    """Return which runs have which files, and the folder of each experiment's runs relative to `home`.

    To save space, a folder with the name of its experiment is None, and kinds of files that no run
    has are left out.
    """
    parents = dict.fromkeys(names, "")
    available = {name: [0] * len(data.experiments) for name in FILES}
    for position, row in enumerate(data.runs.to_dict("records") if home else []):
        folder = run_place(data, position)
        own = (row["experiment"], f"run{plain(row['repeat'])}")
        # A run that was copied into another folder is not beside the other runs of its experiment.
        if not home or not folder or folder.parts[-2:] != own or not folder.is_relative_to(home):
            continue
        run = RunPaths(folder)
        files = [run.notebook]
        if plain(row.get("profile")) is True:  # only these have a trace, and look-ups take time
            files.append(run.trace)
        for path in files:
            if path.is_file():
                parents[data.experiments[position]] = folder.parent.relative_to(home).as_posix()
                available[path.name][position] = 1
    kinds = [
        {"name": name, "title": FILES[name], "available": runs}
        for name, runs in available.items()
        if any(runs)
    ]
    short = [None if parent == name else parent for name, parent in parents.items()]
    return {"parents": short, "kinds": kinds}
