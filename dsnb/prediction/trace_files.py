"""Traces of models in the user's cache: a file for each, and one for the recording of its allocations."""

import warnings
from pathlib import Path
from typing import Any, Literal

from dsnb.files import records
from dsnb.run_folder import paths

Part = Literal["trace", "recording"]
"""A recording is 50 times as large as a trace and rarely needed, so it is not read with it."""


def read(key: str, part: Part = "trace") -> dict[str, Any] | None:
    """Return what is kept under a key; None if that is nothing, or cannot be read."""
    file = _file(key, part)
    with warnings.catch_warnings(action="ignore"):  # what cannot be read is traced again
        return records.read_json(file) if file and file.is_file() else None


def write(key: str, record: dict[str, Any], part: Part = "trace") -> None:
    """Keep a record; a cache that cannot be written is none."""
    if not (file := _file(key, part)):
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        records.write_json(file, record)
    except OSError:
        return


def _file(key: str, part: Part) -> Path | None:
    home = paths.cache_home()
    return home / f"{part}s" / f"{key}.json" if home else None
