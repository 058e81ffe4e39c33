"""The columns of contributed rows, which may leave a contributor's machine, and their JSON schema.

`columns.toml` says which columns these are. A text leaves only if all of it matches the pattern of its
column, so that no name of a user, host or path is among the values. A setting leaves if it is a
number, a truth value or a choice.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from pydantic import TypeAdapter

from dsnb.base.files.plain_text import short_repr
from dsnb.base.formulas.model_shapes import PRESETS
from dsnb.settings.experiment import DEFAULTS, Experiment
from dsnb.settings.records.columns import FLAG, NUMBERS, RUNS, TEXT, Column, declared

TITLE = "A contributed run of dsnb"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
SETTING_TEXTS = {
    "model": tuple(PRESETS),
    "data": ("synthetic", "stdlib"),
    "tokenizer": ("bytes",),
}
"""Settings of free text, which may be paths -> the values that leave."""
REQUIRED = ("status", "program", "dsnb", "model", "gpus", "gpu_name", "host", "single")
_ARTICLES = {"integer": "a whole number", "number": "a number", "boolean": "true or false"}
_ALLOWED_TEXTS = {
    "model": (
        "rows are compared with predictions, so only models that `dsnb recommend --list` prints are "
        "collected; measure one of these"
    ),
    "data": "only synthetic and stdlib leave the machine, because another text is a path; use synthetic",
    "tokenizer": "only bytes leaves the machine, because another tokenizer may be a path; use bytes",
}
_KEPT = ("type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
"""Keys of pydantic's schemas that limit a value."""


def _may_leave(column: Column) -> bool:
    if column.name in DEFAULTS:
        return Experiment.model_fields[column.name].annotation is not str
    if column.kind is TEXT:
        return isinstance(column.contributed, str)
    return column.contributed is True and column.kind in (*NUMBERS, FLAG)


_CHANGED = declared("contributed")
COLUMNS = {
    name: column
    for name, column in RUNS.items()
    if name in SETTING_TEXTS or name in _CHANGED or _may_leave(column)
} | _CHANGED
"""The columns of contributed rows, in order."""


def pattern(name: str) -> str | None:
    """Return what all of a column's texts must match; None for a column of other values."""
    found = COLUMNS[name].contributed
    if isinstance(found, str):
        return found
    return None


@cache
def _limits(name: str) -> dict[str, Any]:
    """Return the JSON schema of a column's known values."""
    text = pattern(name)
    if text:
        return {"type": "string", "pattern": f"^(?:{text})$"}
    if name in SETTING_TEXTS:
        return {"type": "string", "enum": list(SETTING_TEXTS[name])}
    if name in DEFAULTS:
        known = Experiment.model_json_schema()["properties"][name]
    else:
        known = TypeAdapter(COLUMNS[name].kind).json_schema()
    limits = {key: known[key] for key in _KEPT if key in known}
    if "enum" in limits and "type" not in limits:
        limits["type"] = "string"
    return limits


def json_type(name: str) -> str:
    """Return the type of a column's values: integer, number, boolean or string."""
    return str(_limits(name)["type"])


def _property(name: str) -> dict[str, Any]:
    described: dict[str, Any] = {"description": COLUMNS[name].meaning}
    limits = _limits(name)
    if name in REQUIRED:
        return described | limits
    return described | {"anyOf": [limits, {"type": "null"}]}


def schema() -> dict[str, Any]:
    """Return the JSON schema of a row."""
    return {
        "$schema": DIALECT,
        "title": TITLE,
        "type": "object",
        "properties": {name: _property(name) for name in COLUMNS},
        "required": list(REQUIRED),
        "additionalProperties": False,
    }


@cache
def _validator(name: str) -> Any:
    return Draft202012Validator(_limits(name))


def problems(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each value of a row that may not leave the machine, or not be accepted from one."""
    for name, value in row.items():
        if name not in COLUMNS:
            yield f"{short_repr(name)} is no column of contributed rows: leave it out"
        elif value is not None and not is_valid(name, value):
            yield f"{name} is {short_repr(value)}: {allowed(name)}"
    for name in REQUIRED:
        if row.get(name) is None:
            yield f"{name} is unknown: a contributed row needs it, so run the setting again"


def is_valid(name: str, value: Any) -> bool:
    """Return whether a known value of a column may leave the machine."""
    text = pattern(name)
    if text and isinstance(value, str):  # a `$` would let a line break through
        return re.fullmatch(text, value) is not None
    return bool(_validator(name).is_valid(value))


def allowed(name: str) -> str:
    """Return which values of a column may leave the machine, and what to do about another one."""
    limits = _limits(name)
    if name in SETTING_TEXTS:
        return _ALLOWED_TEXTS[name]
    if "pattern" in limits:
        return (
            f"a text of this column has to match {pattern(name)}, so that no name of a user or "
            "path is in it; correct it in the record"
        )
    if "enum" in limits:
        choices = ", ".join(map(str, limits["enum"]))
        return f"allowed are {choices}; run the setting again"
    return f"give {_ARTICLES[json_type(name)]} within the limits of schema.json"
