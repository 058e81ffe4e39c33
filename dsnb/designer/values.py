"""The values of a setting: what it can be chosen from, and what was typed for it."""

import typing
from typing import Any

from dsnb.errors import SettingsError
from dsnb.files import plain_yaml
from dsnb.files.plain_text import short_repr
from dsnb.settings.experiment import Experiment

OTHER = "A key of DeepSpeed's configuration."


def choices(name: str) -> tuple[Any, ...]:
    """Return the values of a setting that has a fixed set of them; empty for one that is typed."""
    field = Experiment.model_fields.get(name)
    if field is None:
        return ()
    if field.annotation is bool:
        return False, True
    return typing.get_args(field.annotation) if typing.get_origin(field.annotation) is typing.Literal else ()


def meaning(name: str) -> str:
    """Return what a setting means, in one line."""
    field = Experiment.model_fields.get(name)
    return " ".join((field.description if field and field.description else OTHER).split())


def parse(name: str, text: str) -> list[Any]:
    """Return the values in a text such as `8, 16`, which are YAML.

    Raises
    ------
    SettingsError
        If there is none, they are no YAML, or one of them stands there twice.
    """
    try:
        values = plain_yaml.parse(f"[{text}]")
    except SettingsError as error:
        raise SettingsError(f"{name} is {short_repr(text)}: {error}") from error
    if not isinstance(values, list) or not values:
        raise SettingsError(f"{name} has no value: type one, or several with commas between them, or remove it")
    return unique(name, values)


def unique(name: str, values: list[Any]) -> list[Any]:
    """Return the values of a setting, all of them different.

    Raises
    ------
    SettingsError
        If two are equal: they would be one experiment.
    """
    for place, value in enumerate(values):
        if value in values[:place]:
            raise SettingsError(f"{name} has the value {short_repr(value)} twice: leave one of them out")
    return values


def typed(values: list[Any]) -> str:
    """Return values as they are typed."""
    return plain_yaml.in_one_line(values)[1:-1]
