"""Finds dsnb's run folders and other programs' logs below a folder."""

import os
import warnings
from pathlib import Path

from dsnb.errors import DsnbWarning, SettingsError
from dsnb.run_folder import paths
from dsnb.run_folder.paths import RunPaths
from dsnb.runs.labels import count
from dsnb.runs.logs import console

_RUN = RunPaths(Path())
_EXPERIMENT, _ENVIRONMENT, _RESULT = _RUN.experiment.name, _RUN.environment.name, _RUN.result.name
_BANDWIDTH_PLAN = _RUN.bandwidth_plan.name


def find_runs(path: str | Path) -> tuple[list[str], list[str]]:
    """Find run folders of dsnb, and files that may be logs, below `path`, sorted, `run2` before `run10`.

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
        return [], [root]
    if not os.path.isdir(root):
        raise SettingsError(
            f"{str(path)!r} is not a folder or a file: choose a folder of outputs, such as outputs/quickstart, or a log"
        )
    runs: list[str] = []
    logs: list[str] = []
    for folder, below, files in os.walk(root, onerror=_warn):
        if _BANDWIDTH_PLAN in files:
            below.clear()
        elif _EXPERIMENT in files or {_RESULT, _ENVIRONMENT} <= set(files):  # a run without settings is still a row
            below.clear()
            runs.append(folder)
        else:
            paths_of_logs = [os.path.join(folder, name) for name in files if _may_be_log(name)]
            logs += [log for log in paths_of_logs if os.path.isfile(log)]  # not a pipe, nor a link to nothing
    return sorted(runs, key=_sort_key), sorted(logs, key=_sort_key)


def _may_be_log(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() not in console.NEVER


def _warn(error: OSError) -> None:
    warnings.warn(f"{error.filename} is left out: it cannot be read ({error.strerror})", DsnbWarning, stacklevel=2)


def no_runs_message(path: str | Path) -> str:
    """Return the error message for a folder without runs, with how much was examined."""
    files = [len(names) for _, _, names in os.walk(path)]
    examined = f"{count(sum(files), 'file')} in {count(len(files), 'folder')}"
    return (
        f"{str(path)!r} contains no runs: none of {examined} is a run of dsnb or a log that it can read; "
        f"supported are {console.KINDS}"
    )


def _sort_key(path: str) -> tuple[list[str], int, str]:
    *parent, name = path.split(os.sep)
    return parent, paths.repeat(name) or 0, name


def displayable(path: str) -> str:
    """Return a path as text that tables can hold: bytes that are not UTF-8 become `?`."""
    return path.encode("utf-8", "replace").decode()
