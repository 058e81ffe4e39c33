"""The published rows as experiments, and what dsnb predicts for each of them.

A row that dsnb cannot express, such as one of an unknown GPU or setting, stays in the table with
the reason.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import ValidationError

from dsnb.base.errors import SettingsError
from dsnb.prediction import gpus
from dsnb.prediction.predict import on_gpu, tabulated
from dsnb.prediction.step_time import count_step
from dsnb.prediction.traces import MemoryTrace, attempts
from dsnb.settings.experiment import Experiment

HERE = Path(__file__).parent
ROWS = HERE / "rows.json"
FILES = ("model", "hostfile")
"""Settings that name a file beside the rows."""
COPIED = ("source", "model", "gpu", "gpus", "nodes", "link", "group", "memkind", "close")
TOKENS = 1e9
"""Tokens to train on, whose days have the range of a speed."""


@dataclass(frozen=True)
class Row:
    """One published measurement."""

    published: Mapping[str, Any]
    experiment: Experiment | None
    problem: str = ""
    """Why dsnb cannot express it; empty if it can."""


def read(file: Path = ROWS) -> list[Row]:
    """Return the rows of a file; models are in its folder, or in that of `ROWS`."""
    published = json.loads(file.read_text(encoding="utf-8"))
    return [_row(one, file.parent) for one in published]


def _row(published: Mapping[str, Any], folder: Path) -> Row:
    try:
        gpu = gpus.find(published["gpu"])
        link = gpus.link(published["link"])
        experiment = _experiment(published, folder)
        count_step(experiment, gpu, link)
    except (SettingsError, ValidationError, ValueError, TypeError, KeyError, OSError) as error:
        return Row(published, None, _reason(error))
    return Row(published, experiment)


def _experiment(published: Mapping[str, Any], folder: Path) -> Experiment:
    settings = {**published["settings"], "model": published["cfg"]}
    for name in FILES:
        if name in settings:
            settings[name] = str(_file(settings[name], folder))
    return Experiment(**{"gpus": published["gpus"], "device": "cuda", **settings})


def _file(name: str, folder: Path) -> Path:
    beside = folder / name
    if beside.exists():
        return beside
    return HERE / name


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"the row has no {error}"
    return " ".join(str(error).split())


def predicted(rows: Sequence[Row]) -> pd.DataFrame:
    """Return one line for each row, in order: what was measured beside what is predicted.

    `measured` and `predicted` are tokens/s of a GPU, `low` and `high` the printed range, `ratio`
    is predicted over measured; `memory_gib` is predicted as the row's `mem` was measured. `problem`
    says why dsnb cannot express a row.
    """
    lines = [_measured(row) for row in rows]
    batches: dict[tuple[str, str], list[int]] = {}
    for place, row in enumerate(rows):
        if row.experiment:
            key = (row.published["gpu"], row.published["link"])
            batches.setdefault(key, []).append(place)
    for (gpu, link), places in batches.items():
        batch = [rows[place] for place in places]
        for place, figures in zip(places, _predicted(batch, gpu, link), strict=True):
            lines[place] |= figures
    return pd.DataFrame(lines)


def _measured(row: Row) -> dict[str, Any]:
    line = {name: row.published.get(name, "") for name in COPIED}
    unknown = ("predicted", "ratio", "low", "high", "error_pct", "memory_gib")
    return {
        **line,
        "measured": row.published.get("tps"),
        "mem": row.published.get("mem"),
        "oom": bool(row.published.get("oom")),
        "fits": None,
        "tight": False,
        **dict.fromkeys(unknown, math.nan),
        "problem": row.problem,
    }


def _predicted(rows: Sequence[Row], gpu: str, link: str) -> list[dict[str, Any]]:
    """Return the predicted figures of rows on one GPU and link."""
    experiments = [row.experiment for row in rows if row.experiment]
    hardware = on_gpu(gpu, link, probe=False)
    counts = [count_step(one, hardware.gpu, hardware.link) for one in experiments]
    traced: list[MemoryTrace | None] = []
    for trace in attempts(experiments):
        traced.append(trace if isinstance(trace, MemoryTrace) else None)
    table = tabulated(experiments, counts, traced, hardware, tokens=TOKENS)
    records = table.to_dict("records")
    return [_figures(row, record) for row, record in zip(rows, records, strict=True)]


def _figures(row: Row, record: Mapping[Any, Any]) -> dict[str, Any]:
    per_gpu = record["tokens_per_s"] / row.published["gpus"]
    memory = record.get("peak_allocated_gib", math.nan)
    if "reserved" in str(row.published.get("memkind")):
        memory = record.get("peak_reserved_gib", math.nan)
    return {
        "predicted": per_gpu,
        "ratio": per_gpu / (row.published.get("tps") or math.nan),
        "low": per_gpu * record["days"] / record["days_high"],
        "high": per_gpu * record["days"] / record["days_low"],
        "error_pct": record["tokens_per_s_error_pct"],
        "memory_gib": memory,
        "fits": record.get("fits"),
        "tight": record.get("tight", False),
    }
