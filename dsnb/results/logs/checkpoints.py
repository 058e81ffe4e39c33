"""Files of one training: a Trainer saves its history again in every checkpoint, and final figures beside it."""

import math
import os
import re
from collections.abc import Sequence

from dsnb.results.logs.reading import LoggedRun
from dsnb.results.logs.trainer import OF_TRAINER

Read = tuple[str, list[LoggedRun]]
"""A log's path and its runs."""
_CHECKPOINT = re.compile(r"checkpoint-\d{1,12}")
RECORDS = (".json", ".jsonl")
"""Suffixes of records of a training that its program keeps beside its checkpoints."""


def without_copies(logs: Sequence[Read]) -> list[Read]:
    """Leave out the records of a training's folder that belong to another one there.

    Their history is the beginning of the other's, or they have its final figures alone.

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
        of_folder = kept.setdefault(folder(path), [])
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


def without_consoles(records: Sequence[Read], logs: Sequence[Read]) -> list[Read]:
    """Return console logs without the runs of which there are records, which get what only the log says."""
    rest = []
    for path, runs in logs:
        others = []
        for run in runs:
            found = _records_of(run, path, records)
            if len(found) == 1:
                _complete(found[0], run)
            else:
                others.append(run)
        rest.append((path, others))
    return rest


def _records_of(run: LoggedRun, path: str, records: Sequence[Read]) -> list[LoggedRun]:
    """Return the records of the training of a console log in its folder, or in one directly below it."""
    here = os.path.dirname(path)
    found = []
    for record, runs in records:
        home = folder(record)
        is_near = here == home or here == os.path.dirname(home)
        if is_near and len(runs) == 1 and _is_shown(runs[0], run):
            found.append(runs[0])
    return found


def _is_shown(record: LoggedRun, console: LoggedRun) -> bool:
    """Return whether a console log shows the training of a record; consoles print four digits."""
    if "train_runtime_s" in record.figures and "train_runtime_s" in console.figures:
        return _printed(record, "train_runtime_s", "loss_mean") == _printed(
            console, "train_runtime_s", "loss_mean"
        )
    ours = [f"{step['loss']:.4g}" for step in record.steps if "loss" in step]
    theirs = [f"{step['loss']:.4g}" for step in console.steps if "loss" in step]
    theirs = theirs or _printed(console, "loss_first", "loss_last")
    is_one = bool(ours) and ours[:1] == theirs[:1]
    return is_one and (theirs[-1] in ours or ours[-1] in theirs)


def _printed(run: LoggedRun, *names: str) -> list[str]:
    return [f"{run.figures[name]:.4g}" for name in names if name in run.figures]


def folder(path: str) -> str:
    """Return the folder of a training: without those of its checkpoints."""
    home = os.path.dirname(path)
    while _CHECKPOINT.fullmatch(os.path.basename(home)):
        home = os.path.dirname(home)
    return home


def _begins(whole: LoggedRun, part: LoggedRun) -> bool:
    """Return whether the history of a record is the beginning of another's; of one without, the final figures."""
    if not part.steps:
        runtime_s = part.figures["train_runtime_s"]
        return bool(runtime_s) and whole.figures["train_runtime_s"] in {None, runtime_s}
    pairs = zip(whole.steps, part.steps, strict=False)
    return all(
        one["step"] == other["step"] and _are_equal(one.get("loss"), other.get("loss"))
        for one, other in pairs
    )


def _are_equal(one: float | None, other: float | None) -> bool:
    """Return whether two losses are one: ms-swift rounds those of its own record."""
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-7)


def _complete(whole: LoggedRun, part: LoggedRun) -> None:
    """Add what only another record or log of the same training has."""
    for name, value in part.settings.items():
        whole.settings.setdefault(name, value)
    if part.program in OF_TRAINER:
        whole.program = part.program
    is_earlier = 0 < len(part.steps) < len(whole.steps)
    if is_earlier and not part.ended:
        return
    whole.ended |= part.ended
    if not whole.ended:
        whole.failure = whole.failure or part.failure
        whole.failed_after = whole.progress
    whole.slots = {**part.slots, **whole.slots}
    whole.splits = {**part.splits, **whole.splits}
    whole.environment = {**part.environment, **whole.environment}
    whole.longest = whole.longest or part.longest
    whole.has_trainer_total |= part.has_trainer_total
    whole.has_engine_world |= part.has_engine_world
    whole.resumed_from = whole.resumed_from or part.resumed_from
    _add_times(whole, part)
    for name, value in part.figures.items():
        is_rounded = name in {"loss_first", "loss_last"} and whole.steps
        if name not in whole.figures and not is_rounded:
            whole.record(part.provenance[name], **{name: value})


def _add_times(whole: LoggedRun, part: LoggedRun) -> None:
    """Add the values that steps have only in the other record."""
    more = {step["step"]: step for step in part.steps}
    whole.steps = [{**more.get(step["step"], {}), **step} for step in whole.steps]
