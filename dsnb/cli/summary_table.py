"""The summary for a terminal: a table for each task, the fastest setting first, with the columns that fit."""

from collections.abc import Iterator, Sequence

import pandas as pd
from rich.cells import cell_len

from dsnb.results.runs import labels
from dsnb.results.runs.labels import MEMORY, METRIC_LABELS
from dsnb.results.runs.table import named_runs
from dsnb.results.statistics.flags import Flag, flags
from dsnb.results.statistics.summary import summarize, unstable
from dsnb.results.statistics.tasks import knows_gpus, tasks
from dsnb.show.render import answer
from dsnb.show.render.tables import repeats_text

RATE = "tokens_per_s"
MAX_FOOTNOTES, MAX_CAUSES = 8, 3
"""Maximum lines about unusual runs, and about runs that are not ok; the report has all."""
FASTEST = "* fastest of this task"
MIN_COLUMNS, BETWEEN = 2, 2
"""Columns that are always shown (runs and tokens/s), and spaces between columns."""


def blocks(runs: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame, list[str]]]:
    """Yield for each task a title with the common part of all names, a table of texts, and lines about unusual runs.

    The index is the rest of the names, with `*` before the fastest and `!` after those with an unusual run. Drift and
    clocks over time, which need steps and samples, are in the report only.
    """
    for task in tasks(runs):
        summary = summarize(task.runs, metrics="all").sort_values(
            f"{RATE}_median", ascending=False, kind="stable"
        )
        no_rank = summary.index.isin(unstable(named_runs(task.runs))) | ~knows_gpus(task.runs).all()
        summary = pd.concat([summary[~no_rank], summary[no_rank]])
        shared, names = short_names([str(name) for name in summary.index])
        title = ", ".join(
            filter(
                None, [task.title, _place(task.runs), f"in every name: {shared}" if shared else ""]
            )
        )
        table = _texts(summary, sorted(no_rank))
        has_best = (
            len(names) > 1 and pd.notna(summary[f"{RATE}_median"].iloc[0]) and not no_rank.all()
        )
        unusual = flags(named_runs(task.runs))
        unusual = unusual[unusual["words"] != ""]
        marked = set(unusual["experiment"])
        rows = [
            f"{'* ' if has_best and place == 0 else '  '}{short}{' !' if name in marked else ''}"
            for place, (short, name) in enumerate(zip(names, summary.index, strict=True))
        ]
        lines = [FASTEST] if has_best else []
        lines += [*answer.unstable_settings(task.runs), *answer.mixed_settings(task.runs)]
        lines += [*_footnotes(unusual), *_causes(task.runs)]
        yield title, table.set_axis(rows), lines


def _footnotes(unusual: pd.DataFrame) -> list[str]:
    rows = [
        row for row in unusual.itertuples() if row.flags != (Flag.UNSTABLE,)
    ]  # said of the setting
    lines = [f"! {row.experiment} run {row.repeat}: {row.words}" for row in rows[:MAX_FOOTNOTES]]
    more = len(rows) - MAX_FOOTNOTES
    return lines + ([f"! and {more} more runs: see the report"] if more > 0 else [])


def _causes(runs: pd.DataFrame) -> list[str]:
    bad = runs[runs["status"] != "ok"]
    lines = [
        f"not ok: {row.experiment}{'' if pd.isna(row.repeat) else f' run {row.repeat:.0f}'}: {row.status}"
        + ("" if pd.isna(row.cause) else f", {row.cause}")
        for row in bad.head(MAX_CAUSES).itertuples()
    ]
    more = len(bad) - len(lines)
    return lines + ([f"not ok: {more} more; `dsnb report` lists every cause"] if more else [])


def short_names(names: Sequence[str]) -> tuple[str, list[str]]:
    """Return the common parts of all names, and the names without them; whole names if these would clash."""
    parts = [name.split("_") for name in names]
    shared = (
        [part for part in parts[0] if all(part in other for other in parts[1:])]
        if len(names) > 1
        else []
    )
    rest = ["_".join(part for part in name if part not in shared) for name in parts]
    return (
        ("_".join(shared), rest)
        if all(rest) and len(set(rest)) == len(set(names))
        else ("", list(names))
    )


def fitted(table: pd.DataFrame, width: int) -> pd.DataFrame:
    """Drop columns from the right until the table is at most `width` wide; figures are never cut."""
    while len(table.columns) > MIN_COLUMNS and _width(table) > width:
        table = table.iloc[:, :-1]
    return table


def _width(table: pd.DataFrame) -> int:
    columns = [table.index, *(table[name] for name in table.columns)]
    headings = [table.index.name or "", *table.columns]
    widest = [
        max(map(cell_len, [heading, *column]))
        for heading, column in zip(headings, columns, strict=True)
    ]
    return sum(widest) + BETWEEN * len(table.columns)


def _place(runs: pd.DataFrame) -> str:
    """Return where the runs ran, such as "on 4 NVIDIA H200"; without the number, or empty, if they differ."""
    hardware = (
        runs.reindex(columns=["gpus", "gpu_name", "device"])
        .astype(object)
        .drop_duplicates()
        .to_dict("records")
    )
    if len(places := {labels.place(run) for run in hardware if pd.notna(run["gpus"])}) == 1:
        return f"on {places.pop()}"
    names = {labels.text(run["gpu_name"]) for run in hardware}
    if {labels.unit(run) for run in hardware} == {"rank"}:
        return "on CPU ranks"
    return f"on {names.pop()}" if len(names) == 1 and names != {"-"} else ""


def _texts(summary: pd.DataFrame, no_rank: Sequence[bool]) -> pd.DataFrame:
    rates = summary[f"{RATE}_median"].mask(list(no_rank))
    table = pd.DataFrame(index=summary.index)
    counts = zip(summary["n"], summary["n_failed"], strict=True)
    table["runs"] = [f"{n}, {failed} not ok" if failed else f"{n}" for n, failed in counts]
    table["tokens/s"] = repeats_text(summary, RATE, METRIC_LABELS[RATE].digits)
    if rates.notna().sum() > 1:
        changes = zip(rates / rates.max() - 1, no_rank, strict=True)
        table["vs best"] = [
            "unstable" if is_unstable else _change(change) for change, is_unstable in changes
        ]
    memory = next((name for name in MEMORY if summary[f"{name}_median"].notna().any()), None)
    for metric in [
        name for name in (memory, "mfu") if name and summary[f"{name}_median"].notna().any()
    ]:
        table[METRIC_LABELS[metric].heading] = repeats_text(
            summary, metric, METRIC_LABELS[metric].digits
        )
    return table.loc[:, (table != "").any()]


def _change(change: float) -> str:
    return (
        ""
        if pd.isna(change)
        else "best"
        if change == 0
        else f"{100 * change:+.1f} %".replace("-", "\N{MINUS SIGN}")
    )
