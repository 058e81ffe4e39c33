"""Tables for reports, notebooks and terminals: headings with units, sensible digits, escaped HTML.

Nothing is computed here: the numbers are those of `dsnb.results` and `dsnb.results.runs`.
"""

import html
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from dsnb.base.errors import SettingsError
from dsnb.base.files import json_files, plain_yaml
from dsnb.results.runs import labels
from dsnb.results.runs.labels import AXES, METRIC_LABELS, is_missing, short_number
from dsnb.results.runs.names import displayable
from dsnb.results.runs.table import numbers
from dsnb.results.statistics.intervals import MIN_RUNS
from dsnb.settings.records.columns import ENVIRONMENT, SETTINGS
from dsnb.settings.records.paths import SweepPaths
from dsnb.settings.strategies import without_zero

DETAILS = ("energy_j", "gpu_hours", "grad_norm_last", "update_rms")
"""Metrics that are not in summaries, only in the explorer and in `load_runs`."""
SAME_AS = {
    "tokens_per_s": "tokens_per_s_per_gpu",
    "trained_tokens_per_s": "tokens_per_s",
    "hardware_tflops_per_gpu": "tflops_per_gpu",
}
"""Metrics that are left out if they equal another one, such as tokens/s on one GPU."""
REPLACED_BY = {
    "samples_per_s": "tokens_per_s",
    "peak_reserved_gib": "peak_allocated_gib",
    "host_memory_gib": "peak_allocated_gib",
}
"""Metrics that are left out if another one was measured."""
VARIES = "runs differ in"
"""Heading of `varies`, which is shown where the runs of any row are not repeats."""
MAX_ROWS = 100
"""Maximum rows of a table in a report; the explorer has all runs."""
MAX_VALUES = 12
"""Maximum number of listed values of a setting or of a property of the machine."""
LEFT = "text-align: left"
TEXT = f' class="text" style="{LEFT}"'
"""Attributes of cells with text: notebooks align them on the right."""
UNBROKEN = 40
"""Maximum characters of a number with its spread, or of the name of a row, that are kept on one
line."""
SPREAD = re.compile(r"±\s.*", re.DOTALL)
SPREAD_HTML = r'<span class="spread">\g<0></span>'


@dataclass(frozen=True)
class Html:
    """HTML that a notebook displays unchanged; untrusted text must be escaped."""

    text: str

    def _repr_html_(self) -> str:
        return self.text

    def __str__(self) -> str:
        return self.text


def format_summary(summary: pd.DataFrame, unit: str = "GPU") -> pd.DataFrame:
    """Format a summary as text (`repeats_text`) under headings with units, without redundant metrics.

    `unit` is `GPU` or `rank` (`dsnb.results.runs.labels.common_unit`).
    """
    table = summary[["n", "n_failed"]].astype(str).rename(columns={"n_failed": "not ok"})
    if (summary["varies"] != "").any():
        table[VARIES] = summary["varies"]
    for metric, label in METRIC_LABELS.items():
        if metric not in DETAILS and not _is_redundant(summary, metric):
            largest = summary[f"{metric}_median"].max() * label.factor
            digits = label.digits + 2 if largest < 1 else label.digits
            table[label.heading.replace("GPU", unit)] = repeats_text(summary, metric, digits)
    return table


def _is_redundant(summary: pd.DataFrame, metric: str) -> bool:
    """Return whether each value is missing, or known from another metric."""
    median = summary[f"{metric}_median"]
    is_known = median.isna()
    if metric in SAME_AS:
        is_known |= median.eq(summary[f"{SAME_AS[metric]}_median"])
    if metric in REPLACED_BY:
        is_known |= summary[f"{REPLACED_BY[metric]}_median"].notna()
    return bool(is_known.all())


def repeats_text(summary: pd.DataFrame, metric: str, digits: int) -> list[str]:
    """Format a metric of a summary: the value of one run, the range of two or three, else `median ± std`."""
    form = f",.{digits}f"
    names = ("median", "std", "min", "max")
    values = summary[[f"{metric}_{name}" for name in names]] * METRIC_LABELS[metric].factor
    texts = []
    for count, (median, std, low, high) in zip(
        summary[f"{metric}_n"], values.to_numpy(), strict=True
    ):
        spread = f",.{max(digits, 1)}f" if std < 10 else form
        if count >= MIN_RUNS:
            texts.append(f"{median:{form}} ± {std:{spread}}")
        else:
            texts.append(ends(f"{low:{form}}", f"{high:{form}}") if count else "")
    return texts


def first_of(
    texts: Sequence[str], most: int, between: str = "; ", rest: str = "; and {:,} more"
) -> str:
    """Join the first texts, at most `most`, and count the others."""
    shown = between.join(texts[:most])
    more = len(texts) - most
    if more > 0:
        shown += rest.format(more)
    return shown


def ends(low: str, high: str, between: str = " to ") -> str:
    """Return both ends of a range, or one if they are equal."""
    return low if low == high else f"{low}{between}{high}"


def format_column(values: Iterable[float], form: str) -> list[str]:
    """Format numbers with a format such as `,.1f`; those that are missing are empty, and a minus is a minus sign."""
    return [
        "" if pd.isna(value) else format(value, form).replace("-", "\N{MINUS SIGN}")
        for value in values
    ]


def mimebundle(widget: Any, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a widget's view for notebooks with a kernel, and HTML for pages without."""
    view = widget._repr_mimebundle_()
    bundle, metadata = view if isinstance(view, tuple) else (view or {}, {})
    return {**bundle, "text/html": text}, metadata


def escaped(value: object) -> str:
    """Return a value as HTML: escaped unless it is `Html`, and empty if it is missing."""
    if isinstance(value, Html):
        return value.text
    return "" if is_missing(value) else html.escape(str(value))


def to_html(
    table: pd.DataFrame,
    text_columns: tuple[str, ...] = (),
    index: bool = True,
    which: str = "the first",
    max_rows: int = MAX_ROWS,
) -> Html:
    """Convert a table of text to HTML in a box that scrolls horizontally; cells are escaped unless they are `Html`.

    Of more than `max_rows` rows, a note says that only `which` are shown.
    """
    kinds = {"status": ' class="bad"', **dict.fromkeys(text_columns, TEXT)}
    titles = [str(table.index.name or "")] if index else []
    left = {*kinds, *titles}
    head = ""
    for title in [*titles, *map(str, table.columns)]:
        kind = TEXT if title in left else ""
        head += f'<th scope="col"{kind}>{html.escape(title)}</th>'
    body = ""
    for row in table.head(max_rows).itertuples(name=None):
        cells = _row_name(str(row[0])) if index else ""
        for name, value in zip(map(str, table.columns), row[1:], strict=True):
            text = escaped(value)
            if name not in text_columns and not isinstance(value, Html) and len(text) <= UNBROKEN:
                text = text.replace(" ", "\N{NO-BREAK SPACE}")
            cells += f"<td{kinds.get(name, '')}>{SPREAD.sub(SPREAD_HTML, text)}</td>"
        body += f"<tr>{cells}</tr>"
    content = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    box = f'<div class="scroll" tabindex="0"><table>{content}</table></div>'
    if len(table) > max_rows:
        box += f"<p>Only {which} {max_rows} of {len(table):,} rows; the explorer has all.</p>"
    return Html(box)


def _row_name(name: str) -> str:
    style = LEFT
    if len(name) <= UNBROKEN:
        style += "; white-space: nowrap"
    return f'<th scope="row" style="{style}">{html.escape(name)}</th>'


def environment(runs: pd.DataFrame) -> Html:
    """Return where, when and how the runs were measured: one row per known property, with its distinct values."""
    known = runs.reindex(columns=ENVIRONMENT)
    names = [name for name in ENVIRONMENT if name not in {"date_utc", "variables"}]
    if known["variables"].nunique() == 1:
        names.append("variables")
    texts = {_column_title(name).replace("_", " "): _values(runs, name) for name in names}
    days = known["date_utc"].dropna().astype(str).str[:10]
    texts["dates"] = ends(days.min(), days.max()) if len(days) else ""
    steps = _range(runs, "timed_steps")
    if steps:
        seconds = _range(runs, "timed_s")
        warmup = _range(runs, "warmup_steps")
        took = f" ({seconds} s)" if seconds else ""
        after = f" after {warmup} warm-up steps" if warmup else ""
        texts["measured"] = f"{steps} steps{took}{after}"
    return _listed(texts)


def _range(runs: pd.DataFrame, name: str) -> str:
    """Return the lowest and highest positive value of a column in words; empty if there is none."""
    values = numbers(runs, name)
    values = values[(values > 0) & (values < math.inf)]
    return ends(short_number(values.min()), short_number(values.max()))


def settings(runs: pd.DataFrame) -> Html:
    """Return every setting with its distinct values in the runs, and in how many it is unknown."""
    return _listed({name: _setting(runs, name) for name in SETTINGS})


def _setting(runs: pd.DataFrame, name: str) -> str:
    shown = _values(runs, name)
    if not shown:
        return ""
    is_unknown = runs[name].isna()
    if name == "zero_stage" and "strategy" in runs:
        is_unknown &= ~runs["strategy"].isin(without_zero())
    if not is_unknown.any():
        return shown
    return f"{shown}; unknown in {labels.count(is_unknown.sum(), 'run')}"


def _values(runs: pd.DataFrame, name: str) -> str:
    if name not in runs:
        return ""
    values = runs[name].dropna().drop_duplicates()
    texts = list(map(setting_text, values[values.ne("")]))
    return first_of(texts, MAX_VALUES, ", ", ", and {} more")


def setting_text(value: object) -> str:
    """Return a value of a setting or a property of the machine as text."""
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _listed(texts: dict[str, str]) -> Html:
    values = {name: text for name, text in texts.items() if text}
    table = pd.DataFrame({"value": pd.Series(values, dtype=object)}).rename_axis("name")
    return to_html(table, text_columns=("value",))


def format_timing(timing: pd.DataFrame) -> pd.DataFrame:
    """Format the wall seconds by phase as text, their sum first."""
    names = ["wall", *timing.columns.drop("wall")]
    texts = {f"{name.replace('_', ' ')} (s)": format_column(timing[name], ",.2f") for name in names}
    return pd.DataFrame(texts, index=timing.index)


def number_table(table: pd.DataFrame, text_columns: tuple[str, ...] = ()) -> Html:
    """Return a table of numbers as HTML with four significant digits; columns of runs are named by their titles."""
    titles = {str(name): _column_title(str(name)) for name in table.columns}
    left = tuple(titles[name] for name in text_columns if name in titles)
    return to_html(table.map(short_number).rename(columns=titles), left, index=False)


def _column_title(name: str) -> str:
    """Return the title of a column whose values are shown as they are, with its unit."""
    if name in AXES:
        return AXES[name].title
    if name in METRIC_LABELS and METRIC_LABELS[name].factor == 1:
        return METRIC_LABELS[name].heading
    if name.endswith("_gib"):
        return f"{name.removesuffix('_gib')} (GiB)"
    return name.replace("_", " ")


def bullet_list(sentences: Sequence[str], if_empty: str = "None.") -> Html:
    """Return sentences as a list, or a paragraph with `if_empty`."""
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return Html(f"<ul>{items}</ul>" if items else f"<p>{html.escape(if_empty)}</p>")


def heading(folder: str | Path) -> Html:
    """Return a sweep's title and the question in its params file."""
    sweep = SweepPaths(Path(folder).absolute())
    params = None
    if sweep.params.exists():  # a folder of other programs' logs has no params file
        try:
            params = plain_yaml.read(sweep.params, "params file")
        except SettingsError as error:
            json_files.warn(f"the question of the sweep is left out: {error}")
    question = params.get("question") if isinstance(params, dict) else None
    if not question or not isinstance(question, str):
        question = "Which of these settings should I train with here?"
    title = html.escape(displayable(sweep.dir.name))
    return Html(f'<h1>{title}</h1><p class="question">{html.escape(question)}</p>')


def subheading(title: str, level: str = "h3") -> Html:
    """Return a heading, by default of the third level; nothing for an empty title."""
    return Html(f"<{level}>{html.escape(title)}</{level}>" if title else "")
