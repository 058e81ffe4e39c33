"""What a report says of runs on several nodes: efficiency, the spread between groups, suspects, differences.

Nothing at all where there were no several nodes: a report on one machine is as it would be without this.
"""

import html

import pandas as pd

from dsnb.analysis import node_differences, node_groups, scaling, slow_nodes
from dsnb.errors import SettingsError
from dsnb.render import node_plots, scaling_plots, tables
from dsnb.render.plots import Picture
from dsnb.render.tables import Html

POINTS = (
    "Every group of nodes is one point: the median of its runs. They stand side by side in the order of their runs."
)
TITLES = {
    "nodes": "nodes",
    "hosts": "hosts",
    "statuses": "runs",
    "per_node": "samples/s per node",
    "off_median_pct": "off the median (%)",
    "expected_per_node": "expected",
    "verdict": "verdict",
    "cause": "cause",
}


def section(runs: pd.DataFrame, efficiency: bool = True) -> list[Html | Picture]:
    """Give the parts of a report on several nodes, to be displayed one after the other.

    Parameters
    ----------
    runs
        One row a run, as `dsnb.load_runs` gives it.
    efficiency
        Begin with the chart of throughput and efficiency relative to one node, where several sizes were measured.

    Returns
    -------
    list of Html and Picture
        Empty where no runs tell of more than one node or group.
    """
    table = node_groups.groups(runs)
    if not (table["nodes"].gt(1).any() or table["hosts"].nunique() > 1):
        return []
    parts: list[Html | Picture] = [Html("<h2>Nodes</h2>"), _list(slow_nodes.describe(table))]
    sizes = scaling.scaling(runs[runs["hosts"].notna()], scaling.gpus_per_node(runs))
    if efficiency and len(sizes):
        parts += [tables.subheading("Efficiency, relative to one node"), scaling_plots.throughput(sizes)]
    if table["hosts"].nunique() > 1:
        parts += [tables.subheading("The spread between groups"), Html(f"<p>{POINTS}</p>"), node_plots.spread(table)]
    parts += [tables.subheading("The groups"), group_table(table)]
    if found := node_differences.differences(runs):
        parts += [tables.subheading("In what the nodes differ"), _list(found)]
    return parts


def compare_groups(runs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """Give the groups for a terminal: as numbers, as texts, and what they say in words.

    Raises
    ------
    SettingsError
        If no run has chosen its hosts.
    """
    table = node_groups.groups(runs)
    if table.empty:
        raise SettingsError("no run here was made on hosts of a hostfile: there are no groups of nodes to compare")
    by_name = table.set_index("experiment")
    texts = readable(table).drop(columns="experiment", errors="ignore").set_index(by_name.index)
    return by_name, texts, slow_nodes.describe(table)


def group_table(table: pd.DataFrame) -> Html:
    """Give the groups as a table, those that failed and the slowest first where there are too many to read."""
    if len(table) > tables.MOST_ROWS:
        table = table.assign(failed=table["verdict"].ne("fail")).sort_values(["failed", "off_median_pct"])
    shown = readable(table.head(tables.MOST_ROWS))
    rest = len(table) - tables.MOST_ROWS
    more = f"<p>{rest:,} more groups are not shown: they did not fail, and none is slower.</p>" if rest > 0 else ""
    return Html(f"{tables.to_html(shown, text_columns=('experiment', 'hosts', 'cause'), index=False)}{more}")


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """Give the groups as texts, without the columns that say nothing here."""
    shown = table.assign(
        nodes=[f"{value:g}" for value in table["nodes"]],
        hosts=[_hosts(value) for value in table["hosts"]],
        per_node=[_figure(value, ",.4g") for value in table["per_node"]],
        off_median_pct=[_figure(value, "+.1f") for value in table["off_median_pct"]],
        expected_per_node=[_figure(value, ",.4g") for value in table["expected_per_node"]],
        cause=table["cause"].fillna(""),
    )
    names = [name for name in TITLES if shown[name].ne("").any()]
    names = ["experiment", *names] if table["experiment"].nunique() > 1 else names
    return shown[names].rename(columns=TITLES)


def _hosts(value: object) -> str:
    if not isinstance(value, str):
        return "not known"
    names = value.split(",")
    return value if len(names) <= slow_nodes.MOST_NAMES else f"{names[0]} ... {names[-1]} ({len(names)})"


def _figure(value: float, form: str) -> str:
    return "" if pd.isna(value) else f"{value:{form}}"


def _list(sentences: list[str]) -> Html:
    return Html(f'<div class="answer"><ul>{"".join(f"<li>{html.escape(one)}</li>" for one in sentences)}</ul></div>')
