"""Parts of a report by task: runs of different tasks are neither ranked nor flagged together."""

import html
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
from dsnb.show.render.tables import Html

MAX_TASKS = 40
"""Tasks that a part of a report shows."""
MAX_TO_COME = 5
UNUSUAL = "what is unusual"
PREDICTED = " With <code>dsnb report FOLDER --predict FOLDER</code> it predicts the others."


def to_come(runs: pd.DataFrame, folder: str | Path) -> Html:
    """List the runs of a sweep that have not finished, and the settings it left out; nothing if there are none."""
    left, planned = still_to_come(runs, folder)
    measured = (
        set(runs["experiment"]) if "experiment" in runs else set()
    )  # earlier sweeps may have run some
    skipped = [
        f"{_code(name)} {html.escape(why)}"
        for name, why in left_out(folder).items()
        if name not in measured
    ]
    text = ""
    if left:
        names = _first([f"{_code(name)} run {repeat}" for name, repeat in left])
        on_gpus = "gpu_name" in runs and runs["gpu_name"].notna().any()
        text = (
            f"<p>{len(left):,} of {planned:,} runs of this sweep are still to come: {names}. "
            f"This page has the runs that had finished when it was written.{PREDICTED if on_gpus else ''}</p>"
        )
    if skipped:
        count = labels.count(len(skipped), "setting")
        text += (
            f"<p>Not run, because they are predicted not to fit ({count}): {_first(skipped)}.</p>"
        )
    return Html(text)


def _code(name: str) -> str:
    return f"<code>{html.escape(name)}</code>"


def _first(texts: list[str]) -> str:
    rest = len(texts) - MAX_TO_COME
    return "; ".join(texts[:MAX_TO_COME]) + (f"; and {rest:,} more" if rest > 0 else "")


def sections(
    runs: pd.DataFrame, part: Callable[[pd.DataFrame], object], heading: str = "h3"
) -> Html:
    """Apply `part` to the runs of each task; with several tasks, each result has a title."""
    every = tasks(runs)
    texts = [(task.title, str(part(task.runs))) for task in every[:MAX_TASKS]]
    several = len(every) > 1
    titled = [
        f"{tables.subheading(title if several else '', heading)}{text}"
        for title, text in texts
        if text
    ]
    left = len(every) - MAX_TASKS
    return Html(
        "".join(titled)
        + (f"<p>{labels.count(left, 'more task')} not shown here.</p>" if left > 0 else "")
    )


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
    return tables.to_html(
        tables.format_summary(ranked, labels.common_unit(runs)),
        (tables.VARIES,),
        which="the fastest",
    )


def meanings(runs: pd.DataFrame) -> Html:
    """Return the meaning of each metric in the summary table as a definition list."""
    summary = summarize(runs, metrics="all")
    columns, unit, metrics = (
        tables.format_summary(summary),
        labels.common_unit(runs),
        labels.METRIC_LABELS,
    )
    about = {
        label.heading: label.about
        for label in metrics.values()
        if label.about and label.heading in columns
    }
    masked = runs["masked_flops_pct"].dropna() if "masked_flops_pct" in runs else ()
    if len(masked) and summary["tflops_per_gpu_median"].notna().any():
        shares = dict.fromkeys(f"{share:.1f}" for share in (min(masked), max(masked)))
        about[metrics["tflops_per_gpu"].heading] += (
            f" It is {' to '.join(shares)} % of the values here."
        )
    items = "".join(
        f"<dt>{html.escape(heading.replace('GPU', unit))}</dt><dd>{html.escape(text)}</dd>"
        for heading, text in about.items()
    )
    return Html(f"<dl>{items}</dl>" if items else "")


def runs_to_look_at(runs: pd.DataFrame, steps: pd.DataFrame | None = None) -> Html:
    """List the runs of each task that have a note, or that `dsnb.results.statistics.flags` finds unusual; nothing if none has."""
    runs = runs.reset_index(drop=True)
    notes = runs.get("note", pd.Series("", runs.index)).fillna("")
    unusual = flags(runs, steps, load_samples(runs))["words"]
    runs[UNUSUAL] = ["; ".join(filter(None, texts)) for texts in zip(unusual, notes, strict=True)]
    if (runs[UNUSUAL] == "").all():
        return Html("")
    about = "They count in every figure: if it is a disturbance, repeat the run; if the setting causes it, it is a result."
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
