"""The three records of each of many run folders, read and checked at once: settings, machine, result.

Thousands of runs are checked column by column. Where something is not of its kind, each record is looked at by itself;
what is wrong with it is left out and makes its run an unfinished one.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from dsnb.files import records
from dsnb.run_folder import finished, record_schema
from dsnb.run_folder.paths import RunPaths
from dsnb.run_folder.table_columns import ENVIRONMENT, METRIC_COLUMNS, PHASES, SETTINGS

Records = list[dict[str, Any] | None]
_RUN = RunPaths(Path())
EXPERIMENT, MACHINE, RESULT = _RUN.experiment.name, _RUN.environment.name, _RUN.result.name
NAME = "recorded_name"
"""The column of the name that an experiment had when its run was made."""
_KINDS = {
    **{name: record_schema.SETTINGS[name] for name in (*SETTINGS, "device")},
    **{name: record_schema.SUMMARY[name] for name in (*METRIC_COLUMNS, *record_schema.TEXTS)},
    **{name: record_schema.MACHINE[name] for name in ENVIRONMENT if name in record_schema.MACHINE},
    "gpu_name": record_schema.TEXT,
    **dict.fromkeys((f"{phase}_s" for phase in PHASES), record_schema.AMOUNT),
}
"""Of columns that stand in the records as such."""
_OTHERS = [
    (file, name, record_schema.FORMS[file].fields[name])
    for file, names in (
        (EXPERIMENT, ("name", "asked")),
        (MACHINE, ("gpus",)),
        (RESULT, ("status", "cause", "exit_codes", "phases_s")),
    )
    for name in names
]
_OTHERS.append((RESULT, "summary", record_schema.OBJECT))
"""What is looked at beside them; the fields of a summary are columns."""


def read(folders: Sequence[str], stepless: Collection[str]) -> tuple[dict[str, list[Any]], Records]:
    """Read the records of run folders, of which some are known to have no file of steps.

    Returns
    -------
    tuple
        The columns that stand in them as such, with `status` and `cause`, and the settings of each run.
    """
    found = {
        name: [records.read_json(f"{folder}/{name}") for folder in folders] for name in (EXPERIMENT, MACHINE, RESULT)
    }
    found[EXPERIMENT] = [record and record_schema.with_current_names(record) for record in found[EXPERIMENT]]
    problems: dict[int, str] = {}
    columns = _columns(found)
    if not _is_sound(columns, found):  # seldom
        problems = _clean(found)
        columns = _columns(found)
    ends = [
        _ending(settings, machine, result, folder not in stepless, problems.get(place))
        for place, (folder, settings, machine, result) in enumerate(zip(folders, *found.values(), strict=True))
    ]
    columns[NAME] = [record.get("name") if record else None for record in found[EXPERIMENT]]
    columns |= {"status": [status for status, _ in ends], "cause": [cause for _, cause in ends]}
    return columns, found[EXPERIMENT]


def names(folders: Sequence[str]) -> tuple[list[Any], list[Any]]:
    """Return the name and the model that each run's settings say; None for what they do not say."""
    settings = [records.read_json(f"{folder}/{EXPERIMENT}") or {} for folder in folders]
    return [_text(record.get("name")) for record in settings], [_text(record.get("model")) for record in settings]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _columns(found: dict[str, Records]) -> dict[str, list[Any]]:
    settings, machines, results = ([record or {} for record in found[name]] for name in (EXPERIMENT, MACHINE, RESULT))
    columns = _fields(settings, ["device"]) | _settings(settings)
    columns |= _fields([mapping(result, "summary") for result in results], [*METRIC_COLUMNS, *record_schema.TEXTS])
    columns |= _fields(machines, ENVIRONMENT) | {"gpu_name": [_gpu(machine.get("gpus")) for machine in machines]}
    phases = _fields([mapping(result, "phases_s") for result in results], PHASES)
    return columns | {f"{phase}_s": times for phase, times in phases.items()}


def _is_sound(columns: dict[str, list[Any]], found: dict[str, Records]) -> bool:
    """Say whether everything that columns are made of is of its kind."""
    if not all(kind.holds_all(columns[name]) for name, kind in _KINDS.items()):
        return False
    return all(kind.holds_all([record.get(name) for record in found[file] if record]) for file, name, kind in _OTHERS)


def _clean(found: dict[str, Records]) -> dict[int, str]:
    """Take out of the records what is not of its kind; return the first such thing of each run in words."""
    problems: dict[int, str] = {}
    for file, of_runs in found.items():
        for place, record in enumerate(of_runs):
            if record is None:
                continue
            content, problem = record_schema.cleaned(file, record)
            if problem:
                # A setting of a wrong kind is not known: its default would be wrong.
                of_runs[place] = {**dict.fromkeys(record), **content}
                problems.setdefault(place, problem)
    return problems


def _settings(records_of_runs: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return the settings; one that a run does not name came after it, and the run was made with its default."""
    known = [{**finished.DEFAULTS, **record} if record else {} for record in records_of_runs]
    return {name: [record.get(name) for record in known] for name in SETTINGS}


def _fields(records_of_runs: list[dict[str, Any]], names: list[str]) -> dict[str, list[Any]]:
    known = set().union(*records_of_runs)
    nothing = [None] * len(records_of_runs)
    return {
        name: [record.get(name) for record in records_of_runs] if name in known else nothing.copy() for name in names
    }


def _gpu(gpus: Any) -> str | None:
    return gpus[0].get("name") if isinstance(gpus, list) and gpus and isinstance(gpus[0], dict) else None


def _ending(settings: Any, machine: Any, result: Any, has_steps: bool, problem: str | None) -> tuple[str, str | None]:
    """Return the status and cause of a run: that of an unfinished one, whatever it says itself, is `interrupted`."""
    if told := problem or finished.lacking(settings, machine, result, has_steps):
        return "interrupted", f"{told}; {finished.AGAIN}"
    return result["status"], result.get("cause")


def mapping(record: dict[str, Any], key: str) -> dict[str, Any]:
    """Return an object inside of a record, empty where there is none."""
    value = record.get(key)
    return value if isinstance(value, dict) else {}
