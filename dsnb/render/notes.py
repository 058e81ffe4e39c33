"""What must be said beside the figures of runs: what each of them means, and what is odd about single runs."""

import html

import pandas as pd

from dsnb.analysis.summary import summarize
from dsnb.render import tables
from dsnb.render.tables import Html
from dsnb.runs.labels import METRIC_LABELS


def meanings(runs: pd.DataFrame) -> Html:
    """Return what a reader must know of each figure of the summary table, as a list of definitions."""
    summary = summarize(runs)
    shown = tables.readable(summary)
    told = {words.heading: words.about for words in METRIC_LABELS.values() if words.about and words.heading in shown}
    if summary["tflops_per_gpu_median"].notna().any() and (masked := _masked(runs)):
        told[METRIC_LABELS["tflops_per_gpu"].heading] += f" It makes {masked} of the figures here."
    items = "".join(f"<dt>{html.escape(title)}</dt><dd>{html.escape(about)}</dd>" for title, about in told.items())
    return Html(f"<dl>{items}</dl>" if items else "")


def _masked(runs: pd.DataFrame) -> str:
    """Return how much of the TFLOP/s is the masked half of attention; empty where no run tells."""
    shares = runs.get("masked_flops_pct", pd.Series(dtype=float)).dropna()
    if shares.empty:
        return ""
    low, high = f"{shares.min():.1f}", f"{shares.max():.1f}"
    return f"{low} %" if low == high else f"{low} to {high} %"


def remarks(runs: pd.DataFrame) -> Html:
    """Return what must be said of single runs, such as skipped steps; nothing where there is nothing to say."""
    noted = runs[runs["note"].notna()] if "note" in runs else runs.head(0)
    if noted.empty:
        return Html("")
    table = noted[["experiment", "repeat", "note"]].astype({"repeat": "Int64"}).head(tables.MOST_ROWS)
    shown = tables.to_html(table, text_columns=("experiment", "note"), index=False)
    return Html(f"<h3>Remarks</h3>{shown}")
