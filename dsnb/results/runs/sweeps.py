"""What the folder of a sweep holds besides its runs: its plan, and the all-reduce tests of `dsnb bandwidth`."""

from pathlib import Path
from typing import Any

import pandas as pd

from dsnb.base.files import json_files
from dsnb.settings.records import record_schema
from dsnb.settings.records.columns import ENDED
from dsnb.settings.records.paths import BANDWIDTH, RunPaths, SweepPaths
from dsnb.settings.records.run_record import RunRecord

Planned = list[tuple[str, int]]
"""Experiment and repeat of each run."""
BANDWIDTH_COLUMNS = [
    "bytes", "count", "dtype", "ranks", "calls", "time_us", "algbw_gb_per_s", "busbw_gb_per_s", "errors", "collective",
]  # fmt: skip


def newest_bandwidth_test(folder: str | Path) -> RunPaths | None:
    """Return the newest successful test of a sweep, or the folder itself if it is a test; None if there is none."""
    here = RunPaths(Path(folder))
    if here.bandwidth_plan.is_file():
        return here
    plans = (here.dir / BANDWIDTH).glob("run*/bandwidth.json")
    tests = [RunPaths(plan.parent) for plan in plans]
    ok = [run for run in tests if RunRecord(run).status == "ok"]
    return max(ok, key=lambda run: run.repeat or 0, default=None)


def load_bandwidth(folder: str | Path) -> pd.DataFrame:
    """Load the newest all-reduce test of a sweep, or the test in a folder: `BANDWIDTH_COLUMNS` by message size."""
    run = newest_bandwidth_test(folder)
    lines: list[dict[str, Any]] = []
    if run:
        lines = record_schema.read_lines(run.bandwidth)
    table = pd.DataFrame(lines, columns=BANDWIDTH_COLUMNS)
    for name in BANDWIDTH_COLUMNS:
        if name not in {"dtype", "collective"}:
            table[name] = pd.to_numeric(table[name], errors="coerce")
    # All-reduce was once the only one.
    table["collective"] = table["collective"].astype(object).fillna("all-reduce")
    return table.dropna(subset=["bytes", "count", "time_us"]).reset_index(drop=True)


def planned_runs(folder: str | Path) -> Planned:
    """Return the planned runs of a sweep; none for a folder that is not a sweep's."""
    planned: Planned = []
    for name, repeats in _plan(folder, "runs").items():
        if isinstance(repeats, list):
            planned += [(name, repeat) for repeat in repeats if type(repeat) is int]
    return planned


def left_out(folder: str | Path) -> dict[str, str]:
    """Return the experiments that a sweep left out, and why; none for a folder that is not a sweep's."""
    reasons = _plan(folder, "left_out")
    return {name: why for name, why in reasons.items() if isinstance(why, str)}


def _plan(folder: str | Path, key: str) -> dict[str, Any]:
    plan = json_files.read_json(SweepPaths(Path(folder).absolute()).planned) or {}
    value = plan.get(key)
    if isinstance(value, dict):
        return value
    return {}


def still_to_come(runs: pd.DataFrame, folder: str | Path) -> tuple[Planned, int]:
    """Return the planned runs that have not ended, first repeats first, and the number of all planned runs."""
    done = set()
    if "status" in runs:
        ended = runs[runs["status"].isin(ENDED)]
        done = set(zip(ended["experiment"], ended["repeat"], strict=True))
    planned = planned_runs(folder)
    missing = [run for run in planned if run not in done]
    return sorted(missing, key=lambda run: run[1]), len(planned)
