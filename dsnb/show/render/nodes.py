"""Runs on several GPUs and nodes: scaling, groups of nodes and which are slow, and the bandwidth between ranks."""

import html
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter, PercentFormatter

from dsnb.base.errors import SettingsError
from dsnb.results.answers import hosts
from dsnb.results.runs import labels
from dsnb.results.runs.names import short_names
from dsnb.results.runs.sweeps import load_bandwidth, newest_bandwidth_test
from dsnb.results.statistics import scaling
from dsnb.settings.records import record_schema
from dsnb.settings.records.run_record import RunRecord
from dsnb.show.render import palette, tables
from dsnb.show.render.picture import Picture, note, shared_legend, wrapped
from dsnb.show.render.tables import Html

MAX_LABEL_LENGTH = 120
"""Maximum characters of a line of a legend."""
MAX_LINES = 6
"""Most workloads in a figure: more colours are hard to tell apart."""
HEIGHT = 4.2
LINE_HEIGHT = 0.18
"""Inches of a figure, and of each line of its legend."""
GROUP_COLUMNS = {
    "nodes": ("nodes", "g"),
    "hosts": ("hosts", ""),
    "per_node": ("samples/s per node", ",.4g"),
    "off_median_pct": ("off median (%)", "+.1f"),
    "statuses": ("runs", ""),
    "expected_per_node": ("expected", ",.4g"),
    "verdict": ("verdict", ""),
    "cause": ("cause", ""),
}
"""Columns of groups of nodes, with their titles and formats of numbers."""


def throughput(table: pd.DataFrame) -> Picture:
    """Draw tokens/s and efficiency by number of GPUs, given a table of `dsnb.results.statistics.scaling.scaling`.

    Dotted lines are ideal scaling, bars span the lowest to the highest run. At most eight
    workloads, those on the most GPUs, are drawn.
    """
    shared, shown = _largest_workloads(table)
    unit = _unit(table)
    lines = "\n".join(shown["title"].unique()).count("\n") + 1
    height = HEIGHT + LINE_HEIGHT * lines

    def draw() -> Figure:
        figure, (left, right) = plt.subplots(1, 2, figsize=(10, height), layout="constrained")
        _lines(shown, "tokens_per_s", f"tokens/s of all {unit}s", left)
        left.yaxis.set_major_formatter(EngFormatter())
        for colour, part in _coloured(shown):
            left.vlines(
                "gpus",
                "lowest",
                "highest",
                data=part,
                color=colour,
                linewidth=2.5,
                alpha=0.6,
                label="_",
            )
        _lines(shown, "efficiency", f"efficiency (% of tokens/s/{unit} at the base)", right)
        right.set(yscale="linear", ylim=(0, max([1.1, *(1.05 * shown["efficiency"])])))
        right.yaxis.set_major_formatter(PercentFormatter(xmax=1))
        title = wrapped(f"all: {shared}", MAX_LABEL_LENGTH) if shared else ""
        shared_legend(figure, "lower center", columns=1, title=title)
        return figure

    return Picture(
        draw,
        "Tokens per second and scaling efficiency against the number of GPUs, with the ideal lines",
    )


def scaling_remarks(scaled: Collection[pd.DataFrame]) -> Html:
    """Return remarks on the efficiency in tables of `dsnb.results.statistics.scaling.scaling`."""
    if not scaled:
        return tables.bullet_list(
            [], "No workload was measured on two numbers of GPUs: there is no scaling to show."
        )
    *workloads, about = scaling.super_linear(pd.concat(scaled)) or [""]
    remarks = tables.bullet_list(
        workloads, "No workload is more efficient on more GPUs than at its base."
    )
    return Html(f"{remarks}<p>{html.escape(about)}</p>")


def scaling_table(table: pd.DataFrame) -> Html:
    """Return a table of `dsnb.results.statistics.scaling.scaling` as HTML, with units; a workload is named once."""
    unit = _unit(table)
    titles = {
        "gpus": f"{unit}s",
        "tokens_per_s": f"tokens/s of all {unit}s",
        "base_gpus": f"base ({unit}s)",
        "speed_up": "speed-up",
        "efficiency": "efficiency (%)",
        "n": "runs",
        "lowest": "lowest run (tokens/s)",
        "highest": "highest run (tokens/s)",
    }
    shared, names = _short_workloads(table)
    shown = table.assign(efficiency=100 * table["efficiency"], workload=names)
    shown["workload"] = shown["workload"].mask(table["workload"].eq(table["workload"].shift()), "")
    hidden = ["unit"]
    if table["n"].max() == 1:
        hidden += ["n", "lowest", "highest"]
    shown = shown.drop(columns=hidden).rename(columns=titles)
    return Html(f"{shared}{tables.number_table(shown, text_columns=('workload',))}")


def _short_workloads(table: pd.DataFrame) -> tuple[Html, pd.Series]:
    """Return a paragraph with what all workloads share, and the rest of the name of each row's workload."""
    whole = list(table["workload"].unique())
    if not whole:
        return Html(""), table["workload"]
    shared, names = short_names(whole)
    paragraph = f"<p>All: {html.escape(shared)}.</p>" if shared else ""
    return Html(paragraph), table["workload"].map(dict(zip(whole, names, strict=True)))


def _largest_workloads(table: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """Return the workloads on the most GPUs, what their titles share, and their other words, with the ideal figures."""
    largest = table.groupby("workload")["gpus"].max().sort_values(ascending=False, kind="stable")
    drawn = table["workload"].isin(largest.index[:MAX_LINES])
    shown = table[drawn].sort_values(["workload", "gpus"])
    wholes = shown.drop_duplicates("workload")
    bases = map(labels.count, wholes["base_gpus"], wholes["unit"])
    titles = [f"{name}, base {base}" for name, base in zip(wholes["workload"], bases, strict=True)]
    shared = ""
    if titles:
        shared, titles = short_names(titles)
    lines = [wrapped(title, MAX_LABEL_LENGTH) for title in titles]
    by_workload = dict(zip(wholes["workload"], lines, strict=True))
    return shared, shown.assign(
        title=shown["workload"].map(by_workload),
        ideal_tokens_per_s=shown["tokens_per_s"] / shown["efficiency"],
        ideal_efficiency=1.0,
    )


def _unit(shown: pd.DataFrame) -> str:
    return "rank" if set(shown["unit"]) == {"rank"} else "GPU"


def _coloured(shown: pd.DataFrame) -> Iterable[tuple[str, pd.DataFrame]]:
    parts = (part for _, part in shown.groupby("workload", sort=False))
    return zip(palette.SERIES, parts, strict=False)


def _lines(shown: pd.DataFrame, column: str, title: str, axis: Axes) -> None:
    """Draw a figure and its ideal against the number of GPUs, on logarithmic scales."""
    axis.set(xlabel=f"number of {_unit(shown)}s", ylabel=title)
    if shown.empty:
        note(axis, "no workload was measured on two numbers of GPUs")
        return
    for colour, part in _coloured(shown):
        title = part["title"].iloc[0]
        axis.plot("gpus", column, "o-", data=part, color=colour, linewidth=1.6, label=title)
        axis.plot("gpus", f"ideal_{column}", ":", data=part, color=colour, linewidth=1, label="_")
    axis.set(xscale="log", yscale="log")
    sizes = sorted(set(shown["gpus"]))
    axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axis.xaxis.set_minor_locator(plt.NullLocator())
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_minor_formatter(NullFormatter())


def section(runs: pd.DataFrame, efficiency: bool = True) -> list[Html | Picture]:
    """Return the section of a report on groups of nodes, as parts to display in turn; empty with one node or group.

    With `efficiency`, it includes the figure of throughput, if several numbers of nodes were
    measured.
    """
    table = hosts.groups(runs)
    if not (table["nodes"].gt(1).any() or table["hosts"].nunique() > 1):
        return []
    parts: list[Html | Picture] = [
        Html("<h2>Nodes</h2>"),
        _list(hosts.describe(table)),
    ]
    sizes = scaling.scaling(runs[runs["hosts"].notna()], scaling.gpus_per_node(runs))
    if efficiency and len(sizes):
        parts += [tables.subheading("Efficiency, relative to one node"), throughput(sizes)]
    if len(table) > tables.MAX_ROWS:
        ran = table["verdict"].ne("fail")
        table = table.assign(ran=ran).sort_values(["ran", "off_median_pct"])
    listing = tables.to_html(
        _format_groups(table),
        ("experiment", "hosts", "cause"),
        index=False,
        which="the failed and slowest",
    )
    parts += [tables.subheading("Groups"), listing]
    differences = hosts.node_differences(runs)
    if differences:
        parts += [tables.subheading("Differences between nodes"), _list(differences)]
    return parts


def _list(sentences: Sequence[str]) -> Html:
    return Html(f'<div class="answer">{tables.bullet_list(sentences)}</div>')


def compare_groups(runs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, Sequence[str]]:
    """Return the groups of nodes for a terminal: as numbers, as text, and conclusions in sentences."""
    table = hosts.groups(runs)
    if table.empty:
        raise SettingsError(
            "no run used a hostfile, so there are no groups of nodes to compare: choose the folder of a sweep that did"
        )
    shown = _format_groups(table).drop(columns="experiment", errors="ignore")
    by_name = table.set_index("experiment")
    return by_name, shown.set_index(by_name.index), hosts.describe(table)


def _format_groups(table: pd.DataFrame) -> pd.DataFrame:
    """Format the groups as text, without empty columns."""
    shown = table.assign(hosts=table["hosts"].map(_hosts), cause=table["cause"].fillna(""))
    columns = {"experiment": shown["experiment"]} if table["experiment"].nunique() > 1 else {}
    for name, (title, form) in GROUP_COLUMNS.items():
        values = tables.format_column(shown[name], form) if form else shown[name]
        if not set(values) <= {"", "-"}:
            columns[title] = values
    return pd.DataFrame(columns, index=table.index)


def _hosts(value: object) -> str:
    if not isinstance(value, str):
        return "unknown"
    names = value.split(",")
    if len(names) <= hosts.MAX_NAMES:
        return value
    return f"{names[0]} ... {names[-1]} ({len(names)})"


def bandwidth(folder: str | Path) -> Iterator[Html]:
    """Yield the parts of a report on a sweep's bandwidth test, if there is one."""
    run = newest_bandwidth_test(folder)
    table = load_bandwidth(folder)
    if run is None or table.empty:
        return
    record = RunRecord(run)
    nodes = (record_schema.read(run.nodes) or {}).get("nodes") or [record.environment]
    names = ", ".join(html.escape(str(node.get("host"))) for node in nodes)
    date = html.escape(str(record.environment.get("date_utc")))
    gpu = html.escape(record.worker.get("gpu_name") or "")
    backend = f"NCCL, {gpu}" if gpu else "gloo on CPUs"
    yield Html(
        f"<h2>Bandwidth between ranks</h2><p>Collectives over {table['ranks'].max():.0f} ranks ({backend}) "
        f"on {names}, {date}. Times are the mean over calls on the slowest rank; "
        "1 GB is 1e9 bytes; busbw is algbw x 2(n-1)/n, of an all-gather x (n-1)/n, as in nccl-tests.</p>"
    )
    yield tables.to_html(format_bandwidth(table), text_columns=("collective", "type", "redop"))


def format_bandwidth(table: pd.DataFrame) -> pd.DataFrame:
    """Format a bandwidth test like nccl-tests, indexed by message size."""
    columns = {
        "collective": table["collective"].tolist(),
        "count (elements)": tables.format_column(table["count"], ".0f"),
        "type": table["dtype"].replace("float32", "float").astype(str).tolist(),
        "redop": ["sum" if name == "all-reduce" else "none" for name in table["collective"]],
        "time (us)": table["time_us"].map(_two_decimals),
        "algbw (GB/s)": table["algbw_gb_per_s"].map(_two_decimals),
        "busbw (GB/s)": table["busbw_gb_per_s"].map(_two_decimals),
        "#wrong": tables.format_column(table["errors"], ".0f"),
    }
    sizes = pd.Index(tables.format_column(table["bytes"], ".0f"), name="size (B)")
    return pd.DataFrame(columns, index=table.index).set_index(sizes)


def _two_decimals(value: float) -> str:
    """Format a number with two decimals, or with four significant digits below 1."""
    if pd.isna(value):
        return ""
    return f"{value:.2f}" if value >= 1 else f"{value:.4g}"
