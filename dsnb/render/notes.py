"""Notes beside the figures of runs: the meaning of each metric, and remarks on single runs."""

import html
from pathlib import Path

import pandas as pd

from dsnb.analysis.flags import flags, load_samples
from dsnb.analysis.summary import summarize
from dsnb.render import by_task, tables
from dsnb.render.tables import Html
from dsnb.runs.labels import METRIC_LABELS, common_unit
from dsnb.runs.load import Planned, left_out, still_to_come

MAX_TO_COME = 5
UNUSUAL = "what is unusual"
"""Heading of the words of flags."""
HOW_TO_PREDICT = " With <code>dsnb report FOLDER --predict FOLDER</code> it predicts those that are not there."


def to_come(runs: pd.DataFrame, folder: str | Path) -> Html:
    """Return which runs of a sweep have not ended yet, and which settings it left out; nothing if there are none."""
    left, planned = still_to_come(runs, folder)
    on_gpus = "gpu_name" in runs and runs["gpu_name"].notna().any()
    return Html(f"{_to_come(left, planned, on_gpus) if left else ''}{_left_out(runs, folder)}")


def _to_come(left: Planned, planned: int, on_gpus: bool) -> str:
    shown = [f"<code>{html.escape(name)}</code> run {repeat}" for name, repeat in left[:MAX_TO_COME]]
    more = f" and {len(left) - MAX_TO_COME:,} more" if len(left) > MAX_TO_COME else ""
    verb = "is" if len(left) == 1 else "are"
    return (
        f"<p>{len(left):,} of {planned:,} runs of this sweep {verb} still to come: {', '.join(shown)}{more}. "
        f"This page has what was there when it was written.{HOW_TO_PREDICT if on_gpus else ''}</p>"
    )


def _left_out(runs: pd.DataFrame, folder: str | Path) -> str:
    """Return which settings were not run because they were predicted not to fit; earlier sweeps may have run some."""
    measured = set(runs["experiment"]) if "experiment" in runs else set()
    found = [(name, why) for name, why in left_out(folder).items() if name not in measured]
    if not found:
        return ""
    shown = [f"<code>{html.escape(name)}</code> {html.escape(why)}" for name, why in found[:MAX_TO_COME]]
    more = f"; and {len(found) - MAX_TO_COME:,} more" if len(found) > MAX_TO_COME else ""
    were, they_are = ("setting was", "it is") if len(found) == 1 else ("settings were", "they are")
    return (
        f"<p>{len(found):,} {were} not run, because of the memory that {they_are} predicted to need: "
        f"{'; '.join(shown)}{more}.</p>"
    )


def meanings(runs: pd.DataFrame) -> Html:
    """Return the meaning of each metric in the summary table, as a list of definitions."""
    summary = summarize(runs)
    columns, unit = tables.format_summary(summary), common_unit(runs)
    about = {label.heading: label.about for label in METRIC_LABELS.values() if label.about and label.heading in columns}
    if summary["tflops_per_gpu_median"].notna().any() and (masked := _masked(runs)):
        about[METRIC_LABELS["tflops_per_gpu"].heading] += f" It is {masked} of the values here."
    about = {heading.replace("GPU", unit): text for heading, text in about.items()}
    items = "".join(f"<dt>{html.escape(title)}</dt><dd>{html.escape(text)}</dd>" for title, text in about.items())
    return Html(f"<dl>{items}</dl>" if items else "")


def _masked(runs: pd.DataFrame) -> str:
    """Return the share of the masked half of attention in the TFLOP/s; empty if no run recorded it."""
    shares = runs.get("masked_flops_pct", pd.Series(dtype=float)).dropna()
    if shares.empty:
        return ""
    low, high = f"{shares.min():.1f}", f"{shares.max():.1f}"
    return f"{low} %" if low == high else f"{low} to {high} %"


def remarks(runs: pd.DataFrame) -> Html:
    """Return the notes on single runs of each task, such as skipped steps; nothing if there are none."""
    if "note" not in runs or runs["note"].isna().all():
        return Html("")
    return Html(f"<h3>Remarks</h3>{by_task.sections(runs, lambda part: _table(part, 'note'), 'h4')}")


def runs_to_look_at(runs: pd.DataFrame, steps: pd.DataFrame | None = None) -> Html:
    """Return the runs of each task that `dsnb.analysis.flags` finds unusual, and why; nothing if there are none."""
    runs = runs.reset_index(drop=True)
    words = flags(runs, steps, load_samples(runs))["words"]
    runs = runs.assign(**{UNUSUAL: words.where(words != "")})
    if runs[UNUSUAL].isna().all():
        return Html("")
    about = (
        "They count in every figure: if it is a disturbance, repeat the run; if the setting causes it, it is a result."
    )
    return Html(
        f"<h3>Runs to look at</h3><p>{about}</p>{by_task.sections(runs, lambda part: _table(part, UNUSUAL), 'h4')}"
    )


def _table(runs: pd.DataFrame, column: str) -> str:
    """Return the runs that have a text in this column; empty without one."""
    noted = runs.loc[runs[column].notna(), ["experiment", "repeat", column]].astype({"repeat": "Int64"})
    if noted.empty:
        return ""
    return str(tables.to_html(noted, text_columns=("experiment", column), index=False))
