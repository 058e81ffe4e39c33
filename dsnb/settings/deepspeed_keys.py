"""Keys of DeepSpeed's own configuration in a params file: `deepspeed: {zero_optimization: {overlap_comm: true}}`.

They are flat (`dsnb.settings.flat_keys`): each is a setting under its dotted path.
"""

import copy
import functools
import importlib.util
import json
from collections.abc import Mapping
from typing import Any

from dsnb.base.files.plain_text import short_repr
from dsnb.base.system import interpreter
from dsnb.settings import flat_keys
from dsnb.settings.tables import REFUSALS

NAME = "deepspeed"
PREFIX = f"{NAME}."


def flattened(settings: Mapping[str, Any]) -> Any:
    """Return the keys of DeepSpeed among settings by their paths (`flat_keys.flattened`)."""
    return flat_keys.flattened(settings, NAME)


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
