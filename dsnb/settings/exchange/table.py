"""Reads `keys.toml`: the keys of a program for settings, and the settings for keys of a program."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsnb.settings.training import text

KEYS: dict[str, dict[str, dict[str, Any]]] = tomllib.loads(
    Path(__file__).with_name("keys.toml").read_text("utf-8")
)
"""Program -> dotted path of a key -> what it carries."""


@dataclass(frozen=True)
class Line:
    """A key of a program with its value, and the reason for it."""

    path: str
    value: Any
    why: str = ""
    own: str = ""
    """`dsnb` for what only its own runs need, `training` for what changes the training and not its speed."""
    auto: bool = False
    """Whether the Trainer fills the value from its arguments."""


def lines(program: str, known: Mapping[str, Any]) -> Iterator[Line]:
    """Yield the lines of a program for settings and facts, in the order of the table."""
    for path, rule in KEYS[program].items():
        value = _value(rule, known)
        if value is None:
            continue
        yield Line(path, value, rule.get("why", ""), rule.get("own", ""), rule.get("auto", False))


def _value(rule: Mapping[str, Any], known: Mapping[str, Any]) -> Any:
    """Return the value of a key; None if it is left out."""
    if not is_meant(rule, known):
        return None
    if "value" in rule:
        return rule["value"]
    return forwards(rule, known[rule["setting"]])


def is_meant(rule: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Return whether the settings have the values that a rule is for."""
    needed = rule.get("when", {})
    return all(text(known[name]) in needed[name] for name in needed)


def forwards(rule: Mapping[str, Any], value: Any) -> Any:
    """Return a key's value for the value of its setting; None if it is left out."""
    if "values" in rule:
        return rule["values"].get(text(value))
    if value is None or ("omit" in rule and value == rule["omit"]):
        return None
    return value


def nested(found: Iterable[Line]) -> dict[str, Any]:
    """Return the values of lines as a program reads them: a dotted path is a section in a section."""
    return _plain(tree(found))


def tree(found: Iterable[Line]) -> dict[str, Any]:
    """Return lines in their sections."""
    result: dict[str, Any] = {}
    for line in found:
        *sections, name = line.path.split(".")
        place = result
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = line
    return result


def _plain(section: Mapping[str, Any]) -> dict[str, Any]:
    result = {}
    for name, inside in section.items():
        result[name] = inside.value if isinstance(inside, Line) else _plain(inside)
    return result
