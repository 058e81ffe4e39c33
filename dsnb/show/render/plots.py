"""Figures of runs: speed, step time, memory and utilization by setting, the steps of one run, parts of memory.

Repeats are drawn as dots with a line from the lowest to the highest: three are too few for an error bar.
"""

from collections.abc import Iterable
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
from dsnb.show.render.picture import PLAIN_TICKS, Picture, note, shared_legend

MAX_UPRIGHT = 8
"""Maximum number of values whose names are horizontal below an axis."""
MAX_SHAPES = 200
"""Maximum number of runs drawn as vector shapes; the dots of more runs are rasterized, to limit the file size."""
MAX_ROWS = 40
MAX_LENGTH = 52
"""Maximum characters of a name beside an axis; longer names leave no room for the bars."""


def overview(runs: pd.DataFrame) -> Picture:
    """Draw throughput, step time, memory and utilization of the ok runs by parallelism and precision."""
    ok = _ok(runs)
    memory = next((name for name in MEMORY if ok[name].notna().any()), MEMORY[-1])
    metrics = [rate(ok), "step_time_mean_s", memory, "gpu_util_pct"]

    def draw() -> Figure:
        figure, axes = plt.subplots(2, 2, figsize=(10, 6.4), layout="constrained")
        for axis, metric in zip(axes.flat, metrics, strict=True):
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
    return ok.loc[order.sort_values(kind="stable").index] if len(ok) else ok


def _plot_by_parallelism(ok: pd.DataFrame, metric: str, axis: Axes) -> None:
    """Draw one metric of ok runs by parallelism: medians as bars, ranges as lines, runs as dots."""
    label = METRIC_LABELS[metric]
    titles = {"xlabel": labels.axis(PARALLELISM).title, "ylabel": label.heading}
    axis.set(**titles)
    measured = ok[ok["precision"].isin(list(palette.PRECISIONS))].dropna(
        subset=[metric, PARALLELISM]
    )
    if measured.empty:
        note(axis, "no run succeeded" if ok.empty else "no run measured it")
        return
    shared = {
        "x": measured[PARALLELISM], "y": measured[metric] * label.factor, "hue": measured["precision"],
        "hue_order": [name for name in palette.PRECISIONS if name in set(measured["precision"])],
        "palette": palette.PRECISIONS, "ax": axis,
    }  # fmt: skip
    range_line = {"linewidth": 1.3, "color": palette.INK}
    sns.barplot(**shared, estimator="median", errorbar=("pi", 100), alpha=0.55, err_kws=range_line)
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
            if steps[column].notna().any():
                axis.plot(
                    steps["step"], steps[column] * label.factor, color=palette.BLUE, linewidth=1.4
                )
            else:
                note(axis, "no step was recorded")
            if pd.notna(warm):
                axis.axvspan(0.5, warm + 0.5, color=palette.GREY, alpha=0.15, label="warm-up")
        shared_legend(figure, "upper right")
        return figure

    return Picture(draw, "Loss and step time of one run by optimizer step")


def memory_parts(table: pd.DataFrame) -> Picture:
    """Draw the first 40 rows of `dsnb.results.statistics.memory_use.footprint`: bars in theory, measured peaks as dots."""
    shown = table.head(MAX_ROWS)
    colours = {
        f"{part}_gib": colour for part, colour in zip(PARTS, palette.MEMORY_PARTS, strict=True)
    }
    widths = shown[[name for name in colours if shown[name].fillna(0).any()]].fillna(0)

    def draw() -> Figure:
        figure, axis = plt.subplots(
            figsize=(10, 1.6 + 0.27 * max(len(shown), 4)), layout="constrained"
        )
        if shown.empty:
            note(axis, "no run measured the memory of a GPU")
            return figure
        named = widths.set_axis(_abbreviations(shown["experiment"])).rename(
            columns=lambda name: name[:-4]
        )
        if len(widths.columns):
            named.plot.barh(
                ax=axis, stacked=True, width=0.7, color=[colours[name] for name in widths]
            )
        look = {
            "color": palette.INK,
            "edgecolor": palette.SURFACE,
            "linewidth": 0.8,
            "s": 36,
            "zorder": 3,
        }
        axis.scatter(shown["measured_gib"], range(len(shown)), label="measured", **look)
        _name_rows(
            figure,
            axis,
            named.index,
            xlabel="GPU memory (GiB)",
            ylabel="experiment",
            xlim=(0, None),
        )
        return figure

    return Picture(draw, "GPU memory by experiment: its parts in theory, and the measured peak")


def memory_changes(table: pd.DataFrame) -> Picture:
    """Draw the effect of one change on memory, the first 40 rows of `dsnb.results.statistics.memory_use.savings`."""
    shown = table.head(MAX_ROWS).rename(
        columns={"measured_gib": "measured", "theory_gib": "theory"}
    )
    is_unique = ~shown["change"].duplicated(keep=False)
    names = shown["change"].where(
        is_unique, shown["change"] + "\n" + _abbreviations(shown["experiment"])
    )

    def draw() -> Figure:
        figure, axis = plt.subplots(
            figsize=(10, 1.6 + 0.4 * max(len(shown), 4)), layout="constrained"
        )
        if shown.empty:
            note(axis, "no two experiments differ in one setting alone")
            return figure
        colours = [palette.INK, palette.GREY]
        shown[["measured", "theory"]].astype(float).plot.barh(ax=axis, color=colours, width=0.8)
        axis.axvline(0, color=palette.INK, linewidth=0.8)
        (base,) = _abbreviations(shown["base"].head(1))
        _name_rows(
            figure,
            axis,
            names,
            xlabel=f"difference in GPU memory (GiB) to {base}",
            ylabel="changed setting",
        )
        return figure

    return Picture(
        draw, "Change in GPU memory from one change of a setting, measured and in theory"
    )


def _abbreviations(names: Iterable[str]) -> list[str]:
    """Shorten names to fit beside an axis: without their sweeps, and without the middle of long names."""
    full_names = list(names)
    without_sweeps = [name.rpartition("/")[2] for name in full_names]
    half = MAX_LENGTH // 2
    kept = without_sweeps if len(set(without_sweeps)) == len(set(full_names)) else full_names
    return [
        name if len(name) <= MAX_LENGTH else f"{name[:half]}…{name[1 - half :]}" for name in kept
    ]


def _name_rows(figure: Figure, axis: Axes, names: Iterable[str], **titles: object) -> None:
    """Name the rows of bars, the first one at the top."""
    rows = list(names)
    axis.set_yticks(range(len(rows)), rows)
    axis.set(ylim=(len(rows) - 0.5, -0.5), **titles)
    axis.grid(visible=True, axis="x")
    axis.grid(visible=False, axis="y")
    shared_legend(figure, "upper center")
