"""Figures of scaling: throughput, efficiency and days against the number of GPUs, with the ideal as dotted lines."""

import math
from collections.abc import Iterable

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, NullFormatter, PercentFormatter

from dsnb.analysis.scaling import super_linear
from dsnb.render import palette
from dsnb.render.picture import PLAIN_TICKS, Picture, note
from dsnb.render.tables import Html, bullet_list, number_table
from dsnb.runs import labels

MAX_LINES = len(palette.SERIES)
MAX_LABEL_LENGTH = 120
BASE = " (base: "
"""Between a workload and its base in a legend."""


def throughput(table: pd.DataFrame) -> Picture:
    """Draw tokens/s and efficiency against GPUs; dotted lines are ideal, bars span the lowest to the highest run.

    Parameters
    ----------
    table
        As `dsnb.analysis.scaling.scaling` returns it; at most eight workloads are drawn, those on the most GPUs.
    """
    shown = _largest_workloads(table)

    def draw() -> Figure:
        figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
        unit = _unit(shown)
        _lines(shown, "tokens_per_s", f"tokens/s of all {unit}s", left)
        for colour, (_, part) in zip(palette.SERIES, shown.groupby("workload", sort=False), strict=False):
            base = part[part["gpus"] == part["base_gpus"]].iloc[0]
            ideal = base["tokens_per_s"] / base["gpus"] * part["gpus"]
            left.plot(part["gpus"], ideal, color=colour, linestyle=":", linewidth=1)
            left.vlines(part["gpus"], part["lowest"], part["highest"], color=colour, linewidth=2.5, alpha=0.6)
        left.yaxis.set_major_formatter(EngFormatter())
        _lines(shown, "efficiency", f"efficiency (% of tokens/s/{unit} at the base)", right)
        right.axhline(1, color=palette.GREY, linestyle=":", linewidth=1)
        right.set_yscale("linear")
        right.set_ylim(0, max(1.1, 1.05 * shown["efficiency"].max()) if len(shown) else 1.1)
        right.yaxis.set_major_formatter(PercentFormatter(xmax=1))
        _legend(figure, left, right)
        return figure

    return Picture(draw, "Tokens per second and scaling efficiency against the number of GPUs, with the ideal lines")


def days(table: pd.DataFrame, tokens: float = 100e9) -> Picture:
    """Draw the days of training on `tokens` against GPUs; the dotted lines are ideal.

    Parameters
    ----------
    table
        As `dsnb.analysis.scaling.scaling` returns it for the same number of tokens.
    """
    shown = _largest_workloads(table)

    def draw() -> Figure:
        figure, axis = plt.subplots(figsize=(10, 4.6), layout="constrained")
        _lines(shown, "days", f"days for {tokens / 1e9:,.4g} billion tokens", axis)
        axis.yaxis.set_major_formatter(PLAIN_TICKS)
        for colour, (_, part) in zip(palette.SERIES, shown.groupby("workload", sort=False), strict=False):
            base = part[part["gpus"] == part["base_gpus"]].iloc[0]
            axis.plot(
                part["gpus"], base["days"] * base["gpus"] / part["gpus"], color=colour, linestyle=":", linewidth=1
            )
        _legend(figure, axis)
        return figure

    return Picture(draw, f"Days to train {tokens / 1e9:,.4g} billion tokens against the number of GPUs")


def remarks(tables: Iterable[pd.DataFrame]) -> Html:
    """Return what to know about the efficiency in tables of `dsnb.analysis.scaling.scaling`."""
    known = [table for table in tables if len(table)]
    if not known:
        return bullet_list([], "No workload was measured on two numbers of GPUs: there is no scaling to show.")
    sentences = [sentence for table in known for sentence in super_linear(table)]
    return bullet_list(sentences, "No workload is more efficient on more GPUs than at its base.")


def numbers(table: pd.DataFrame) -> Html:
    """Return a table of `dsnb.analysis.scaling.scaling` as HTML, with units."""
    unit = _unit(table)
    titles = {"gpus": f"{unit}s", "tokens_per_s": f"tokens/s of all {unit}s", "base_gpus": f"base ({unit}s)"}
    titles |= {"speed_up": "speed-up", "efficiency": "efficiency (%)", "n": "runs"}
    titles |= {"lowest": "lowest run (tokens/s)", "highest": "highest run (tokens/s)"}
    shown = table.assign(efficiency=100 * table["efficiency"]).drop(columns="unit")
    return number_table(shown.rename(columns=titles), text_columns=("workload",))


def _largest_workloads(table: pd.DataFrame) -> pd.DataFrame:
    order = table.groupby("workload")["gpus"].max().sort_values(ascending=False, kind="stable").index[:MAX_LINES]
    shown = table[table["workload"].isin(order)].sort_values(["workload", "gpus"])
    rows = zip(shown["workload"], shown["base_gpus"], shown["unit"], strict=True)
    return shown.assign(workload=[f"{name}{BASE}{labels.count(base, unit)})" for name, base, unit in rows])


def _unit(shown: pd.DataFrame) -> str:
    return "rank" if set(shown["unit"]) == {"rank"} else "GPU"


def _lines(shown: pd.DataFrame, column: str, title: str, axis: Axes) -> None:
    gpus = f"number of {_unit(shown)}s"
    axis.set(xlabel=gpus, ylabel=title)
    if shown.empty:
        note(axis, "no workload was measured on two numbers of GPUs")
        return
    names = list(dict.fromkeys(shown["workload"]))
    colours = dict(zip(names, palette.SERIES, strict=False))
    sns.lineplot(
        data=shown, x="gpus", y=column, hue="workload", hue_order=names, palette=colours, marker="o",
        errorbar=None, linewidth=1.6, ax=axis,
    )  # fmt: skip
    axis.set(xscale="log", yscale="log", xlabel=gpus, ylabel=title)
    sizes = sorted(set(shown["gpus"]))
    axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.xaxis.set_minor_locator(plt.NullLocator())
    _label_decades(axis, shown[column].min(), shown[column].max())


def _label_decades(axis: Axes, lowest: float, highest: float) -> None:
    """Label 1, 2 and 5 of each decade on an axis of less than two, which has only one or no power of ten otherwise."""
    axis.yaxis.set_minor_formatter(NullFormatter())
    if not 0 < lowest <= highest < 100 * lowest:
        return
    decades = range(math.floor(math.log10(lowest)), math.ceil(math.log10(highest)) + 1)
    marks = [part * 10.0**decade for decade in decades for part in (1, 2, 5)]
    below = max(mark for mark in marks if mark <= lowest * (1 + 1e-9))
    above = min(mark for mark in [*marks, 10 * marks[-3]] if mark > highest)
    axis.set_ylim(below, above)
    axis.yaxis.set_major_locator(FixedLocator([mark for mark in marks if below <= mark <= above]))


def _legend(figure: Figure, *axes: Axes) -> None:
    """Draw one legend below the axes: names of workloads are too long for beside them."""
    handles, labels = axes[0].get_legend_handles_labels()
    for axis in axes:
        if (own := axis.get_legend()) is not None:
            own.remove()
    if handles:
        figure.legend(
            handles, map(_short, labels), loc="outside lower center", ncols=1, frameon=False, fontsize="small"
        )


def _short(label: str) -> str:
    name, mark, base = label.rpartition(BASE)
    return (name if len(name) <= MAX_LABEL_LENGTH else f"{name[:MAX_LABEL_LENGTH]}\u2026") + mark + base
