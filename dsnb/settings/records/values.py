"""Checks values of columns that people write: in a CSV file, or on the command line for what a log does not say."""

from functools import cache
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from dsnb.base.errors import SettingsError
from dsnb.base.files import plain_yaml
from dsnb.base.files.plain_text import short_repr
from dsnb.settings import checks, flat_keys
from dsnb.settings.experiment import DEFAULTS, Experiment
from dsnb.settings.records.columns import (
    COUNT,
    NUMBERS,
    RUNS,
    SETTINGS,
    STATUS,
    STATUSES,
    TEXT,
)

WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
"""Truth values in CSV files."""


def parse(name: str, text: str) -> Any:
    """Return the value of a column for its text; a SettingsError says what is allowed."""
    if name not in RUNS and not flat_keys.is_key(name):
        return text
    kind = getattr(RUNS.get(name), "kind", None)
    if kind is TEXT and name not in SETTINGS:
        return text
    if isinstance(DEFAULTS.get(name), bool) and text.lower() in WORDS:
        return WORDS[text.lower()]
    if isinstance(DEFAULTS.get(name), str) and name not in {"compile", "overlap_comm"}:
        return checked(name, text)
    return checked(name, plain_yaml.parse(text))


def checked(name: str, value: Any) -> Any:
    """Return a value of a column if it can be one; a SettingsError says what is allowed."""
    if flat_keys.is_key(name):
        return value
    kind = RUNS[name].kind
    is_whole = isinstance(value, float) and value.is_integer()
    if is_whole and (kind is COUNT or isinstance(DEFAULTS.get(name), int)):
        value = int(value)
    if kind in NUMBERS and isinstance(value, str | bool):
        raise SettingsError(f"{name} is {short_repr(value)}: give a plain number, without a unit")
    try:
        return _adapter(name).validate_python(value)
    except ValidationError as error:
        detail = {**error.errors(include_url=False)[0], "loc": (name,), "input": value}
    if kind is STATUS:
        raise SettingsError(f"{name} is {short_repr(value)}: allowed are {', '.join(STATUSES)}")
    raise SettingsError(checks.invalid_value(detail))


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    """Return the validator of a column: a setting's own, or that of its kind."""
    if name not in SETTINGS:
        return TypeAdapter(RUNS[name].kind)
    field = Experiment.model_fields[name]
    kind: Any = field.annotation
    for limit in field.metadata:
        kind = Annotated[kind, limit]
    return TypeAdapter(kind)
