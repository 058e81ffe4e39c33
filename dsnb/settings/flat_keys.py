"""Settings with keys: `deepspeed`, DeepSpeed's own configuration, and `script`, the axes of a user's script.

Keys are kept flat, each under its dotted path, so that every key is an axis: a setting, a list in a
grid, a part of the experiment's name, and a column of the table of runs. Lists and the mappings
inside them are values.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from dsnb.base.errors import SettingsError

NAMES = ("deepspeed", "script")
PREFIXES = tuple(f"{name}." for name in NAMES)
MOST_KEYS = 10_000
LONGEST = 1_000
"""Limits of what may be a configuration: keys, and characters of one with its sections."""


def is_key(name: object) -> bool:
    """Return whether a setting is a key of one of these."""
    return str(name).startswith(PREFIXES)


def flattened(settings: Mapping[str, Any], name: str) -> Any:
    """Return the keys of one of `NAMES` among settings, nested or dotted, by their paths; no mapping stays as it is.

    A key that is given twice, nested and dotted, raises SettingsError.
    """
    nested = settings.get(name, {})
    if not isinstance(nested, Mapping):
        return nested
    prefix = f"{name}."
    leaves = [*_leaves(nested)]
    for key, value in settings.items():
        if str(key).startswith(prefix):
            leaves += _leaves({key.removeprefix(prefix): value})
    problems = list(_given_twice(prefix, Counter(path for path, _ in leaves)))
    if problems:
        raise SettingsError(problems)
    return dict(leaves)


def _given_twice(prefix: str, counts: Mapping[str, int]) -> Iterator[str]:
    """Yield a sentence for each path that occurs twice, or is both a value and a section."""
    for path, count in counts.items():
        if count > 1:
            yield f"{prefix}{path} is given twice: remove one"
    for inside in counts:
        path = inside.rpartition(".")[0]
        while path:
            if path in counts:
                yield f"{prefix}{path} is a value, but {prefix}{inside} is inside it: remove one"
            path = path.rpartition(".")[0]


def _leaves(section: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    """Return the values by their paths; a file in which one section stands at many places may have too many."""
    left = [(str(key), value) for key, value in reversed(list(section.items()))]
    found: list[tuple[str, Any]] = []
    while left:
        path, value = left.pop()
        if isinstance(value, Mapping) and value:
            left += [(f"{path}.{key}", inside) for key, inside in reversed(list(value.items()))]
        else:
            found.append((path, _whole(value)))
        if len(left) + len(found) > MOST_KEYS or len(path) > LONGEST:
            raise SettingsError(
                f"there are more than {MOST_KEYS:,} keys, or one of more than {LONGEST:,} characters: "
                "this is no configuration of a training"
            )
    return found


def _whole(value: Any) -> Any:
    """Return an integer for a float without a fraction: `5e8` and 500000000 are one setting."""
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**63
    return int(value) if is_whole else value


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
