"""What lies below a folder: dsnb's own runs and other programs' logs, and how their places name them."""

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


@dataclass
class Found:
    """What lies below a folder: dsnb's own run folders, other programs' logs, and what was looked at to know it."""

    runs: list[str] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    """Files that may be logs; what is in them decides."""
    is_one_file: bool = False
    """The path was a file: it must be a log."""
    looked_at: list[str] = field(default_factory=list)
    """Logs and folders whose change would change the tables; a finished run's folder is not among them."""
    results: list[str] = field(default_factory=list)
    """`result.json` of every finished run, written last and in one step."""
    steps: list[str] = field(default_factory=list)
    """`steps.jsonl` of every finished run."""
    stepless: set[str] = field(default_factory=set)
    """Runs with a result that have no such file."""
    indexed: list[Index] = field(default_factory=list)
    """What the indexes of sweeps say, whose runs are not in `runs` then."""
    folders: list[str] = field(default_factory=list)
    """The folders that are no runs."""
    files: int = 0
    """How many files are in these."""


def look(path: str | Path, *, use_indexes: bool = False) -> Found:
    """Find dsnb's run folders and other files below `path`, in order, `run2` before `run10`.

    Parameters
    ----------
    path
        A folder, or one log.
    use_indexes
        Take the runs of a sweep from its index, where there is one that fits.

    Raises
    ------
    SettingsError
        If there is no such folder or file.
    """
    root = os.path.abspath(path)
    if os.path.isfile(root):
        return Found(
            logs=[root], is_one_file=True, looked_at=[root, os.path.join(os.path.dirname(root), "gpu_log.csv")]
        )
    if not os.path.isdir(root):
        raise SettingsError(
            f"{str(path)!r} is no folder and no log: give a folder of outputs, such as outputs/quickstart, or a log"
        )
    found, waiting = Found(), [root]
    names = ("experiment", "result", "steps", "bandwidth_plan", "environment")
    own, result, steps, no_training, machine = (getattr(RunPaths(Path()), name).name for name in names)
    while waiting:
        folder = waiting.pop()
        inside, below = _scan(folder)
        if no_training in inside:
            found.folders.append(folder)
            continue
        if own in inside or (result in inside and machine in inside):  # a run that lost its settings is a row, too
            found.runs.append(folder)
            if result in inside:
                found.results.append(os.path.join(folder, result))
                found.steps.append(os.path.join(folder, steps))
                if steps not in inside:
                    found.stepless.add(folder)
            else:
                found.looked_at += [folder, *(os.path.join(folder, name) for name in inside)]
            continue
        found.looked_at.append(folder)
        found.folders.append(folder)
        found.files += len(inside)
        if use_indexes and index.NAME in inside and (known := index.read(folder, below)):
            found.indexed.append(known)
            found.looked_at += known.looked_at
            found.results += known.results
            found.logs += known.logs
        else:
            waiting += [os.path.join(folder, name) for name in below]
        logs = [os.path.join(folder, name) for name in inside if not name.startswith(".")]
        found.logs += [log for log in logs if os.path.splitext(log)[1].lower() not in find.NEVER]
    found.runs.sort(key=_place)
    found.logs.sort(key=_place)
    found.looked_at += found.logs
    return found


def no_run(path: str | Path) -> str:
    """Return the message for a folder that holds no run, with what was looked at to know it."""
    found = look(path)
    numbers = {"file": found.files, "folder": len(found.folders)}
    files, folders = (f"{number} {what}{'' if number == 1 else 's'}" for what, number in numbers.items())
    return (
        f"{str(path)!r} holds no run: looked at {files} in {folders}, none is a run of dsnb or a log that dsnb knows; "
        f"it reads {find.KINDS}"
    )


def _scan(folder: str) -> tuple[list[str], list[str]]:
    """Give the names of the files and of the folders in a folder; links to folders are not followed."""
    files, below = [], []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    if entry.is_dir(follow_symlinks=False):
                        below.append(entry.name)
                    elif entry.is_file():
                        files.append(entry.name)
                except OSError:  # a link that leads to itself
                    continue
    except OSError as error:
        warnings.warn(f"{folder} is left out: {error.strerror}", DsnbWarning, stacklevel=2)
    return files, below


def _place(path: str) -> tuple[list[str], int, str]:
    *parent, name = path.split(os.sep)
    return parent, paths.repeat(name) or 0, name


def in_order(runs: list[str]) -> list[int]:
    """Return the places of run folders in a list, in their order."""
    return sorted(range(len(runs)), key=lambda place: _place(runs[place]))


def shown(path: str) -> str:
    """Give a path as a table can hold it: bytes that are not UTF-8 become `?`."""
    return path.encode("utf-8", "replace").decode()


def run_names(path: str) -> dict[str, Any]:
    """Name a run by its folders: `sweep/experiment/run<k>`, or `sweep/experiment`."""
    *_, above, parent, name = ("", "", *shown(path).split(os.sep))
    repeat = paths.repeat(name)
    if repeat is None:
        return {"sweep": parent, "experiment": name, "repeat": 1}
    return {"sweep": above, "experiment": parent, "repeat": repeat}


def log_names(path: str, logged_runs: list[LoggedRun]) -> list[dict[str, Any]]:
    """Name the starts in a log: by the folders if they are a benchmark's `EXP/run<k>`, by the file's name else.

    Starts with the same settings are repeats; with others, they are experiments of their own.
    """
    folder, name = os.path.split(shown(path))
    if paths.repeat(os.path.basename(folder)) is not None and len(logged_runs) == 1:
        return [run_names(folder)]
    sweep, name = os.path.basename(folder), os.path.splitext(name)[0]
    same = all(logged.settings == logged_runs[0].settings for logged in logged_runs)
    return [
        {"sweep": sweep, "experiment": name if same else f"{name}_start{number}", "repeat": number if same else 1}
        for number in range(1, len(logged_runs) + 1)
    ]
