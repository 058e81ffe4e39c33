"""Keys of DeepSpeed's own configuration in a params file: `deepspeed: {zero_optimization: {overlap_comm: true}}`.

They are kept flat, each under its dotted path, so that every key is an axis: a setting, a list in a
grid, a part of the experiment's name, and a column of the table of runs. Lists and the mappings
inside them are values.
"""

import copy
import functools
import importlib.util
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from dsnb.base.errors import SettingsError
from dsnb.base.files.plain_text import short_repr
from dsnb.base.system import interpreter
from dsnb.settings.tables import REFUSALS

NAME = "deepspeed"
PREFIX = f"{NAME}."


def flattened(settings: Mapping[str, Any]) -> Any:
    """Return the keys of DeepSpeed among settings, nested or dotted, by their paths; no mapping stays as it is.

    A key that is given twice, nested and dotted, raises SettingsError.
    """
    nested = settings.get(NAME, {})
    if not isinstance(nested, Mapping):
        return nested
    leaves = [*_leaves(nested)]
    for name, value in settings.items():
        if str(name).startswith(PREFIX):
            leaves += _leaves({name.removeprefix(PREFIX): value})
    problems = list(_given_twice(Counter(path for path, _ in leaves)))
    if problems:
        raise SettingsError(problems)
    return dict(leaves)


def _given_twice(counts: Mapping[str, int]) -> Iterator[str]:
    """Yield a sentence for each path that occurs twice, or is both a value and a section."""
    for path, count in counts.items():
        if count > 1:
            yield f"{PREFIX}{path} is given twice: remove one"
    for path in counts:
        inside = next((other for other in counts if other.startswith(f"{path}.")), None)
        if inside:
            yield f"{PREFIX}{path} is a value, but {PREFIX}{inside} is inside it: remove one"


def _leaves(section: Mapping[Any, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", _whole(value)


def _whole(value: Any) -> Any:
    """Return an integer for a float without a fraction: `5e8` and 500000000 are one setting."""
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**63
    return int(value) if is_whole else value


def merged(config: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with flat keys merged over it; neither is changed."""
    result = copy.deepcopy(dict(config))
    for path, value in keys.items():
        *sections, name = path.split(".")
        place = result
        for section in sections:
            if not isinstance(place.get(section), dict):
                place[section] = {}
            place = place[section]
        place[name] = value
    return result


def lookup(config: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path of a configuration; None if there is none."""
    place: Any = config
    for name in path.split("."):
        place = place.get(name) if isinstance(place, Mapping) else None
    return place


def decided(path: str) -> str | None:
    """Return the key or section that dsnb decides itself and that a path belongs to; None if there is none."""
    names = REFUSALS["decided_keys"]
    return next((name for name in names if path == name or path.startswith(f"{name}.")), None)


def problems(keys: Mapping[str, Any]) -> list[str]:
    """Return why keys are refused whatever DeepSpeed knows of them, one sentence each."""
    refused = []
    for path, value in keys.items():
        name = decided(path)
        if name:
            why = REFUSALS["decided_keys"][name]
            refused.append(
                f"{PREFIX}{path} is {short_repr(value)}: dsnb decides {name} itself; {why}"
            )
        elif value == {} or (value is None and "." not in path):
            refused.append(f"{PREFIX}{path} is an empty section: give it a key, or leave it out")
    return refused


def unknown_keys(zero_stage: int, keys: Mapping[str, Any]) -> list[str]:
    """Return the keys that DeepSpeed's own models do not know, and values that they refuse, one sentence each."""
    if not importlib.util.find_spec("deepspeed"):
        return []
    return list(_checked(zero_stage, json.dumps(keys, sort_keys=True, default=str)))


@functools.cache
def _checked(zero_stage: int, keys: str) -> tuple[str, ...]:
    """Ask in a separate process: DeepSpeed's import takes seconds."""
    answer = interpreter.ask("dsnb.measure.train.ask_deepspeed", str(zero_stage), given=keys)
    return tuple(answer or ())  # without one, DeepSpeed cannot be imported: the launch will say why


def name_part(keys: Mapping[str, Any]) -> str:
    """Return the part of an experiment's name: the last word of each key with its value."""
    parts = []
    for path, value in sorted(keys.items()):
        parts.append(f"{path.rpartition('.')[2]}-{_word(value)}")
    return "_".join(parts)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", text).strip("-")[:40]
