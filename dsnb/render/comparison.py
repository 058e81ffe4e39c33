"""The section of a report that compares a sweep with an earlier one: before and after an upgrade, or two machines."""

import html
from pathlib import Path
from typing import Any

import pandas as pd

from dsnb.analysis import conditions
from dsnb.analysis.compare import compare
from dsnb.analysis.comparisons import VALUES, page_note
from dsnb.analysis.intervals import Verdict, hosts
from dsnb.render.tables import Html, bullet_list, format_value, to_html
from dsnb.run_folder.columns import ENVIRONMENT
from dsnb.runs import discover
from dsnb.runs.labels import MEMORY, METRIC_LABELS
from dsnb.runs.load import load_runs

RATE = "tokens_per_s"
OTHER_HOSTS = (
    "The two sets ran on different hosts, so a difference may come from the hosts, and it is one between these hosts: "
    "others of the same kind may differ by more or less."
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
    figures = _figures(before, after)
    other_hosts = set(hosts(before)).isdisjoint(hosts(after)) and None not in hosts(before) + hosts(after)
    if other_hosts:
        parts.append(Html(f"<p>{OTHER_HOSTS}</p>"))
    found = {figure: compare(before, after, figure, hosts_alike=other_hosts) for figure in figures}
    parts += [_table(table[table["only_in"] == ""], figure) for figure, table in found.items()]
    if not found:
        return [*parts, Html("<p>Neither speed nor memory was measured in both.</p>")]
    first = next(iter(found.values()))
    return [*parts, *_only_in_one(first), *_about(first)]


def _about(table: pd.DataFrame) -> list[Html]:
    """Return what the values of all tables are and their verdicts control; nothing if nothing is compared."""
    is_compared = bool((table["only_in"] == "").any())
    return [Html(f"<p>{html.escape(f'{VALUES} {page_note()}')}</p>")] if is_compared else []


def _figures(before: pd.DataFrame, after: pd.DataFrame) -> list[str]:
    """Return the figures to compare: speed, and the most informative figure of memory that both measured."""
    both = [
        name for name in (RATE, *MEMORY) if all(name in runs and runs[name].notna().any() for runs in (before, after))
    ]
    memory = [name for name in both if name != RATE]
    return [*(name for name in both if name == RATE), *memory[:1]]


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
    sentences = conditions.between(before, after)
    return Html(f"{to_html(table, text_columns=('before', 'after'))}{bullet_list(sentences) if sentences else ''}")


def _values(runs: pd.DataFrame, name: str) -> list[str]:
    known = runs[name].dropna().unique() if name in runs else []
    return sorted(f"{value:g}" if isinstance(value, float) else str(value) or "none" for value in known)


def _only_in_one(table: pd.DataFrame) -> list[Html]:
    """Return the settings that only one of the sets has, as sentences; nothing if there are none."""
    lists = {when: table.index[table["only_in"] == when] for when in ("before", "after")}
    sentences = [f"Only {when}: {', '.join(map(str, names))}." for when, names in lists.items() if len(names)]
    return [bullet_list(sentences)] if sentences else []


def _table(table: pd.DataFrame, figure: str) -> Html:
    """Return one figure of settings, before and after, with the verdicts."""
    label = METRIC_LABELS[figure]
    if table.empty:
        return Html(f"<p>{html.escape(label.title)}: no setting is in both.</p>")
    titles = {"setting": " class=text", "change": " class=text", "before": "", "after": ""}
    titles |= {"runs before": "", "runs after": ""}
    head = "".join(f'<th scope="col"{kind}>{title}</th>' for title, kind in titles.items())
    rows = "".join(
        _row(str(name), row, figure) for name, row in zip(table.index, table.to_dict("records"), strict=True)
    )
    caption = f"<caption>{html.escape(label.heading)}</caption>"
    body = f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return Html(f'<div class="scroll compared" tabindex="0">{body}</div>')


def _row(name: str, row: dict[Any, Any], figure: str) -> str:
    label = METRIC_LABELS[figure]
    values = [format_value(row[key] * label.factor, float("nan"), label.digits) for key in ("base_value", "value")]
    counts = [
        f"{row[f'{side}n']}" + (f", {row[f'{side}n_failed']} not ok" if row[f"{side}n_failed"] else "")
        for side in ("base_", "")
    ]
    kind, sign = _kind(row)
    note = f" ({row['note']})" if row["note"] else ""
    text = html.escape(f"{sign}{row['words']}{note}")
    cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in (*values, *counts))
    return f'<tr><th scope="row">{html.escape(name)}</th><td class="text {kind}">{text}</td>{cells}</tr>'


def _kind(row: dict[Any, Any]) -> tuple[str, str]:
    """Return the class of a verdict, and the sign and word that say the same without the colour."""
    if row["verdict"] != Verdict.LIKELY or row["better"] is None:
        return "same", ""
    return ("better", "▲ better, ") if row["better"] else ("worse", "▼ worse, ")
