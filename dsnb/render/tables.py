"""Tables as a person reads them: titles with units, sensible digits, everything escaped.

The numbers are those of `dsnb.analysis.summary` and `dsnb.runs.load`; nothing is computed here.
"""

import html
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from dsnb.errors import SettingsError
from dsnb.files import plain_yaml, records
from dsnb.run_folder.paths import SweepPaths
from dsnb.run_folder.table_columns import ENVIRONMENT, SETTINGS
from dsnb.runs import discover
from dsnb.runs.column_aliases import rename_old_columns
from dsnb.runs.labels import METRIC_LABELS

DETAILS = ("energy_j", "gpu_hours", "grad_norm_last", "update_rms")
"""Figures that stand in the explorer and in `load_runs` only: the table is wide enough."""
MOST_ROWS = 100
"""Of a table in a report: more would not be read, and the explorer has them."""


@dataclass(frozen=True)
class Html:
    """A piece of HTML that a notebook displays as it is; whoever makes one has escaped what came from outside."""

    text: str

    def _repr_html_(self) -> str:
        return self.text

    def __str__(self) -> str:
        return self.text


def readable(summary: pd.DataFrame) -> pd.DataFrame:
    """Give a summary as texts: `median ± std` under titles with units, without the metrics that say nothing here."""
    summary = rename_old_columns(summary)
    table = summary[["n", "n_failed"]].astype(str).rename(columns={"n_failed": "not ok"})
    for metric in METRIC_LABELS:
        if metric in _repeated(summary):
            continue
        median, spread = summary[f"{metric}_median"], summary[f"{metric}_std"]
        if median.notna().any():
            words = METRIC_LABELS[metric]
            digits = words.digits + 2 * (median.max() * words.factor < 1)
            table[words.heading] = [
                figure(value * words.factor, deviation * words.factor, digits)
                for value, deviation in zip(median, spread, strict=True)
            ]
    return table


def _repeated(summary: pd.DataFrame) -> set[str]:
    """Name the metrics to leave out: details, and what repeats others, such as one GPU's share of one GPU."""
    median = {metric: summary[f"{metric}_median"] for metric in METRIC_LABELS}
    repeated = set(DETAILS)
    if median["tokens_per_s"].equals(median["tokens_per_s_per_gpu"]):
        repeated.add("tokens_per_s")
    if (median["tokens_per_s"].notna() | median["samples_per_s"].isna()).all():
        repeated.add("samples_per_s")
    if median["peak_allocated_gib"].notna().any():
        repeated.add("host_memory_gib")
        if (median["peak_allocated_gib"].notna() | median["peak_reserved_gib"].isna()).all():
            repeated.add("peak_reserved_gib")
    if median["tokens_per_s"].equals(median["trained_tokens_per_s"]) or median["trained_tokens_per_s"].isna().all():
        repeated.add("trained_tokens_per_s")
    if (
        median["hardware_tflops_per_gpu"].isna() | median["hardware_tflops_per_gpu"].eq(median["tflops_per_gpu"])
    ).all():
        repeated.add("hardware_tflops_per_gpu")
    return repeated


def figure(value: float, spread: float, digits: int) -> str:
    """Give one figure with its spread; either may be missing (NaN)."""
    if pd.isna(value):
        return ""
    text = f"{value:,.{digits}f}"
    return text if pd.isna(spread) else f"{text} ± {spread:,.{max(digits, 1) if spread < 10 else digits}f}"


def to_html(table: pd.DataFrame, text_columns: tuple[str, ...] = (), index: bool = True) -> Html:
    """Give a table of texts as HTML, every cell escaped, in a box that scrolls sideways."""

    def cell(name: str, value: object) -> str:
        kind = ' class="text"' if name in text_columns else ' class="bad"' if name == "status" else ""
        shown = "" if value is None or value is pd.NA or value != value else str(value)
        median, plus_minus, spread = html.escape(shown).partition(" ± ")
        return f"<td{kind}>{median}" + (f' <span class="spread">± {spread}</span>' if plus_minus else "") + "</td>"

    heads = [str(table.index.name or "")] if index else []
    head = "".join(f'<th scope="col">{html.escape(str(name))}</th>' for name in [*heads, *table.columns])
    rows = []
    for key, row in table.iterrows():
        first = f'<th scope="row">{html.escape(str(key))}</th>' if index else ""
        rows.append("<tr>" + first + "".join(cell(str(name), row[name]) for name in table.columns) + "</tr>")
    content = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return Html(f'<div class="scroll" tabindex="0"><table>{content}</table></div>')


def summary_table(summary: pd.DataFrame) -> Html:
    """Give the aggregated table for a notebook: all of it, or the fastest where there are too many to read."""
    rate = "tokens_per_s_per_gpu_median"
    shown = summary if len(summary) <= MOST_ROWS else summary.sort_values(rate, ascending=False).head(MOST_ROWS)
    return Html(f"{to_html(readable(shown))}{_rest(len(summary), 'the fastest')}")


def failures(runs: pd.DataFrame) -> Html:
    """Give the runs that are not ok with their causes, or say that there are none."""
    bad = runs[runs["status"] != "ok"]
    if bad.empty:
        return Html("<p>None: every run ended well.</p>")
    table = bad[["experiment", "repeat", "status", "cause"]].astype({"repeat": "Int64"}).head(MOST_ROWS)
    return Html(f"{to_html(table, text_columns=('experiment', 'cause'), index=False)}{_rest(len(bad), 'the first')}")


def _rest(count: int, which: str) -> str:
    return f"<p>These are {which} {MOST_ROWS} of {count:,}; the explorer has all.</p>" if count > MOST_ROWS else ""


def environment(runs: pd.DataFrame) -> Html:
    """Give what the runs were made on: one row per fact, every value that occurs."""
    return _facts(runs, [name for name in ENVIRONMENT if name != "date_utc"], ", ".join)


def settings(runs: pd.DataFrame) -> Html:
    """Give every setting with the values that occur in the runs."""
    return _facts(runs, SETTINGS, lambda values: ", ".join(values[:12]) + (", ..." if len(values) > 12 else ""))


def _facts(runs: pd.DataFrame, names: list[str], join: Callable[[list[str]], str]) -> Html:
    runs = rename_old_columns(runs)
    found = {}
    for name in names:
        values = runs[name].dropna().drop_duplicates().tolist()
        if values:
            found[name] = join([f"{value:g}" if isinstance(value, float) else str(value) for value in values])
    table = pd.DataFrame({"value": pd.Series(found, dtype=object)}).rename_axis("what")
    return to_html(table, text_columns=("value",))


def timing_table(timing: pd.DataFrame) -> Html:
    """Give the wall seconds by phase for a notebook."""
    return Html(f"{to_html(timing_texts(timing.head(MOST_ROWS)))}{_rest(len(timing), 'the first')}")


def timing_texts(timing: pd.DataFrame) -> pd.DataFrame:
    """Give the wall seconds by phase as texts."""
    titles = {name: f"{name.replace('_', ' ')} (s)" for name in timing.columns}
    return timing.map(lambda value: figure(value, float("nan"), 2)).rename(columns=titles)


def numbers(table: pd.DataFrame, text_columns: tuple[str, ...] = ()) -> Html:
    """Give a table of numbers under their own names, each with four digits that say something."""

    def text(value: object) -> str:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return "" if value is None or value != value else str(value)
        return "" if value != value else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"

    shown = table.head(MOST_ROWS).map(text)
    return Html(f"{to_html(shown, text_columns, index=False)}{_rest(len(table), 'the first')}")


def sentences(said: list[str]) -> Html:
    """Give sentences as a list, or say that there is nothing to say."""
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in said)
    return Html(f"<ul>{items}</ul>" if items else "<p>No contradiction found.</p>")


def heading(folder: str | Path) -> Html:
    """Return a sweep's title and the question that its params file asks."""
    sweep = SweepPaths(Path(folder).absolute())
    params = None
    if sweep.params.exists():  # a folder of other programs' logs has none
        try:
            params = plain_yaml.read(sweep.params, "params file")
        except SettingsError as error:
            records.warn(f"the question of the sweep is left out: {error}")
    question = params.get("question") if isinstance(params, dict) else None
    asked = question if isinstance(question, str) and question else "Which of these settings should I train with here?"
    title = discover.displayable(sweep.dir.name)
    return Html(f'<h1>{html.escape(title)}</h1><p class="question">{html.escape(asked)}</p>')


def subheading(title: str) -> Html:
    """Give a smaller heading, nothing for an empty title."""
    return Html(f"<h3>{html.escape(title)}</h3>" if title else "")
