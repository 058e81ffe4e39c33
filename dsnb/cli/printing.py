"""Prints lines and tables: readable, as Markdown, CSV or JSON."""

import html
import re
import shutil
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import typer
from rich.cells import cell_len

from dsnb.base.files import plain_text

UNLIMITED = 10_000
"""Width of a table that is not cut."""
MIN_COLUMNS = 2
"""Columns that are always shown: runs and tokens/s."""


class Format(StrEnum):
    """Format of a printed table."""

    table = "table"
    markdown = "markdown"
    csv = "csv"
    json = "json"

    @property
    def is_data(self) -> bool:
        """Whether the format is for programs, so that remarks go to the error stream."""
        return self in {Format.csv, Format.json}


def print_summary(runs: Any, format_: Format, wide: bool = False) -> None:
    """Print the medians: the columns that fit, task by task, or all columns of all experiments.

    The answer of the only task comes first, and why runs are not ok before the table of their task.
    """
    from dsnb.cli import summary_table
    from dsnb.results.answers import lengths, measured
    from dsnb.results.answers.lines import SUMMARY, Line, note, text
    from dsnb.results.answers.sentences import PHRASES
    from dsnb.results.runs.labels import common_unit
    from dsnb.results.statistics.summary import summarize
    from dsnb.show.render.tables import format_summary

    if wide or format_ is not Format.table:
        table = summarize(runs, metrics="all")
        show(table, format_summary(table, common_unit(runs)), format_)
        return
    decided = measured.decisions(runs, most=2)
    blocks = list(summary_table.blocks(runs))
    if len(decided) == 1:
        task, decision = decided[0]
        say(text(measured.lines(decision, task.title), table_width()))
    for number, (title, table, lines) in enumerate(blocks):
        if number or len(decided) == 1:
            say("")
        heading = Line(SUMMARY, (*table.columns, "setting"))
        cells = zip(*(table[name] for name in table), table.index, strict=True)
        rows = [Line(SUMMARY, tuple(map(plain_text.line, row))) for row in cells]
        say(text([note(title)], table_width()))
        lines.sort(key=lambda line: not line.startswith(summary_table.NOT_OK))
        bad = sum(line.startswith(summary_table.NOT_OK) for line in lines)
        for line in lines[:bad]:  # a cause from a log that is wrapped could look like a row
            say_line(line)
        say(text([heading, *rows], table_width()))
        for line in lines[bad:]:
            say_line(line)
    if compared := lengths.sentences(runs):
        say("")
        about = f"{PHRASES['lengths']}. {PHRASES['about_lengths']}"
        say(text([note(about), *map(note, compared)], table_width()))


def print_groups(runs: Any, format_: Format) -> None:
    """Print the comparison of groups of nodes, and the slow nodes."""
    from dsnb.show.render.nodes import compare_groups

    numbers, texts, sentences = compare_groups(runs)
    show(numbers, texts, format_, fit=True)
    for sentence in sentences:
        say_line(sentence, err=format_.is_data)


def show(numbers: Any, texts: Any, format_: Format, fit: bool = False) -> None:
    """Print a table: `numbers` as CSV or JSON, `texts` otherwise; names in it are untrusted.

    With `fit`, the common part of all names is a separate line, and a terminal gets only the
    columns that fit.
    """
    if format_ is Format.csv:
        typer.echo(_each_text(numbers, disarmed).to_csv(), nl=False)
    elif format_ is Format.json:
        typer.echo(numbers.reset_index().to_json(orient="records", indent=1))
    elif format_ is Format.markdown:
        heading, *rows = _padded(_each_text(texts, _in_markdown), least=3)
        first, *others = map(len, heading)
        sides = [":" + "-" * (first - 1), *("-" * (width - 1) + ":" for width in others)]
        for cells in (heading, sides, *rows):
            typer.echo(f"| {' | '.join(cells)} |")
    elif fit:
        from dsnb.results.runs.names import short_names

        shared, names = short_names([str(name) for name in texts.index], "_")
        if shared:
            say(f"in every name: {shared}")
        table = texts.set_axis(names).rename_axis(texts.index.name)
        left_out = _print_table(table, table_width())
        if left_out:
            say(f"no room for {', '.join(left_out)}: use a wider terminal, or --format csv")
    else:
        _print_table(texts)


def table_width() -> int:
    """Return the maximum width of a table: that of a terminal."""
    if sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    return UNLIMITED


def _print_table(texts: Any, width: int = UNLIMITED) -> list[str]:
    """Print a table of texts, and return the last columns that it has no room for; figures are never cut."""
    shown = texts
    lines = ["  ".join(cells) for cells in _padded(shown)]
    while len(shown.columns) > MIN_COLUMNS and cell_len(lines[0]) > width:
        shown = shown.iloc[:, :-1]
        lines = ["  ".join(cells) for cells in _padded(shown)]
    for line in lines:
        typer.echo(line)
    return list(texts.columns[len(shown.columns) :])


def _padded(table: Any, least: int = 0) -> list[list[str]]:
    """Return the heading and the rows of a table: the index left-aligned, figures right-aligned."""
    rows = [[table.index.name or "", *table.columns]]
    rows += [[key, *row] for key, row in zip(table.index, table.to_numpy(), strict=True)]
    cells = [[plain_text.line(cell) for cell in row] for row in rows]
    widths = [max(least, *map(cell_len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        for place, width in enumerate(widths):
            room = " " * (width - cell_len(row[place]))
            row[place] = room + row[place] if place else row[place] + room
    return cells


def say(text: object, err: bool = False) -> None:
    """Print lines without control characters."""
    for line in str(text).split("\n"):
        typer.echo(plain_text.line(line), err=err)


def say_line(text: object, err: bool = False) -> None:
    """Print an untrusted text as one line: a line break in it could forge another."""
    typer.echo(plain_text.line(text), err=err)


def _each_text(table: Any, change: Callable[[str], str]) -> Any:
    """Return a table with `change` applied to every text, including the index."""

    def changed(value: object) -> object:
        if isinstance(value, str):
            return change(value)
        return value

    keys = [changed(key) for key in table.index]
    return table.astype(object).map(changed).set_axis(keys).rename_axis(table.index.name)


def disarmed(text: str) -> str:
    """Return a text that no spreadsheet treats as a formula, as in the explorer's CSV."""
    return plain_text.line(re.sub(plain_text.FORMULA, r"\1'", text))


def _in_markdown(value: str) -> str:
    """Return a text for a Markdown cell, with pipes, HTML and links escaped."""
    return re.sub(r"[\\|`\[\]]", r"\\\g<0>", html.escape(plain_text.line(value), quote=False))
