"""Figures in texts come from the data: `python -m docs.figures` writes all of them anew, and a test compares them.

Markdown stays the source. Two kinds of marks, which no reader sees, name what is between them:

* in a sentence `<!--figure: offload.speed-->9,592<!--/figure-->`: a figure of `docs.measured.SOURCES`, or the ratio of
  two, as in `compiled.speed / eager.speed`. A format of Python after a colon replaces the usual one: `memory.mean:.0f`.
* around a table `<!-- table: results -->` and `<!-- /table -->`, each beside an empty line: a table of
  `docs.measured.TABLES`.

`python -m docs.figures slow` also writes what takes minutes: `docs.measured.SLOW_TABLES`, and the figures of
`docs.measured.SLOW_SOURCES`.
"""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from docs import measured
from docs.code_blocks import ROOT, pages

FIGURE = re.compile(
    r"(?P<open><!--figure: (?P<name>[^>]+?)-->)(?P<text>.*?)(?P<close><!--/figure-->)"
)
TABLE = re.compile(
    r"(?P<open>^<!-- table: (?P<name>[\w-]+) -->\n\n)(?P<text>.*?)(?P<close>\n\n<!-- /table -->$)",
    re.MULTILINE | re.DOTALL,
)
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
SLACK = 0.11
"""Largest difference of a number in a table of `docs.measured.ROUNDED`: one unit of its last digit."""
MARKS = re.compile(r"<!--\s*/?\s*(?:figure|table)\b")


class FigureError(Exception):
    """A mark that names nothing, or is not written as it must be."""


def texts() -> list[Path]:
    """Return every text with marks."""
    return [page for page in [*pages(), measured.DATA_SETS] if MARKS.search(page.read_text())]


def figure(name: str) -> str:
    """Return a figure, or a ratio of two, as text.

    Raises
    ------
    FigureError
        If there is no such figure.
    """
    expression, _, chosen = name.partition(":")
    values, usual = zip(*map(_value, expression.split(" / ")), strict=True)
    value = values[0] if len(values) == 1 else values[0] / values[1]
    text = format(value, chosen or (usual[0] if len(values) == 1 else ".1f"))
    return text.replace("%", " %")


def _value(name: str) -> tuple[float, str]:
    """Return a figure and its usual format."""
    source, _, field = name.strip().rpartition(".")
    sources = {**measured.SOURCES, **measured.SLOW_SOURCES}
    if source not in sources:
        raise FigureError(f"there is no source {source!r} of a figure: add it to docs/measured.py")
    values = sources[source]()
    if field not in values:
        raise FigureError(f"{source} has no {field!r}: it has {', '.join(values)}")
    return values[field], measured.FORMATS.get(field, "")


def table(name: str) -> str:
    """Return a table as Markdown."""
    tables = {**measured.TABLES, **measured.SLOW_TABLES}
    if name not in tables:
        raise FigureError(f"there is no table {name!r}: add it to docs/measured.py")
    return "\n".join(tables[name]())


def check_marks(text: str, where: str) -> None:
    """Refuse marks without their counterpart, and figures that begin a line, which Markdown reads as HTML."""
    complete = 2 * (len(FIGURE.findall(text)) + len(TABLE.findall(text)))
    if len(MARKS.findall(text)) != complete:
        raise FigureError(
            f"{where}: a mark lacks its counterpart, or a table's mark its empty line"
        )
    if begins := re.search(r"^\s*<!--figure: [^\n]*", text, re.MULTILINE):
        raise FigureError(
            f"{where}: a figure begins a line, write a word before it: {begins[0][:60]}"
        )


def is_slow(name: str) -> bool:
    """Return whether a table or a figure takes minutes."""
    return name in measured.SLOW_TABLES or name.partition(".")[0] in measured.SLOW_SOURCES


def replaced(text: str, is_written: Callable[[str], bool] = lambda name: True) -> str:
    """Return a text with the figures and tables of the data; `is_written` chooses them by name."""

    def of_table(match: re.Match[str]) -> str:
        if not is_written(match["name"]):
            return match[0]
        return f"{match['open']}{table(match['name'])}{match['close']}"

    def of_figure(match: re.Match[str]) -> str:
        if not is_written(match["name"]):
            return match[0]
        return f"{match['open']}{figure(match['name'])}{match['close']}"

    return FIGURE.sub(of_figure, TABLE.sub(of_table, text))


def differences(page: Path, slow: bool = False) -> Iterator[str]:
    """Yield each figure and each row of a table that is not that of the data, as it is and as it should be.

    What takes minutes is compared if `slow`.
    """
    text = page.read_text()
    where = str(page.relative_to(ROOT))
    check_marks(text, where)
    for match in FIGURE.finditer(text):
        if is_slow(match["name"]) and not slow:
            continue
        if match["text"] != (expected := figure(match["name"])):
            yield f"{where}: {match['name']} is {match['text']}, the data has {expected}"
    for match in TABLE.finditer(text):
        name = match["name"]
        if is_slow(name) and not slow:
            continue
        rows, expected_rows = match["text"].splitlines(), table(name).splitlines()
        slack = SLACK if name in measured.ROUNDED else 0.0
        for row in expected_rows:
            if not any(is_same(row, other, slack) for other in rows):
                yield f"{where}: table {name} lacks {row}"
        if len(rows) != len(expected_rows):
            yield f"{where}: table {name} has {len(rows)} rows, the data has {len(expected_rows)}"


def is_same(row: str, other: str, slack: float) -> bool:
    """Return whether two rows of a table are equal, but for differences of their numbers up to `slack`."""
    if NUMBER.sub("", row) != NUMBER.sub("", other):
        return False
    pairs = zip(NUMBER.findall(row), NUMBER.findall(other), strict=False)
    return all(abs(float(first) - float(second)) <= slack for first, second in pairs)


def main() -> None:
    """Write the figures of all texts anew."""
    if sys.argv[1:] not in ([], ["slow"]):
        sys.exit(__doc__)
    slow = sys.argv[1:] == ["slow"]
    for page in texts():
        text = page.read_text()
        check_marks(text, str(page.relative_to(ROOT)))
        if (new := replaced(text, lambda name: slow or not is_slow(name))) != text:
            page.write_text(new)
            print(f"{page.relative_to(ROOT)} has new figures: read the sentences around them")


if __name__ == "__main__":
    main()
