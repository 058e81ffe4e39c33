"""Finds dsnb's run folders and other programs' logs below a folder."""

import os
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from dsnb.errors import DsnbWarning, SettingsError
from dsnb.run_folder import paths
from dsnb.run_folder.paths import RunPaths
from dsnb.runs.logs import find

_RUN = RunPaths(Path())
_EXPERIMENT, _ENVIRONMENT, _RESULT = _RUN.experiment.name, _RUN.environment.name, _RUN.result.name
_STEPS, _BANDWIDTH_PLAN = _RUN.steps.name, _RUN.bandwidth_plan.name


@dataclass
class Found:
    """Paths found below a folder."""

    runs: list[str] = field(default_factory=list)
    """Run folders of dsnb."""
    without_steps: set[str] = field(default_factory=set)
    """Run folders with a result but no `steps.jsonl`."""
    logs: list[str] = field(default_factory=list)
    """Files that may be logs; their content decides."""
    is_one_file: bool = False
    """Whether the path is a file, which then must be a log."""
    folders: int = 0
    """Number of folders that are not run folders."""
    files: int = 0
    """Number of files in them."""


def find_runs(path: str | Path) -> Found:
    """Find run folders and possible logs below `path`, sorted, `run2` before `run10`.

    Parameters
    ----------
    path
        A folder, or one log.

    Raises
    ------
    SettingsError
        If the path does not exist.
    """
    root = os.path.abspath(path)
    if os.path.isfile(root):
        return Found(logs=[root], is_one_file=True)
    if not os.path.isdir(root):
        raise SettingsError(
            f"{str(path)!r} is not a folder or a file: choose a folder of outputs, such as outputs/quickstart, or a log"
        )
    found, waiting = Found(), [root]
    while waiting:
        folder = waiting.pop()
        files, below = _scan(folder)
        if _BANDWIDTH_PLAN in files:
            found.folders += 1
        elif _EXPERIMENT in files or {_RESULT, _ENVIRONMENT} <= set(files):  # a run without settings is still a row
            found.runs.append(folder)
            if _RESULT in files and _STEPS not in files:
                found.without_steps.add(folder)
        else:
            found.folders += 1
            found.files += len(files)
            waiting += [os.path.join(folder, name) for name in below]
            logs = [name for name in files if os.path.splitext(name)[1].lower() not in find.NEVER and name[0] != "."]
            found.logs += [os.path.join(folder, name) for name in logs]
    found.runs.sort(key=_sort_key)
    found.logs.sort(key=_sort_key)
    return found


def no_runs_message(path: str | Path) -> str:
    """Return the error message for a folder without runs, with how much was examined."""
    found = find_runs(path)
    numbers = {"file": found.files, "folder": found.folders}
    files, folders = (f"{number} {what}{'' if number == 1 else 's'}" for what, number in numbers.items())
    return (
        f"{str(path)!r} contains no runs: none of {files} in {folders} is a run of dsnb or a log that it can read; "
        f"supported are {find.KINDS}"
    )


def _scan(folder: str) -> tuple[list[str], list[str]]:
    """Return the names of the files and of the subfolders in a folder; links to folders are not followed."""
    files, below = [], []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    if entry.is_dir(follow_symlinks=False):
                        below.append(entry.name)
                    elif entry.is_file():
                        files.append(entry.name)
                except OSError:  # a link to itself
                    continue
    except OSError as error:
        warnings.warn(f"{folder} is left out: it cannot be read ({error.strerror})", DsnbWarning, stacklevel=2)
    return files, below


def _sort_key(path: str) -> tuple[list[str], int, str]:
    *parent, name = path.split(os.sep)
    return parent, paths.repeat(name) or 0, name


def displayable(path: str) -> str:
    """Return a path as text that tables can hold: bytes that are not UTF-8 become `?`."""
    return path.encode("utf-8", "replace").decode()
