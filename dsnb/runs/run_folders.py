"""Run folders of dsnb -> columns, for many thousands of runs at once.

A run is a few small files, so system calls dominate: paths are strings instead of `Path` objects, every file is read
once, and of the executed notebook only the end is read, where papermill stores its times. Invalid values are left out,
and their run counts as unfinished.
"""

import json
import math
import re
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from dsnb.files import json_text, plain_text, records
from dsnb.formulas import metrics, model_shapes
from dsnb.run_folder import finished, record_schema
from dsnb.run_folder.columns import ENVIRONMENT, METRIC_COLUMNS, ORDER, PHASES, SETTINGS, STEP_COLUMNS, SUMMARY_TEXTS
from dsnb.run_folder.paths import RunPaths
from dsnb.settings import aliases, deepspeed_keys
from dsnb.settings.experiment import DEFAULTS
from dsnb.system import hardware

NOTEBOOK_END_BYTES = 4 * 1024
BATCH_BYTES = 256 * 2**20
KINDS: dict[str, type] = {"phase": str, "skipped": bool}
"""Types of the step columns that are not numbers."""
LONGEST_HOST = 253
"""Characters; the limit of the domain name system."""
_DURATION = re.compile(rb'"duration": ([0-9]{1,9}(?:\.[0-9]{1,20})?)[,\s}]')
_RUN = RunPaths(Path())
_FILES = {name: getattr(_RUN, name).name for name in ("notebook", "steps", "nodes")}
Records = list[dict[str, Any] | None]
EXPERIMENT, MACHINE, RESULT = _RUN.experiment.name, _RUN.environment.name, _RUN.result.name
NAME, MODEL_NAME = "recorded_name", "recorded_model_name"
"""Columns with the names of experiment and model in the settings of the run."""
VARIABLES = "variables"
MAX_DIGEST = 12
"""Characters of an input file's digest in the table."""


def read_columns(folders: Sequence[str], without_steps: Collection[str] = ()) -> dict[str, list[Any]]:
    """Return the content of run folders by column; an unfinished run has the status `interrupted`.

    Parameters
    ----------
    folders
        Run folders.
    without_steps
        Those that have a result but no `steps.jsonl`.
    """
    found, settings = _records(folders, without_steps)
    found |= _parallelism(found) | _all_hosts(folders, settings)
    found["gpu_memory_gib"] = [_usable_gib(*one) for one in zip(found["gpu_memory_gib"], settings, strict=True)]
    found["tokens_per_joule"] = _each(metrics.tokens_per_joule, found["tokens_per_s_per_gpu"], found["power_w"])
    found |= _costs(found, settings)
    found["samples_per_s"] = _each(metrics.samples_per_s, found["tokens_per_s"], found["seq_len"])
    peaks = [hardware.matmul_tflops(*one) for one in zip(found["gpu_name"], found["precision"], strict=True)]
    found["mfu_of_matmul"] = _each(metrics.mfu, found["tflops_per_gpu"], peaks)
    found["notebook_s"] = [_notebook_s(f"{folder}/{_FILES['notebook']}") for folder in folders]
    found["run_dir"] = list(folders)
    return found


def _parallelism(found: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return how dsnb's runs distribute their work."""
    count = len(found["gpus"])
    shares = zip(*(found[name] for name in ("gpus", "tensor_parallel", "pipeline_parallel")), strict=True)
    ranks = [_quotient(*share) for share in shares]
    sizes = zip(found["micro_batch_size"], found["grad_accum"], ranks, strict=True)
    return {
        "source": ["dsnb"] * count,
        "data_parallel": ranks,
        "global_batch_size": [math.prod(size) if all(isinstance(one, int) for one in size) else None for size in sizes],
    }


def _all_hosts(folders: Sequence[str], settings: Records) -> dict[str, list[Any]]:
    """Return the hosts of each run; only runs with a hostfile have a file that lists them."""
    return {
        "hosts": [
            (_hosts(f"{folder}/{_FILES['nodes']}") or _requested_hosts(record))
            if record and record.get("hostfile")
            else None
            for folder, record in zip(folders, settings, strict=True)
        ]
    }


def _hosts(path: str) -> str | None:
    """Return the names of a run's hosts, `a,b`, without control characters."""
    nodes = (records.read_json(path) or {}).get("nodes")
    names = [node.get("host") for node in nodes if isinstance(node, dict)] if isinstance(nodes, list) else []
    return ",".join(_printable_host(name) for name in names if isinstance(name, str)) or None


def _requested_hosts(settings: dict[str, Any]) -> str | None:
    """Return the requested hosts of a sub-cluster, for a run that ended before it reached them."""
    names = [_printable_host(name.partition(":")[0]) for name in str(settings.get("include") or "").split("@")]
    return ",".join(names) if names[0] and len(names) == settings.get("nodes") else None


def _printable_host(host: str) -> str:
    return plain_text.line(host[:LONGEST_HOST]).replace(",", "?").replace(" ", "?")


def _usable_gib(memory_gib: Any, settings: dict[str, Any] | None) -> Any:
    """Return the memory that a run could use on a GPU, in GiB; None on a machine without one."""
    limit_gib = (settings or {}).get("memory_limit_gib") or 0
    return min(memory_gib, limit_gib) if memory_gib and limit_gib else memory_gib


def _costs(found: dict[str, list[Any]], settings: Records) -> dict[str, list[float | None]]:
    """Return the GPU-hours of each run, and their cost if its settings name a price."""
    walls_s = [
        wall_s if device == "cuda" else None for wall_s, device in zip(found["wall_s"], found["device"], strict=True)
    ]
    hours = _each(metrics.run_gpu_hours, walls_s, found["gpus"])
    prices = [(record or {}).get("price_per_gpu_hour") or None for record in settings]
    return {"gpu_hours": hours, "cost": _each(metrics.cost, hours, prices)}


def _quotient(whole: Any, *parts: Any) -> int | None:
    if not all(isinstance(number, int) and number > 0 for number in (whole, *parts)):
        return None
    return int(whole // math.prod(parts))


def _each(formula: Any, above: list[Any], below: list[Any]) -> list[float | None]:
    return [_ratio(formula, one, other) for one, other in zip(above, below, strict=True)]


def _ratio(formula: Any, above: Any, below: Any) -> float | None:
    known = isinstance(above, int | float) and isinstance(below, int | float)
    return formula(above, below) if known else None


def _notebook_s(path: str) -> float | None:
    """Return papermill's wall seconds of the whole notebook, kernel start included."""
    end = records.read_end(path, NOTEBOOK_END_BYTES)
    if end is None:
        return None
    begin = end.rfind(b'"default_parameters"')  # the first key of papermill's metadata, after all cells
    if begin >= 0 and (found := _DURATION.search(end, begin)):
        return float(found[1])
    notebook = records.read_json(path) or {}
    duration = get_mapping(get_mapping(notebook, "metadata"), "papermill").get("duration")
    return duration if isinstance(duration, int | float) else None


def _records(folders: Sequence[str], without_steps: Collection[str]) -> tuple[dict[str, list[Any]], Records]:
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


def _clean(found: dict[str, Records]) -> dict[int, str]:
    """Remove invalid fields from the records; return a sentence about the first one of each run."""
    problems: dict[int, str] = {}
    for file, of_runs in found.items():
        for place, record in enumerate(of_runs):
            if record is not None and record_schema.wrong_values(file, record)[0]:
                content, problem = record_schema.cleaned(file, record)
                # An invalid setting is unknown: assuming its default would be wrong.
                of_runs[place] = {**dict.fromkeys(record), **content}
                problems.setdefault(place, str(problem))
    return problems


def _settings(records_of_runs: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return the settings; a missing one was added after the run was made, so its former default applied."""
    known = [{**DEFAULTS, **aliases.with_former_defaults(record)} if record else {} for record in records_of_runs]
    columns = {name: [record.get(name) for record in known] for name in SETTINGS}
    columns["allocator"] = [None if record.get("device") == "cpu" else record.get("allocator") for record in known]
    return columns | _keys(known)


def _keys(settings: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return a column for each key of DeepSpeed's configuration that any run sets; None for DeepSpeed's default."""
    given = [get_mapping(record, deepspeed_keys.NAME) for record in settings]
    columns = {path: [_plain(keys.get(path)) for keys in given] for path in sorted(set().union(*given))}
    return {deepspeed_keys.PREFIX + path: _of_one_type(values) for path, values in columns.items()}


def _plain(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def _of_one_type(values: list[Any]) -> list[Any]:
    """Return values as texts if they are of several types, so that they can be sorted."""
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


def read_steps(folders: Sequence[str]) -> tuple[pd.DataFrame, list[int]]:
    """Return the steps of all run folders in one table, and the number of steps of each.

    Files are parsed in batches by pyarrow. If a file is damaged, the files of its batch are parsed one by one, and the
    damaged one line by line: complete lines are kept.
    """
    tables, counts = [], []
    batch: list[tuple[str, bytes]] = []
    size = 0
    for position, folder in enumerate(folders):
        path = f"{folder}/{_FILES['steps']}"
        raw = records.read_bytes(path) or b""
        batch.append((path, raw if not raw or raw.endswith(b"\n") else raw + b"\n"))
        size += len(raw)
        if size > BATCH_BYTES or position == len(folders) - 1:
            table, lengths = _parse(batch)
            tables.append(table)
            counts += lengths
            batch, size = [], 0
    tables = [table for table in tables if len(table)]
    return (pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=STEP_COLUMNS)), counts


def _parse(batch: list[tuple[str, bytes]]) -> tuple[pd.DataFrame, list[int]]:
    lengths = [raw.count(b"\n") for _, raw in batch]
    table = json_text.table(b"".join(raw for _, raw in batch), {name: KINDS.get(name, float) for name in STEP_COLUMNS})
    if table is not None and len(table) == sum(lengths):
        return table, lengths
    if len(batch) > 1:
        parts = [_parse([one]) for one in batch]
        return pd.concat([part for part, _ in parts], ignore_index=True), [length for _, (length,) in parts]
    read = pd.DataFrame(records.read_lines(Path(batch[0][0])), columns=STEP_COLUMNS)
    return read, [len(read)]
