"""Titles of published data and of its sweeps, and who published them, when and where."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from dsnb.settings.programs import PUBLISHED

_FILE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Source:
    """Where published figures come from; what is unknown is empty."""

    title: str
    by: str
    date: str = ""
    link: str = ""


DATA = {name: Source(**known) for name, known in _FILE["data"].items()}
"""What is known of each table that `dsnb.published` loads."""
TITLES = {PUBLISHED + name: source.title for name, source in DATA.items()}
"""Titles of the values of the column `source`."""
SWEEPS: dict[str, str] = {name: source.title for name, source in DATA.items()} | _FILE["sweeps"]
"""Titles of the sweeps in published tables."""
