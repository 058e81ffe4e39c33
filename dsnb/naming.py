"""To which experiment each run belongs: that of its folder, unless its settings say that it was copied into it.

Whoever renames an experiment's folder names all of its runs anew. A run whose settings are those of another experiment
than its neighbours' is no repeat of theirs, wherever it lies.
"""

import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from dsnb import models, places
from dsnb.errors import DsnbWarning
from dsnb.paths import PROBE

Made = tuple[str, str]
"""What a run was made as: the name of its experiment without the model, and the model."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_FORM = re.compile(r"(?:.+_)?(?:zs[0-3]|ddp|fsdp)_(?:fp32|tf32|fp16|bf16)_gpus\d+_bs(?:\d+|auto)_sl\d+")
"""How the name of an experiment begins that dsnb has made up."""


def names(folders: Sequence[str], recorded: Sequence[Any], of_models: Sequence[Any]) -> list[dict[str, Any]]:
    """Name runs by their folders (`sweep`, `experiment`, `repeat`), and by their settings those copied into others.

    Parameters
    ----------
    folders
        Of runs.
    recorded, of_models
        The name and the model in each run's settings; None where an old run does not say them.
    """
    found = [places.run_names(folder) for folder in folders]
    neighbours: dict[tuple[str, str], dict[int, Made]] = defaultdict(dict)
    for place, name in enumerate(found):
        made = recorded[place], of_models[place]
        known = isinstance(made[0], str) and isinstance(made[1], str) and _NAME.fullmatch(made[0])
        if known and PROBE not in name["experiment"]:
            neighbours[folders[place].rpartition("/")[0], name["experiment"]][place] = made
    strangers = {
        place: one
        for (_, experiment), of_folder in neighbours.items()
        if (native := _native(experiment, Counter(of_folder.values()))) or True
        for place, one in of_folder.items()
        if one != native
    }
    _rename(found, strangers, folders)
    return found


def _folders(made: Made) -> tuple[str, str]:
    """Return the names of the folders that a sweep may give such a run."""
    name, model = made
    return name, f"{models.slug(model)}_{name}"


def _native(experiment: str, made: Counter[Made]) -> Made | None:
    """Return what the runs of an experiment's folder are; None if all of them are strangers there."""
    fitting = Counter({one: count for one, count in made.items() if experiment in _folders(one)})
    if fitting:
        return fitting.most_common(1)[0][0]
    most = made.most_common(1)[0][0]
    return None if _FORM.match(experiment) and not experiment.startswith(_folders(most)) else most


def _rename(found: list[dict[str, Any]], strangers: dict[int, Made], folders: Sequence[str]) -> None:
    """Let each stranger be a run of the experiment that its settings name, under a number that is free there."""
    taken: dict[tuple[str, str], set[int]] = defaultdict(set)
    for place, name in enumerate(found if strangers else []):
        if place not in strangers:
            taken[name["sweep"], name["experiment"]].add(name["repeat"])
    told: Counter[str] = Counter()
    for place, made in strangers.items():
        before = found[place]
        plain, with_model = _folders(made)
        plain_is_wrong = plain == before["experiment"] or (before["sweep"], with_model) in taken
        experiment = with_model if plain_is_wrong else plain
        numbers = taken[before["sweep"], experiment]
        repeat = before["repeat"] if before["repeat"] not in numbers else max(numbers) + 1
        numbers.add(repeat)
        found[place] = {**before, "experiment": experiment, "repeat": repeat}
        first = f"{places.shown(folders[place])} was made as {experiment}, not as {before['experiment']}"
        told[f"{first}: it counts as a run of {experiment}"] += 1
    for sentence in told:
        warnings.warn(sentence, DsnbWarning, stacklevel=3)
