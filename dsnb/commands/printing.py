"""Prints tables: for people, for machines, for Markdown."""

import sys
from enum import StrEnum
from typing import Any

import typer
from rich.console import Console
from rich.table import Table


class Format(StrEnum):
    """How a table is printed."""

    table = "table"
    markdown = "markdown"
    csv = "csv"
    json = "json"


def show_summary(runs: Any, format_: Format) -> None:
    """Print the aggregated table."""
    from dsnb.summary import summarize
    from dsnb.tables import readable

    table = summarize(runs)
    show(table, readable(table), format_)


def show_groups(runs: Any, format_: Format) -> None:
    """Print how groups of nodes compare, and in words who is slow."""
    from dsnb.clusters import compared

    numbers, texts, said = compared(runs)
    show(numbers, texts, format_)
    typer.echo("\n".join(said), err=format_ in {Format.csv, Format.json})


def show(numbers: Any, texts: Any, format_: Format) -> None:
    """Print a table: `numbers` for machines, `texts` for people."""
    if format_ is Format.csv:
        typer.echo(numbers.to_csv(), nl=False)
    elif format_ is Format.json:
        typer.echo(numbers.reset_index().to_json(orient="records", indent=1))
    elif format_ is Format.markdown:
        typer.echo(texts.to_markdown())
    else:
        table = Table(texts.index.name or "", box=None, pad_edge=False)
        for name in texts.columns:
            table.add_column(name, justify="right")
        for key, row in texts.iterrows():
            table.add_row(str(key), *map(str, row))
        # A table that is cut to a narrow terminal would hide figures.
        Console(width=max(Console().width, 200) if not sys.stdout.isatty() else None).print(table, markup=False)
