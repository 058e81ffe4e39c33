"""Parts of a report, task by task: runs of different tasks are neither ranked together nor warned about together."""

from collections.abc import Callable

import pandas as pd

from dsnb.analysis.summary import summarize, timing, unstable
from dsnb.analysis.tasks import tasks
from dsnb.render import tables
from dsnb.render.tables import Html
from dsnb.runs import labels
from dsnb.runs.table import named_runs

MAX_TASKS = 40
"""Tasks with a part of their own."""


def sections(runs: pd.DataFrame, part: Callable[[pd.DataFrame], object], heading: str = "h3") -> Html:
    """Return a part of each task below its title; without titles if there is one task, without what is empty.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` returns it.
    part
        Returns the HTML of the runs of one task.
    heading
        The element of the titles.
    """
    every = tasks(runs)
    texts = {task.title: str(part(task.runs)) for task in every[:MAX_TASKS]}
    several = len(every) > 1
    titled = [f"{tables.subheading(title if several else '', heading)}{text}" for title, text in texts.items() if text]
    left = len(every) - MAX_TASKS
    return Html("".join(titled) + (f"<p>{labels.count(left, 'more task')} not shown here.</p>" if left > 0 else ""))


def medians(runs: pd.DataFrame) -> Html:
    """Return a table of medians for each task, the fastest setting first, those whose repeats do not agree last."""
    known = named_runs(runs).assign(sweep="")  # one name for a setting on the whole page
    return sections(known, _ranked) if len(known) else tables.summary_table(summarize(runs), runs)


def _ranked(runs: pd.DataFrame) -> Html:
    summary = summarize(runs).sort_values("tokens_per_s_median", ascending=False, kind="stable")
    no_rank = summary.index.isin(unstable(runs))
    return tables.summary_table(pd.concat([summary[~no_rank], summary[no_rank]]), runs)


def failures(runs: pd.DataFrame) -> Html:
    """Return the runs of each task that are not ok, with their causes."""
    if (runs["status"] == "ok").all():
        return tables.failures(runs)
    return sections(runs, lambda part: tables.failures(part) if (part["status"] != "ok").any() else "")


def wall_times(runs: pd.DataFrame) -> Html:
    """Return the median wall seconds by phase for each task."""
    known = named_runs(runs).assign(sweep="")
    return sections(known, lambda part: tables.to_html(tables.format_timing(timing(part))))
