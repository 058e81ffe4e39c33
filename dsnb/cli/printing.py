"""Prints lines and tables: readable, as Markdown, CSV or JSON."""

import html
import re
import shutil
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import typer

from dsnb.base.files import plain_text

FORMULA = re.compile(r"""(^|[,;|\t\r\n])(?=[\s"]*[=+\-@\uff1d\uff0b\uff0d\uff20])|^(?=[\t\r\n])""")
"""Where a spreadsheet could begin a formula: at the start of a text, and behind what separates cells in some locales.
Full-width signs count as signs. The same rule is in `dsnb/show/explorer/web/export.js`."""
UNLIMITED = 10_000
"""Width of a table that is not cut."""
MARKDOWN = frozenset("\\|`[]")
"""Characters that end a Markdown cell, or start code or a link in it."""


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
    """Print the medians: the columns that fit, task by task, or all columns of all experiments."""
    from dsnb.cli import summary_table
    from dsnb.results.answers import lengths
    from dsnb.results.answers.sentences import PHRASES
    from dsnb.results.runs.labels import common_unit
    from dsnb.results.statistics.summary import summarize
    from dsnb.show.render.tables import format_summary

    if wide or format_ is not Format.table:
        table = summarize(runs)
        show(table, format_summary(table, common_unit(runs)), format_)
        return
    for number, (title, table, lines) in enumerate(summary_table.blocks(runs)):
        if number:
            say("")
        say_line(title)
        _print_table(summary_table.fitted(table, table_width()))
        for line in lines:
            say_line(line)
    if compared := lengths.sentences(runs):
        say("")
        say_line(f"{PHRASES['lengths']}. {PHRASES['about_lengths']}")
        for line in compared:
            say_line(line)


def print_groups(runs: Any, format_: Format) -> None:
    """Print the comparison of groups of nodes, and the slow nodes."""
    from dsnb.show.render.nodes import compare_groups

    numbers, texts, sentences = compare_groups(runs)
    show(numbers, texts, format_, fit=True)
    for sentence in sentences:
        say_line(sentence, err=format_.is_data)


def show(numbers: Any, texts: Any, format_: Format, fit: bool = False) -> None:
    """Print a table: `numbers` as CSV or JSON, `texts` otherwise; names in it are untrusted.

    With `fit`, the common part of all names is a separate line, and a terminal gets only the columns that fit.
    """
    if format_ is Format.csv:
        typer.echo(_disarmed(numbers).to_csv(), nl=False)
    elif format_ is Format.json:
        typer.echo(numbers.reset_index().to_json(orient="records", indent=1))
    elif format_ is Format.markdown:
        typer.echo(_markdown_table(_each_text(texts, _in_markdown)))
    elif fit:
        from dsnb.cli import summary_table

        shared, names = summary_table.short_names([str(name) for name in texts.index])
        if shared:
            say(f"in every name: {shared}")
        _print_table(
            summary_table.fitted(texts.set_axis(names).rename_axis(texts.index.name), table_width())
        )
    else:
        _print_table(texts)


def table_width() -> int:
    """Return the maximum width of a table; `rich` assumes 80 columns for terminals that it does not know."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else UNLIMITED


def _print_table(texts: Any) -> None:
    """Print a table of texts at full width; cutting it to the terminal would hide figures."""
    from rich.console import Console
    from rich.table import Table

    table = Table(texts.index.name or "", box=None, pad_edge=False)
    for name in texts.columns:
        table.add_column(name, justify="right", no_wrap=True)
    for key, row in texts.iterrows():
        table.add_row(plain_text.line(key), *map(plain_text.line, row))
    Console(width=UNLIMITED, height=1).print(
        table, markup=False
    )  # without a height, some terminals are 80 wide


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
        return change(value) if isinstance(value, str) else value

    shown = table.astype(object).map(changed)
    return shown.set_axis([changed(key) for key in table.index], axis="index").rename_axis(
        table.index.name
    )


def _disarmed(table: Any) -> Any:
    """Return a table without texts that spreadsheets treat as formulas, as in the explorer's CSV."""

    def text(value: str) -> str:
        return plain_text.line(FORMULA.sub(r"\1'", value))

    return _each_text(table, text)


def _markdown_table(table: Any) -> str:
    """Return a Markdown table, padded to be readable as text: index left-aligned, figures right-aligned."""
    rows = [[str(table.index.name or ""), *map(str, table.columns)]]
    rows += [
        [str(key), *map(str, row)] for key, row in zip(table.index, table.to_numpy(), strict=True)
    ]
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    first, *others = widths
    sides = [":" + "-" * (first - 1), *("-" * (width - 1) + ":" for width in others)]
    padded = [[row[0].ljust(first), *map(str.rjust, row[1:], others)] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (padded[0], sides, *padded[1:]))


def _in_markdown(value: str) -> str:
    """Return a text for a Markdown cell, with pipes, HTML and links escaped."""
    shown = html.escape(plain_text.line(value), quote=False)
    return "".join(f"\\{character}" if character in MARKDOWN else character for character in shown)
