"""Figures of runs: speed, step time, memory and utilization by setting, the steps of one run, parts of memory.

Repeats are drawn as dots with a line from the lowest to the highest: three are too few for an error
bar.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dsnb.results.answers.decide import rate
from dsnb.results.runs import labels
from dsnb.results.runs.labels import MEMORY, METRIC_LABELS, PARALLELISM
from dsnb.results.runs.load import load_steps
from dsnb.results.statistics.memory_use import PARTS
from dsnb.results.statistics.setting_axes import with_setting_axes
from dsnb.settings.records.columns import OVER_TIME
from dsnb.show.render import palette
from dsnb.show.render.picture import PLAIN_TICKS, Picture, note, shared_legend, wrapped

MAX_UPRIGHT = 8
"""Maximum number of values whose names are horizontal below an axis."""
MAX_SHAPES = 200
"""Maximum number of runs drawn as vector shapes; the dots of more runs are rasterized, to limit the
file size."""
MAX_ROWS = 40
MAX_LENGTH = 56
"""Maximum characters of a line beside an axis; longer ones leave no room for the bars."""
MAX_LINES = 3
LINE_INCHES = 0.17


def overview(runs: pd.DataFrame) -> Picture:
    """Draw throughput, step time, memory and utilization of the ok runs by parallelism and precision, if measured."""
    ok = _ok(runs)
    memory = next((name for name in MEMORY if ok[name].notna().any()), MEMORY[-1])
    metrics = [rate(ok), "step_time_mean_s", memory, "gpu_util_pct"]
    measured = [metric for metric in metrics if ok[metric].notna().any()]
    size = (1, max(1, len(measured)))
    if len(measured) == len(metrics):
        size = (2, 2)

    def draw() -> Figure:
        figure, axes = plt.subplots(
            *size, figsize=(10, 3.2 * size[0]), layout="constrained", squeeze=False
        )
        for axis, metric in zip(axes.flat, measured or metrics[:1], strict=True):
            _plot_by_parallelism(ok, metric, axis)
        shared_legend(figure, "upper right")
        return figure

    return Picture(
        draw, "Throughput, step time, memory and utilization by parallelism and precision"
    )


def _ok(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the ok runs, ordered by parallelism."""
    ok = with_setting_axes(runs[runs["status"] == "ok"])
    order = ok[PARALLELISM].map(labels.axis(PARALLELISM).sort_key)
    if len(ok):
        return ok.loc[order.sort_values(kind="stable").index]
    return ok


def _plot_by_parallelism(ok: pd.DataFrame, metric: str, axis: Axes) -> None:
    """Draw one metric of ok runs by parallelism: medians as bars, ranges as lines, runs as dots."""
    label = METRIC_LABELS[metric]
    titles = {"xlabel": labels.axis(PARALLELISM).title, "ylabel": label.heading}
    axis.set(**titles)
    is_drawn = ok["precision"].isin(list(palette.PRECISIONS))
    measured = ok[is_drawn].dropna(subset=[metric, PARALLELISM])
    if measured.empty:
        note(axis, "no run succeeded" if ok.empty else "no run measured it")
        return
    shared = {
        "data": measured.assign(**{metric: measured[metric] * label.factor}),
        "x": PARALLELISM,
        "y": metric,
        "hue": "precision",
        "hue_order": [name for name in palette.PRECISIONS if name in set(measured["precision"])],
        "palette": palette.PRECISIONS,
        "ax": axis,
    }
    line = {"linewidth": 1.3, "color": palette.INK}
    sns.barplot(**shared, estimator="median", errorbar=("pi", 100), alpha=0.55, err_kws=line)
    sns.stripplot(
        **shared, dodge=True, size=4, linewidth=0.6, edgecolor=palette.SURFACE, legend=False, clip_on=False,
        rasterized=len(measured) > MAX_SHAPES,
    )  # fmt: skip
    axis.set(**titles)
    names = list(dict.fromkeys(measured[PARALLELISM]))
    rotation = 0 if len(names) <= MAX_UPRIGHT else 90
    axis.set_xticks(
        range(len(names)), [name.replace(" x ", " x\n") for name in names], rotation=rotation
    )
    axis.yaxis.set_major_formatter(PLAIN_TICKS)


def run_steps(run_dir: str | Path) -> Picture:
    """Draw loss and step time of one run by step, with the warm-up shaded."""
    steps = load_steps(run_dir)

    def draw() -> Figure:
        figure, axes = plt.subplots(1, 2, figsize=(10, 3), layout="constrained")
        warm = steps[steps["phase"] == "warmup"]["step"].max()
        for axis, column in zip(axes, ("loss", "step_time_s"), strict=True):
            label = OVER_TIME[column]
            axis.set(xlabel="optimizer step", ylabel=label.heading)
            axis.yaxis.set_major_formatter(PLAIN_TICKS)
            values = steps[column] * label.factor
            if values.notna().any():
                axis.plot(steps["step"], values, color=palette.BLUE, linewidth=1.4)
            else:
                note(axis, "no step was recorded")
            if pd.notna(warm):
                axis.axvspan(0.5, warm + 0.5, color=palette.GREY, alpha=0.15, label="warm-up")
        shared_legend(figure, "upper right")
        return figure

    return Picture(draw, "Loss and step time of one run by optimizer step")


def memory_parts(table: pd.DataFrame) -> Picture:
    """Draw the first 40 rows of `memory_use.footprint`: bars in theory, measured peaks as dots."""
    shown = table.head(MAX_ROWS)
    names = _row_labels(shown["experiment"])
    parts = shown[[f"{part}_gib" for part in PARTS]].fillna(0).set_axis(PARTS, axis="columns")
    parts = parts.loc[:, parts.any()].set_axis(names)

    def draw() -> Figure:
        figure, axis = _rows_figure(names, 0.27)
        if shown.empty:
            note(axis, "no run measured the memory of a GPU")
            return figure
        if len(parts.columns):
            colours = dict(zip(PARTS, palette.MEMORY_PARTS, strict=True))
            parts.plot.barh(ax=axis, stacked=True, width=0.7, color=colours)
        axis.scatter(
            shown["measured_gib"],
            range(len(shown)),
            label="measured",
            color=palette.INK,
            edgecolor=palette.SURFACE,
            linewidth=0.8,
            s=36,
            zorder=3,
        )
        _name_rows(figure, names)
        axis.set(xlabel="GPU memory (GiB)", ylabel="setting", xlim=(0, None))
        return figure

    return Picture(draw, "GPU memory by experiment: its parts in theory, and the measured peak")


def memory_changes(table: pd.DataFrame) -> Picture:
    """Draw the effect of one change on memory, the first 40 rows of `dsnb.results.statistics.memory_use.savings`."""
    shown = table.head(MAX_ROWS)
    changes = shown["change"]
    with_names = changes + "\n" + _row_labels(shown["experiment"])
    names = list(changes.mask(changes.duplicated(keep=False), with_names))

    def draw() -> Figure:
        figure, axis = _rows_figure(names, 0.4)
        if shown.empty:
            note(axis, "no two experiments differ in one setting alone")
            return figure
        bars = shown[["measured_gib", "theory_gib"]].astype(float)
        bars = bars.set_axis(["measured", "theory"], axis="columns")
        bars.plot.barh(ax=axis, color=[palette.INK, palette.GREY], width=0.8)
        axis.axvline(0, color=palette.INK, linewidth=0.8)
        (base,) = _row_labels(shown["base"].head(1))
        _name_rows(figure, names)
        axis.set(xlabel=f"difference in GPU memory (GiB) to\n{base}", ylabel="changed setting")
        return figure

    return Picture(
        draw, "Change in GPU memory from one change of a setting, measured and in theory"
    )


def _row_labels(names: Iterable[str]) -> list[str]:
    """Return names on lines that fit beside an axis: without their sweeps, and without the middle of endless ones."""
    kept = list(names)
    without_sweeps = [name.rpartition("/")[2] for name in kept]
    if len(set(without_sweeps)) == len(set(kept)):
        kept = without_sweeps
    half = MAX_LENGTH * MAX_LINES // 2
    shown = []
    for name in kept:
        ends = name
        if len(name) > 2 * half:
            ends = f"{name[:half]}…{name[1 - half :]}"
        shown.append(wrapped(ends, MAX_LENGTH))
    return shown


def _rows_figure(names: Sequence[str], inches: float) -> tuple[Figure, Axes]:
    """Return a figure that is as high as rows of bars and their names need."""
    lines = max((name.count("\n") + 1 for name in names), default=1)
    row = max(inches, LINE_INCHES * lines)
    size = (10, 1.6 + row * max(len(names), 4))
    return plt.subplots(figsize=size, layout="constrained")


def _name_rows(figure: Figure, names: Sequence[str]) -> None:
    """Name the rows of bars, the first one at the top."""
    (axis,) = figure.axes
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.grid(visible=True, axis="x")
    axis.grid(visible=False, axis="y")
    shared_legend(figure, "upper center")
