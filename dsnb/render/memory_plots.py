"""Figures of memory: its parts in theory beside the measured peak, and the effect of one change of a setting."""

from collections import Counter
from collections.abc import Iterable
from itertools import count

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dsnb.analysis.memory_use import PARTS
from dsnb.render import palette
from dsnb.render.picture import Picture, note

MAX_ROWS = 40
LONGEST = 52
"""Characters of a name beside an axis; longer ones leave no room for the bars."""


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
        places, left = range(len(shown)), pd.Series(0.0, index=shown.index)
        for colour, part in zip(palette.MEMORY_PARTS, PARTS, strict=True):
            width = shown[f"{part}_gib"].fillna(0)
            label = part if width.any() else None
            axis.barh(places, width, left=left, color=colour, label=label, height=0.7)
            left += width
        look = {"color": palette.INK, "edgecolor": palette.SURFACE, "linewidth": 0.8, "s": 36, "zorder": 3}
        axis.scatter(shown["measured_gib"], places, label="measured", **look)
        axis.set_yticks(places, abbreviations(shown["experiment"]))
        axis.set(xlabel="GPU memory (GiB)", ylabel="experiment", xlim=(0, None), ylim=(len(shown) - 0.5, -0.5))
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
    shown = shown.assign(
        change=shown["change"].where(~repeated, shown["change"] + "\n" + abbreviations(shown["experiment"]))
    )
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
        (base,) = abbreviations(shown["base"].head(1))
        axis.set(xlabel=f"difference in GPU memory (GiB) to {base}", ylabel="changed setting")
        _finish(figure, axis)
        return figure

    return Picture(draw, "Change in GPU memory from one change of a setting, measured and in theory")


def abbreviations(names: Iterable[str]) -> list[str]:
    """Return names that fit beside an axis: without their sweeps, the beginning and the end of long ones.

    Those that are then equal are numbered.
    """
    whole = list(names)
    without = [name.rpartition("/")[2] for name in whole]
    half = LONGEST // 2
    kept = without if len(set(without)) == len(set(whole)) else whole
    short = [name if len(name) <= LONGEST else f"{name[:half]}…{name[1 - half :]}" for name in kept]
    seen = Counter(short)
    numbers = {name: count(1) for name in seen}
    return [f"{name} ({next(numbers[name])})" if "…" in name and seen[name] > 1 else name for name in short]


def _finish(figure: Figure, axis: Axes) -> None:
    axis.grid(visible=True, axis="x")
    axis.grid(visible=False, axis="y")
    handles, labels = axis.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    if (own := axis.get_legend()) is not None:
        own.remove()
    figure.legend(unique.values(), unique, loc="outside upper center", ncols=len(unique), frameon=False)
