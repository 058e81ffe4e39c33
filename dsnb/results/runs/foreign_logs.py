"""Runs in logs of other programs, with their rows; unreadable logs and copies of others are left out."""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dsnb.base.errors import DsnbWarning, LogError, SettingsError
from dsnb.results.logs import checkpoints, companions, console, logged_run
from dsnb.results.logs.reading import LoggedRun
from dsnb.results.runs import copies, names, stated
from dsnb.results.runs.names import displayable

MAX_UNREAD = 8
"""Maximum number of files that the warning about unread ones names."""


def read(
    logs: list[str],
    is_one_file: bool,
    names_unread: bool = False,
    settings: Mapping[str, Any] | None = None,
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
            for run in runs:
                stated.add(run, settings or {}, path)
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
    """Yield the runs of one log after the other, in constant memory but for records and the logs beside them."""
    errors = console.error_files(logs)
    kept, beside = _trainings(logs, errors, is_one_file)
    for path in logs:
        found: list[checkpoints.Read] = []
        if path in kept:
            found = [(path, kept[path])]
        elif path in beside:
            found = beside[path]
        elif path not in errors.values() and not path.endswith(checkpoints.RECORDS):
            with _left_out(path, is_one_file):
                found = _read(path, errors.get(path))
            _add_companions(found, [other for other in logs if _is_console(other)], is_one_file)
        yield from found


def _trainings(
    logs: list[str], errors: Mapping[str, str], is_one_file: bool
) -> tuple[dict[str, list[LoggedRun]], dict[str, list[checkpoints.Read]]]:
    """Return records of trainings, and the other runs in console logs beside them, each by path."""
    records = {}
    for path in [path for path in logs if path.endswith(checkpoints.RECORDS)]:
        with _left_out(path, is_one_file):
            records[path] = console.read(Path(path))
    kept = dict(checkpoints.without_copies([*records.items()]))
    found = [(path, runs) for path, runs in kept.items() if runs]
    homes = {checkpoints.folder(path) for path, _ in found}
    near = homes | {os.path.dirname(home) for home in homes}
    beside: dict[str, list[checkpoints.Read]] = {}
    for path in logs:
        is_console = not path.endswith(checkpoints.RECORDS) and path not in errors.values()
        if is_console and os.path.dirname(path) in near:
            with _left_out(path, is_one_file):
                reads = _read(path, errors.get(path))
                if any(runs for _, runs in reads):
                    others = checkpoints.without_consoles(found, reads)
                    beside[path] = [(log, runs) for log, runs in others if runs]
    _add_companions(found, [path for path, _ in found], is_one_file)
    return kept, beside


def _is_console(path: str) -> bool:
    return not path.endswith(".json")


def _add_companions(
    found: Sequence[checkpoints.Read], logs: Sequence[str], is_one_file: bool
) -> None:
    """Add the settings in files beside a training's log: in its checkpoint, or in its folder if it is alone there."""
    for path, runs in found:
        home = checkpoints.folder(path)
        of_home = [other for other in logs if checkpoints.folder(other) == home]
        for run in runs:
            with _left_out(path, is_one_file):
                companions.add(run, Path(path).parent)
                if len(of_home) == 1:
                    companions.add(run, Path(home))


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
    except (MemoryError, SettingsError):
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
