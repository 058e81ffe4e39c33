"""Parts of a report by task: runs of different tasks are neither ranked nor flagged together."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from dsnb.results.runs import labels
from dsnb.results.runs.sweeps import left_out, still_to_come
from dsnb.results.runs.table import named_runs
from dsnb.results.statistics.flags import flags, load_samples
from dsnb.results.statistics.summary import summarize, unstable
from dsnb.results.statistics.tasks import tasks
from dsnb.show.render import tables
from dsnb.show.render.tables import Html, escaped

MAX_TASKS = 40
"""Tasks that a part of a report shows."""
MAX_TO_COME = 5
EMPTY = pd.Series(dtype=object)
UNUSUAL = "what is unusual"
PREDICTED = " With <code>dsnb report FOLDER --predict FOLDER</code> it predicts the others."


def to_come(runs: pd.DataFrame, folder: str | Path) -> Html:
    """List the runs of a sweep that have not finished, and the settings it left out; nothing if there are none."""
    left, planned = still_to_come(runs, folder)
    text = ""
    if left:
        names = [f"<code>{escaped(name)}</code> run {repeat}" for name, repeat in left]
        predicted = ""
        if runs.get("gpu_name", EMPTY).notna().any():
            predicted = PREDICTED
        listed = tables.first_of(names, MAX_TO_COME)
        text = (
            f"<p>{len(left):,} of {planned:,} runs of this sweep are still to come: {listed}. "
            f"This page has the runs that had finished when it was written.{predicted}</p>"
        )
    measured = set(runs.get("experiment", EMPTY))  # earlier sweeps may have run some
    skipped = [
        f"<code>{escaped(name)}</code> {escaped(why)}"
        for name, why in left_out(folder).items()
        if name not in measured
    ]
    if skipped:
        count = labels.count(len(skipped), "setting")
        listed = tables.first_of(skipped, MAX_TO_COME)
        text += f"<p>Not run, because they are predicted not to fit ({count}): {listed}.</p>"
    return Html(text)


def sections(
    runs: pd.DataFrame, part: Callable[[pd.DataFrame], object], heading: str = "h3"
) -> Html:
    """Apply `part` to the runs of each task; with several tasks, each result has a title."""
    every = tasks(runs)
    text = ""
    for task in every[:MAX_TASKS]:
        shown = str(part(task.runs))
        if shown:
            title = task.title if len(every) > 1 else ""
            text += f"{tables.subheading(title, heading)}{shown}"
    left = len(every) - MAX_TASKS
    if left > 0:
        text += f"<p>{labels.count(left, 'more task')} not shown here.</p>"
    return Html(text)


def medians(runs: pd.DataFrame) -> Html:
    """Return a table of medians for each task, fastest setting first, unstable settings last."""
    return sections(
        named_runs(runs).assign(sweep=""), _ranked
    )  # the same name for a setting on the whole page


def _ranked(runs: pd.DataFrame) -> Html:
    summary = summarize(runs, metrics="all").sort_values(
        "tokens_per_s_median", ascending=False, kind="stable"
    )
    no_rank = summary.index.isin(unstable(runs))
    ranked = pd.concat([summary[~no_rank], summary[no_rank]])
    shown = tables.format_summary(ranked, labels.common_unit(runs))
    return tables.to_html(shown, (tables.VARIES,), which="the fastest")


def meanings(runs: pd.DataFrame) -> Html:
    """Return the meaning of each metric in the summary table as a definition list."""
    summary = summarize(runs, metrics="all")
    shown = tables.format_summary(summary)
    unit = labels.common_unit(runs)
    masked = runs.get("masked_flops_pct", EMPTY).dropna()
    items = ""
    for name, label in labels.METRIC_LABELS.items():
        if not label.about or label.heading not in shown:
            continue
        about = label.about
        if name == "tflops_per_gpu" and len(masked):
            about += f" It is {tables.ends(f'{masked.min():.1f}', f'{masked.max():.1f}')} % of the values here."
        items += f"<dt>{escaped(label.heading.replace('GPU', unit))}</dt><dd>{escaped(about)}</dd>"
    return Html(f"<dl>{items}</dl>" if items else "")


def runs_to_look_at(runs: pd.DataFrame, steps: pd.DataFrame | None = None) -> Html:
    """List the runs of each task that have a note or a flag; nothing if none has."""
    runs = runs.reset_index(drop=True)
    unusual = flags(runs, steps, load_samples(runs))["words"].reset_index(drop=True)
    notes = runs.reindex(columns=["note"])["note"].fillna("")
    runs[UNUSUAL] = unusual.str.cat(notes.astype(str), sep="; ").str.strip("; ")
    if (runs[UNUSUAL] == "").all():
        return Html("")
    about = (
        "They count in every figure: if it is a disturbance, repeat the run; "
        "if the setting causes it, it is a result."
    )
    listed = sections(runs, lambda part: _listing(part[part[UNUSUAL] != ""], UNUSUAL), "h4")
    return Html(f"<h3>Runs to look at</h3><p>{about}</p>{listed}")


def failures(runs: pd.DataFrame) -> Html:
    """List the failed runs of each task with their causes."""
    if (runs["status"] == "ok").all():
        return Html("<p>None: all runs succeeded.</p>")
    return sections(runs, lambda part: _listing(part[part["status"] != "ok"], "status", "cause"))


def _listing(runs: pd.DataFrame, *columns: str) -> str:
    """Return runs with these columns as a table; empty without runs."""
    if runs.empty:
        return ""
    table = runs[["experiment", "repeat", *columns]].astype({"repeat": "Int64"})
    return str(tables.to_html(table, text_columns=("experiment", columns[-1]), index=False))
