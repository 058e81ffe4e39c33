"""Run folders that are copies of each other, and sweeps whose folders have the same name.

A copy of a run's folder is no repeat of the run: it counts once. Each run has a random name (`run_id` in
`experiment.json`), which its copies share along with their content. Runs of earlier versions have no such name and are
recognized by content: equal records with a date, and equal steps.
"""

import contextlib
import hashlib
import os
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from dsnb.base.errors import DsnbWarning
from dsnb.base.files import json_files
from dsnb.settings.records.paths import RunPaths, repeat

RUN_ID = "run_id"
_CANONICAL = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
_STEPS = RunPaths(Path()).steps.name


@dataclass(frozen=True)
class Run:
    """A run folder with its records as they are in the files; empty for a missing file."""

    folder: str
    settings: Mapping[str, Any]
    machine: Mapping[str, Any]
    result: Mapping[str, Any]

    @property
    def run_id(self) -> str | None:
        """The random name of the run; None for runs of earlier versions."""
        value = self.settings.get(RUN_ID)
        return value if isinstance(value, str) and value else None

    def is_named_differently(self, other: "Run") -> bool:
        """Return whether both runs have names, and different ones."""
        return self.run_id is not None and other.run_id is not None and self.run_id != other.run_id

    @property
    def has_ended(self) -> bool:
        """Whether there is a result."""
        return bool(self.result.get("status"))

    @property
    def outcome(self) -> tuple[str, str, bytes] | None:
        """Date, host and result, which two runs hardly share; None for a run without a date or a result."""
        date, host = self.machine.get("date_utc"), self.machine.get("host")
        if not date or not self.has_ended:
            return None
        return str(date), str(host), orjson.dumps(self.result, option=_CANONICAL)

    def content(self) -> bytes:
        """Return a digest of everything that a copy has unchanged."""
        settings = {name: value for name, value in self.settings.items() if name != RUN_ID}
        recorded = orjson.dumps([settings, self.machine, self.result], option=_CANONICAL)
        steps = json_files.read_bytes(f"{self.folder}/{_STEPS}") or b""
        return hashlib.sha256(recorded + steps).digest()


def distinct(runs: Sequence[Run]) -> tuple[list[int], dict[int, list[str]]]:
    """Return the places of runs without copies of others, and, by place, the folders left out as its copies.

    Of several copies, the one is kept that has a result, in the folder of the sweep with the most runs, then the one
    in the folder of its own experiment, then the first.
    """
    outcomes = [run.outcome for run in runs]
    counts = Counter(outcomes)
    kept: list[int] = []
    by_name: dict[str, int] = {}
    by_content: dict[bytes, int] = {}
    copies: dict[int, list[str]] = defaultdict(list)
    for place in _preferred_first(runs):
        run = runs[place]
        is_shared = outcomes[place] is not None and counts[outcomes[place]] > 1
        content = run.content() if is_shared else None  # reads the steps
        original = by_content.get(content) if content else None
        if original is not None and runs[original].is_named_differently(run):
            original = None
        if original is None and run.run_id in by_name:
            original = _namesake(runs, by_name[run.run_id], place)
        if original is not None:
            copies[original].append(run.folder)
            continue
        kept.append(place)
        if run.run_id:
            by_name.setdefault(run.run_id, place)
        if content:
            by_content.setdefault(content, place)
    _warn_of_copies(runs, copies)
    return sorted(kept), {place: sorted(folders) for place, folders in copies.items()}


def _namesake(runs: Sequence[Run], first: int, place: int) -> int | None:
    """Return the first run if the second one with its name is a copy of it; warn if its records were changed."""
    run, other = runs[first], runs[place]
    was_unfinished = not (run.has_ended and other.has_ended)
    if was_unfinished or run.content() == other.content():
        return first
    _warn(
        f"{other.folder} and {run.folder} have the same {RUN_ID} but different records: one of them was changed"
    )
    return None


def _preferred_first(runs: Sequence[Run]) -> list[int]:
    sizes = Counter(sweep_folder(run.folder) for run in runs)

    def rank(place: int) -> tuple[bool, int, bool, int]:
        run = runs[place]
        experiment = os.path.basename(os.path.dirname(run.folder))
        is_at_home = experiment.endswith(str(run.settings.get("name")))
        return not run.has_ended, -sizes[sweep_folder(run.folder)], not is_at_home, place

    return sorted(range(len(runs)), key=rank)


def _warn_of_copies(runs: Sequence[Run], copies: Mapping[int, Sequence[str]]) -> None:
    if not copies:
        return
    place, folders = next(iter(copies.items()))
    others = sum(map(len, copies.values())) - 1
    more = f", and so are {others} more copies of runs" if others else ""
    _warn(f"{folders[0]} is left out: it is a copy of {runs[place].folder}{more}")


def _warn(sentence: str) -> None:
    warnings.warn(displayable(sentence), DsnbWarning, stacklevel=4)


def shared_contents(files: Sequence[str]) -> dict[str, bytes]:
    """Return the digest of each file whose size another one has; files of different sizes are no copies."""
    sizes, digests = {}, {}
    for file in files:
        with contextlib.suppress(OSError):  # reading it says why
            sizes[file] = os.path.getsize(file)
    counts = Counter(sizes.values())
    for file, size in sizes.items():
        if size and counts[size] > 1:
            with contextlib.suppress(OSError), open(file, "rb") as content:
                digests[file] = hashlib.file_digest(content, "sha256").digest()
    return digests


def displayable(path: str) -> str:
    """Return a path as text that tables can hold: bytes that are not UTF-8 become `?`."""
    return path.encode("utf-8", "replace").decode()


def sweep_folder(folder: str) -> str:
    """Return the folder of the sweep that a run folder belongs to, `sweep/experiment/run<k>` or `sweep/experiment`."""
    above = os.path.dirname(folder)
    return above if repeat(os.path.basename(folder)) is None else os.path.dirname(above)


def sweep_names(folders: Sequence[str]) -> dict[str, str]:
    """Return the names of sweeps by folder: the folder's name, with as many parents as tell it from its namesakes."""
    namesakes: dict[str, list[str]] = defaultdict(list)
    for folder in dict.fromkeys(folders):
        namesakes[os.path.basename(folder)].append(folder)
    return {
        folder: name
        for same in namesakes.values()
        for folder, name in zip(same, _told_apart(same), strict=True)
    }


def _told_apart(folders: Sequence[str]) -> list[str]:
    parts = [displayable(folder).split(os.sep) for folder in folders]
    depth = 1
    while len({tuple(each[-depth:]) for each in parts}) < len(parts):
        depth += 1
    return ["/".join(each[-depth:]) for each in parts]
