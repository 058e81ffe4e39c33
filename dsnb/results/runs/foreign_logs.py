"""Runs in logs of other programs, with their rows; unreadable logs and copies of others are left out."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dsnb.base.errors import DsnbWarning, LogError
from dsnb.results.logs import checkpoints, console, logged_run
from dsnb.results.logs.reading import LoggedRun
from dsnb.results.runs import copies, names
from dsnb.results.runs.names import displayable

MAX_UNREAD = 8
"""Maximum number of files that the warning about unread ones names."""


def read(
    logs: list[str], is_one_file: bool, names_unread: bool = False
) -> Iterator[tuple[dict[str, Any], LoggedRun]]:
    """Yield each run in other programs' logs with its row; unreadable logs and copies are left out of a folder."""
    contents = copies.shared_contents(logs)
    first_of: dict[bytes, str] = {}
    unread = []
    for path, runs in _read_all(logs, is_one_file):
        made: list[tuple[dict[str, Any], LoggedRun]] = []
        with _left_out(path, is_one_file):
            if is_one_file and not runs:
                raise LogError(Path(path), console.UNSUPPORTED)
            if not runs and console.looks_like_log(Path(path)):
                unread.append(path)
            shown = Path(displayable(path))
            named = zip(runs, names.from_log(path, runs), strict=True)
            made = [(logged_run.row(run, shown, of_run), run) for run, of_run in named]
        original = path
        if made and path in contents:
            original = first_of.setdefault(contents[path], path)
        if original == path:
            yield from made
        else:
            sentence = f"{path} is left out: it is a copy of {original}"
            warnings.warn(sentence, DsnbWarning, stacklevel=2)
    if names_unread and unread:
        warnings.warn(_not_read(unread), DsnbWarning, stacklevel=2)


def _read_all(logs: list[str], is_one_file: bool) -> Iterator[checkpoints.Read]:
    """Yield the runs of one log after the other, in constant memory but for records, which may be copies of another."""
    errors = console.error_files(logs)
    records = {}
    for path in [path for path in logs if path.endswith(checkpoints.RECORDS)]:
        with _left_out(path, is_one_file):
            records[path] = console.read(Path(path))
    kept = dict(checkpoints.without_copies([*records.items()]))
    for path in logs:
        found: list[checkpoints.Read] = []
        if path in kept:
            found = [(path, kept[path])]
        elif path not in errors.values() and not path.endswith(checkpoints.RECORDS):
            with _left_out(path, is_one_file):
                found = _read(path, errors.get(path))
        yield from found


def _read(path: str, errors: str | None) -> list[checkpoints.Read]:
    """Read a log, with the file of standard error if it belongs to its only run."""
    runs = console.read(Path(path))
    if errors is None:
        return [(path, runs)]
    if len(runs) != 1:
        return [(path, runs), (errors, console.read(Path(errors)))]
    console.read_errors(runs[0], Path(errors))
    return [(path, runs)]


@contextmanager
def _left_out(path: str, is_one_file: bool) -> Iterator[None]:
    """Warn of an error in a log of a folder, which must not keep the others from being read; raise LogError for one."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        if not isinstance(error, LogError):
            said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            why = getattr(error, "strerror", None) or said
            error = LogError(Path(path), f"cannot be read: {why}")
        if is_one_file:
            raise error from None
        warnings.warn(f"left out: {error}", DsnbWarning, stacklevel=4)


def _not_read(paths: list[str]) -> str:
    """Return the sentence about files that may be logs but contain nothing that dsnb can read."""
    named = ", ".join(map(displayable, paths[:MAX_UNREAD]))
    more = ""
    if len(paths) > MAX_UNREAD:
        more = f" and {len(paths) - MAX_UNREAD} more"
    are = "are not logs"
    if len(paths) == 1:
        are = "is not a log"
    return f"not read: {named}{more} {are} that dsnb can read (see docs/how-to/foreign_logs.md)"
