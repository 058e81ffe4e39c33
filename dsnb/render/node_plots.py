"""The figure of the spread between groups of nodes: throughput per node of every group, and which are slow."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dsnb.analysis import slow_nodes
from dsnb.render import palette
from dsnb.render.picture import PLAIN_TICKS, Picture

POINT, SLOW, FAILED, EXPECTED = palette.BLUE, palette.VERMILION, palette.WINE, palette.GREEN
"""Each has a marker or line of its own as well, so that colour is never the only difference."""
MAX_PANELS = 4
MAX_LABELS = 8
MAX_LABEL_LENGTH = 32
HALF_WIDTH = 0.36
"""Of the column of one group size, in which groups are drawn side by side in their order."""


def spread(table: pd.DataFrame) -> Picture:
    """Draw samples/s per node of every group by the size of the group, with medians, expected values and slow groups.

    Parameters
    ----------
    table
        As `dsnb.analysis.node_groups.groups` returns it; at most four workloads are drawn, those with the most groups.
    """
    shown = table.assign(slow=table["off_median_pct"] < -slow_nodes.limits(table))
    names = shown.groupby("workload", sort=False).size().sort_values(ascending=False, kind="stable").index[:MAX_PANELS]

    def draw() -> Figure:
        count = max(len(names), 1)
        figure, axes = plt.subplots(
            count, 1, figsize=(10, 0.6 + 3.8 * count), layout="constrained", squeeze=False, sharex=False
        )
        for axis, name in zip(axes.flat, names, strict=False):
            _panel(shown[shown["workload"] == name], axis)
            if len(names) > 1:
                axis.set_title(_short(str(name), 110), fontsize="medium", loc="left")
        if not len(names):
            axes.flat[0].set_axis_off()
        _legend(figure, shown)
        return figure

    return Picture(draw, "Samples per second per node of every group of nodes, by group size")


def _panel(part: pd.DataFrame, axis: Axes) -> None:
    sizes = sorted(part["nodes"].dropna().unique())
    ended = part["per_node"].dropna()
    span = _limits(ended, part["expected_per_node"], axis)
    for place, size in enumerate(sizes):
        of_size = part[part["nodes"] == size]
        at = [place + step for step in _side_by_side(len(of_size))]
        _points(of_size.assign(at=at), span[0] + 0.03 * (span[1] - span[0]), axis)
        for _, same in of_size.groupby("experiment", sort=False):
            _median(same, place, axis)
    for value in part["expected_per_node"].dropna().unique():
        axis.axhline(value, color=EXPECTED, linestyle="--", linewidth=1.3)
    axis.set(xlabel="nodes per group", ylabel="samples/s per node", xlim=(-0.6, max(len(sizes), 1) - 0.4))
    axis.set_xticks(range(len(sizes)), [f"{size:g}" for size in sizes])
    axis.yaxis.set_major_formatter(PLAIN_TICKS)


def _limits(ended: pd.Series, expected: pd.Series, axis: Axes) -> tuple[float, float]:
    """Limit the axis to the range of the values instead of starting at 0: differences are a few per cent."""
    values = pd.concat([ended, expected.dropna()])
    if values.empty:
        axis.set(ylim=(0, 1), yticks=[])
        return 0.0, 1.0
    room = max(values.max() - values.min(), 0.04 * abs(values.max()))
    span = values.min() - 0.28 * room, values.max() + 0.12 * room
    axis.set_ylim(*span)
    return span


def _side_by_side(count: int) -> list[float]:
    width = min(HALF_WIDTH, 0.04 * (count - 1))
    return [width * (2 * number / max(count - 1, 1) - 1) for number in range(count)]


def _points(groups: pd.DataFrame, floor: float, axis: Axes) -> None:
    measured = groups.dropna(subset="per_node")
    fine, slow = measured[~measured["slow"]], measured[measured["slow"]]
    axis.scatter(fine["at"], fine["per_node"], s=22, color=POINT, edgecolor=palette.SURFACE, linewidth=0.5, zorder=3)
    axis.scatter(
        slow["at"], slow["per_node"], s=46, color=SLOW, marker="v", edgecolor=palette.SURFACE, linewidth=0.5, zorder=4
    )
    failed = groups[groups["verdict"].eq("fail") & groups["per_node"].isna()]
    axis.scatter(failed["at"], [floor] * len(failed), s=34, color=FAILED, marker="x", linewidth=1.6, zorder=4)
    _label(slow.assign(y=slow["per_node"]), SLOW, axis)
    _label(failed.assign(y=floor), FAILED, axis)


def _label(groups: pd.DataFrame, colour: str, axis: Axes) -> None:
    """Label the points of single hosts with their names; larger groups have too many."""
    named = groups[groups["hosts"].notna()]
    named = named[~named["hosts"].str.contains(",")] if len(named) else named
    for row in named.head(MAX_LABELS).to_dict("records"):
        axis.annotate(
            _short(row["hosts"], MAX_LABEL_LENGTH), (row["at"], row["y"]), xytext=(7, 0), textcoords="offset points",
            va="center", fontsize="small", color=colour, zorder=5,
            bbox={"facecolor": palette.SURFACE, "edgecolor": "none", "alpha": 0.75, "pad": 0.8},
        )  # fmt: skip


def _median(same: pd.DataFrame, place: int, axis: Axes) -> None:
    median, limit = same["median_per_node"].median(), slow_nodes.limits(same).median()
    left, right = place - HALF_WIDTH - 0.05, place + HALF_WIDTH + 0.05
    axis.hlines(median, left, right, color=palette.INK, linewidth=1.4, zorder=2)
    if pd.notna(limit):
        axis.hlines(median * (1 - limit / 100), left, right, color=SLOW, linestyle=":", linewidth=1.3, zorder=2)


def _legend(figure: Figure, shown: pd.DataFrame) -> None:
    entries = [
        (Line2D([], [], color=POINT, marker="o", linestyle=""), "group", True),
        (Line2D([], [], color=palette.INK), "median of the group size", True),
        (Line2D([], [], color=SLOW, linestyle=":"), "limit for slow", slow_nodes.limits(shown).notna().any()),
        (Line2D([], [], color=SLOW, marker="v", linestyle=""), "slow", shown["slow"].any()),
        (Line2D([], [], color=FAILED, marker="x", linestyle=""), "failed", shown["per_node"].isna().any()),
        (Line2D([], [], color=EXPECTED, linestyle="--"), "expected", shown["expected_per_node"].notna().any()),
    ]
    used = [(handle, label) for handle, label, is_there in entries if is_there]
    figure.legend(*zip(*used, strict=True), loc="outside upper center", ncols=len(used), frameon=False)


def _short(text: str, max_length: int) -> str:
    return text if len(text) <= max_length else f"{text[: max_length - 1]}\u2026"
