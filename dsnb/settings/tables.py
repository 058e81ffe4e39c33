"""The data files of settings: how they are displayed, and why some are refused."""

import tomllib
from pathlib import Path
from typing import Any


def _table(name: str) -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name(name).read_text("utf-8"))


SHOWN = _table("settings.toml")
"""How settings are displayed, by name."""
REFUSALS = _table("refusals.toml")
"""Refused names or values and their reasons, by kind of refusal."""
