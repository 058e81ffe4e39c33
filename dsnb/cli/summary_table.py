"""The summary for a terminal: a table for each task, the fastest setting first, with the columns that fit."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from dsnb.results.answers.card import confirmed
from dsnb.results.runs import labels
from dsnb.results.runs.labels import MEMORY, METRIC_LABELS
from dsnb.results.runs.names import short_names
from dsnb.results.runs.table import named_runs
from dsnb.results.statistics.flags import Flag, flags
from dsnb.results.statistics.summary import summarize, unstable
from dsnb.results.statistics.tasks import tasks
from dsnb.show.render import answer
from dsnb.show.render.tables import repeats_text

RATE = "tokens_per_s"
MAX_FOOTNOTES = 8
MAX_CAUSES = 3
"""Maximum lines about unusual runs, and about runs that are not ok; the report has all."""
HEADINGS = {
    "mfu": "MFU %",
    "peak_allocated_gib": "peak GiB",
    "peak_reserved_gib": "reserved GiB",
    "device_memory_gib": "GPU GiB",
    "host_memory_gib": "host GiB",
}
"""Headings of columns, shorter than elsewhere."""
FASTEST = "* fastest of this task"
NOT_OK = "not ok: "
"""How a line begins that says why a run is not ok."""


def blocks(runs: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame, list[str]]]:
    """Yield for each task a title with what all settings share, a table of texts, and lines about unusual runs.

    The index is the rest of the settings in words; the first column has `*` for the fastest and `!`
    for those with an unusual run. Drift and clocks over time, which need steps and samples, are in
    the report only.
    """
    for task in tasks(runs):
        named = in_words(named_runs(task.runs))
        summary = summarize(named, metrics="all")
        summary = summary.sort_values(f"{RATE}_median", ascending=False, kind="stable")
        no_rank = summary.index.isin(unstable(named)) | (not task.knows_gpus)
        summary = pd.concat([summary[~no_rank], summary[no_rank]])
        no_rank = np.sort(no_rank)
        shared, names = short_names([str(name) for name in summary.index])
        titles = [task.title, _place(task.runs), f"all {shared}" if shared else ""]
        unusual = flags(named).query("words != ''")
        marks = np.where(summary.index.isin(unusual["experiment"]), "!", "").tolist()
        lines = [*answer.unstable_settings(named), *answer.mixed_settings(named)]
        lines += [*_footnotes(unusual), *_causes(named)]
        is_timed = pd.notna(summary[f"{RATE}_median"].iloc[0])
        if len(names) > 1 and is_timed and not no_rank.all():
            marks[0] = f"*{marks[0]}"
            lines[:0] = filter(None, [FASTEST, confirmed(named)])
        table = _texts(summary, no_rank).set_axis(names)
        table.insert(0, "", marks)
        yield ", ".join(filter(None, titles)), table, lines


def in_words(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs whose experiments are named by their settings in words, where these tell them apart."""
    firsts = runs.drop_duplicates("experiment")
    rows = firsts.to_dict("records")
    settings = pd.Series([labels.setting(row) for row in rows], firsts["experiment"])
    places = [labels.place(row) for row in rows]
    named = settings
    if len(set(places)) > 1:
        if _place(runs):  # all are on one kind of hardware
            places = [labels.choice(row, "gpus") for row in rows]
        named = settings + ", " + places
    is_clear = settings.ne("") & ~named.duplicated(keep=False)
    named = named.where(is_clear, named.index)
    # a name in words has no sweep, and one that is left has it
    return runs.assign(experiment=runs["experiment"].map(named), sweep="")


def _footnotes(unusual: pd.DataFrame) -> list[str]:
    rows = unusual[unusual["flags"] != (Flag.UNSTABLE,)]  # said of the setting
    shown = rows.head(MAX_FOOTNOTES).itertuples()
    lines = [f"! {row.experiment}, run {row.repeat}: {row.words}" for row in shown]
    if len(rows) > MAX_FOOTNOTES:
        lines.append(f"! and {len(rows) - MAX_FOOTNOTES} more runs: see the report")
    return lines


def _causes(runs: pd.DataFrame) -> list[str]:
    bad = runs[runs["status"] != "ok"]
    lines = []
    for row in bad.head(MAX_CAUSES).itertuples():
        run = "" if pd.isna(row.repeat) else f", run {row.repeat:.0f}"
        cause = "" if pd.isna(row.cause) else f", {row.cause}"
        lines.append(f"{NOT_OK}{row.experiment}{run}: {row.status}{cause}")
    if len(bad) > MAX_CAUSES:
        more = len(bad) - MAX_CAUSES
        lines.append(f"{NOT_OK}{more} more; `dsnb report` lists every cause")
    return lines


def _place(runs: pd.DataFrame) -> str:
    """Return where the runs ran, such as "on 4 NVIDIA H200"; without the number, or empty, if they differ."""
    columns = runs.reindex(columns=["gpus", "gpu_name", "device"]).astype(object)
    hardware = columns.drop_duplicates().to_dict("records")
    places = {labels.place(run) for run in hardware if pd.notna(run["gpus"])}
    names = {labels.text(run["gpu_name"]) for run in hardware}
    if len(places) == 1:
        return f"on {places.pop()}"
    if labels.common_unit(runs) == "rank":
        return "on CPU ranks"
    if len(names) == 1 and names != {"-"}:
        return f"on {names.pop()}"
    return ""


def _texts(summary: pd.DataFrame, no_rank: np.ndarray) -> pd.DataFrame:
    def medians(name: str) -> list[str]:
        return repeats_text(summary, name, METRIC_LABELS[name].digits)

    table = pd.DataFrame(index=summary.index)
    counts = zip(summary["n"], summary["n_failed"], strict=True)
    table["runs"] = [f"{n}, {failed} not ok" if failed else f"{n}" for n, failed in counts]
    table["tokens/s"] = medians(RATE)
    rates = summary[f"{RATE}_median"].mask(no_rank)
    if rates.notna().sum() > 1:
        changes = (100 * (rates / rates.max() - 1)).map("{:+.1f} %".format)
        changes = changes.str.replace("-", "\N{MINUS SIGN}")
        table["vs best"] = changes.mask(rates.isna(), "").mask(rates == rates.max(), "best")
        table.loc[no_rank, "vs best"] = "unstable"
    measured = [name for name in (*MEMORY, "mfu") if summary[f"{name}_median"].notna().any()]
    memory = [name for name in measured if name != "mfu"]
    for name in (*memory[:1], *measured[len(memory) :]):
        table[HEADINGS[name]] = medians(name)
    return table.loc[:, (table != "").any()]
