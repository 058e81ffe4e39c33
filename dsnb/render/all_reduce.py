"""An all-reduce test as a table in the columns of nccl-tests, and a figure of bus bandwidth against message size."""

import html
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from dsnb.render import palette, tables
from dsnb.render.picture import PLAIN_TICKS, Picture
from dsnb.render.tables import Html
from dsnb.run_folder import record_schema
from dsnb.runs.load import load_bandwidth, newest_bandwidth_test

NCCL_TYPES = {"float32": "float"}


def format_table(table: pd.DataFrame) -> pd.DataFrame:
    """Format the table as nccl-tests prints it, indexed by message size."""
    columns = {
        "count (elements)": tables.format_column(table["count"], ".0f"),
        "type": [NCCL_TYPES.get(str(name), str(name)) for name in table["dtype"]],
        "redop": "sum",
        "time (us)": _figures(table["time_us"]),
        "algbw (GB/s)": _figures(table["algbw_gb_per_s"]),
        "busbw (GB/s)": _figures(table["busbw_gb_per_s"]),
        "#wrong": tables.format_column(table["errors"], ".0f"),
    }
    return pd.DataFrame(columns, index=pd.Index(tables.format_column(table["bytes"], ".0f"), name="size (B)"))


def _figures(values: pd.Series) -> list[str]:
    """Format numbers with two decimals, or with four significant digits below 1."""
    return ["" if pd.isna(value) else f"{value:.2f}" if value >= 1 else f"{value:.4g}" for value in values]


def section(folder: str | Path) -> Iterator[Html | Picture]:
    """Yield the parts of a report on a sweep's all-reduce test; nothing if there is none."""
    run, table = newest_bandwidth_test(folder), load_bandwidth(folder)
    if run is None or table.empty:
        return
    machine = record_schema.read(run.environment) or {}
    nodes = (record_schema.read(run.nodes) or {}).get("nodes")
    hosts = ", ".join(html.escape(str(node.get("host"))) for node in nodes or [machine])
    gpu = (record_schema.read(run.worker) or {}).get("gpu_name")
    backend = f"NCCL, {html.escape(str(gpu))}" if gpu else "gloo on CPUs"
    yield Html(
        f"<h2>Bandwidth between ranks</h2><p>In-place all-reduce over {table['ranks'].max():.0f} ranks ({backend}) "
        f"on {hosts}, {html.escape(str(machine.get('date_utc')))}. Times are the mean over calls on the slowest rank; "
        "1 GB is 1e9 bytes; busbw is algbw x 2(n-1)/n, as in nccl-tests.</p>"
    )
    if (table[["bytes", "busbw_gb_per_s"]] > 0).all(axis=1).any():
        yield plot(table)
    yield tables.to_html(format_table(table), text_columns=("type", "redop"))


def plot(table: pd.DataFrame) -> Picture:
    """Draw bus bandwidth against message size.

    Parameters
    ----------
    table
        As `load_bandwidth` returns it.
    """
    drawn = table[(table[["bytes", "busbw_gb_per_s"]] > 0).all(axis=1)]  # log axes

    def draw() -> Figure:
        figure, axis = plt.subplots(figsize=(10, 3.6), layout="constrained")
        axis.plot(drawn["bytes"], drawn["busbw_gb_per_s"], color=palette.BLUE, marker="o", markersize=4)
        axis.set_xscale("log", base=2)
        axis.set(yscale="log", xlabel="message size (bytes)", ylabel="bus bandwidth (GB/s)")
        axis.xaxis.set_major_formatter(_format_size)
        axis.yaxis.set_major_formatter(PLAIN_TICKS)
        axis.yaxis.set_minor_formatter(NullFormatter())
        return figure

    return Picture(draw, "Bus bandwidth of an all-reduce against message size")


def _format_size(value: float, _: Any) -> str:
    """Format bytes with binary units, which matplotlib's `EngFormatter` does not have."""
    power = min(int(math.log2(value)) // 10, 3) if value >= 1 else 0
    return f"{value / 1024**power:g} {('B', 'KiB', 'MiB', 'GiB')[power]}"
