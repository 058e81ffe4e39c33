"""Finds dsnb's run folders and other programs' logs below a folder, and names runs by their paths."""

import os
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsnb.errors import DsnbWarning, SettingsError
from dsnb.run_folder import paths
from dsnb.run_folder.paths import RunPaths
from dsnb.runs import index
from dsnb.runs.index import Index
from dsnb.runs.logs import find
from dsnb.runs.logs.logged_run import LoggedRun

_RUN = RunPaths(Path())
_EXPERIMENT, _ENVIRONMENT, _RESULT = _RUN.experiment.name, _RUN.environment.name, _RUN.result.name
_STEPS, _BANDWIDTH_PLAN = _RUN.steps.name, _RUN.bandwidth_plan.name


@dataclass
class Found:
    """Paths found below a folder, and the paths that were examined to find them."""

    runs: list[str] = field(default_factory=list)
    """Run folders of dsnb."""
    logs: list[str] = field(default_factory=list)
    """Files that may be logs; their content decides."""
    is_one_file: bool = False
    """Whether the path is a file, which then must be a log."""
    examined: list[str] = field(default_factory=list)
    """Logs and folders whose change would change the tables, except folders of finished runs."""
    results: list[str] = field(default_factory=list)
    """`result.json` of every finished run; it is written last and atomically."""
    steps: list[str] = field(default_factory=list)
    """`steps.jsonl` of every finished run."""
    without_steps: set[str] = field(default_factory=set)
    """Run folders with a result but no `steps.jsonl`."""
    indexed: list[Index] = field(default_factory=list)
    """Indexes of sweeps; their runs are not in `runs`."""
    folders: list[str] = field(default_factory=list)
    """Folders that are not run folders."""
    files: int = 0
    """Number of files in `folders`."""


def find_runs(path: str | Path, *, use_indexes: bool = False) -> Found:
    """Find run folders and possible logs below `path`, sorted, `run2` before `run10`.

    Parameters
    ----------
    path
        A folder, or one log.
    use_indexes
        Read the runs of a sweep from its index, if it has a valid one.

    Raises
    ------
    SettingsError
        If the path does not exist.
    """
    root = os.path.abspath(path)
    if os.path.isfile(root):
        return Found(logs=[root], is_one_file=True, examined=[root, os.path.join(os.path.dirname(root), "gpu_log.csv")])
    if not os.path.isdir(root):
        raise SettingsError(
            f"{str(path)!r} is not a folder or a file: choose a folder of outputs, such as outputs/quickstart, or a log"
        )
    found, waiting = Found(), [root]
    while waiting:
        folder = waiting.pop()
        inside, below = _scan(folder)
        if _BANDWIDTH_PLAN in inside:
            found.folders.append(folder)
            continue
        if _EXPERIMENT in inside or {_RESULT, _ENVIRONMENT} <= set(inside):  # a run without settings is still a row
            _add_run(found, folder, inside)
            continue
        found.examined.append(folder)
        found.folders.append(folder)
        found.files += len(inside)
        if use_indexes and index.NAME in inside and (known := index.read(folder, below)):
            found.indexed.append(known)
            found.examined += known.examined
            found.results += known.results
            found.logs += known.logs
        else:
            waiting += [os.path.join(folder, name) for name in below]
        logs = [os.path.join(folder, name) for name in inside if not name.startswith(".")]
        found.logs += [log for log in logs if os.path.splitext(log)[1].lower() not in find.NEVER]
    found.runs.sort(key=_sort_key)
    found.logs.sort(key=_sort_key)
    found.examined += found.logs
    return found


def _add_run(found: Found, folder: str, files: list[str]) -> None:
    found.runs.append(folder)
    if _RESULT not in files:
        found.examined += [folder, *(os.path.join(folder, name) for name in files)]
        return
    found.results.append(os.path.join(folder, _RESULT))
    found.steps.append(os.path.join(folder, _STEPS))
    if _STEPS not in files:
        found.without_steps.add(folder)


def no_runs_message(path: str | Path) -> str:
    """Return the error message for a folder without runs, with how much was examined."""
    found = find_runs(path)
    numbers = {"file": found.files, "folder": len(found.folders)}
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


def sort_order(runs: list[str]) -> list[int]:
    """Return the positions of run folders in a list, in sorted order."""
    return sorted(range(len(runs)), key=lambda place: _sort_key(runs[place]))


def displayable(path: str) -> str:
    """Return a path as text that tables can hold: bytes that are not UTF-8 become `?`."""
    return path.encode("utf-8", "replace").decode()


def names_from_path(path: str) -> dict[str, Any]:
    """Return the names in a run folder's path, `sweep/experiment/run<k>` or `sweep/experiment`."""
    *_, above, parent, name = ("", "", *displayable(path).split(os.sep))
    repeat = paths.repeat(name)
    if repeat is None:
        return {"sweep": parent, "experiment": name, "repeat": 1}
    return {"sweep": above, "experiment": parent, "repeat": repeat}


def names_from_log(path: str, logged_runs: list[LoggedRun]) -> list[dict[str, Any]]:
    """Return names for the runs in a log: from its folders if they are `EXP/run<k>`, else from its file name.

    Runs with equal settings are repeats of one experiment; otherwise each is an experiment of its own.
    """
    folder, name = os.path.split(displayable(path))
    if paths.repeat(os.path.basename(folder)) is not None and len(logged_runs) == 1:
        return [names_from_path(folder)]
    sweep, name = os.path.basename(folder), os.path.splitext(name)[0]
    same = all(logged.settings == logged_runs[0].settings for logged in logged_runs)
    return [
        {"sweep": sweep, "experiment": name if same else f"{name}_start{number}", "repeat": number if same else 1}
        for number in range(1, len(logged_runs) + 1)
    ]
