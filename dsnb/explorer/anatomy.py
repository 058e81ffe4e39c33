"""What a step's time and a GPU's memory consist of, for the drill-down of one run."""

from typing import Any

from dsnb.analysis import memory_use
from dsnb.explorer.data import Data, plain, run_folder
from dsnb.render import palette
from dsnb.run_folder import record_schema
from dsnb.run_folder.paths import RunPaths

MAX_EXPERIMENTS = 500
"""Experiments whose memory in theory is computed for one page: a millisecond each."""
STEP_PARTS = {f"{name}_s": (name, colour) for name, colour in palette.STEP_PARTS.items()}
EXPOSED = "exposed_communication_s"


def read(data: Data) -> dict[str, Any]:
    """Return the parts of steps and of memory.

    Returns
    -------
    dict
        `stepParts` and `memoryParts` (name, title, colour), `steps` (position of a profiled run -> seconds by name),
        `theory` (experiment -> GiB by name).
    """
    steps = [{"name": name, "title": title, "colour": colour} for name, (title, colour) in STEP_PARTS.items()]
    memory = [
        {"name": f"{part}_gib", "title": part, "colour": colour}
        for part, colour in zip(memory_use.PARTS, palette.MEMORY_PARTS, strict=True)
    ]
    return {"stepParts": steps, "memoryParts": memory, "steps": _steps(data), "theory": _theory(data)}


def _steps(data: Data) -> dict[int, dict[str, float]]:
    if "profile" not in data.runs:
        return {}
    profiled = [position for position, value in enumerate(data.runs["profile"]) if plain(value) is True]
    found = {position: _profile(data, position) for position in profiled}
    return {position: parts for position, parts in found.items() if parts}


def _profile(data: Data, position: int) -> dict[str, float]:
    folder = run_folder(data, position)
    profile = (record_schema.read(RunPaths(folder).profile) if folder else None) or {}
    return {name: float(f"{profile[name]:.4g}") for name in (*STEP_PARTS, EXPOSED) if profile.get(name) is not None}


def _theory(data: Data) -> dict[str, dict[str, float]]:
    if not 0 < len(set(data.experiments)) <= MAX_EXPERIMENTS:
        return {}
    runs = data.runs.reset_index(drop=True).assign(experiment=data.experiments, sweep="")
    try:
        table = memory_use.footprint(runs)
    except (TypeError, ValueError):  # a table that load_runs did not make may have settings of any kind
        return {}
    names = [f"{part}_gib" for part in memory_use.PARTS]
    known = table.dropna(subset=names)
    return {row["experiment"]: {name: round(row[name], 3) for name in names} for row in known.to_dict("records")}
