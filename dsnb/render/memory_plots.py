"""Figures of memory: its parts in theory beside the measured peak, and the effect of one change of a setting."""

from collections.abc import Iterable

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dsnb.analysis.memory_use import PARTS
from dsnb.render import palette
from dsnb.render.picture import Picture, note, shared_legend

MAX_ROWS = 40
MAX_LENGTH = 52
"""Characters of a name beside an axis; longer ones leave no room for the bars."""


def parts(table: pd.DataFrame) -> Picture:
    """Draw each experiment's memory: its parts in theory as a stacked bar, the measured peak as a dot.

    Parameters
    ----------
    table
        As `dsnb.analysis.memory_use.footprint` returns it; the first 40 rows are drawn.
    """
    shown = table.head(MAX_ROWS)
    colours = {f"{part}_gib": colour for part, colour in zip(PARTS, palette.MEMORY_PARTS, strict=True)}
    widths = shown[[name for name in colours if shown[name].fillna(0).any()]].fillna(0)

    def draw() -> Figure:
        figure, axis = plt.subplots(figsize=(10, 1.6 + 0.27 * max(len(shown), 4)), layout="constrained")
        if shown.empty:
            note(axis, "no run measured the memory of a GPU")
            return figure
        named = widths.set_axis(abbreviations(shown["experiment"])).rename(columns=lambda name: name[:-4])
        if len(widths.columns):
            named.plot.barh(ax=axis, stacked=True, width=0.7, color=[colours[name] for name in widths])
        look = {"color": palette.INK, "edgecolor": palette.SURFACE, "linewidth": 0.8, "s": 36, "zorder": 3}
        axis.scatter(shown["measured_gib"], range(len(shown)), label="measured", **look)
        _finish(figure, axis, named.index, xlabel="GPU memory (GiB)", ylabel="experiment", xlim=(0, None))
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
    is_unique = ~shown["change"].duplicated(keep=False)
    names = shown["change"].where(is_unique, shown["change"] + "\n" + abbreviations(shown["experiment"]))

    def draw() -> Figure:
        figure, axis = plt.subplots(figsize=(10, 1.6 + 0.4 * max(len(shown), 4)), layout="constrained")
        if shown.empty:
            note(axis, "no two experiments differ in one setting alone")
            return figure
        colours = [palette.INK, palette.GREY]
        shown[["measured", "theory"]].astype(float).plot.barh(ax=axis, color=colours, width=0.8)
        axis.axvline(0, color=palette.INK, linewidth=0.8)
        (base,) = abbreviations(shown["base"].head(1))
        _finish(figure, axis, names, xlabel=f"difference in GPU memory (GiB) to {base}", ylabel="changed setting")
        return figure

    return Picture(draw, "Change in GPU memory from one change of a setting, measured and in theory")


def abbreviations(names: Iterable[str]) -> list[str]:
    """Return names that fit beside an axis: without their sweeps, the beginning and the end of long ones."""
    whole = list(names)
    without = [name.rpartition("/")[2] for name in whole]
    half = MAX_LENGTH // 2
    kept = without if len(set(without)) == len(set(whole)) else whole
    return [name if len(name) <= MAX_LENGTH else f"{name[:half]}…{name[1 - half :]}" for name in kept]


def _finish(figure: Figure, axis: Axes, names: Iterable[str], **titles: object) -> None:
    """Name the rows, the first one at the top."""
    rows = list(names)
    axis.set_yticks(range(len(rows)), rows)
    axis.set(ylim=(len(rows) - 0.5, -0.5), **titles)
    axis.grid(visible=True, axis="x")
    axis.grid(visible=False, axis="y")
    shared_legend(figure, "upper center")
