"""The section of a report on runs on several nodes: efficiency, spread between groups, slow nodes, differences.

A report on one machine has no such section.
"""

import html

import pandas as pd

from dsnb.analysis import node_differences, node_groups, scaling, slow_nodes
from dsnb.errors import SettingsError
from dsnb.render import node_plots, scaling_plots, tables
from dsnb.render.picture import Picture
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
    table = node_groups.groups(runs)
    if not (table["nodes"].gt(1).any() or table["hosts"].nunique() > 1):
        return []
    parts: list[Html | Picture] = [Html("<h2>Nodes</h2>"), _list(slow_nodes.describe(table))]
    sizes = scaling.scaling(runs[runs["hosts"].notna()], scaling.gpus_per_node(runs))
    if efficiency and len(sizes):
        parts += [tables.subheading("Efficiency, relative to one node"), scaling_plots.throughput(sizes)]
    if table["hosts"].nunique() > 1:
        parts += [tables.subheading("Spread between groups"), Html(f"<p>{POINTS}</p>"), node_plots.spread(table)]
    parts += [tables.subheading("Groups"), group_table(table)]
    if found := node_differences.differences(runs):
        parts += [tables.subheading("Differences between nodes"), _list(found)]
    return parts


def compare_groups(runs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """Return the groups of nodes for a terminal: as numbers, as text, and the conclusions in sentences.

    Raises
    ------
    SettingsError
        If no run was started with a hostfile.
    """
    table = node_groups.groups(runs)
    if table.empty:
        raise SettingsError(
            "no run used a hostfile, so there are no groups of nodes to compare: choose the folder of a sweep that did"
        )
    by_name = table.set_index("experiment")
    texts = format_groups(table).drop(columns="experiment", errors="ignore").set_index(by_name.index)
    return by_name, texts, slow_nodes.describe(table)


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
        nodes=[f"{value:g}" for value in table["nodes"]],
        hosts=[_hosts(value) for value in table["hosts"]],
        per_node=[_format(value, ",.4g") for value in table["per_node"]],
        off_median_pct=[_format(value, "+.1f").replace("-", "\N{MINUS SIGN}") for value in table["off_median_pct"]],
        expected_per_node=[_format(value, ",.4g") for value in table["expected_per_node"]],
        cause=table["cause"].fillna(""),
    )
    names = [name for name in TITLES if not shown[name].isin(["", "-"]).all()]
    names = ["experiment", *names] if table["experiment"].nunique() > 1 else names
    return shown[names].rename(columns=TITLES)


def _hosts(value: object) -> str:
    if not isinstance(value, str):
        return "unknown"
    names = value.split(",")
    return value if len(names) <= slow_nodes.MAX_NAMES else f"{names[0]} ... {names[-1]} ({len(names)})"


def _format(value: float, form: str) -> str:
    return "" if pd.isna(value) else f"{value:{form}}"


def _list(sentences: list[str]) -> Html:
    return Html(f'<div class="answer"><ul>{"".join(f"<li>{html.escape(one)}</li>" for one in sentences)}</ul></div>')
