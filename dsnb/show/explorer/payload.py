"""The data of the page: runs by column, controls, colours, candidates, sentences, and as many steps as fit.

Figures are in the units of their columns, with factor, unit and digits for display.
"""

import base64
import math
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dsnb.prediction.predicted import FIGURES, PER_GPU
from dsnb.results.answers.decide import rate, without_probes
from dsnb.results.runs import labels
from dsnb.results.runs.number_text import significant
from dsnb.results.runs.table import json_numbers, numbers
from dsnb.results.statistics.choices import group
from dsnb.results.statistics.summary import unstable
from dsnb.settings.records.paths import RunPaths
from dsnb.show.explorer import charts, single_runs
from dsnb.show.explorer.data import EVERY_TASK, Data, plain, run_place
from dsnb.show.explorer.state import DAYS, FORMER_NAMES, INPUTS, State, default, options
from dsnb.show.render import answer, palette
from dsnb.show.render.decision_data import PAGE, tasks_payload

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
UNPRINTED = ("mfu", "power_w")
"""Those that are left out on a printed page."""
MANY = 1000
"""From this number of runs on, a figure that is a multiple of another one is stored as such: six of eleven are."""
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


def payload(data: Data, state: State, home: Path | None) -> dict[str, Any]:
    """Return the data of the page, ready for JSON: without NaN and absolute paths.

    Links to the runs' files are relative to `home`; without `home` there are none.
    """
    names = list(dict.fromkeys(data.experiments))
    shown = single_runs.load_all(data)
    unusual, alone = single_runs.unusual(data, shown)
    memory = [name for name in labels.MEMORY if name in data.figures]
    runs, neighbours = answered(data), data.neighbours
    unsteady = set(unstable(runs))
    position = {name: code for code, name in enumerate(names)}

    def baseline(name: str) -> tuple[bool, int]:  # the stable one with the most neighbours first
        return name in unsteady, -neighbours.get(name, -1)

    unit = labels.common_unit(data.runs)
    named = _of_ranks if unit == "rank" else dict
    axes = [named(_axis(data, name)) for name in data.choices]
    texts = {axis["name"]: axis.pop("shortLabels") for axis in axes}
    short = _short_names(data, texts)
    return {
        "runs": len(data.runs),
        "unit": unit,
        "axes": axes,
        "experimentAxes": data.axes,
        "figures": [named(figure) for figure in _figures(data)],
        "comparedFigures": [name for name in (rate(data.runs), *memory[:1]) if name in data.figures],
        "medianFigures": [name for name in (rate(data.runs), *MEDIANS, *memory[:1]) if name in data.figures],
        "unprinted": UNPRINTED,
        "experiments": {
            "names": names,
            "short": [short.get(name) for name in names],
            "codes": [position[name] for name in data.experiments],
            "bases": sorted(range(len(names)), key=lambda code: baseline(names[code])),
        },
        "repeats": json_numbers(pd.to_numeric(data.runs["repeat"], errors="coerce")),
        "causes": _causes(data),
        "remarks": single_runs.remarks(data, unusual),
        "alone": alone,
        "memory": single_runs.gpu_memory(data),
        "cite": citation(data),
        "files": _files(data, names, home),
        "constants": {choice.name: choice.values[0] for choice in data.constant},
        "options": options(data),
        "formerNames": FORMER_NAMES,
        **PAGE,
        **_tasks(data, runs, names),
        "taskCodes": data.task_codes,
        "inputs": INPUTS,
        "predicted": _predicted(data),
        "defaults": default(data),
        "state": state,
        "colours": {"unselected": palette.UNSELECTED, "predicted": palette.GREY, "run": palette.ONE_RUN},
        "series": shown,
        "seriesCharts": single_runs.charts(),
        "charts": charts.specifications(),
    }  # fmt: skip


def _short_names(data: Data, texts: dict[str, list[str]]) -> dict[str, str]:
    """Name experiments by the unusual settings among those that vary in their task, such as "ZeRO 3, bf16".

    `texts` has the words of each setting by code. Names that are not unique within a task are left out.
    """
    first_runs: dict[int, dict[str, int]] = {}  # of each experiment, by task
    for run, (name, task) in enumerate(zip(data.experiments, data.task_codes, strict=True)):
        first_runs.setdefault(task, {}).setdefault(name, run)
    choices = [data.choices[name] for name in data.axes]
    unique: dict[str, str] = {}
    for runs in first_runs.values():
        varying = [
            axis
            for axis in choices
            if len({axis.codes[run] for run in runs.values()} - axis.unknown) > 1
        ]
        parts = {
            name: [texts[axis.name][axis.codes[run]] for axis in varying]
            for name, run in runs.items()
        }
        names = {name: ", ".join(filter(None, part)) for name, part in parts.items()}
        counts = Counter(names.values())
        unique |= {name: text for name, text in names.items() if text and counts[text] == 1}
    return unique


def answered(data: Data) -> pd.DataFrame:
    """Return the runs that the answer uses, with the figures of the page, so that both agree."""
    runs = data.runs.reset_index(drop=True)
    runs = runs.reindex(columns=[*runs, *(name for name in NEEDED if name not in runs)])
    shown = {name: data.figures[name].to_numpy() for name in data.figures}
    figures = {
        name: shown.get(name, np.full(len(runs), np.nan))
        for name in dict.fromkeys([*ANSWERED, *shown])
    }
    status = [labels.text(value) for value in runs["status"]]
    runs = runs.assign(
        **figures, experiment=data.experiments, status=status, sweep="", gpus=numbers(runs, "gpus")
    )
    return without_probes(runs) if len(runs) else runs


def _tasks(data: Data, runs: pd.DataFrame, names: list[str]) -> dict[str, Any]:
    """Return each task with its candidates, its initial controls, and remarks on its runs."""

    def controls(task: str) -> dict[str, Any]:  # other choices are cleared
        fresh = default(data, task)
        return {name: fresh[name] for name in ("colour", "along", "x", "y", "objective")}

    codes = [*data.task_codes, *data.predicted_tasks]  # there may be tasks without runs
    shipped = tasks_payload(runs, codes, names, list(data.figures.columns), data.axes)
    for code, task in enumerate(shipped["tasks"]):
        task_runs = runs[(np.array(data.task_codes) == code)[runs.index]]
        task["title"], task["tokens"] = data.tasks[code], data.tokens[code]
        task["controls"] = controls(task["title"])
        task["remarks"] = answer.remarks(task_runs) if len(task_runs) else []
    all_tasks = (
        {"title": EVERY_TASK, "controls": controls(EVERY_TASK)} if len(data.tasks) > 1 else None
    )
    return {**shipped, "allTasks": all_tasks, "menu": data.menu if all_tasks else []}


def _predicted(data: Data) -> dict[str, Any]:
    """Return predicted settings by column.

    `kinds` are the GPUs as prices name them, `fits` is None where unknown, `tight` settings have no room for what torch
    reserves, and `outside` says how a setting differs
    from all runs that the time model is fitted to.
    """
    table = data.predicted
    rows = table.to_dict("records")
    figures = [name for name in (*FIGURES, PER_GPU) if len(table) and table[name].notna().any()]
    return {
        "names": [labels.text(row["experiment"]) for row in rows],
        "settings": [labels.setting(row) for row in rows],
        "kinds": [str(row["gpu_name"]) for row in rows],
        "gpus": [int(row["gpus"]) for row in rows],
        "tasks": data.predicted_tasks,
        "codes": {
            name: choice.predicted for name, choice in data.choices.items() if choice.predicted
        },
        "figures": {name: _predicted_figure(table, name) for name in figures},
        "fits": [plain(row["fits"]) for row in rows],
        "tight": [bool(row["tight"]) for row in rows],
        "outside": [str(row["outside"]) for row in rows],
        "notes": list(data.predicted_notes),
    }


def _predicted_figure(table: pd.DataFrame, name: str) -> dict[str, Any]:
    """Return the heading of a predicted figure, its values, their mean errors in per cent, and both as texts."""
    metric, values, errors = (
        labels.METRIC_LABELS[name],
        numbers(table, name),
        numbers(table, f"{name}_error_pct"),
    )
    texts = [
        _predicted_text(value * metric.factor, error)
        for value, error in zip(values, errors, strict=True)
    ]
    stored = {
        "values": json_numbers(values, PREDICTED_DIGITS),
        "errors": json_numbers(errors, PREDICTED_DIGITS),
    }
    return {"heading": metric.heading, "texts": texts, **stored}


def _predicted_text(value: float, error_pct: float) -> str:
    """Return a figure with its error; without one, memory is tight and the figure is only a limit."""
    if math.isnan(value):
        return ""
    error = "not promised: memory is tight" if math.isnan(error_pct) else f"± {error_pct:.1f} %"
    return f"{significant(value)} {error}"


def citation(data: Data) -> str:
    """Return the GPUs and versions that the runs were measured with, as far as they are known."""
    parts = []
    for name, before in CITED.items():
        values = sorted(set(data.runs.get(name, pd.Series(dtype=object)).dropna().map(labels.text)))
        parts += [f"{before}{', '.join(values)}"] if values else []
    return "; ".join(parts)


def _axis(data: Data, name: str) -> dict[str, Any]:
    choice, axis = data.choices[name], labels.axis(name)
    count = len(choice.values)
    shared = palette.parallelism([labels.text(value) for value in choice.values])
    fixed = {
        "precision": palette.PRECISIONS,
        "status": palette.STATUSES,
        labels.PARALLELISM: shared,
    }.get(name, {})
    colours = palette.sequence(count)
    return {
        "name": name,
        "title": axis.title,
        "heading": axis.title,
        "isFilter": choice.is_filter,
        "group": group(name),
        "values": choice.values,
        "labels": [axis.label(value) for value in choice.values],
        "phrases": [axis.describe(value) for value in choice.values],
        "onlyWith": axis.only_with,
        "isOn": [labels.is_on(name, value) for value in choice.values],
        "isUsual": [value is None or not axis.describe_unusual(value) for value in choice.values],
        "shortLabels": [
            "" if value is None else axis.describe_unusual(value) for value in choice.values
        ],
        "colours": [
            fixed.get(str(value), colours[code]) for code, value in enumerate(choice.values)
        ],
        "shapes": [SHAPES[code % len(SHAPES)] for code in range(count)],
        "codes": choice.codes,
    }


def _figures(data: Data) -> list[dict[str, Any]]:
    """Return the names of figures, how to display them, and their values as in `stored`."""
    columns = stored(data.figures)
    metrics = {name: labels.METRIC_LABELS[name] for name in columns}
    metrics |= {"days": DAYS} if "tokens_per_s" in columns else {}
    return [
        {"name": name, "heading": metric.heading, **asdict(metric), **columns.get(name, {})}
        for name, metric in metrics.items()
    ]


def stored(figures: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return each column as `columnOf` of `web/model.js` reads it.

    It has either `values` (base64 of 8 bytes for each run), or `of` (an earlier column), `factors`, and `codes` (the
    position in `factors` for each run; None if there is one factor).
    """
    columns: dict[str, dict[str, Any]] = {}
    for name in figures:
        values = figures[name].to_numpy()
        in_full = (
            [other for other, column in columns.items() if "values" in column]
            if len(values) >= MANY
            else []
        )
        multiples = (_multiple(values, figures[other].to_numpy(), other) for other in in_full)
        packed = {"values": base64.b64encode(values.astype("<f8").tobytes()).decode()}
        columns[name] = next((multiple for multiple in multiples if multiple), packed)
    return columns


def _multiple(values: np.ndarray, base: np.ndarray, name: str) -> dict[str, Any] | None:
    """Return values as multiples of a base by a few factors; None if they are not."""
    finite = np.isfinite(values)
    if (
        not finite.any()
        or not np.array_equal(finite, np.isfinite(base))
        or not (base[finite] > 0).all()
    ):
        return None
    ratios = np.where(finite, values, values[finite][0]) / np.where(finite, base, base[finite][0])
    _, places, codes = np.unique(ratios.astype(np.float32), return_index=True, return_inverse=True)
    factors = ratios[places]
    if len(factors) > MAX_FACTORS or not np.allclose(
        factors[codes] * base, values, rtol=CLOSE, atol=0, equal_nan=True
    ):
        return None
    return {
        "of": name,
        "factors": factors.tolist(),
        "codes": codes.tolist() if len(factors) > 1 else None,
    }


def _of_ranks(shown: dict[str, Any]) -> dict[str, Any]:
    """Replace GPUs by ranks in the titles of a setting or figure."""
    texts: dict[str, Any] = {
        name: shown[name].replace("GPU", "rank") for name in ("title", "heading") if name in shown
    }
    lists = {"phrases", "shortLabels"} & set(shown if shown["name"] == "gpus" else ())
    return {
        **shown,
        **texts,
        **{name: [text.replace("GPU", "rank") for text in shown[name]] for name in lists},
    }


def _causes(data: Data) -> dict[int, str]:
    if "cause" not in data.runs:
        return {}
    pairs = enumerate(zip(data.runs["status"], map(plain, data.runs["cause"]), strict=True))
    return {
        place: str(cause)
        for place, (status, cause) in pairs
        if cause is not None and labels.text(status) != "ok"
    }


def _files(data: Data, names: list[str], home: Path | None) -> dict[str, Any]:
    """Return which runs have which files, and the folder of each experiment's runs relative to `home`.

    To save space, a folder with the name of its experiment is None, and kinds of files that no run has are left out.
    """
    parents: dict[str, str] = {}
    available: dict[str, list[int]] = {}
    for position, name in enumerate(data.experiments if home else []):
        folder = run_place(data, position)
        if not (home and folder and folder.is_dir() and folder.is_relative_to(home)):
            continue
        run = RunPaths(folder)
        row = data.runs.iloc[position]
        profiled = (
            plain(row.get("profile")) is True
        )  # only these have a trace, and look-ups take time
        files = [
            path for path in (run.notebook, *([run.trace] if profiled else [])) if path.is_file()
        ]
        # A run that was copied into another folder is not beside the other runs of its experiment.
        at_home = run.repeat == row["repeat"] and folder.parent.name == row["experiment"]
        for path in files if at_home else []:
            parents[name] = folder.parent.relative_to(home).as_posix()
            available.setdefault(path.name, [0] * len(data.experiments))[position] = 1
    kinds = [
        {"name": name, "title": FILES[name], "available": available[name]}
        for name in FILES
        if name in available
    ]
    return {
        "parents": [None if parents.get(name) == name else parents.get(name, "") for name in names],
        "kinds": kinds,
    }
