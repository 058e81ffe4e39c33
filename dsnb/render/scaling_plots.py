"""Figures of scaling: throughput, efficiency and days against the number of GPUs, with the ideal as dotted lines."""

import math
from collections.abc import Iterable

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, NullFormatter, PercentFormatter

from dsnb.analysis.scaling import super_linear
from dsnb.render import palette
from dsnb.render.picture import PLAIN_TICKS, Picture, note, shared_legend
from dsnb.render.tables import Html, bullet_list, number_table
from dsnb.runs import labels

MAX_LINES = len(palette.SERIES)
MAX_LABEL_LENGTH = 120


def throughput(table: pd.DataFrame) -> Picture:
    """Draw tokens/s and efficiency against GPUs; dotted lines are ideal, bars span the lowest to the highest run.

    Parameters
    ----------
    table
        As `dsnb.analysis.scaling.scaling` returns it; at most eight workloads are drawn, those on the most GPUs.
    """
    shown, unit = _largest_workloads(table), _unit(table)

    def draw() -> Figure:
        figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
        _lines(shown, "tokens_per_s", f"tokens/s of all {unit}s", left)
        left.yaxis.set_major_formatter(EngFormatter())
        for colour, part in _coloured(shown):
            left.vlines(part["gpus"], part["lowest"], part["highest"], color=colour, linewidth=2.5, alpha=0.6)
        _lines(shown, "efficiency", f"efficiency (% of tokens/s/{unit} at the base)", right)
        right.set(
            yscale="linear", ylim=(0, shown["efficiency"].max() * 1.05 if (shown["efficiency"] > 1.05).any() else 1.1)
        )
        right.yaxis.set_major_formatter(PercentFormatter(xmax=1))
        shared_legend(figure, "lower center", columns=1)
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
        shared_legend(figure, "lower center", columns=1)
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
    """Return the workloads on the most GPUs, with the base in their names, and the ideal of each figure."""
    order = table.groupby("workload")["gpus"].max().sort_values(ascending=False, kind="stable").index[:MAX_LINES]
    shown = table[table["workload"].isin(order)].sort_values(["workload", "gpus"])
    names = [name if len(name) <= MAX_LABEL_LENGTH else f"{name[:MAX_LABEL_LENGTH]}…" for name in shown["workload"]]
    return shown.assign(
        title=[
            f"{name} (base: {labels.count(base, unit)})"
            for name, base, unit in zip(names, shown["base_gpus"], shown["unit"], strict=True)
        ],
        ideal_tokens_per_s=shown["tokens_per_s"] / shown["efficiency"],
        ideal_days=shown["days"] * shown["efficiency"],
        ideal_efficiency=1.0,
    )


def _unit(shown: pd.DataFrame) -> str:
    return "rank" if set(shown["unit"]) == {"rank"} else "GPU"


def _coloured(shown: pd.DataFrame) -> Iterable[tuple[str, pd.DataFrame]]:
    parts = (part for _, part in shown.groupby("workload", sort=False))
    return zip(palette.SERIES, parts, strict=False)


def _lines(shown: pd.DataFrame, column: str, title: str, axis: Axes) -> None:
    """Draw a figure and its ideal against the number of GPUs, both on logarithmic scales."""
    axis.set(xlabel=f"number of {_unit(shown)}s", ylabel=title)
    if shown.empty:
        note(axis, "no workload was measured on two numbers of GPUs")
        return
    for colour, part in _coloured(shown):
        axis.plot(part["gpus"], part[column], color=colour, marker="o", linewidth=1.6, label=part["title"].iloc[0])
        axis.plot(part["gpus"], part[f"ideal_{column}"], color=colour, linestyle=":", linewidth=1)
    axis.set(xscale="log", yscale="log")
    sizes = sorted(set(shown["gpus"]))
    axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
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
