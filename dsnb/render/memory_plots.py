"""seaborn figures of memory: what theory adds up beside what was measured, and what one change saves by both."""

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dsnb.analysis.memory_use import PARTS
from dsnb.render.plots import Picture

COLOURS = ["#0072b2", "#56b4e9", "#e69f00", "#cc79a7", "#009e73", "#f0e442"]
"""Okabe and Ito's, as in every other figure."""
MEASURED, THEORY = "#30363d", "#8a929c"
MOST_ROWS = 40
NOTHING = "no run here has measured the memory of a GPU"


def parts(table: pd.DataFrame) -> Picture:
    """Draw each experiment's memory: the parts that theory adds up as a bar, what was measured as a dot.

    Parameters
    ----------
    table
        As `dsnb.analysis.memory_use.footprint` gives it; the first forty rows are drawn.
    """
    shown = table.head(MOST_ROWS)

    def draw() -> Figure:
        figure, axis = plt.subplots(figsize=(10, 1.6 + 0.27 * max(len(shown), 4)), layout="constrained")
        if shown.empty:
            return _nothing(figure, axis)
        left = pd.Series(0.0, index=shown.index)
        for colour, part in zip(COLOURS, PARTS, strict=True):
            width = shown[f"{part}_gib"].fillna(0)
            label = part if width.any() else None
            axis.barh(shown["experiment"], width, left=left, color=colour, label=label, height=0.7)
            left += width
        sns.stripplot(
            data=shown, x="measured_gib", y="experiment", ax=axis, color=MEASURED, jitter=False, size=6,
            edgecolor="white", linewidth=0.8, label="measured",
        )  # fmt: skip
        axis.set(xlabel="GiB of a GPU", ylabel="", xlim=(0, None))
        _finish(figure, axis)
        return figure

    return Picture(draw, "Memory of a GPU by experiment: the parts that theory adds up, and what was measured")


def changes(table: pd.DataFrame) -> Picture:
    """Draw what one change of a setting takes more or less, measured and by theory.

    Parameters
    ----------
    table
        As `dsnb.analysis.memory_use.savings` gives it; the first forty rows are drawn.
    """
    shown = table.head(MOST_ROWS).rename(columns={"measured_gib": "measured", "theory_gib": "theory"})
    twice = shown["change"].duplicated(keep=False)
    shown = shown.assign(change=shown["change"].where(~twice, shown["change"] + "\n" + shown["experiment"]))
    long = shown.melt("change", ["measured", "theory"], "by", "gib")

    def draw() -> Figure:
        figure, axis = plt.subplots(figsize=(10, 1.6 + 0.4 * max(len(shown), 4)), layout="constrained")
        if shown.empty:
            return _nothing(figure, axis, "no two experiments here differ in one setting alone")
        palette = {"measured": MEASURED, "theory": THEORY}
        sns.barplot(data=long, x="gib", y="change", hue="by", palette=palette, errorbar=None, ax=axis)
        axis.axvline(0, color=MEASURED, linewidth=0.8)
        axis.set(xlabel=f"GiB more than {shown['base'].iloc[0]}", ylabel="")
        _finish(figure, axis)
        return figure

    return Picture(draw, "What one change of a setting takes more or less of a GPU's memory, measured and by theory")


def _finish(figure: Figure, axis: Axes) -> None:
    axis.grid(visible=True, axis="x")
    axis.grid(visible=False, axis="y")
    handles, labels = axis.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))  # the dots of every row come with a label of their own
    if (own := axis.get_legend()) is not None:
        own.remove()
    figure.legend(unique.values(), unique, loc="outside upper center", ncols=len(unique), frameon=False)


def _nothing(figure: Figure, axis: Axes, why: str = NOTHING) -> Figure:
    axis.set_axis_off()
    axis.text(0.5, 0.5, why, ha="center", va="center", transform=axis.transAxes, color="#57606a")
    return figure
