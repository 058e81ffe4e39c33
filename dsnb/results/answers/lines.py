"""The lines of an answer: cells of text in columns, shown in a terminal or as HTML.

A line is filled from its template in `phrases.lines` of `sentences.toml`. One cell is a sentence;
in several, the first is a label. Lines with equally many cells are aligned with each other, and only
the last column of a line wraps.
"""

import html
import itertools
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from dsnb.base.files import plain_text
from dsnb.results.answers.sentences import LIMITS, PHRASES
from dsnb.results.runs.templates import fill

WIDTH = 100
"""Most columns of an answer."""
LEAST = 12
"""Least columns of the last cell of a line, however narrow the terminal."""
MAX_CHANGES = 30
"""Most characters of an alternative's changes in their column."""
GAP = 2
"""Spaces between columns."""
LABEL = 'style="text-align: left; white-space: nowrap; padding-right: 1em"'
LEFT = 'style="text-align: left; padding-right: 1em"'
RIGHT_SIDE = 'style="text-align: right; white-space: nowrap; padding-right: 1em"'
LAST = 'style="text-align: left"'
"""Alignment of cells in HTML, which notebooks and pages do not share; the last one of a row may wrap."""
SUMMARY = "summary"
"""The role of the rows of a summary of runs, with the setting as last column."""
RIGHT = {"alternative": (2, 3), SUMMARY: range(1, 10)}
"""Columns that are aligned on the right."""
MAX_CELLS = max(map(len, PHRASES["lines"].values())) - 1
"""Most columns beside the label."""


@dataclass(frozen=True)
class Line:
    """One line of an answer."""

    role: str
    """What the line is about, as in `time`."""
    cells: tuple[str, ...]
    """Its texts by column."""


def line(role: str, /, **facts: object) -> Line:
    """Return the line of this role with these facts; cells whose facts are missing are empty."""
    templates = PHRASES["lines"][role]
    return Line(
        role, tuple(plain_text.line(fill(template, LIMITS | facts)) for template in templates)
    )


def note(sentence: object) -> Line:
    """Return a line with a sentence."""
    return line("note", text=sentence)


def split(changed: Sequence[str]) -> tuple[str, list[str]]:
    """Return the changes of an alternative that fit into a column, and the others, which are remarks."""
    number = 1
    while number < len(changed) and len(", ".join(changed[: number + 1])) <= MAX_CHANGES:
        number += 1
    return ", ".join(changed[:number]), list(changed[number:])


def text(lines: Sequence[Line], width: int = WIDTH) -> str:
    """Return lines as text of at most `width` columns."""
    width = min(width, WIDTH)
    labels = [one.cells[:1] for one in lines if len(one.cells) > 1]
    shown: list[str] = []
    for one in lines:
        alike = [other.cells[:-1] for other in lines if len(other.cells) == len(one.cells)]
        columns = list(zip(*alike, strict=True))
        if columns:
            columns[0] = tuple(label for (label,) in labels)
        before = ""
        for place, cell in enumerate(one.cells[:-1]):
            size = max(map(len, columns[place]))
            padded = cell.ljust(size)
            if place in RIGHT.get(one.role, ()):
                padded = cell.rjust(size)
            if size:
                before += padded + " " * GAP
        shown += _wrapped(before, one.cells[-1], width)
    return "\n".join(shown)


def height(lines: Sequence[Line]) -> int:
    """Return the number of lines of a text as wide as an answer may be."""
    return len(text(lines).splitlines())


def _wrapped(before: str, last: str, width: int) -> list[str]:
    """Return a text of at most `width` columns as lines, with the cells before it in the first one."""
    room = max(width - len(before), LEAST)
    parts = textwrap.wrap(last, room, break_long_words=False, break_on_hyphens=False)
    first, *others = parts or [""]
    indent = " " * len(before)
    return [(before + first).rstrip(), *(indent + part for part in others)]


def as_html(lines: Sequence[Line]) -> str:
    """Return lines as HTML: a heading, a table of the figures and alternatives, and remarks."""
    parts = []
    for is_table, group in itertools.groupby(lines, key=lambda one: len(one.cells) > 1):
        rows = "".join(map(_row_html, group))
        if is_table:
            rows = f"<table>{rows}</table>"
        parts.append(rows)
    return "".join(parts)


def _row_html(one: Line) -> str:
    cells = [html.escape(cell.strip()) for cell in one.cells]
    if len(cells) == 1:
        tag = "p"
        if one.role in ("title", "task"):
            tag = "h3"
        return f"<{tag}>{cells[0]}</{tag}>"
    label, *others, last = cells
    columns = ["<td></td>"]
    if label:
        columns = [f'<th scope="row" {LABEL}>{label}</th>']
    for place, cell in enumerate(others, 1):
        side = LEFT
        if one.role == SUMMARY and place in RIGHT[SUMMARY]:
            side = RIGHT_SIDE
        columns.append(f"<td {side}>{cell}</td>")
    columns.append(f'<td {LAST} colspan="{MAX_CELLS - len(others)}">{last}</td>')
    return f"<tr>{''.join(columns)}</tr>"
