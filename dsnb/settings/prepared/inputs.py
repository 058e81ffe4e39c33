"""The files that a run reads (model, weights, tokenizer, text) and digests of them: an edited file is another input."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dsnb.errors import FetchError, SettingsError
from dsnb.formulas import model_shapes
from dsnb.settings.prepared import lookup, model_files
from dsnb.settings.prepared.lookup import ExternalItem

MAX_WHOLE_BYTES = 64 * 2**20
"""Larger files, such as weights, are sampled: hashing tens of GB would take minutes before every run."""
SAMPLES, SAMPLE_BYTES = 64, 64 * 1024


def files_of(item: ExternalItem) -> tuple[Path, list[Path]]:
    """Return the local file or folder that a setting names, and the files in it that a run reads.

    Raises
    ------
    FetchError
        If a file is missing or an index of weights cannot be read.
    """
    named = Path(item.name).expanduser().absolute()
    config = model_shapes.local_config(item.name) if "config" in item.parts else None
    folder = config.absolute().parent if config else named
    if config is None and not named.is_dir():
        if not named.is_file():
            raise FetchError(f"{item.setting} is {item.name[:200]!r}: it is not a file")
        return named, [named]
    there = {path.name for path in folder.iterdir() if path.is_file()}

    def read(name: str) -> Any:
        return json.loads((folder / name).read_text(encoding="utf-8"))

    try:
        if config and config.name != model_files.CONFIG:
            names = [config.name, *(model_files.weights(there, read) if "weights" in item.parts else [])]
        else:
            names = model_files.chosen(there, item.parts, read)
    except (FetchError, ValueError) as error:
        raise FetchError(f"{item.setting} is {item.name[:200]!r}: {error}") from error
    return named, [folder / name for name in names]


def digests(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the digest of every local file that a run reads, by its name: the setting's value, or a file below it.

    A file that is missing here has none; the launch reports it. Items of the hub are not files: `dsnb prepare` keeps
    their commit.
    """
    found: dict[str, str] = {}
    for item in lookup.external_items(settings):
        try:
            if item.hub_id is None:
                found |= _digests(item, _place(settings, item))
        except (OSError, FetchError):
            continue
    return found


def _place(settings: Mapping[str, Any], item: ExternalItem) -> str:
    """Return the path from which a rank reads an item: its copy in the shared folder, if there is one."""
    try:
        return lookup.places(settings).get(item.setting, item.name)
    except SettingsError:  # the launch reports what is missing there
        return item.name


def _digests(item: ExternalItem, place: str) -> dict[str, str]:
    named, files = files_of(replace(item, name=place))
    if not named.is_dir() and len(files) == 1:
        return {item.name: digest(files[0])}
    folder = item.name.rstrip("/") if named.is_dir() else str(Path(item.name).parent)
    return {f"{folder}/{file.name}": digest(file) for file in files}


def digest(path: Path) -> str:
    """Return a digest of a file's content; of a large file, of its size and evenly spaced samples."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        if size <= MAX_WHOLE_BYTES:
            return hashlib.file_digest(file, "sha256").hexdigest()[:32]
        content = hashlib.sha256(str(size).encode())
        for number in range(SAMPLES):
            file.seek(number * (size - SAMPLE_BYTES) // (SAMPLES - 1))
            content.update(file.read(SAMPLE_BYTES))
    return f"sampled-{content.hexdigest()[:24]}"


def changed(before: Any, now: Mapping[str, str]) -> list[str]:
    """Return the names of the files whose digests differ; none if they were not recorded `before`, or are missing."""
    if not isinstance(before, Mapping) or not before or not now:
        return []
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
