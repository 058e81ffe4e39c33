"""Reads and validates the records of many run folders at once: settings, environment, result.

Thousands of runs are validated column by column. If a value is invalid, every record is validated on its own: invalid
values are left out, and their run counts as unfinished.
"""

import json
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from dsnb.files import records
from dsnb.formulas import model_shapes
from dsnb.run_folder import finished, record_schema
from dsnb.run_folder.columns import ENVIRONMENT, METRIC_COLUMNS, ORDER, PHASES, RUNS, SETTINGS, SUMMARY_TEXTS
from dsnb.run_folder.declarations import object_of
from dsnb.run_folder.paths import RunPaths
from dsnb.settings import aliases, deepspeed_keys
from dsnb.settings.experiment import DEFAULTS

Records = list[dict[str, Any] | None]
_RUN = RunPaths(Path())
EXPERIMENT, MACHINE, RESULT = _RUN.experiment.name, _RUN.environment.name, _RUN.result.name
NAME, MODEL_NAME = "recorded_name", "recorded_model_name"
"""Columns with the names of experiment and model in the settings of the run."""
VARIABLES = "variables"
MAX_DIGEST = 12
"""Characters of an input file's digest in the table."""
_PHASES = [f"{phase}_s" for phase in PHASES]
_KINDS = {
    name: RUNS[name].kind
    for name in (*SETTINGS, "device", *METRIC_COLUMNS, *SUMMARY_TEXTS, *ENVIRONMENT, *ORDER, *_PHASES)
}
"""Kinds of the columns that are fields of the records."""
del _KINDS[VARIABLES]  # an object in the record, a text in the table
_OTHERS = [
    (file, name, record_schema.FORMS[file].fields[name])
    for file, names in (
        (EXPERIMENT, ("name", "model_name", "inputs", "asked")),
        (MACHINE, ("gpus", "variables")),
        (RESULT, ("status", "cause", "exit_codes", "phases_s")),
    )
    for name in names
]
_OTHERS.append((RESULT, "summary", object_of()))
"""Other fields that are validated; the fields of `summary` are columns."""


def read(folders: Sequence[str], without_steps: Collection[str]) -> tuple[dict[str, list[Any]], Records]:
    """Read the records of run folders; `without_steps` are those without a `steps.jsonl`.

    Returns
    -------
    tuple
        Columns (fields of the records, `status` and `cause`), and the settings of each run.
    """
    found = {
        name: [records.read_json(f"{folder}/{name}") for folder in folders] for name in (EXPERIMENT, MACHINE, RESULT)
    }
    found[EXPERIMENT] = [record and record_schema.with_current_names(record) for record in found[EXPERIMENT]]
    problems: dict[int, str] = {}
    columns = _columns(found)
    if not _is_valid(columns, found):  # rare
        problems = _clean(found)
        columns = _columns(found)
    ends = [
        _status_and_cause(settings, machine, result, folder not in without_steps, problems.get(place))
        for place, (folder, settings, machine, result) in enumerate(zip(folders, *found.values(), strict=True))
    ]
    columns[NAME] = [record.get("name") if record else None for record in found[EXPERIMENT]]
    columns[MODEL_NAME] = [_model_name(record or {}) for record in found[EXPERIMENT]]
    columns |= {"status": [status for status, _ in ends], "cause": [cause for _, cause in ends]}
    return columns, found[EXPERIMENT]


def names(folders: Sequence[str]) -> tuple[list[Any], list[Any]]:
    """Return the names of experiment and model in each run's settings; None for a missing one."""
    settings = [records.read_json(f"{folder}/{EXPERIMENT}") or {} for folder in folders]
    return [_text(record.get("name")) for record in settings], [_model_name(record) for record in settings]


def _model_name(settings: dict[str, Any]) -> str | None:
    """Return the name of a run's model as its launch decided it.

    It is the slug, which a sweep may have extended to the left; older runs have no name, and an edited record may have
    that of another model.
    """
    name, model = _text(settings.get("model_name")), _text(settings.get("model"))
    slug = model and model_shapes.slug(model)
    return name if name and slug and name.endswith(slug) else slug


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _columns(found: dict[str, Records]) -> dict[str, list[Any]]:
    settings, machines, results = ([record or {} for record in found[name]] for name in (EXPERIMENT, MACHINE, RESULT))
    columns = _fields(settings, ["device", *ORDER]) | _settings(settings)
    columns |= _fields([get_mapping(result, "summary") for result in results], [*METRIC_COLUMNS, *SUMMARY_TEXTS])
    columns |= _fields(machines, ENVIRONMENT)
    columns[VARIABLES] = [_words(machine.get(VARIABLES)) for machine in machines]
    columns["inputs"] = [_words(record.get("inputs"), MAX_DIGEST) for record in settings]
    columns |= {f"gpu_{field}": [_gpu(machine, field) for machine in machines] for field in ("name", "memory_gib")}
    phases = _fields([get_mapping(result, "phases_s") for result in results], PHASES)
    return columns | {f"{phase}_s": times for phase, times in phases.items()}


def _is_valid(columns: dict[str, list[Any]], found: dict[str, Records]) -> bool:
    """Return whether all fields are valid."""
    if not all(kind.holds_all(columns[name]) for name, kind in _KINDS.items()):
        return False
    return all(kind.holds_all([record.get(name) for record in found[file] if record]) for file, name, kind in _OTHERS)


def _clean(found: dict[str, Records]) -> dict[int, str]:
    """Remove invalid fields from the records; return a sentence about the first one of each run."""
    problems: dict[int, str] = {}
    for file, of_runs in found.items():
        for place, record in enumerate(of_runs):
            if record is None:
                continue
            content, problem = record_schema.cleaned(file, record)
            if problem:
                # An invalid setting is unknown: assuming its default would be wrong.
                of_runs[place] = {**dict.fromkeys(record), **content}
                problems.setdefault(place, problem)
    return problems


def _settings(records_of_runs: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return the settings; a missing one was added after the run was made, so its former default applied."""
    known = [{**DEFAULTS, **aliases.with_former_defaults(record)} if record else {} for record in records_of_runs]
    return {name: [record.get(name) for record in known] for name in SETTINGS} | _keys(known)


def _keys(settings: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return a column for each key of DeepSpeed's configuration that any run sets; None for DeepSpeed's default."""
    given = [get_mapping(record, deepspeed_keys.NAME) for record in settings]
    columns = {path: [_plain(keys.get(path)) for keys in given] for path in sorted(set().union(*given))}
    return {deepspeed_keys.PREFIX + path: _of_one_type(values) for path, values in columns.items()}


def _plain(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def _of_one_type(values: list[Any]) -> list[Any]:
    """Return values as texts if they are of several types: an index has columns of one type."""
    kinds = {type(value) for value in values if value is not None}
    return values if len(kinds) < 2 else [value if value is None else str(value) for value in values]


def _fields(records_of_runs: list[dict[str, Any]], names: list[str]) -> dict[str, list[Any]]:
    known = set().union(*records_of_runs)
    nothing = [None] * len(records_of_runs)
    return {
        name: [record.get(name) for record in records_of_runs] if name in known else nothing.copy() for name in names
    }


def _words(values: Any, most: int | None = None) -> str | None:
    """Return an object as `name=value name=value`, values cut to `most` characters; None if it was not recorded."""
    if not isinstance(values, dict):
        return None
    return " ".join(shlex.quote(f"{name}={str(value)[:most]}") for name, value in sorted(values.items()))


def _gpu(machine: dict[str, Any], field: str) -> Any:
    """Return a field of the first GPU of a machine; None if it has none."""
    gpus = machine.get("gpus")
    return gpus[0].get(field) if isinstance(gpus, list) and gpus and isinstance(gpus[0], dict) else None


def _status_and_cause(
    settings: Any, machine: Any, result: Any, has_steps: bool, problem: str | None
) -> tuple[str, str | None]:
    """Return the status and cause of a run; `interrupted` for an unfinished one, whatever its result says."""
    if reason := problem or finished.missing_record(settings, machine, result, has_steps):
        return "interrupted", f"{reason}; {finished.AGAIN}"
    return result["status"], result.get("cause")


def get_mapping(record: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the object under a key of a record; an empty one if there is none."""
    value = record.get(key)
    return value if isinstance(value, dict) else {}
