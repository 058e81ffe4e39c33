"""Figures of memory: its parts in theory beside the measured peak, and the effect of one change of a setting."""

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dsnb.analysis.memory_use import PARTS
from dsnb.render import palette
from dsnb.render.picture import Picture, note

MAX_ROWS = 40


def parts(table: pd.DataFrame) -> Picture:
    """Draw each experiment's memory: its parts in theory as a stacked bar, the measured peak as a dot.

    Parameters
    ----------
    table
        As `dsnb.analysis.memory_use.footprint` returns it; the first 40 rows are drawn.
    """
    shown = table.head(MAX_ROWS)

    def draw() -> Figure:
        figure, axis = plt.subplots(figsize=(10, 1.6 + 0.27 * max(len(shown), 4)), layout="constrained")
        if shown.empty:
            axis.set_axis_off()
            note(axis, "no run measured the memory of a GPU")
            return figure
        left = pd.Series(0.0, index=shown.index)
        for colour, part in zip(palette.MEMORY_PARTS, PARTS, strict=True):
            width = shown[f"{part}_gib"].fillna(0)
            label = part if width.any() else None
            axis.barh(shown["experiment"], width, left=left, color=colour, label=label, height=0.7)
            left += width
        sns.stripplot(
            data=shown, x="measured_gib", y="experiment", ax=axis, color=palette.INK, jitter=False, size=6,
            edgecolor=palette.SURFACE, linewidth=0.8, label="measured",
        )  # fmt: skip
        axis.set(xlabel="GPU memory (GiB)", ylabel="experiment", xlim=(0, None))
        _finish(figure, axis)
        return figure

    return Picture(draw, "GPU memory by experiment: its parts in theory, and the measured peak")


def changes(table: pd.DataFrame) -> Picture:
    """Draw how one change of a setting changes memory, measured and in theory.

    Parameters
    ----------
    table
        As `dsnb.analysis.memory_use.savings` returns it; the first 40 rows are drawn.
    """
    shown = table.head(MAX_ROWS).rename(columns={"measured_gib": "measured", "theory_gib": "theory"})
    repeated = shown["change"].duplicated(keep=False)
    shown = shown.assign(change=shown["change"].where(~repeated, shown["change"] + "\n" + shown["experiment"]))
    long = shown.melt("change", ["measured", "theory"], "by", "gib")

    def draw() -> Figure:
        figure, axis = plt.subplots(figsize=(10, 1.6 + 0.4 * max(len(shown), 4)), layout="constrained")
        if shown.empty:
            axis.set_axis_off()
            note(axis, "no two experiments differ in one setting alone")
            return figure
        colours = {"measured": palette.INK, "theory": palette.GREY}
        sns.barplot(data=long, x="gib", y="change", hue="by", palette=colours, saturation=1, errorbar=None, ax=axis)
        axis.axvline(0, color=palette.INK, linewidth=0.8)
        base = shown["base"].iloc[0]
        axis.set(xlabel=f"difference in GPU memory (GiB) to {base}", ylabel="changed setting")
        _finish(figure, axis)
        return figure

    return Picture(draw, "Change in GPU memory from one change of a setting, measured and in theory")


def _finish(figure: Figure, axis: Axes) -> None:
    axis.grid(visible=True, axis="x")
    axis.grid(visible=False, axis="y")
    handles, labels = axis.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))  # stripplot labels the dots of every row
    if (own := axis.get_legend()) is not None:
        own.remove()
    figure.legend(unique.values(), unique, loc="outside upper center", ncols=len(unique), frameon=False)
