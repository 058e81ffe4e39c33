"""Tables for reports, notebooks and terminals: headings with units, sensible digits, escaped HTML.

Nothing is computed here: the numbers are those of `dsnb.results` and `dsnb.results.runs`.
"""

import html
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from dsnb.base.errors import SettingsError
from dsnb.base.files import json_files, plain_yaml
from dsnb.results.runs import labels
from dsnb.results.runs.labels import AXES, METRIC_LABELS
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
UNBROKEN = 40
"""Maximum characters of a number with its spread, or of the name of a row, that are kept on one line."""
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
    medians = {metric: summary[f"{metric}_median"] for metric in METRIC_LABELS}
    for metric, median in medians.items():
        same, better = (
            medians.get(SAME_AS.get(metric, "")),
            medians.get(REPLACED_BY.get(metric, "")),
        )
        is_redundant = same is not None and (median.isna() | median.eq(same)).all()
        is_redundant |= better is not None and (median.isna() | better.notna()).all()
        if median.notna().any() and metric not in DETAILS and not is_redundant:
            label = METRIC_LABELS[metric]
            digits = label.digits + 2 * (median.max() * label.factor < 1)
            table[label.heading.replace("GPU", unit)] = repeats_text(summary, metric, digits)
    return table


def repeats_text(summary: pd.DataFrame, metric: str, digits: int) -> list[str]:
    """Format a metric of a summary: the value of one run, the range of two or three, else `median ± std`."""
    factor = METRIC_LABELS[metric].factor
    columns = [summary[f"{metric}_{name}"] * factor for name in ("median", "std", "min", "max")]
    texts = []
    for count, median, std, low, high in zip(summary[f"{metric}_n"], *columns, strict=True):
        few = (
            " to ".join(dict.fromkeys(f"{value:,.{digits}f}" for value in (low, high)))
            if count
            else ""
        )
        spread = f"{std:,.{max(digits, 1) if std < 10 else digits}f}"
        texts.append(f"{median:,.{digits}f} ± {spread}" if count >= MIN_RUNS else few)
    return texts


def format_column(values: Iterable[float], form: str) -> list[str]:
    """Format numbers with a format such as `,.1f`; those that are missing are empty, and a minus is a minus sign."""
    return [
        "" if pd.isna(value) else format(value, form).replace("-", "\N{MINUS SIGN}")
        for value in values
    ]


def _is_missing(value: object) -> bool:
    return bool(pd.api.types.is_scalar(value) and pd.isna(value))


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

    def cell(name: str, value: object) -> str:
        kind = (
            ' class="text"' if name in text_columns else ' class="bad"' if name == "status" else ""
        )
        text = (
            str(value)
            if isinstance(value, Html)
            else html.escape("" if _is_missing(value) else str(value))
        )
        if name not in text_columns and not isinstance(value, Html) and len(text) <= UNBROKEN:
            text = text.replace(" ", "\N{NO-BREAK SPACE}")
        return f"<td{kind}>{SPREAD.sub(SPREAD_HTML, text)}</td>"

    def header(name: str, is_text: bool) -> str:
        kind = ' class="text"' if is_text else ""
        return f'<th scope="col"{kind}>{html.escape(name)}</th>'

    head = header(str(table.index.name or ""), True) if index else ""
    head += "".join(
        header(str(name), name in text_columns or name == "status") for name in table.columns
    )
    rows = []
    for key, row in table.head(max_rows).iterrows():
        style = ' style="white-space: nowrap"' if len(str(key)) <= UNBROKEN else ""
        first = f'<th scope="row"{style}>{html.escape(str(key))}</th>' if index else ""
        rows.append(
            "<tr>" + first + "".join(cell(str(name), row[name]) for name in table.columns) + "</tr>"
        )
    content = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    more = f"<p>Only {which} {max_rows} of {len(table):,} rows; the explorer has all.</p>"
    box = f'<div class="scroll" tabindex="0"><table>{content}</table></div>'
    return Html(box + (more if len(table) > max_rows else ""))


def environment(runs: pd.DataFrame) -> Html:
    """Return where, when and how the runs were measured: one row per known property, with its distinct values."""
    names = [name for name in ENVIRONMENT if name not in {"date_utc", "variables"}]
    names += ["variables"] if runs.get("variables", pd.Series(dtype=object)).nunique() == 1 else []
    texts = {_column_title(name).replace("_", " "): _values(runs, name) for name in names}
    days = sorted(
        {str(date)[:10] for date in runs.get("date_utc", pd.Series(dtype=object)).dropna()}
    )
    texts["dates"] = " to ".join(dict.fromkeys((days[0], days[-1]))) if days else ""
    steps, seconds, warmup = (
        _range(runs, name) for name in ("timed_steps", "timed_s", "warmup_steps")
    )
    took = f" ({seconds} s)" if seconds else ""
    texts["measured"] = (
        f"{steps} steps{took}{f' after {warmup} warm-up steps' if warmup else ''}" if steps else ""
    )
    return _listed(texts)


def _range(runs: pd.DataFrame, name: str) -> str:
    """Return the lowest and highest positive value of a column in words; empty if there is none."""
    values = numbers(runs, name)
    values = values[(values > 0) & (values < math.inf)]
    return (
        " to ".join(dict.fromkeys(map(short_number, (values.min(), values.max()))))
        if len(values)
        else ""
    )


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
    return (
        f"{shown}; unknown in {labels.count(is_unknown.sum(), 'run')}"
        if is_unknown.any()
        else shown
    )


def _values(runs: pd.DataFrame, name: str) -> str:
    column = runs.get(name, pd.Series(dtype=object))
    values = [value for value in column.dropna().drop_duplicates() if value != ""]
    shown = [
        f"{value:g}" if isinstance(value, float) else str(value) for value in values[:MAX_VALUES]
    ]
    return ", ".join(shown + [f"and {len(values) - MAX_VALUES} more"] * (len(values) > MAX_VALUES))


def _listed(texts: dict[str, str]) -> Html:
    values = {name: text for name, text in texts.items() if text}
    table = pd.DataFrame({"value": pd.Series(values, dtype=object)}).rename_axis("name")
    return to_html(table, text_columns=("value",))


def format_timing(timing: pd.DataFrame) -> pd.DataFrame:
    """Format the wall seconds by phase as text, their sum first."""
    names = ["wall", *(name for name in timing.columns if name != "wall")]
    texts = {f"{name.replace('_', ' ')} (s)": format_column(timing[name], ",.2f") for name in names}
    return pd.DataFrame(texts, index=timing.index)


def number_table(table: pd.DataFrame, text_columns: tuple[str, ...] = ()) -> Html:
    """Return a table of numbers as HTML with four significant digits; columns of runs are named by their titles."""
    titles = {str(name): _column_title(str(name)) for name in table.columns}
    left = tuple(titles[name] for name in text_columns if name in titles)
    return to_html(table.map(short_number).rename(columns=titles), left, index=False)


def short_number(value: object) -> str:
    """Return a number with four significant digits, or all before the point; other values as text, missing as empty."""
    if _is_missing(value):
        return ""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"


def _column_title(name: str) -> str:
    """Return the title of a column whose values are shown as they are, with its unit."""
    if name in AXES:
        return AXES[name].title
    if name in METRIC_LABELS and METRIC_LABELS[name].factor == 1:
        return METRIC_LABELS[name].heading
    return f"{name.removesuffix('_gib')} (GiB)" if name.endswith("_gib") else name.replace("_", " ")


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
    text = (
        question
        if isinstance(question, str) and question
        else "Which of these settings should I train with here?"
    )
    title = displayable(sweep.dir.name)
    return Html(f'<h1>{html.escape(title)}</h1><p class="question">{html.escape(text)}</p>')


def subheading(title: str, level: str = "h3") -> Html:
    """Return a heading, by default of the third level; nothing for an empty title."""
    return Html(f"<{level}>{html.escape(title)}</{level}>" if title else "")
