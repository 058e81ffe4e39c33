"""The section of a report that compares a sweep with an earlier one: before and after an upgrade, or two machines."""

import html
from pathlib import Path
from typing import Any

import pandas as pd

from dsnb.analysis.comparisons import TOGETHER, VALUES, compare
from dsnb.analysis.flags import changed_conditions
from dsnb.analysis.intervals import CONFIDENCE, Verdict, hosts
from dsnb.render.tables import Html, bullet_list, format_column, subheading, to_html
from dsnb.run_folder.columns import ENVIRONMENT
from dsnb.runs import discover
from dsnb.runs.labels import MEMORY, METRIC_LABELS
from dsnb.runs.load import load_runs

RATE = "tokens_per_s"
OTHER_HOSTS = (
    "The two sets ran on different hosts, so a difference may come from the hosts, and it is one between these hosts: "
    "others of the same kind may differ by more or less."
)
EQUAL = (
    f"where all settings are equal, any two are called different for at most about {100 * (1 - CONFIDENCE):.3g} % of "
    "tasks."
)


def section(runs: pd.DataFrame, folder: str | Path) -> list[Html]:
    """Return what changed since the runs of an earlier folder, setting by setting, as parts to display in turn.

    Parameters
    ----------
    runs
        The new runs, as `dsnb.load_runs` returns them.
    folder
        The folder of the earlier ones; empty for no section.
    """
    return compared(load_runs(folder), runs, Path(folder).absolute().name) if folder else []


def compared(before: pd.DataFrame, after: pd.DataFrame, name: str) -> list[Html]:
    """Return the section for two sets of runs; `name` is that of the earlier one."""
    title = html.escape(discover.displayable(name))
    parts = [Html(f"<h2>Compared with <code>{title}</code></h2>"), environments(before, after)]
    other_hosts = set(hosts(before)).isdisjoint(hosts(after)) and None not in hosts(before) + hosts(after)
    parts += [Html(f"<p>{OTHER_HOSTS}</p>")] if other_hosts else []
    both = [
        name for name in (RATE, *MEMORY) if all(name in runs and runs[name].notna().any() for runs in (before, after))
    ]
    memory = [name for name in both if name != RATE][:1]  # the most informative figure
    changes = {name: compare(before, after, name, hosts_alike=other_hosts) for name in both if name in {RATE, *memory}}
    if not changes:
        return [*parts, Html("<p>Neither speed nor memory was measured in both.</p>")]
    parts += [_table(table[table["only_in"] == ""], name) for name, table in changes.items()]
    first = next(iter(changes.values()))
    only_in = {when: first.index[first["only_in"] == when] for when in ("before", "after")}
    sentences = [f"Only {when}: {', '.join(map(str, names))}." for when, names in only_in.items() if len(names)]
    parts += [bullet_list(sentences)] if sentences else []
    about = Html(f"<p>{html.escape(f'{VALUES} {TOGETHER}: {EQUAL}')}</p>")
    return [*parts, about] if (first["only_in"] == "").any() else parts


def environments(before: pd.DataFrame, after: pd.DataFrame) -> Html:
    """Return in what hardware and software the two sets differ; a sentence if in nothing that is recorded."""
    rows = {}
    for name in (*ENVIRONMENT, "inputs"):
        values = [_values(runs, name) for runs in (before, after)]
        if name != "date_utc" and values[0] != values[1]:
            rows[name] = [", ".join(one) or "unknown" for one in values]
    if not rows:
        return Html("<p>Both ran in the same recorded environment: hosts, GPUs, drivers and versions.</p>")
    table = pd.DataFrame.from_dict(rows, orient="index", columns=["before", "after"]).rename_axis("environment")
    sentences = changed_conditions(before, after)
    return Html(f"{to_html(table, text_columns=('before', 'after'))}{bullet_list(sentences) if sentences else ''}")


def _values(runs: pd.DataFrame, name: str) -> list[str]:
    known = runs[name].dropna().unique() if name in runs else []
    return sorted(f"{value:g}" if isinstance(value, float) else str(value) or "none" for value in known)


def _table(table: pd.DataFrame, figure: str) -> Html:
    """Return one figure of settings, before and after, with the verdicts."""
    label = METRIC_LABELS[figure]
    if table.empty:
        return Html(f"<p>{html.escape(label.title)}: no setting is in both.</p>")
    form, rows = f",.{label.digits}f", table.to_dict("records")
    shown = pd.DataFrame(
        {
            "change": [_change(row) for row in rows],
            "before": format_column(table["base_value"] * label.factor, form),
            "after": format_column(table["value"] * label.factor, form),
            "runs before": [_runs(row["base_n"], row["base_n_failed"]) for row in rows],
            "runs after": [_runs(row["n"], row["n_failed"]) for row in rows],
        },
        index=table.index.rename("setting"),
    )
    listing = to_html(shown, text_columns=("change",), max_rows=len(shown))
    return Html(f'<div class="compared">{subheading(label.heading)}{listing}</div>')


def _runs(count: int, failed: int) -> str:
    return f"{count}, {failed} not ok" if failed else str(count)


def _change(row: dict[Any, Any]) -> Html:
    """Return a verdict with a sign and a word that say the same as its colour."""
    kind, sign = "same", ""
    if row["verdict"] == Verdict.LIKELY and row["better"] is not None:
        kind, sign = ("better", "▲ better, ") if row["better"] else ("worse", "▼ worse, ")
    note = f" ({row['note']})" if row["note"] else ""
    text = html.escape(f"{sign}{row['words']}{note}")
    return Html(f'<span class="{kind}">{text}</span>')
