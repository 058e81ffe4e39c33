"""The files of a run folder: fields, meanings and types.

Records come from other machines, other versions and text editors. A value of a wrong kind is left
out when it is read, and described in one sentence; fields that are not listed here may hold
anything.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dsnb.base.files import json_files, plain_text
from dsnb.settings import checks
from dsnb.settings.experiment import with_current_names, with_former_defaults
from dsnb.settings.records.columns import (
    FIGURES,
    FORMER_FIGURES,
    KINDS,
    SAMPLES,
    SETTING_COLUMNS,
    STEPS,
    TEXTS,
    declared,
    record_of,
)
from dsnb.settings.records.paths import RunPaths

_RUN = RunPaths(Path())
_SETTINGS = _RUN.experiment.name
_RESULT = _RUN.result.name


KINDS["gpus"] = list[record_of(declared("gpu"))]  # type: ignore[misc]
KINDS["environment"] = record_of(declared("environment"))
KINDS["hosts"] = list[record_of(declared("host"))]  # type: ignore[misc]
KINDS["summary"] = record_of(FIGURES | TEXTS | declared("summary"))
FILES = {
    _RUN.experiment.name: SETTING_COLUMNS | declared("experiment"),
    _RUN.result.name: declared("result"),
    _RUN.environment.name: declared("environment"),
    _RUN.steps.name: STEPS,
    _RUN.gpu.name: SAMPLES,
    _RUN.profile.name: declared("profile"),
    _RUN.nodes.name: declared("nodes"),
    _RUN.bandwidth.name: declared("bandwidth"),
}
"""By file name, the fields of the object in a `.json`, or of each line of a `.jsonl`."""
_FORMS = {name: TypeAdapter(record_of(fields)) for name, fields in FILES.items()}


def cleaned(name: str, record: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return a file's record without missing and invalid values, and a sentence about the first invalid one."""
    record = current(name, record)
    wrong, problem = wrong_values(name, record)
    content = _without(record, wrong)
    return with_former_defaults(content) if name == _SETTINGS else content, problem


def current(name: str, record: dict[str, Any]) -> dict[str, Any]:
    """Return a file's record with settings and figures under their current names."""
    if name == _SETTINGS:
        return with_current_names(record)
    if name != _RESULT or not isinstance(record.get("summary"), dict):
        return record
    summary = {
        FORMER_FIGURES.get(figure, figure): value for figure, value in record["summary"].items()
    }
    return {**record, "summary": summary}


def wrong_values(name: str, record: dict[str, Any]) -> tuple[set[tuple[Any, ...]], str | None]:
    """Return the places of invalid values in a record, each a path of keys, and a sentence about the first one."""
    try:
        if name in _FORMS:
            _FORMS[name].validate_python(record)
        return set(), None
    except ValidationError as error:
        details = error.errors(include_url=False)
    first, places = details[0], [_place(record, detail["loc"]) for detail in details]
    shown = ".".join(plain_text.short_repr(key).strip("'") for key in places[0])
    is_object = first["type"] in {"dict_type", "model_type"}
    allowed = (
        "give an object" if is_object else checks.allowed_values(dict(first), str(places[0][-1]))
    )
    return {*places}, f"{name}: {shown} is {plain_text.short_repr(first['input'])}: {allowed}"


def _place(record: Any, location: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the part of pydantic's location that is a path in the record; the rest names alternatives of a type."""
    place = []
    for key in location:
        if not (
            key in record
            if isinstance(record, dict)
            else isinstance(record, list) and isinstance(key, int)
        ):
            break
        record = record[key]
        place.append(key)
    return tuple(place)


def _without(value: Any, wrong: set[tuple[Any, ...]], place: tuple[Any, ...] = ()) -> Any:
    """Return a value without missing values and those at invalid places."""
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    else:
        return value
    kept = {}
    for key, item in items:
        here = (*place, key)
        valid = None if here in wrong else _without(item, wrong, here)
        if valid is not None:
            kept[key] = valid
    if isinstance(value, dict):
        return kept
    return list(kept.values())


def read(path: Path) -> dict[str, Any] | None:
    """Read one of a run's `.json` files, None if it is missing; invalid values are left out with a warning."""
    record = json_files.read_json(path)
    if record is None:
        return None
    content, problem = cleaned(path.name, record)
    if problem:
        json_files.warn(f"{path.parent / problem}; it is left out")
    return content


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read one of a run's `.jsonl` files; invalid values are left out with one warning."""
    lines = [cleaned(path.name, record) for record in json_files.read_lines(path)]
    problems = [problem for _, problem in lines if problem]
    if problems:
        more = ""
        if problems[1:]:
            more = f", and so are those of {len(problems) - 1} more lines"
        json_files.warn(f"{path.parent / problems[0]}; it is left out{more}")
    return [content for content, _ in lines]


def steps(tail: json_files.Tail) -> Iterator[dict[str, Any]]:
    """Yield the steps appended to a file since the last call."""
    for record in tail.new():
        step, _ = cleaned(tail.path.name, record)
        if step.get("step") is not None:
            yield step
