"""Names of runs: those of their folders, except for runs that were copied into another experiment's folder.

Renaming the folder of an experiment renames all of its runs. A run whose settings name another experiment than those of
the other runs in its folder is not a repeat of them, wherever it is.
"""

import os
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from dsnb.errors import DsnbWarning
from dsnb.run_folder import paths
from dsnb.run_folder.paths import PROBE
from dsnb.runs.discover import displayable
from dsnb.runs.logs.logged_run import LoggedRun

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")


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


def name_runs(folders: Sequence[str], recorded: Sequence[Any], models: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the names of runs, from their folders, or from their settings if they were copied into another folder.

    Parameters
    ----------
    folders
        Run folders, sorted.
    recorded, models
        The names of experiment and model in each run's settings; None if an old run lacks them.

    Returns
    -------
    list of dict
        `sweep`, `experiment` and `repeat` of each run.
    """
    names = [names_from_path(folder) for folder in folders]
    misplaced = _misplaced(folders, names, recorded, models)
    repeats: dict[tuple[str, str], set[int]] = defaultdict(set)
    for place, name in enumerate(names if misplaced else []):
        if place not in misplaced:
            repeats[name["sweep"], name["experiment"]].add(name["repeat"])
    for place, (plain, with_model) in misplaced.items():
        before = names[place]
        needs_model = plain == before["experiment"] or (before["sweep"], with_model) in repeats
        experiment = with_model if needs_model else plain
        taken = repeats[before["sweep"], experiment]
        repeat = before["repeat"] if before["repeat"] not in taken else max(taken) + 1
        taken.add(repeat)
        names[place] = {**before, "experiment": experiment, "repeat": repeat}
        warnings.warn(
            f"{displayable(folders[place])} belongs to {experiment}, not to {before['experiment']}, by its settings: "
            f"it is listed as a run of {experiment}",
            DsnbWarning,
            stacklevel=3,
        )
    return names


def _misplaced(
    folders: Sequence[str], names: list[dict[str, Any]], recorded: Sequence[Any], models: Sequence[Any]
) -> dict[int, tuple[str, str]]:
    """Return the runs that belong to another experiment: position -> its name, without and with the model.

    A folder belongs to the experiment of which it has the name, otherwise to that of most of its runs.
    """
    misplaced: dict[int, tuple[str, str]] = {}
    for (_, experiment), places in groupby(
        range(len(folders)), key=lambda place: (os.path.dirname(folders[place]), names[place]["experiment"])
    ):
        made = {
            place: (recorded[place], f"{models[place]}_{recorded[place]}")
            for place in places
            if isinstance(recorded[place], str) and models[place] and _NAME.fullmatch(recorded[place])
        }
        counts = Counter(made.values())
        fitting = [both for both in counts if experiment in both]
        if counts and PROBE not in experiment:
            owner = max(fitting or counts, key=counts.__getitem__)
            misplaced |= {place: both for place, both in made.items() if both != owner}
    return misplaced
