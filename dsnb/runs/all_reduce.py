"""Loads the all-reduce tests of `dsnb bandwidth`: one row per message size."""

from pathlib import Path

import pandas as pd

from dsnb.run_folder import record_schema
from dsnb.run_folder.paths import BANDWIDTH, RunPaths, SweepPaths

COLUMNS = [
    "bytes", "count", "dtype", "ranks", "calls", "time_us", "algbw_gb_per_s", "busbw_gb_per_s", "errors",
]  # fmt: skip


def newest(folder: str | Path) -> RunPaths | None:
    """Return the newest successful test of a sweep, or the folder itself if it is a test; None if there is none."""
    here = RunPaths(Path(folder))
    if here.bandwidth_plan.is_file():
        return here
    tests = [RunPaths(path.parent) for path in (SweepPaths(here.dir).dir / BANDWIDTH).glob("run*/bandwidth.json")]
    tests.sort(key=lambda run: run.repeat or 0)
    ok = [run for run in tests if (record_schema.read(run.result) or {}).get("status") == "ok"]
    return ok[-1] if ok else None


def load_bandwidth(folder: str | Path) -> pd.DataFrame:
    """Load the newest all-reduce test of a sweep.

    Parameters
    ----------
    folder
        The folder of a sweep, or of one test.

    Returns
    -------
    pandas.DataFrame
        One row per message size, no rows if there is no test: `bytes`, `count`, `dtype`, `ranks`, `calls`, `time_us`,
        `algbw_gb_per_s`, `busbw_gb_per_s`, `errors`.
    """
    run = newest(folder)
    table = pd.DataFrame(record_schema.read_lines(run.bandwidth) if run else [], columns=COLUMNS)
    for name in COLUMNS:
        if name != "dtype":
            table[name] = pd.to_numeric(table[name], errors="coerce")
    return table.dropna(subset=["bytes", "count", "time_us"]).reset_index(drop=True)
