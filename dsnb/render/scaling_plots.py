"""seaborn figures of scaling: throughput and days against GPUs, with the ideal line, and the efficiency."""

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from dsnb.render.plots import Picture

COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7f7f7f", "#000000"]
"""Okabe and Ito's, as in every other figure."""
MOST_LINES = len(COLOURS)
LONGEST_LABEL = 120


def throughput(table: pd.DataFrame) -> Picture:
    """Draw tokens/s and efficiency against GPUs; dotted lines are ideal, bars go from the lowest to the highest.

    Parameters
    ----------
    table
        As `dsnb.analysis.scaling.scaling` gives it; of more than eight workloads, those with most GPUs.
    """
    shown = _most(table)

    def draw() -> Figure:
        figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
        _lines(shown, "tokens_per_s", "tokens/s", left)
        for colour, (_, part) in zip(COLOURS, shown.groupby("workload", sort=False), strict=False):
            base = part[part["gpus"] == part["base_gpus"]].iloc[0]
            ideal = base["tokens_per_s"] / base["gpus"] * part["gpus"]
            left.plot(part["gpus"], ideal, color=colour, linestyle=":", linewidth=1)
            left.vlines(part["gpus"], part["lowest"], part["highest"], color=colour, linewidth=2.5, alpha=0.6)
        _lines(shown.assign(efficiency=100 * shown["efficiency"]), "efficiency", "efficiency (%)", right)
        right.axhline(100, color="#8a929c", linestyle=":", linewidth=1)
        right.set_yscale("linear")
        right.set_ylim(0, max(110, 105 * shown["efficiency"].max()) if len(shown) else 110)
        right.yaxis.set_major_formatter(FuncFormatter(_short))
        _legend(figure, left, right)
        return figure

    return Picture(draw, "Tokens per second and scaling efficiency against the number of GPUs, with the ideal lines")


def days(table: pd.DataFrame, tokens: float = 100e9) -> Picture:
    """Draw the days that `tokens` take against GPUs; the dotted lines are ideal.

    Parameters
    ----------
    table
        As `dsnb.analysis.scaling.scaling` gives it for the same number of tokens.
    """
    shown = _most(table)

    def draw() -> Figure:
        figure, axis = plt.subplots(figsize=(10, 4.6), layout="constrained")
        _lines(shown, "days", f"days for {tokens / 1e9:,.4g} billion tokens", axis)
        for colour, (_, part) in zip(COLOURS, shown.groupby("workload", sort=False), strict=False):
            base = part[part["gpus"] == part["base_gpus"]].iloc[0]
            axis.plot(
                part["gpus"], base["days"] * base["gpus"] / part["gpus"], color=colour, linestyle=":", linewidth=1
            )
        _legend(figure, axis)
        return figure

    return Picture(draw, f"Days to train {tokens / 1e9:,.4g} billion tokens against the number of GPUs")


def _most(table: pd.DataFrame) -> pd.DataFrame:
    order = table.groupby("workload")["gpus"].max().sort_values(ascending=False, kind="stable").index[:MOST_LINES]
    return table[table["workload"].isin(order)].sort_values(["workload", "gpus"])


def _lines(shown: pd.DataFrame, column: str, title: str, axis: Axes) -> None:
    axis.set(xlabel="GPUs", ylabel=title)
    if shown.empty:
        axis.text(0.5, 0.5, "nothing was measured on two numbers of GPUs", ha="center", transform=axis.transAxes)
        return
    names = list(dict.fromkeys(shown["workload"]))
    palette = dict(zip(names, COLOURS, strict=False))
    sns.lineplot(
        data=shown, x="gpus", y=column, hue="workload", hue_order=names, palette=palette, marker="o",
        errorbar=None, linewidth=1.6, ax=axis,
    )  # fmt: skip
    axis.set(xscale="log", yscale="log", xlabel="GPUs", ylabel=title)
    sizes = sorted(set(shown["gpus"]))
    axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.xaxis.set_minor_locator(plt.NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(_short))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _short(value: float, _: object = None) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:,.4g} {unit}"
    return f"{value:,.4g}"


def _legend(figure: Figure, *axes: Axes) -> None:
    """Put one legend below: names of workloads are long."""
    handles, labels = axes[0].get_legend_handles_labels()
    for axis in axes:
        if (own := axis.get_legend()) is not None:
            own.remove()
    if handles:
        short = [label if len(label) <= LONGEST_LABEL else f"{label[:LONGEST_LABEL]}\u2026" for label in labels]
        figure.legend(handles, short, loc="outside lower center", ncols=1, frameon=False, fontsize="small")
