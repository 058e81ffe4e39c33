"""Memory of GPUs as the explorer draws it: how much each has, and what runs needed that ran out of it."""

import math
from pathlib import Path
from typing import Any

from dsnb.explorer.data import Data, json_numbers, plain
from dsnb.run_folder import record_schema
from dsnb.run_folder.columns import SETTINGS
from dsnb.run_folder.memory_shortage import Shortage
from dsnb.run_folder.paths import RunPaths
from dsnb.runs import labels
from dsnb.runs.columns import numbers
from dsnb.settings.experiment import Experiment

ON_GPU = [name for name in labels.MEMORY if name != "host_memory_gib"]
"""The figures that a GPU's capacity limits, the most informative first."""
FULLEST = ["device_memory_gib", "peak_reserved_gib", "peak_allocated_gib"]
"""The figures that headroom is measured by: the first that includes most of what occupies the GPU."""


def read(data: Data) -> dict[str, Any]:
    """Return what the browser needs to draw memory beside its limit.

    Returns
    -------
    dict
        `figures` and `fullest` (columns), `capacity_gib` (one number per run, or one for all if they are equal; None
        where it is unknown), and by position of a run that is not ok: `allocated_gib`, `requested_gib` (only where
        memory ran out), `advice` (the place of its sentence in `texts`).
    """
    capacity = json_numbers(numbers(data.runs, "gpu_memory_gib").round(2))
    bad = [position for position, status in enumerate(data.runs["status"].map(labels.text)) if status != "ok"]
    advice = _advice(data, bad)
    texts = list(dict.fromkeys(advice.values()))  # most runs share theirs, and thousands of sentences take space
    return {
        "figures": ON_GPU,
        "fullest": FULLEST,
        "capacity_gib": capacity[0] if len(set(capacity)) == 1 else capacity,
        "allocated_gib": _known(data, "oom_allocated_gib", bad),
        "requested_gib": _known(data, "oom_requested_gib", bad),
        "advice": {position: texts.index(text) for position, text in advice.items()},
        "texts": texts,
    }


def _known(data: Data, name: str, positions: list[int]) -> dict[int, float]:
    values = numbers(data.runs, name).to_numpy()
    return {position: round(values[position], 3) for position in positions if math.isfinite(values[position])}


def _advice(data: Data, positions: list[int]) -> dict[int, str]:
    """Return what to change after runs out of memory; nothing for other programs, whose settings have other names."""
    found: dict[int, str] = {}
    for position in positions:
        row = {str(name): plain(value) for name, value in data.runs.iloc[position].items()}
        if row["status"] == "oom" and row.get("source") in {None, "dsnb"}:
            found[position] = "; ".join(_shortage(row).advice())
    return found


def _shortage(row: dict[str, object]) -> Shortage:
    given = {name: row[name] for name in SETTINGS if row.get(name) is not None}
    settings, _ = record_schema.cleaned(RunPaths(Path()).experiment.name, given)
    return Shortage(
        Experiment.recorded(settings).model_dump(), str(row.get("oom_phase") or ""), row.get("device") == "cpu"
    )
