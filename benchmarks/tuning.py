"""Writes fitted numbers into `dsnb/prediction/tuned.toml`, a row a line, so that a diff shows which have changed.

Comments, units, meanings and sources stay. A table whose rows changed gets today's date.
"""

import datetime
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dsnb.prediction.tuned import FILE


def write_rows(table: str, rows: Mapping[str, Sequence[Any]]) -> int:
    """Replace all rows of a table of lists; return how many rows have changed."""

    def replaced(lines: list[str]) -> list[str]:
        is_row = [re.match(r'("[^"]+"|\w+) = \[', line) is not None for line in lines]
        is_row = [
            row and not line.startswith("columns = ")
            for row, line in zip(is_row, lines, strict=True)
        ]
        kept = [line for line, row in zip(lines, is_row, strict=True) if not row]
        blank = []  # before the next table
        while not kept[-1].strip():
            blank.append(kept.pop())
        written = [f"{json.dumps(name)} = {json.dumps(list(row))}\n" for name, row in rows.items()]
        return [*kept, *written, *blank]

    return _edit(table, replaced)


def write_values(table: str, values: Mapping[str, float]) -> int:
    """Replace the values of some rows of a table of single numbers; return how many rows have changed."""

    def replaced(lines: list[str]) -> list[str]:
        written = []
        for line in lines:
            name = line.partition(" = ")[0]
            if name in values:
                value = f"{{ value = {values[name]!r},"
                written.append(re.sub(r"\{ value = [^,]+,", value, line, count=1))
            else:
                written.append(line)
        return written

    return _edit(table, replaced)


def write_setting(table: str, name: str, value: object) -> int:
    """Replace an entry of a table that is no row, such as the number of settings of a fit."""
    pattern = re.compile(rf"{name} = .*\n")
    return _edit(table, lambda lines: [pattern.sub(f"{name} = {value}\n", line) for line in lines])


def _edit(table: str, replaced: Callable[[list[str]], list[str]]) -> int:
    lines = FILE.read_text(encoding="utf-8").splitlines(keepends=True)
    first = lines.index(f"[{table}]\n") + 1
    after = [place for place, line in enumerate(lines) if line.startswith("[") and place > first]
    last = after[0] if after else len(lines)
    before = lines[first:last]
    edited = replaced(before)
    changed = len(set(edited) - set(before))
    if changed:
        today = f'date = "{datetime.date.today().isoformat()}"\n'
        edited = [today if line.startswith("date = ") else line for line in edited]
        FILE.write_text("".join([*lines[:first], *edited, *lines[last:]]), encoding="utf-8")
    print(f"tuned.toml, {table}: {changed} of {len(edited)} lines changed")
    return changed
