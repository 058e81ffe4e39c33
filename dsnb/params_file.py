"""Reading a params file: safely, and with every problem of its form said at once.

What its settings mean, and which runs they make, is `dsnb.params`'s.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dsnb import checks
from dsnb.errors import SettingsError

MOST_BYTES = 1_000_000


class ParamsFile(BaseModel):
    """The content of a params file, before its grid is multiplied."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    """Folder of the outputs: letters, digits, '.', '_' and '-'."""
    question: str = ""
    """What the sweep is to answer, in words; the report begins with it."""
    defaults: dict[str, Any] = {}
    """Settings of every run."""
    grid: dict[str, list[Any]] = {}
    """Lists of values; every combination is a run."""
    include: list[dict[str, Any]] = []
    """Further runs: settings on top of the defaults; lists are multiplied within their entry."""
    exclude: list[dict[str, Any]] = []
    """Combinations of the grid to leave out: those that have all the values of one entry."""
    repeats: int = Field(default=1, strict=True, ge=1, le=1000)
    """How often every experiment is run."""
    expect_samples_per_s: float | None = Field(default=None, strict=True, gt=0, allow_inf_nan=False)
    """Sequences per second that every node is to reach, at least; a group of nodes with less has failed."""


class _PlainLoader(yaml.SafeLoader):
    """Safe YAML without aliases, which can blow a small file up, and without silently doubled keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise SettingsError("aliases (*name) are not allowed in a params file: write the value out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        counts = Counter(str(key.value) for key, _ in node.value) if isinstance(node, yaml.MappingNode) else Counter()
        if doubled := sorted(key for key, count in counts.items() if count > 1):
            raise SettingsError(f"'{doubled[0]}' stands twice in the params file: keep one")
        return super().construct_mapping(node, deep)


def read_params(path: str | Path) -> ParamsFile:
    """Read a params file.

    Raises
    ------
    SettingsError
        If it is missing, too large, not plain YAML, or not of the right form.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        text = path.read_text(encoding="utf-8") if size <= MOST_BYTES else ""
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(f"params file {str(path)!r} cannot be read: {reason}; check the path") from error
    if size > MOST_BYTES:
        raise SettingsError(f"params file {str(path)!r} has {size:,} bytes: at most {MOST_BYTES:,} are allowed")
    try:
        content = yaml.load(text, _PlainLoader)  # noqa: S506  (a SafeLoader)
    except SettingsError as error:
        raise SettingsError(f"params file {str(path)!r}: {error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingsError(f"params file {str(path)!r}: {_yaml_problem(error)}") from error
    if not isinstance(content, dict):
        raise SettingsError(f"params file {str(path)!r} holds no settings: it needs at least 'name'")
    return validated(content, path)


def _yaml_problem(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}: " if mark else ""
    problem = getattr(error, "problem", None) or str(error).splitlines()[0][:200]
    if "constructor for the tag" in problem:
        return f"{where}tags such as !!python/... are not allowed, write plain values ({problem})"
    return f"{where}this is not valid YAML ({problem})"


def validated(content: dict[str, Any], path: str | Path) -> ParamsFile:
    """Check the form of a params file's content; `path` names it in messages."""
    fields = ParamsFile.model_fields
    problems = [checks.unknown_key(key, fields) for key in content if key not in fields]
    try:
        file = ParamsFile(**{key: value for key, value in content.items() if key in fields})
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            if detail["type"] == "missing":
                problems.append(f"{detail['loc'][0]} is missing: add it")
            elif detail["type"] == "string_pattern_mismatch":
                problems.append(f"name is {checks.shown(detail['input'])}: use letters, digits, '.', '_' and '-' only")
            else:
                problems.append(checks.invalid_value(dict(detail)))
    if problems:
        raise SettingsError([f"params file {str(path)!r}: {problem}" for problem in problems])
    return file
