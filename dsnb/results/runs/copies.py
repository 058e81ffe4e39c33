"""Run folders and logs that are copies of each other.

A copy of a run's folder is no repeat of the run: it counts once. Each run has a random name
(`run_id` in `experiment.json`), which its copies share along with their content. Runs of earlier
versions have no such name and are recognized by content: equal records with a date, and equal
steps.
"""

import contextlib
import hashlib
import os
import warnings
from collections import Counter
from collections.abc import Sequence

from dsnb.base.errors import DsnbWarning
from dsnb.results.runs.names import SWEEP_FOLDER, displayable
from dsnb.results.runs.run import RUN_ID, Run


def distinct(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that are no copies of others, each with the folders that were left out as its copies.

    Of several copies, the one is kept that has a result, in the folder of the sweep with the most
    runs, then the one in the folder of its own experiment, then the first.
    """
    outcomes = Counter(run.outcome for run in runs)
    by_name: dict[str, Run] = {}
    by_content: dict[bytes, Run] = {}
    left_out: list[tuple[Run, Run]] = []
    for run in _preferred_first(runs):
        content = None
        if run.outcome is not None and outcomes[run.outcome] > 1:
            content = run.content()  # reads the steps
        original = None
        if content:
            original = by_content.get(content)
        if original is None or _are_named_differently(run, original):
            original = _namesake(by_name, run)
        if original is not None:
            original.copies.append(run.folder)
            left_out.append((run, original))
            continue
        if run.run_id:
            by_name.setdefault(run.run_id, run)
        if content:
            by_content.setdefault(content, run)
    _warn_of_copies(left_out)
    copies = {run for run, _ in left_out}
    for run in runs:
        run.copies.sort()
    return [run for run in runs if run not in copies]


def _are_named_differently(run: Run, other: Run) -> bool:
    return run.run_id is not None and other.run_id is not None and run.run_id != other.run_id


def _namesake(by_name: dict[str, Run], run: Run) -> Run | None:
    """Return the run with the same random name if this one is its copy; warn if its records were changed."""
    original = by_name.get(run.run_id or "")
    if original is None:
        return None
    was_unfinished = not (run.has_ended and original.has_ended)
    if was_unfinished or run.content() == original.content():
        return original
    _warn(
        f"{run.folder} and {original.folder} have the same {RUN_ID} but different records: one of "
        "them was changed"
    )
    return None


def _preferred_first(runs: Sequence[Run]) -> list[Run]:
    sizes = Counter(run.names[SWEEP_FOLDER] for run in runs)

    def rank(run: Run) -> tuple[bool, int, bool]:
        experiment = os.path.basename(os.path.dirname(run.folder))
        is_at_home = experiment.endswith(str(run.settings.get("name")))
        return not run.has_ended, -sizes[run.names[SWEEP_FOLDER]], not is_at_home

    return sorted(runs, key=rank)


def _warn_of_copies(left_out: Sequence[tuple[Run, Run]]) -> None:
    if not left_out:
        return
    run, original = left_out[0]
    others = len(left_out) - 1
    more = ""
    if others:
        more = f", and so are {others} more copies of runs"
    _warn(f"{run.folder} is left out: it is a copy of {original.folder}{more}")


def _warn(sentence: str) -> None:
    warnings.warn(displayable(sentence), DsnbWarning, stacklevel=4)


def shared_contents(files: Sequence[str]) -> dict[str, bytes]:
    """Return the digest of each file whose size another one has; files of different sizes are no copies."""
    sizes = {}
    for file in files:
        with contextlib.suppress(OSError):  # reading it says why
            sizes[file] = os.path.getsize(file)
    counts = Counter(sizes.values())
    digests = {}
    for file, size in sizes.items():
        if size and counts[size] > 1:
            with contextlib.suppress(OSError), open(file, "rb") as content:
                digests[file] = hashlib.file_digest(content, "sha256").digest()
    return digests
