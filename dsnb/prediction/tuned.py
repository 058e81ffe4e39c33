"""The tuned numbers of the predictions: those that were fitted, measured or assumed, from `tuned.toml`.

That file has the unit, meaning, source and date of each; the commands in `benchmarks` that fit them
write it.
"""

import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

FILE = Path(__file__).with_name("tuned.toml")
TUNED: dict[str, Any] = tomllib.loads(FILE.read_text(encoding="utf-8"))
"""The content of the file by table."""


def numbers(table: str) -> SimpleNamespace:
    """Return the values of a table of single numbers as attributes."""
    rows = TUNED[table].items()
    return SimpleNamespace(**{name: row["value"] for name, row in rows if isinstance(row, dict)})


def rows(table: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the rows of a table of lists."""
    return {name: row for name, row in table.items() if isinstance(row, list) and name != "columns"}


def column(table: str, name: str, default: float | None = None) -> list[Any]:
    """Return a further column of a table of single numbers, such as `prior`."""
    rows = TUNED[table].values()
    return [row.get(name, default) for row in rows if isinstance(row, dict)]
