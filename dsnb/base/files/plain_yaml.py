"""Reads YAML of params files and the command line, and writes it: plain values only, within limits.

Input that could run code, exhaust memory or be misread (a duplicate key) raises a SettingsError of
one sentence.
"""

import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from dsnb.base.errors import SettingsError
from dsnb.base.files import json_files, plain_text

MAX_BYTES = 1_000_000
EXPONENTIAL = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
"""Numbers that YAML 1.2 and JSON have, and PyYAML reads as text: `5e8`, `1e-8`."""
_CONSTRUCTOR_ERRORS = (
    ValueError,
    ArithmeticError,
    TypeError,
    AttributeError,
    LookupError,
    RecursionError,
)
"""Exceptions that PyYAML raises for a value that does not match its tag, such as `!!int x`, and for
deep nesting."""


class _Loader(yaml.SafeLoader):
    """A safe loader without aliases, which can expand a small file to gigabytes, and without likely mistakes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise SettingsError(
                "aliases (*name) are not allowed in a params file: write the value out"
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        counts = Counter(key.value for key, _ in pairs if isinstance(key.value, str))
        doubled = sorted(key for key, count in counts.items() if count > 1)
        if doubled:
            raise SettingsError(f"duplicate key {plain_text.short_repr(doubled[0])}: remove one")
        mapping = super().construct_mapping(node, deep)
        odd = [key for key in mapping if not isinstance(key, str)]
        if odd:
            raise SettingsError(
                f"{plain_text.short_repr(odd[0])} is not the name of a setting: put it in quotes if it is"
            )
        return mapping


class _Dumper(yaml.SafeDumper):
    """A safe dumper without aliases for equal values, which the loader refuses."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENTIAL, list("-+.0123456789"))


def parse(text: str) -> Any:
    """Parse YAML; a SettingsError, without the name of the source, says what is invalid or not plain."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506  (a SafeLoader)
    except SettingsError:
        raise
    except (yaml.YAMLError, *_CONSTRUCTOR_ERRORS) as error:
        raise SettingsError(_problem(error)) from error


def read(path: Path, what: str) -> Any:
    """Read a YAML file; messages of a SettingsError call it `what`, such as `params file`."""
    name = f"{what} {str(path)!r}"
    try:
        return parse(json_files.read_file(path, MAX_BYTES).decode("utf-8-sig"))
    except SettingsError as error:
        raise SettingsError(f"{name}: {error}") from error
    except (OSError, ValueError) as error:
        reason = (
            "it is not UTF-8 text"
            if isinstance(error, UnicodeDecodeError)
            else getattr(error, "strerror", "")
        )
        raise SettingsError(f"{name} cannot be read: {reason or error}; check the path") from error


def dump(content: Any, in_one_line: bool = False) -> str:
    """Return plain values as YAML that `parse` reads back; raise SettingsError if a value is not plain."""
    form: dict[str, Any] = (
        {"default_flow_style": True, "width": math.inf} if in_one_line else {"width": 110}
    )
    try:
        return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, **form)
    except yaml.representer.RepresenterError as error:
        value = plain_text.short_repr(error.args[-1])
        raise SettingsError(
            f"{value} cannot be written to a params file: give numbers, texts, lists"
        ) from error


def _problem(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}: " if mark else ""
    problem = (
        getattr(error, "problem", None) or (str(error).splitlines() or [type(error).__name__])[0]
    )
    if "constructor for the tag" in problem:
        return f"{where}tags such as !!python/... are not allowed, write plain values ({problem[:200]})"
    return f"{where}this is not valid YAML ({problem[:200]})"
