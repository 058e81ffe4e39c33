"""The section of a report on runs on several nodes: efficiency, spread between groups, slow hosts, differences.

A report on one machine has no such section.
"""

from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dsnb.analysis import hosts, scaling
from dsnb.errors import SettingsError
from dsnb.render import palette, scaling_plots, tables
from dsnb.render.picture import PLAIN_TICKS, Picture, shared_legend
from dsnb.render.tables import Html

POINTS = "Each point is the median of one group of nodes; groups are side by side in the order of their runs."
TITLES = {
    "nodes": "nodes",
    "hosts": "hosts",
    "per_node": "samples/s per node",
    "off_median_pct": "off median (%)",
    "statuses": "runs",
    "expected_per_node": "expected",
    "verdict": "verdict",
    "cause": "cause",
}
MAX_PANELS, MAX_LABELS = 4, 8
HALF_WIDTH = 0.36
"""Of the column of one group size, in which groups are drawn side by side in their order."""


def section(runs: pd.DataFrame, efficiency: bool = True) -> list[Html | Picture]:
    """Return the parts of the section, to be displayed one after the other.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` returns it.
    efficiency
        Whether to begin with the chart of throughput and efficiency, if several numbers of nodes were measured.

    Returns
    -------
    list of Html and Picture
        Empty if no runs have more than one node or group.
    """
    table = hosts.groups(runs)
    if not (table["nodes"].gt(1).any() or table["hosts"].nunique() > 1):
        return []
    parts: list[Html | Picture] = [Html("<h2>Nodes</h2>"), _list(hosts.describe(table))]
    sizes = scaling.scaling(runs[runs["hosts"].notna()], scaling.gpus_per_node(runs))
    if efficiency and len(sizes):
        parts += [tables.subheading("Efficiency, relative to one node"), scaling_plots.throughput(sizes)]
    if table["hosts"].nunique() > 1:
        parts += [tables.subheading("Spread between groups"), Html(f"<p>{POINTS}</p>"), spread(table)]
    parts += [tables.subheading("Groups"), group_table(table)]
    if found := hosts.differences(runs):
        parts += [tables.subheading("Differences between nodes"), _list(found)]
    return parts


def _list(sentences: list[str]) -> Html:
    return Html(f'<div class="answer">{tables.bullet_list(sentences)}</div>')


def compare_groups(runs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """Return the groups of nodes for a terminal: as numbers, as text, and the conclusions in sentences.

    Raises
    ------
    SettingsError
        If no run was started with a hostfile.
    """
    table = hosts.groups(runs)
    if table.empty:
        raise SettingsError(
            "no run used a hostfile, so there are no groups of nodes to compare: choose the folder of a sweep that did"
        )
    by_name = table.set_index("experiment")
    texts = format_groups(table).drop(columns="experiment", errors="ignore").set_index(by_name.index)
    return by_name, texts, hosts.describe(table)


def group_table(table: pd.DataFrame) -> Html:
    """Return the groups as HTML; if there are more than `tables.MAX_ROWS`, those that failed and the slowest."""
    if len(table) > tables.MAX_ROWS:
        table = table.assign(failed=table["verdict"].ne("fail")).sort_values(["failed", "off_median_pct"])
    shown = format_groups(table.head(tables.MAX_ROWS))
    rest = len(table) - tables.MAX_ROWS
    more = f"<p>{rest:,} more groups are not shown: none of them failed or is slower.</p>" if rest > 0 else ""
    return Html(f"{tables.to_html(shown, text_columns=('experiment', 'hosts', 'cause'), index=False)}{more}")


def format_groups(table: pd.DataFrame) -> pd.DataFrame:
    """Format the groups as text, without empty columns."""
    shown = table.assign(
        nodes=tables.format_column(table["nodes"], "g"),
        hosts=[_hosts(value) for value in table["hosts"]],
        per_node=tables.format_column(table["per_node"], ",.4g"),
        off_median_pct=tables.format_column(table["off_median_pct"], "+.1f"),
        expected_per_node=tables.format_column(table["expected_per_node"], ",.4g"),
        cause=table["cause"].fillna(""),
    )
    names = [name for name in TITLES if not shown[name].isin(["", "-"]).all()]
    names = ["experiment", *names] if table["experiment"].nunique() > 1 else names
    return shown[names].rename(columns=TITLES)


def _hosts(value: object) -> str:
    if not isinstance(value, str):
        return "unknown"
    names = value.split(",")
    return value if len(names) <= hosts.MAX_NAMES else f"{names[0]} ... {names[-1]} ({len(names)})"


def spread(table: pd.DataFrame) -> Picture:
    """Draw samples/s per node of every group by the size of the group, with medians, expected values and slow groups.

    Parameters
    ----------
    table
        As `dsnb.analysis.hosts.groups` returns it; at most four workloads are drawn, those with the most groups.
    """
    shown = table.assign(slow=hosts.is_slow(table))
    names = shown.groupby("workload", sort=False).size().sort_values(ascending=False, kind="stable").index[:MAX_PANELS]

    def draw() -> Figure:
        count = len(names)
        figure, axes = plt.subplots(count, 1, figsize=(10, 0.6 + 3.8 * count), layout="constrained", squeeze=False)
        for axis, name in zip(axes.flat, names, strict=True):
            _panel(shown[shown["workload"] == name], axis)
            axis.set_title(f"{name:.110}" if count > 1 else "", fontsize="medium", loc="left")
        shared_legend(figure, "upper center")
        return figure

    return Picture(draw, "Samples per second per node of every group of nodes, by group size")


def _panel(part: pd.DataFrame, axis: Axes) -> None:
    """Draw one workload; the axis does not begin at 0: differences are a few per cent."""
    part = part.dropna(subset="nodes")
    sizes = sorted(part["nodes"].unique())
    beside = part.groupby("nodes")["nodes"].transform("size") - 1
    step = (2 * HALF_WIDTH / beside.clip(lower=1)).clip(upper=0.08)
    part = part.assign(at=part["nodes"].map(sizes.index) + step * (part.groupby("nodes").cumcount() - beside / 2))
    slow = part[part["slow"]]
    kinds = [("group", part[~part["slow"]], palette.BLUE, "o"), ("slow", slow, palette.VERMILION, "v")]
    for label, groups, colour, marker in kinds:
        if len(groups):
            axis.scatter(groups["at"], groups["per_node"], color=colour, marker=marker, zorder=3, label=label)
    for row in slow[slow["nodes"] == 1].head(MAX_LABELS).itertuples():
        look: dict[str, Any] = {"xytext": (7, 0), "textcoords": "offset points", "va": "center", "fontsize": "small"}
        axis.annotate(f"{row.hosts:.32}", (row.at, row.per_node), color=palette.VERMILION, **look)
    for (_, size), same in part.dropna(subset="per_node").groupby(["experiment", "nodes"], sort=False):
        ends = sizes.index(size) - HALF_WIDTH - 0.05, sizes.index(size) + HALF_WIDTH + 0.05
        median, limit_pct = same["median_per_node"].iloc[0], same["limit_pct"].iloc[0]
        axis.hlines(median, *ends, color=palette.INK, linewidth=1.4, label="median of the group size")
        if pd.notna(limit_pct):
            low = median * (1 - limit_pct / 100)
            axis.hlines(low, *ends, color=palette.VERMILION, linestyle=":", linewidth=1.3, label="limit for slow")
    for value in part["expected_per_node"].dropna().unique():
        axis.axhline(value, color=palette.GREEN, linestyle="--", linewidth=1.3, label="expected")
    axis.set(xlabel="nodes per group", ylabel="samples/s per node", xlim=(-0.6, len(sizes) - 0.4))
    axis.set_xticks(range(len(sizes)), [f"{size:g}" for size in sizes])
    axis.margins(y=0.15)
    axis.yaxis.set_major_formatter(PLAIN_TICKS)
