"""An all-reduce test as a table in nccl-tests' columns and a figure of bus bandwidth against message size."""

import html
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from dsnb.render import tables
from dsnb.render.plots import Picture
from dsnb.render.tables import Html
from dsnb.run_folder import record_schema
from dsnb.runs.all_reduce import load_bandwidth, newest

COLOUR = "#0072b2"
NCCL_TYPES = {"float32": "float"}


def texts(table: pd.DataFrame) -> pd.DataFrame:
    """Give the table as nccl-tests prints it, sizes as its index."""
    columns = {
        "count (elements)": [f"{value:.0f}" for value in table["count"]],
        "type": [NCCL_TYPES.get(str(name), str(name)) for name in table["dtype"]],
        "redop": ["sum"] * len(table),
        "time (us)": [_figure(value) for value in table["time_us"]],
        "algbw (GB/s)": [_figure(value) for value in table["algbw_gb_per_s"]],
        "busbw (GB/s)": [_figure(value) for value in table["busbw_gb_per_s"]],
        "#wrong": ["" if pd.isna(value) else f"{value:.0f}" for value in table["errors"]],
    }
    return pd.DataFrame(columns, index=pd.Index([f"{value:.0f}" for value in table["bytes"]], name="size (B)"))


def _figure(value: float) -> str:
    """Give a figure with two decimals, with four digits where it is small."""
    return "" if pd.isna(value) else f"{value:.2f}" if value >= 1 else f"{value:.4g}"


def section(folder: str | Path) -> Iterator[Html | Picture]:
    """Give what a report shows of a sweep's all-reduce test: nothing where there is none."""
    run, table = newest(folder), load_bandwidth(folder)
    if run is None or table.empty:
        return
    machine = record_schema.read(run.environment) or {}
    nodes = (record_schema.read(run.nodes) or {}).get("nodes")
    hosts = ", ".join(html.escape(str(node.get("host"))) for node in nodes or [machine])
    gpu = (record_schema.read(run.worker) or {}).get("gpu_name")
    how = f"NCCL, {html.escape(str(gpu))}" if gpu else "gloo on CPUs"
    yield Html(
        f"<h2>Bandwidth between the ranks</h2><p>All-reduce over {table['ranks'].max():.0f} ranks ({how}) "
        f"on {hosts}, {html.escape(str(machine.get('date_utc')))}: in place, the mean of "
        "the calls on the slowest rank. GB are 1e9 bytes; busbw is algbw x 2(n-1)/n, as nccl-tests has it.</p>"
    )
    if (table[["bytes", "busbw_gb_per_s"]] > 0).all(axis=1).any():
        yield picture(table)
    yield tables.to_html(texts(table), text_columns=("type", "redop"))


def picture(table: pd.DataFrame) -> Picture:
    """Draw bus bandwidth against message size.

    Parameters
    ----------
    table
        As `load_bandwidth` gives it.
    """

    def draw() -> Figure:
        figure, axis = plt.subplots(figsize=(10, 3.6), layout="constrained")
        drawn = table[(table[["bytes", "busbw_gb_per_s"]] > 0).all(axis=1)]  # what a logarithmic axis can show
        axis.plot(drawn["bytes"], drawn["busbw_gb_per_s"], color=COLOUR, marker="o", markersize=4)
        _scales(axis)
        axis.set(xlabel="message size", ylabel="busbw (GB/s)")
        return figure

    return Picture(draw, "Bus bandwidth of an all-reduce against the size of the message")


def _scales(axis: Axes) -> None:
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.xaxis.set_major_formatter(FuncFormatter(_size))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _size(value: float, _: Any) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:g} {unit}"
        value /= 1024
    raise AssertionError
