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

    The longest record stays, and gets the figures that only the others have. Records that differ stay: they are of
    different trainings.
    """
    kept: dict[str, list[Read]] = {}
    left_out: set[str] = set()
    for path, runs in sorted(logs, key=_longest_first):
        if len(runs) != 1 or not path.endswith(RECORDS):
            continue
        of_folder = kept.setdefault(_folder(path), [])
        whole = next((other for _, [other] in of_folder if _begins(other, runs[0])), None)
        if whole is None:
            of_folder.append((path, runs))
        else:
            _complete(whole, runs[0])
            left_out.add(path)
    return [(path, runs) for path, runs in logs if path not in left_out]


def _longest_first(log: Read) -> tuple[int, bool, str]:
    path, runs = log
    run = runs[0] if runs else LoggedRun()
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
    for name, value in part.figures.items():
        if name not in whole.figures and len(part.steps) == len(whole.steps):
            whole.record(part.provenance[name], **{name: value})
    for name, value in part.settings.items():
        whole.settings.setdefault(name, value)
    whole.ended = whole.ended or (part.ended and len(part.steps) == len(whole.steps))
