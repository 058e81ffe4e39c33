"""Names of runs: those of their folders, except for runs that were copied into another experiment's folder.

Renaming the folder of an experiment renames all of its runs. A run whose settings name another experiment than those of
the other runs in its folder is not a repeat of them, wherever it is.
"""

import os
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from dsnb.errors import DsnbWarning
from dsnb.run_folder import paths
from dsnb.run_folder.paths import PROBE
from dsnb.runs.discover import displayable
from dsnb.runs.logs.logged_run import LoggedRun

Recorded = tuple[str, str]
"""A run's experiment by its settings: the name without the model, and the name of the model."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_FORM = re.compile(r"(?:.+_)?(?:zs[0-3]|ddp|fsdp)_(?:fp32|tf32|fp16|bf16)_gpus\d+_bs(?:\d+|auto)_sl\d+")
"""The beginning of an experiment's name as dsnb generates it."""


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
    found = [names_from_path(folder) for folder in folders]
    misplaced: dict[int, Recorded] = {}
    for _, places in groupby(range(len(folders)), key=lambda place: os.path.dirname(folders[place])):
        made = {place: (recorded[place], models[place]) for place in places}
        misplaced |= _misplaced(found[next(iter(made))]["experiment"], made)
    _rename(found, misplaced, folders)
    return found


def _misplaced(experiment: str, made: Mapping[int, tuple[Any, Any]]) -> dict[int, Recorded]:
    """Return the runs of a folder that belong to another experiment: position -> that experiment."""
    known = {
        place: (name, model)
        for place, (name, model) in made.items()
        if isinstance(name, str) and isinstance(model, str) and _NAME.fullmatch(name)
    }
    if PROBE in experiment or not known:
        return {}
    owner = _owner(experiment, Counter(known.values()))
    return {place: one for place, one in known.items() if one != owner}


def _folders(made: Recorded) -> tuple[str, str]:
    """Return the folder names that a sweep may use for such a run, without and with the model."""
    name, model = made
    return name, f"{model}_{name}"


def _owner(experiment: str, made: Counter[Recorded]) -> Recorded | None:
    """Return the experiment that a folder belongs to; None if it is that of none of its runs."""
    fitting = Counter({one: count for one, count in made.items() if experiment in _folders(one)})
    if fitting:
        return fitting.most_common(1)[0][0]
    most = made.most_common(1)[0][0]
    return None if _FORM.match(experiment) and not experiment.startswith(_folders(most)) else most


def _rename(found: list[dict[str, Any]], misplaced: dict[int, Recorded], folders: Sequence[str]) -> None:
    """Assign each misplaced run to the experiment that its settings name, with a free repeat number."""
    taken: dict[tuple[str, str], set[int]] = defaultdict(set)
    for place, name in enumerate(found if misplaced else []):
        if place not in misplaced:
            taken[name["sweep"], name["experiment"]].add(name["repeat"])
    warned: Counter[str] = Counter()
    for place, made in misplaced.items():
        before = found[place]
        plain, with_model = _folders(made)
        needs_model = plain == before["experiment"] or (before["sweep"], with_model) in taken
        experiment = with_model if needs_model else plain
        numbers = taken[before["sweep"], experiment]
        repeat = before["repeat"] if before["repeat"] not in numbers else max(numbers) + 1
        numbers.add(repeat)
        found[place] = {**before, "experiment": experiment, "repeat": repeat}
        first = f"{displayable(folders[place])} belongs to {experiment}, not to {before['experiment']}"
        warned[f"{first}, by its settings: it is listed as a run of {experiment}"] += 1
    for sentence in warned:
        warnings.warn(sentence, DsnbWarning, stacklevel=3)
