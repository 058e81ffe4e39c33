"""The runs that a sweep set out to make, and what it left out, as it recorded them before the first run."""

from pathlib import Path
from typing import Any

import pandas as pd

from dsnb.files import records
from dsnb.run_folder.finished import ENDED
from dsnb.run_folder.paths import SweepPaths

Planned = list[tuple[str, int]]


def planned_runs(folder: str | Path) -> Planned:
    """Return experiment and repeat of each planned run; empty for a folder that is not a sweep's."""
    lists = [(name, repeats) for name, repeats in _record(folder, "runs").items() if isinstance(repeats, list)]
    return [(name, repeat) for name, repeats in lists for repeat in repeats if type(repeat) is int]


def left_out(folder: str | Path) -> dict[str, str]:
    """Return the experiments of a sweep that were left out, and why; empty for a folder that is not a sweep's."""
    return {name: why for name, why in _record(folder, "left_out").items() if isinstance(why, str)}


def _record(folder: str | Path, key: str) -> dict[str, Any]:
    value = (records.read_json(SweepPaths(Path(folder).absolute()).planned) or {}).get(key)
    return value if isinstance(value, dict) else {}


def still_to_come(runs: pd.DataFrame, folder: str | Path) -> tuple[Planned, int]:
    """Return the planned runs that have not ended, first repeats first, and the number of all planned runs.

    Parameters
    ----------
    runs
        The runs of the folder, as `dsnb.load_runs` returns them.
    """
    planned = planned_runs(folder)
    ended = runs[runs["status"].isin(ENDED)] if "status" in runs else runs.head(0)
    done = set(zip(ended["experiment"], ended["repeat"], strict=True)) if len(ended) else set()
    return sorted((run for run in planned if run not in done), key=lambda run: run[1]), len(planned)
