"""To which experiment each run belongs: that of its folder, unless its settings say that it was copied into it.

Whoever renames an experiment's folder names all of its runs anew. A run whose settings are those of another experiment
than its neighbours' is no repeat of theirs, wherever it lies.
"""

import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from dsnb.errors import DsnbWarning
from dsnb.formulas import model_shapes
from dsnb.run_folder.paths import PROBE
from dsnb.runs import discover

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
    found = [discover.names_from_path(folder) for folder in folders]
    strangers: dict[int, Made] = {}
    for first, last in _neighbours(folders):
        kinds = set(zip(recorded[first:last], of_models[first:last], strict=True))
        if len(kinds) > 1 or found[first]["experiment"] != recorded[first]:  # else all is as a sweep leaves it
            strangers |= _strangers(found[first]["experiment"], first, recorded[first:last], of_models[first:last])
    _rename(found, strangers, folders)
    return found


def _neighbours(folders: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last place, exclusive, of runs that lie in one experiment's folder; these are sorted."""
    first, home = 0, None
    for place, folder in enumerate(folders):
        parent = folder[: folder.rfind("/")]
        if parent != home:
            if place:
                yield first, place
            first, home = place, parent
    if folders:
        yield first, len(folders)


def _strangers(experiment: str, first: int, recorded: Sequence[Any], of_models: Sequence[Any]) -> dict[int, Made]:
    """Return the runs of a folder that are not what most of those are that its name fits: place -> what they are."""
    made = {
        place: one
        for place, one in enumerate(zip(recorded, of_models, strict=True), start=first)
        if isinstance(one[0], str) and isinstance(one[1], str) and _NAME.fullmatch(one[0])
    }
    if PROBE in experiment or not made:
        return {}
    native = _native(experiment, Counter(made.values()))
    return {place: one for place, one in made.items() if one != native}


def _folders(made: Made) -> tuple[str, str]:
    """Return the names of the folders that a sweep may give such a run."""
    name, model = made
    return name, f"{model_shapes.slug(model)}_{name}"


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
        first = f"{discover.displayable(folders[place])} was made as {experiment}, not as {before['experiment']}"
        told[f"{first}: it counts as a run of {experiment}"] += 1
    for sentence in told:
        warnings.warn(sentence, DsnbWarning, stacklevel=3)
