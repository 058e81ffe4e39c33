"""What the browser is given: the runs by column, the controls, and as many series of steps as a file may carry."""

import math
from pathlib import Path
from typing import Any

import pandas as pd

from dsnb.explorer import charts
from dsnb.explorer.data import Data, plain, run_folder, run_log
from dsnb.explorer.state import DAYS, State, default, options
from dsnb.run_folder.paths import RunPaths
from dsnb.runs import labels
from dsnb.runs.labels import Metric
from dsnb.runs.load import load_gpu, load_steps

_RUN = RunPaths(Path())
FILES = {
    _RUN.notebook.name: "The executed notebook",
    _RUN.trace.name: "A trace of one step",
    _RUN.flops.name: "Its FLOPs by module",
}
"""The files of a run that the explorer leads to, and what it calls them."""
SERIES_NUMBERS = 40_000
"""How many numbers of steps and samples a page carries, over all its runs: about 250 kB."""
FEWEST_POINTS, MOST_POINTS = 24, 240
COLUMNS_OF_SERIES = 9
GPU = ["host", "gpu"]
"""What tells a GPU from all others of a run: every host counts its own from 0."""
SAMPLED = ["util_pct", "memory_used_gib", "power_w"]
# Okabe and Ito's colours that stand out on white and on black, then shapes: no reader needs the colour alone.
COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#a08c00"]
STATUSES = {"ok": "#0072b2", "oom": "#d55e00", "nan": "#cc79a7", "failed": "#aa4499", "timeout": "#e69f00"}
STATUSES |= {"interrupted": "#8a929c", "untrained": "#56b4e9"}
SHAPES = ["circle", "square", "triangle-up", "diamond", "triangle-down", "triangle-right"]
# The middle of cividis, which grows in lightness alone: for axes with more values than there are colours.
RAMP = ["#3b4d8f", "#575d8a", "#70708a", "#88838a", "#a29884", "#bead77", "#dcc463", "#f4dd50"]


def payload(data: Data, state: State, home: Path | None) -> dict[str, Any]:
    """Give all that the browser needs, ready for JSON: no NaN in it, no absolute path.

    Parameters
    ----------
    data, state
        What is shown, and with which controls set.
    home
        The folder that links to files of the runs are relative to; None for no links.
    """
    names = list(dict.fromkeys(data.experiments))
    position = {name: code for code, name in enumerate(names)}
    return {
        "runs": len(data.runs),
        "axes": [_axis(data, name) for name in data.choices],
        "experimentAxes": data.axes,
        "figures": [_figure(name, labels.METRIC_LABELS[name], data.figures[name]) for name in data.figures]
        + ([_figure("days", DAYS, None)] if "tokens_per_s" in data.figures else []),
        "memory": next((name for name in labels.MEMORY if name in data.figures), None),
        "experiments": {
            "names": names,
            "codes": [position[name] for name in data.experiments],
        },
        "repeats": _numbers(pd.to_numeric(data.runs["repeat"], errors="coerce")),
        "causes": _causes(data),
        "notes": _notes(data),
        "files": _files(data, names, home),
        "constants": {choice.name: choice.values[0] for choice in data.constant},
        "options": options(data),
        "defaults": default(data),
        "state": state,
        "series": all_series(data),
        "charts": charts.specifications(),
    }  # fmt: skip


def _axis(data: Data, name: str) -> dict[str, Any]:
    choice = data.choices[name]
    count = len(choice.values)
    fixed = {"precision": labels.PRECISION_COLOURS, "status": STATUSES}.get(name, {})
    many = [RAMP[round(code * (len(RAMP) - 1) / max(count - 1, 1))] for code in range(count)]
    colours = COLOURS[:count] if count <= len(COLOURS) else many
    return {
        "name": name,
        "title": labels.axis(name).title,
        "values": choice.values,
        "labels": [labels.text(value) for value in choice.values],
        "said": [choice.mention(code) for code in range(count)],
        "colours": [fixed.get(str(value), colours[code]) for code, value in enumerate(choice.values)],
        "shapes": [SHAPES[code % len(SHAPES)] for code in range(count)],
        "codes": choice.codes,
    }


def _figure(name: str, metric: Metric, values: pd.Series | None) -> dict[str, Any]:
    words = {"title": metric.title, "heading": metric.heading, "digits": metric.digits, "better": metric.better}
    words |= {"about": metric.about} if metric.about else {}
    return {"name": name, **words, "unit": metric.unit, "values": None if values is None else _numbers(values)}


def _numbers(values: Any) -> list[float | int | None]:
    """Give figures for JSON: none for NaN, whole ones without a point."""
    known = (float(value) if math.isfinite(value) else None for value in values)
    return [int(value) if value is not None and value.is_integer() else value for value in known]


def _causes(data: Data) -> dict[int, str]:
    status = data.choices["status"]
    bad = [position for position, code in enumerate(status.codes) if status.values[code] != "ok"]
    if "cause" not in data.runs:
        return {}
    found = {position: plain(data.runs["cause"].iloc[position]) for position in bad}
    return {position: str(cause) for position, cause in found.items() if cause is not None}


def _notes(data: Data) -> dict[int, str]:
    """Return what is odd about single runs, by their positions."""
    if "note" not in data.runs:
        return {}
    return {position: str(note) for position, note in enumerate(map(plain, data.runs["note"])) if note is not None}


def _files(data: Data, names: list[str], home: Path | None) -> dict[str, Any]:
    """Say which runs have files to open, and in which folder, relative to `home`, each experiment's runs are.

    A folder with the name of its experiment is None: that is the rule, and thousands of names take room. A kind of
    file that no run has is left out.
    """
    parents: dict[str, str] = {}
    there: dict[str, list[int]] = {}
    for position, name in enumerate(data.experiments if home else []):
        folder = run_folder(data, position)
        if not (home and folder and folder.is_relative_to(home)):
            continue
        run = RunPaths(folder)
        found = [path for path in _linked(run, data, position) if path.is_file()]
        row = data.runs.iloc[position]
        # A run that was copied into another experiment's folder is not where the others of its own are.
        at_home = run.repeat == row["repeat"] and folder.parent.name == row["experiment"]
        for path in found if at_home else []:
            parents[name] = folder.parent.relative_to(home).as_posix()
            there.setdefault(path.name, [0] * len(data.experiments))[position] = 1
    kinds = [{"name": name, "title": FILES[name], "there": there[name]} for name in FILES if name in there]
    return {"parents": [None if parents.get(name) == name else parents.get(name, "") for name in names], "kinds": kinds}


def _linked(run: RunPaths, data: Data, position: int) -> list[Path]:
    """Give the files of a run that may be there; thousands that were not profiled are not asked for a profile's."""
    profiled = "profile" in data.runs and plain(data.runs["profile"].iloc[position]) is True
    return [run.notebook, *([run.trace, run.flops] if profiled else [])]


def all_series(data: Data) -> dict[int, dict[str, Any]]:
    """Give the series of as many runs as there is room for: first repeats first, fewer points where runs are many.

    A run that has written nothing has an empty one; a run that is not among them was left out.
    """
    firsts = ~pd.Series(data.experiments).duplicated()
    order = sorted(range(len(data.runs)), key=lambda position: not firsts[position])
    room = SERIES_NUMBERS // (COLUMNS_OF_SERIES * FEWEST_POINTS)
    points = SERIES_NUMBERS // (COLUMNS_OF_SERIES * max(min(len(order), room), 1))
    points = min(max(points, FEWEST_POINTS), MOST_POINTS)
    found = {position: series(data, position, points) for position in order[:room]}
    return dict(sorted(found.items()))


def series(data: Data, position: int, points: int = MOST_POINTS) -> dict[str, Any]:
    """Give one run's steps and samples, at most `points` of each, evenly chosen; nothing where none was written."""
    place = run_folder(data, position) or run_log(data, position)
    if place is None:
        return {}
    steps, samples = load_steps(place), load_gpu(place)
    if place.is_file():  # a log may tell of several starts
        row = data.runs.iloc[position]
        steps = steps[(steps["experiment"] == row["experiment"]) & (steps["repeat"] == row["repeat"])]
    result: dict[str, Any] = {}
    if len(steps):
        every = math.ceil(len(steps) / points)
        warm = steps[steps["phase"] == "warmup"]
        thin = steps.iloc[every - 1 :: every]
        result = {name: _rounded(thin[name]) for name in ("step", "t_s", "loss", "allocated_gib")}
        result["step_time_ms"] = _rounded(thin["step_time_s"] * 1000)
        result |= {"every": every, "warm_steps": len(warm), "warm_s": _rounded([warm["t_s"].max()])[0]}
    if len(means := over_gpus(samples)):
        thin = means.iloc[:: math.ceil(len(means) / points)]
        result |= {name: _rounded(thin[name]) for name in SAMPLED}
        result |= {"sample_s": _rounded(thin["t_s"]), "gpus": samples.groupby(GPU, dropna=False).ngroups}
    return result


def over_gpus(samples: pd.DataFrame) -> pd.DataFrame:
    """Average samples over GPUs; each counts once at a time, whenever in the interval its host has read it."""
    gpus = samples.dropna(subset="t_s").groupby(GPU, dropna=False)
    every_s = gpus["t_s"].diff().median()
    if gpus.ngroups < 2 or not every_s > 0:
        return samples.groupby("t_s")[SAMPLED].mean().reset_index()
    interval = (samples["t_s"] / every_s).round().rename("interval")
    each = samples.groupby([interval, *GPU], dropna=False)[["t_s", *SAMPLED]].mean()
    return each.groupby(level="interval").mean()


def _rounded(values: Any) -> list[float | int | None]:
    return _numbers(float(f"{value:.4g}") for value in values)
