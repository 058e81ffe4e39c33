"""Finds dsnb's run folders and other programs' logs below a folder, and names the runs.

Runs are named by their folders, so renaming the folder of an experiment renames its runs. A run whose settings name
another experiment than those of the other runs in its folder was copied there and is not a repeat of them.
"""

import os
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from dsnb.errors import DsnbWarning, SettingsError
from dsnb.run_folder import paths
from dsnb.run_folder.paths import PROBE, RunPaths
from dsnb.runs.labels import count
from dsnb.runs.logs import console
from dsnb.runs.logs.logged_run import LoggedRun

_RUN = RunPaths(Path())
_EXPERIMENT, _BANDWIDTH_PLAN = _RUN.experiment.name, _RUN.bandwidth_plan.name
_RECORDS = {_RUN.result.name, _RUN.environment.name}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")


def find_runs(path: str | Path) -> tuple[list[str], list[str]]:
    """Return the run folders of dsnb and the files that may be logs below a folder, sorted, `run2` before `run10`."""
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
        elif _EXPERIMENT in files or _RECORDS.issubset(files):
            below.clear()
            runs.append(folder)
        else:
            # No pipes, nor links to nothing.
            maybe = [name for name in files if not name.startswith(".") and not name.lower().endswith(console.NEVER)]
            logs += filter(os.path.isfile, (os.path.join(folder, name) for name in maybe))
    return sorted(runs, key=_sort_key), sorted(logs, key=_sort_key)


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


def names_from_path(path: str) -> dict[str, Any]:
    """Return the names in a run folder's path, `sweep/experiment/run<k>` or `sweep/experiment`."""
    *_, above, parent, name = ("", "", *displayable(path).split(os.sep))
    repeat = paths.repeat(name)
    if repeat is None:
        return {"sweep": parent, "experiment": name, "repeat": 1}
    return {"sweep": above, "experiment": parent, "repeat": repeat}


def names_from_log(path: str, logged_runs: list[LoggedRun]) -> list[dict[str, Any]]:
    """Return names for the runs in a log, by its folders or file name; with equal settings they are repeats."""
    folder, name = os.path.split(displayable(path))
    if paths.repeat(os.path.basename(folder)) is not None and len(logged_runs) == 1:
        return [names_from_path(folder)]
    sweep, name = os.path.basename(folder), os.path.splitext(name)[0]
    same = all(logged.settings == logged_runs[0].settings for logged in logged_runs)
    return [
        {"sweep": sweep, "experiment": name if same else f"{name}_start{number}", "repeat": number if same else 1}
        for number in range(1, len(logged_runs) + 1)
    ]


def name_runs(folders: Sequence[str], recorded: Sequence[Any], models: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the names of runs by their folders, which are sorted; a run copied there has a name of its experiment."""
    names = [names_from_path(folder) for folder in folders]
    for (_, experiment), places in groupby(
        range(len(folders)), key=lambda place: (os.path.dirname(folders[place]), names[place]["experiment"])
    ):
        settings = {
            place: f"{models[place]}_{recorded[place]}"
            for place in places
            if isinstance(recorded[place], str) and models[place] and _NAME.fullmatch(recorded[place])
        }
        counts = Counter(settings.values())
        fitting = [name for name in counts if f"_{name}".endswith(f"_{experiment}")]
        usual = max(fitting or counts, key=counts.__getitem__, default="")
        for place, name in settings.items():
            if name != usual and PROBE not in experiment:
                names[place]["experiment"] = f"{experiment}_{name}"
                warnings.warn(
                    f"{displayable(folders[place])} has the settings of {name}, unlike other runs of {experiment}: "
                    f"it is listed as {experiment}_{name}; move it to its own experiment's folder",
                    DsnbWarning,
                    stacklevel=3,
                )
    return names
