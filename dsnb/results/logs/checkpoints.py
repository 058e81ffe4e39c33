"""Copies of one training's record: a Trainer saves its history again in the folder of every checkpoint."""

import os
import re
from collections.abc import Sequence

from dsnb.results.logs.reading import LoggedRun

Read = tuple[str, list[LoggedRun]]
"""A log's path and its runs."""
_CHECKPOINT = re.compile(r"checkpoint-\d{1,12}")
RECORDS = (".json", ".jsonl")
"""Suffixes of records of a training that its program keeps beside its checkpoints."""


def without_copies(logs: Sequence[Read]) -> list[Read]:
    """Leave out the records of a training's folder whose history is the beginning of another one's there.

    The longest record stays, and gets the figures that only the others have. Records that differ
    stay: they are of different trainings.
    """
    records = []
    for path, runs in logs:
        if len(runs) == 1 and path.endswith(RECORDS):
            records.append((path, runs[0]))
    kept: dict[str, list[LoggedRun]] = {}
    left_out: set[str] = set()
    for path, run in sorted(records, key=_longest_first):
        of_folder = kept.setdefault(_folder(path), [])
        whole = next((other for other in of_folder if _begins(other, run)), None)
        if whole is None:
            of_folder.append(run)
        else:
            _complete(whole, run)
            left_out.add(path)
    return [(path, runs) for path, runs in logs if path not in left_out]


def _longest_first(record: tuple[str, LoggedRun]) -> tuple[int, bool, str]:
    path, run = record
    return -len(run.steps), not run.ended, path


def _folder(path: str) -> str:
    """Return the folder of a training: without those of its checkpoints."""
    folder = os.path.dirname(path)
    while _CHECKPOINT.fullmatch(os.path.basename(folder)):
        folder = os.path.dirname(folder)
    return folder


def _begins(whole: LoggedRun, part: LoggedRun) -> bool:
    """Return whether the history of a record is the beginning of another's."""
    pairs = zip(whole.steps, part.steps, strict=False)
    return bool(part.steps) and all(
        one["step"] == other["step"] and one.get("loss") == other.get("loss")
        for one, other in pairs
    )


def _complete(whole: LoggedRun, part: LoggedRun) -> None:
    """Add figures and settings that only the shorter record has."""
    whole.settings.update({**part.settings, **whole.settings})
    if len(part.steps) < len(whole.steps):
        return
    whole.ended |= part.ended
    for name, value in part.figures.items():
        if name not in whole.figures:
            whole.record(part.provenance[name], **{name: value})
