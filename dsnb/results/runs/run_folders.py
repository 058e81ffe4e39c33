"""Run folders of dsnb -> columns, for many thousands of runs at once.

A run is a few small files, so system calls dominate: paths are strings instead of `Path` objects, every file is read
once, and of the executed notebook only the end is read, where papermill stores its times. Invalid values are left out,
and their run counts as unfinished.
"""

import contextlib
import json
import math
import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import json as arrow

from dsnb.base.files import json_files, plain_text
from dsnb.base.formulas import metrics, model_shapes
from dsnb.base.system import hardware
from dsnb.results.runs import copies
from dsnb.settings import deepspeed_keys
from dsnb.settings.experiment import DEFAULTS, with_former_defaults
from dsnb.settings.records import agreement, record_schema
from dsnb.settings.records.agreement import TimedSteps
from dsnb.settings.records.columns import (
    ENVIRONMENT,
    METRIC_COLUMNS,
    ORDER,
    PHASES,
    SETTINGS,
    STEP_COLUMNS,
    SUMMARY_TEXTS,
)
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.result import missing_record

NOTEBOOK_END_BYTES = 8 * 1024
STEP_BATCH = 2000
"""Run folders whose steps are parsed at once."""
STEP_TYPES = {
    **dict.fromkeys(STEP_COLUMNS, pa.float64()),
    "phase": pa.string(),
    "skipped": pa.bool_(),
}
STEP_FIELDS = arrow.ParseOptions(
    explicit_schema=pa.schema([*STEP_TYPES.items()]), unexpected_field_behavior="ignore"
)
TOTAL_TYPES = {name: STEP_TYPES[name] for name in ("step", "phase", "step_time_s", "tokens")}
TOTAL_FIELDS = arrow.ParseOptions(
    explicit_schema=pa.schema([*TOTAL_TYPES.items()]), unexpected_field_behavior="ignore"
)
MAX_NAMED = 3
"""Copies of one run that its note names."""
MAX_HOST = 253
"""Characters; the limit of the domain name system."""
MAX_DIGEST = 12
"""Characters of an input file's digest in the table."""
_DURATION = re.compile(rb'"duration": ([0-9]{1,9}(?:\.[0-9]{1,20})?)[,\s}]')
_RUN = RunPaths(Path())
EXPERIMENT, MACHINE, RESULT = _RUN.experiment.name, _RUN.environment.name, _RUN.result.name
_NOTEBOOK, _NODES, _STEPS = _RUN.notebook.name, _RUN.nodes.name, _RUN.steps.name
NAME, MODEL_NAME = "recorded_name", "recorded_model_name"
"""Columns with the names of experiment and model in the settings of the run."""
Records = list[dict[str, Any]]
Columns = dict[str, list[Any]]


@dataclass(frozen=True)
class RunFolders:
    """Run folders without copies, and their records by file; None for a missing file."""

    folders: list[str]
    by_file: dict[str, list[Any]]
    copies: list[list[str]]
    """For each run, the folders that were left out as copies of it."""


def read_records(folders: Sequence[str]) -> RunFolders:
    """Read the records of run folders, each run once; copies are left out with a warning."""
    names = (EXPERIMENT, MACHINE, RESULT)
    by_file = {
        name: [json_files.read_json(f"{folder}/{name}") for folder in folders] for name in names
    }
    runs = [
        copies.Run(folder, *(record or {} for record in of_run))
        for folder, *of_run in zip(folders, *by_file.values(), strict=True)
    ]
    places, left_out = copies.distinct(runs)
    kept = {name: [of_runs[place] for place in places] for name, of_runs in by_file.items()}
    return RunFolders(
        [folders[place] for place in places], kept, [left_out.get(place, []) for place in places]
    )


def read_columns(runs: RunFolders) -> Columns:
    """Return the content of run folders by column; an unfinished run has the status `interrupted`."""
    folders, by_file = runs.folders, runs.by_file
    for name, of_runs in by_file.items():
        of_runs[:] = [record and record_schema.current(name, record) for record in of_runs]
    problems = _clean(by_file)
    ends = _statuses_and_causes(folders, by_file, problems)
    recorded, machines, results = (
        [record or {} for record in of_runs] for of_runs in by_file.values()
    )
    # A setting that is missing was added after the run was made, so its former default applied.
    settings = [
        {**DEFAULTS, **with_former_defaults(record)} if record else {} for record in recorded
    ]
    columns = _fields(settings, [*SETTINGS, "device", "launcher", *ORDER]) | _keys(settings)
    columns |= _fields(
        [result.get("summary") or {} for result in results], [*METRIC_COLUMNS, *SUMMARY_TEXTS]
    )
    columns |= _fields(machines, ENVIRONMENT)
    phases = _fields([result.get("phases_s") or {} for result in results], PHASES)
    columns |= {f"{phase}_s": times_s for phase, times_s in phases.items()}
    columns["status"], columns["cause"] = ([end[part] for end in ends] for part in (0, 1))
    columns["variables"] = [_words(machine.get("variables")) for machine in machines]
    columns["inputs"] = [_words(record.get("inputs"), MAX_DIGEST) for record in recorded]
    columns["note"] = [
        _with_copies(note, left_out)
        for note, left_out in zip(columns["note"], runs.copies, strict=True)
    ]
    columns["notebook_s"] = [_notebook_s(f"{folder}/{_NOTEBOOK}") for folder in folders]
    nodes = [f"{folder}/{_NODES}" for folder in folders]
    columns["hosts"] = [_hosts(path, record) for path, record in zip(nodes, recorded, strict=True)]
    columns[NAME], columns[MODEL_NAME] = (
        [record.get("name") for record in recorded],
        [*map(_model_name, recorded)],
    )
    return columns | _derived(columns, settings, machines)


def _derived(columns: Columns, settings: Records, machines: Records) -> Columns:
    """Return the columns derived from fields of the records."""

    def each(formula: Callable[..., Any], *names: str) -> list[Any]:
        """Apply a formula to columns; None where one of its values is missing."""
        rows = zip(*(columns[name] for name in names), strict=True)
        return [None if None in row else formula(*row) for row in rows]

    gpus = [(machine.get("gpus") or [{}])[0] or {} for machine in machines]
    columns |= {
        f"gpu_{field}": [gpu.get(field) for gpu in gpus] for field in ("name", "memory_gib")
    }
    columns["limit_gib"] = [record.get("memory_limit_gib") or math.inf for record in settings]
    columns["price"] = [record.get("price_per_gpu_hour") or None for record in settings]
    columns["wall_on_gpus_s"] = [
        wall_s if device == "cuda" else None
        for wall_s, device in zip(columns["wall_s"], columns["device"], strict=True)
    ]
    is_cpu = [record.get("device") == "cpu" for record in settings]
    columns["allocator"] = [
        None if cpu else kind for cpu, kind in zip(is_cpu, columns["allocator"], strict=True)
    ]
    columns["data_parallel"] = each(
        lambda gpus, *sizes: gpus // math.prod(sizes) if min(gpus, *sizes) > 0 else None,
        *("gpus", "tensor_parallel", "pipeline_parallel"),
    )
    columns["peak"] = each(hardware.matmul_tflops, "gpu_name", "precision")
    columns["gpu_hours"] = each(metrics.run_gpu_hours, "wall_on_gpus_s", "gpus")
    return columns | {
        "source": ["dsnb"] * len(settings),
        "global_batch_size": each(
            lambda size, *times: size * math.prod(times) if isinstance(size, int) else None,
            *("micro_batch_size", "grad_accum", "data_parallel"),
        ),
        "gpu_memory_gib": each(min, "gpu_memory_gib", "limit_gib"),
        "tokens_per_joule": each(metrics.tokens_per_joule, "tokens_per_s_per_gpu", "power_w"),
        "cost": each(metrics.cost, "gpu_hours", "price"),
        "samples_per_s": each(metrics.samples_per_s, "tokens_per_s", "seq_len"),
        "mfu_of_matmul": each(metrics.mfu, "tflops_per_gpu", "peak"),
    }


def _statuses_and_causes(
    folders: Sequence[str], by_file: dict[str, list[Any]], problems: dict[int, str]
) -> list[tuple[str, str | None]]:
    """Return the status and cause of each run; an unfinished one is `interrupted`, whatever its result."""
    reasons = dict(problems)
    changed: list[int] = []
    for place, (folder, settings, machine, result) in enumerate(
        zip(folders, *by_file.values(), strict=True)
    ):
        size = _size(f"{folder}/{_STEPS}")
        missing = missing_record(settings, machine, result, size is not None)
        if missing:
            reasons.setdefault(place, missing)
        elif (
            place not in reasons and result["status"] == "ok" and result.get("steps_bytes") != size
        ):
            changed.append(place)
    timed = dict(zip(changed, timed_steps([folders[place] for place in changed]), strict=True))
    ends: list[tuple[str, str | None]] = []
    for place, (settings, result) in enumerate(
        zip(by_file[EXPERIMENT], by_file[RESULT], strict=True)
    ):
        reason = reasons.get(place)
        if reason is None and result["status"] == "ok":
            reason = agreement.contradiction(settings, result, timed.get(place))
        if reason is None:
            ends.append((result["status"], result.get("cause")))
        else:
            ends.append(("interrupted", f"{reason}; start the sweep again"))
    return ends


def _size(path: str) -> int | None:
    """Return the bytes of a file; None if there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def _with_copies(note: str | None, left_out: Sequence[str]) -> str | None:
    """Return a run's note with the folders that were left out as its copies."""
    if not left_out:
        return note
    named = ", ".join(map(copies.displayable, left_out[:MAX_NAMED]))
    more = f" and {len(left_out) - MAX_NAMED} more" if len(left_out) > MAX_NAMED else ""
    sentence = f"counted once: {named}{more} {'is a copy' if len(left_out) == 1 else 'are copies'}"
    return f"{note}; {sentence}" if note else sentence


def _clean(by_file: dict[str, list[Any]]) -> dict[int, str]:
    """Remove invalid fields from the records; return a sentence about the first one of each run."""
    problems: dict[int, str] = {}
    for file, of_runs in by_file.items():
        for place, record in enumerate(of_runs):
            if record is not None and record_schema.wrong_values(file, record)[0]:
                content, problem = record_schema.cleaned(file, record)
                # An invalid setting is unknown: assuming its default would be wrong.
                of_runs[place] = {**dict.fromkeys(record), **content}
                problems.setdefault(place, str(problem))
    return problems


def _fields(records_of_runs: Records, names: list[str]) -> Columns:
    return {name: [record.get(name) for record in records_of_runs] for name in names}


def _keys(settings: Records) -> Columns:
    """Return a column for each key of DeepSpeed that any run sets; values of several types become text."""
    configurations = [record.get(deepspeed_keys.NAME) or {} for record in settings]
    columns = {}
    for path in sorted(set().union(*configurations)):
        values = [keys.get(path) for keys in configurations]
        values = [
            json.dumps(value) if isinstance(value, list | dict) else value for value in values
        ]
        if len({type(value) for value in values if value is not None}) > 1:
            values = [None if value is None else str(value) for value in values]
        columns[deepspeed_keys.PREFIX + path] = values
    return columns


def _words(values: dict[str, Any] | None, max_length: int | None = None) -> str | None:
    """Return an object as `name=value name=value`, values cut to a length; None if it was not recorded."""
    if values is None:
        return None
    return " ".join(
        shlex.quote(f"{name}={str(value)[:max_length]}") for name, value in sorted(values.items())
    )


def _hosts(path: str, settings: dict[str, Any]) -> str | None:
    """Return the names of a run's hosts, `a,b`; those that were requested if it ended before it reached them."""
    if not settings.get("hostfile"):
        return None
    nodes = (record_schema.read(Path(path)) or {}).get("nodes", [])
    hosts = [node["host"] for node in nodes if "host" in node]
    if not hosts:
        hosts = [host.partition(":")[0] for host in str(settings.get("include") or "").split("@")]
        hosts = hosts if hosts[0] and len(hosts) == settings.get("nodes") else []
    return ",".join(re.sub("[, ]", "?", plain_text.line(host[:MAX_HOST])) for host in hosts) or None


def _notebook_s(path: str) -> float | None:
    """Return papermill's wall seconds of the whole notebook, kernel start included."""
    end = json_files.read_end(path, NOTEBOOK_END_BYTES) or b""
    begin = end.rfind(
        b'"default_parameters"'
    )  # the first key of papermill's metadata, after all cells
    duration = _DURATION.search(end, begin) if begin >= 0 else None
    return float(duration[1]) if duration else None


def names(settings: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the names of experiment and model in each run's settings; None for a missing one."""
    recorded = [record or {} for record in settings]
    return [record.get("name") for record in recorded], [*map(_model_name, recorded)]


def _model_name(settings: dict[str, Any]) -> str | None:
    """Return the name of a run's model: its slug, which a sweep may have extended to the left."""
    name, model = settings.get("model_name"), settings.get("model")
    slug = model_shapes.slug(model) if isinstance(model, str) and model else None
    return name if isinstance(name, str) and slug and name.endswith(slug) else slug


def read_steps(folders: Sequence[str]) -> tuple[pd.DataFrame, list[int]]:
    """Return the steps of all run folders in one table, and the number of steps of each."""
    tables, counts = [pd.DataFrame(columns=STEP_COLUMNS)], []
    for first in range(0, len(folders), STEP_BATCH):
        table, lengths = _parse(
            [f"{folder}/{_STEPS}" for folder in folders[first : first + STEP_BATCH]], STEP_FIELDS
        )
        tables.append(table)
        counts += lengths
    return pd.concat(
        [table for table in tables if len(table)] or tables[:1], ignore_index=True
    ), counts


def timed_steps(folders: Sequence[str]) -> list[TimedSteps]:
    """Return what the timed steps of each run folder say together."""
    found: list[TimedSteps] = []
    for first in range(0, len(folders), STEP_BATCH):
        table, lengths = _parse(
            [f"{folder}/{_STEPS}" for folder in folders[first : first + STEP_BATCH]], TOTAL_FIELDS
        )
        found += _together(table, lengths)
    return found


def _together(table: pd.DataFrame, lengths: Sequence[int]) -> list[TimedSteps]:
    """Return the totals of runs whose steps follow each other in one table."""
    run = np.repeat(np.arange(len(lengths)), lengths)
    is_timed = (table["phase"] == "timed").to_numpy(bool)
    timed = table[is_timed].assign(run=run[is_timed])
    numbers = timed[["step", "step_time_s", "tokens"]].apply(pd.to_numeric, errors="coerce")
    groups = numbers.groupby(timed["run"])
    totals = groups.mean().assign(
        count=groups.size(), distinct=groups["step"].nunique(dropna=False)
    )
    totals = totals.reindex(range(len(lengths)))
    whole = totals[["count", "distinct"]].fillna(0).astype(int)
    rows = zip(
        whole["count"], whole["distinct"], totals["step_time_s"], totals["tokens"], strict=True
    )
    return [TimedSteps(int(count), int(distinct), *means) for count, distinct, *means in rows]


def _parse(paths: list[str], fields: arrow.ParseOptions) -> tuple[pd.DataFrame, list[int]]:
    """Parse files of steps at once, or, if any is damaged, line by line: complete lines are kept."""
    raws = [json_files.read_bytes(path) or b"" for path in paths]
    raws = [raw if not raw or raw.endswith(b"\n") else raw + b"\n" for raw in raws]
    joined, lengths = b"".join(raws), [raw.count(b"\n") for raw in raws]
    if (
        joined.count(b"\n{") + joined.startswith(b"{") == sum(lengths) > 0
    ):  # pyarrow 26 crashes at a first line `null`
        with contextlib.suppress(pa.ArrowException, ValueError):
            table = arrow.read_json(
                pa.BufferReader(joined), arrow.ReadOptions(block_size=16 * 2**20), fields
            )
            if len(table) == sum(lengths):
                return table.to_pandas(), lengths
    lines = [json_files.read_lines(Path(path)) for path in paths]
    return pd.DataFrame([*chain.from_iterable(lines)], columns=STEP_COLUMNS), [*map(len, lines)]
