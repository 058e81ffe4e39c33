"""Finds dsnb's run folders and other programs' logs below a folder."""

import os
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from dsnb.errors import DsnbWarning, SettingsError
from dsnb.run_folder import paths
from dsnb.run_folder.paths import RunPaths
from dsnb.runs.logs import console

_RUN = RunPaths(Path())
_EXPERIMENT, _ENVIRONMENT, _RESULT = _RUN.experiment.name, _RUN.environment.name, _RUN.result.name


@dataclass
class Found:
    """Paths found below a folder."""

    runs: list[str] = field(default_factory=list)
    """Run folders of dsnb."""
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
    found = Found()
    for folder, below, files in os.walk(root, onerror=_warn):
        if _RUN.bandwidth_plan.name in files:
            found.folders += 1
            below.clear()
        elif _EXPERIMENT in files or {_RESULT, _ENVIRONMENT} <= set(files):  # a run without settings is still a row
            found.runs.append(folder)
            below.clear()
        else:
            found.folders += 1
            found.files += len(files)
            logs = [name for name in files if os.path.splitext(name)[1].lower() not in console.NEVER and name[0] != "."]
            found.logs += [path for name in logs if os.path.isfile(path := os.path.join(folder, name))]
    found.runs.sort(key=_sort_key)
    found.logs.sort(key=_sort_key)
    return found


def _warn(error: OSError) -> None:
    warnings.warn(f"{error.filename} is left out: it cannot be read ({error.strerror})", DsnbWarning, stacklevel=2)


def no_runs_message(path: str | Path) -> str:
    """Return the error message for a folder without runs, with how much was examined."""
    found = find_runs(path)
    numbers = {"file": found.files, "folder": found.folders}
    files, folders = (f"{number} {what}{'' if number == 1 else 's'}" for what, number in numbers.items())
    return (
        f"{str(path)!r} contains no runs: none of {files} in {folders} is a run of dsnb or a log that it can read; "
        f"supported are {console.KINDS}"
    )


def _sort_key(path: str) -> tuple[list[str], int, str]:
    *parent, name = path.split(os.sep)
    return parent, paths.repeat(name) or 0, name


def displayable(path: str) -> str:
    """Return a path as text that tables can hold: bytes that are not UTF-8 become `?`."""
    return path.encode("utf-8", "replace").decode()
