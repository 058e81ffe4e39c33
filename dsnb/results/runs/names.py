"""Names of runs, from the paths of their folders or logs; sweeps with one folder name are told apart."""

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from dsnb.results.logs.reading import LoggedRun
from dsnb.settings.records import paths

SWEEP_FOLDER = "sweep_folder"
"""Field beside `sweep`, `experiment` and `repeat`: the folder that the sweep is named for."""


def displayable(path: str) -> str:
    """Return a path as text that tables can hold: bytes that are not UTF-8 become `?`."""
    return path.encode("utf-8", "replace").decode()


def from_folder(folder: str) -> dict[str, Any]:
    """Return the names in a run folder's path, `sweep/experiment/run<k>` or `sweep/experiment`."""
    above, name = os.path.split(displayable(folder))
    repeat = paths.repeat(name)
    if repeat is None:
        repeat = 1
    else:
        above, name = os.path.split(above)
    return {
        "sweep": os.path.basename(above),
        SWEEP_FOLDER: above,
        "experiment": name,
        "repeat": repeat,
    }


def from_log(path: str, logged_runs: Sequence[LoggedRun]) -> list[dict[str, Any]]:
    """Return names for the runs in a log, by its folders or file name; with equal settings they are repeats."""
    folder, file = os.path.split(displayable(path))
    if paths.repeat(os.path.basename(folder)) is not None and len(logged_runs) == 1:
        return [from_folder(folder)]
    sweep = {"sweep": os.path.basename(folder), SWEEP_FOLDER: folder}
    name = os.path.splitext(file)[0]
    are_repeats = all(logged.settings == logged_runs[0].settings for logged in logged_runs)
    found = []
    for number in range(1, len(logged_runs) + 1):
        if are_repeats:
            found.append({**sweep, "experiment": name, "repeat": number})
        else:
            found.append({**sweep, "experiment": f"{name}_start{number}", "repeat": 1})
    return found


def tell_sweeps_apart(rows: Sequence[dict[str, Any]]) -> None:
    """Give sweeps in different folders different names, also if their folders have the same name."""
    names = sweep_names([row[SWEEP_FOLDER] for row in rows])
    for row in rows:
        row["sweep"] = names[row[SWEEP_FOLDER]]


def sweep_names(folders: Iterable[str]) -> dict[str, str]:
    """Return the names of sweeps by folder: the folder's name, with as many parents as tell it from its namesakes."""
    namesakes: dict[str, list[str]] = defaultdict(list)
    for folder in dict.fromkeys(folders):
        namesakes[os.path.basename(folder)].append(folder)
    names = {}
    for same in namesakes.values():
        depth = 1
        while len({_last_parts(folder, depth) for folder in same}) < len(same):
            depth += 1
        for folder in same:
            names[folder] = _last_parts(folder, depth)
    return names


def short_names(names: Sequence[str], between: str = ", ") -> tuple[str, list[str]]:
    """Return the common parts of all names, and the names without them; whole names if these would clash."""
    parts = [name.split(between) for name in names]
    shared = [part for part in parts[0] if all(part in other for other in parts)]
    rest = [between.join(part for part in name if part not in shared) for name in parts]
    if len(names) > 1 and all(rest) and len(set(rest)) == len(set(names)):
        return between.join(shared), rest
    return "", list(names)


def _last_parts(path: str, depth: int) -> str:
    return "/".join(path.split(os.sep)[-depth:])
