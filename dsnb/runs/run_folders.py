"""Run folders of dsnb -> columns, for many thousands of runs at once.

A run is a few small files, so system calls dominate: paths are strings instead of `Path` objects, every file is read
once, and of the executed notebook only the end is read, where papermill stores its times.
"""

import math
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from dsnb.files import json_text, plain_text, records
from dsnb.formulas import metrics
from dsnb.run_folder.columns import STEP_COLUMNS
from dsnb.run_folder.declarations import AMOUNT
from dsnb.run_folder.paths import RunPaths
from dsnb.runs import run_records
from dsnb.system import hardware

NOTEBOOK_END_BYTES = 4 * 1024
BATCH_BYTES = 256 * 2**20
KINDS: dict[str, type] = {"phase": str, "skipped": bool}
"""Types of the step columns that are not numbers."""
LONGEST_HOST = 253
"""Characters; the limit of the domain name system."""
_DURATION = re.compile(rb'"duration": ([0-9]{1,9}(?:\.[0-9]{1,20})?)[,\s}]')
_FILES = {name: getattr(RunPaths(Path()), name).name for name in ("notebook", "steps", "nodes")}


def read_columns(folders: Sequence[str], without_steps: Collection[str] = ()) -> dict[str, list[Any]]:
    """Return the content of run folders by column; an unfinished run has the status `interrupted`.

    Parameters
    ----------
    folders
        Run folders.
    without_steps
        Those that have a result but no `steps.jsonl`.
    """
    found, settings = run_records.read(folders, without_steps)
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


def _all_hosts(folders: Sequence[str], settings: run_records.Records) -> dict[str, list[Any]]:
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
    return ",".join(_plain(name) for name in names if isinstance(name, str)) or None


def _requested_hosts(settings: dict[str, Any]) -> str | None:
    """Return the requested hosts of a sub-cluster, for a run that ended before it reached them."""
    names = [_plain(name.partition(":")[0]) for name in str(settings.get("include") or "").split("@")]
    return ",".join(names) if names[0] and len(names) == settings.get("nodes") else None


def _plain(host: str) -> str:
    return plain_text.line(host[:LONGEST_HOST]).replace(",", "?").replace(" ", "?")


def _usable_gib(memory_gib: Any, settings: dict[str, Any] | None) -> Any:
    """Return the memory that a run could use on a GPU, in GiB; None on a machine without one."""
    limit_gib = (settings or {}).get("memory_limit_gib") or 0
    return min(memory_gib, limit_gib) if memory_gib and limit_gib else memory_gib


def _costs(found: dict[str, list[Any]], settings: run_records.Records) -> dict[str, list[float | None]]:
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
    duration = run_records.get_mapping(run_records.get_mapping(notebook, "metadata"), "papermill").get("duration")
    return duration if AMOUNT.holds(duration) else None


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
