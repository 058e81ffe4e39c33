"""The words of other programs that dsnb reads and does not write (`incoming.toml`)."""

import tomllib
from pathlib import Path
from typing import Any

INCOMING: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("incoming.toml").read_text("utf-8")
)


def inverted(table: str) -> dict[str, str]:
    """Return the words of a table, each with the name that it is listed under."""
    return {word: name for name, words in INCOMING[table].items() for word in words}
