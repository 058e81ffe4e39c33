"""A folder of outputs, of other programs' logs, or of both -> tables with one row per run or per step.

Every run that was started is a row, whatever its status; what was not measured is missing (NaN), never 0. What a sweep
recorded besides its runs is loaded here too: its plan, and the all-reduce tests of `dsnb bandwidth`.
"""

import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dsnb.errors import DsnbWarning, LogError
from dsnb.files import records
from dsnb.run_folder import columns, record_schema
from dsnb.run_folder.columns import GPU_COLUMNS, KEYS, STEP_COLUMNS
from dsnb.run_folder.paths import BANDWIDTH, RunPaths, SweepPaths
from dsnb.run_folder.result import ENDED
from dsnb.runs import run_folders
from dsnb.runs.discover import displayable, find_runs, name_runs, names_from_log
from dsnb.runs.literature import tables
from dsnb.runs.logs import console, logged_run
from dsnb.runs.logs.logged_run import LoggedRun
from dsnb.runs.table import as_runs, without_noise

Planned = list[tuple[str, int]]
"""Experiment and repeat of each run."""
BANDWIDTH_COLUMNS = [
    "bytes", "count", "dtype", "ranks", "calls", "time_us", "algbw_gb_per_s", "busbw_gb_per_s", "errors", "collective",
]  # fmt: skip


def load_runs(path: str | Path, published: Sequence[str] = ()) -> pd.DataFrame:
    """Load all runs below a folder: dsnb's own, and those in logs of other programs.

    Parameters
    ----------
    path
        A folder of outputs, of a sweep, of an experiment, of one run, of logs, or one log.
    published
        Names of published tables (`dsnb.published`) to append; `path` may then be empty.

    Returns
    -------
    pandas.DataFrame
        One row per run, in the order of their folders: `sweep`, `experiment`, `repeat`, `status`, `cause`, `source`,
        every setting, every figure with its unit in its name (missing if it was not measured), wall seconds by phase,
        the environment, `provenance` (which figures of a log are as logged, and which are derived), `run_dir` (for
        logs: the path of the log). A run folder without a result has the status `interrupted`.

    Raises
    ------
    SettingsError
        If the path does not exist.
    LogError
        If `path` is a file that cannot be read as a log. In a folder, such files are left out.
    PublishedError
        If there is no such published table.
    """
    if published:
        own = [_load(path)] if path else []
        return pd.concat([*own, *map(tables.published, published)], ignore_index=True)
    return _load(path)


def _load(path: str | Path) -> pd.DataFrame:
    folders, logs = find_runs(path)
    own = run_folders.read_columns(folders)
    names = name_runs(folders, own[run_folders.NAME], own[run_folders.MODEL_NAME])
    own |= {key: [name[key] for name in names] for key in KEYS} | {"run_dir": [*map(displayable, folders)]}
    nothing = [None] * len(folders)
    logged = [row for row, _ in _logged(logs, os.path.isfile(path))]
    shown = [*columns.RUN_COLUMNS, *columns.key_columns(own)]
    table = pd.DataFrame({name: own.get(name, nothing) + [row.get(name) for row in logged] for name in shown})
    for name in columns.RUN_NUMBERS:
        table[name] = pd.to_numeric(table[name], errors="coerce")
    return as_runs(without_noise(table))


def load_steps(path: str | Path) -> pd.DataFrame:
    """Load the steps of all runs below a folder.

    Parameters
    ----------
    path
        As for `load_runs`.

    Returns
    -------
    pandas.DataFrame
        One row per recorded optimizer step: `sweep`, `experiment`, `repeat`, and the fields of `steps.jsonl`; `phase`
        is `warmup` or `timed`; `step_time_logged_s` is the time as logged by another program if it had to be corrected.

    Raises
    ------
    SettingsError, LogError
        As for `load_runs`.
    """
    folders, logs = find_runs(path)
    steps, counts = run_folders.read_steps(folders)
    names, parts = name_runs(folders, *run_folders.names(folders)), [steps]
    for row, run in _logged(logs, os.path.isfile(path)):
        parts.append(logged_run.steps(run))
        counts.append(len(parts[-1]))
        names.append(row)
    parts = [part for part in parts if len(part)] or parts[:1]
    table = pd.concat(parts, ignore_index=True).reindex(columns=STEP_COLUMNS)
    for name in columns.STEP_NUMBERS:
        table[name] = pd.to_numeric(table[name], errors="coerce").astype(float)
    keys = pd.DataFrame(names, columns=KEYS).astype({"sweep": "str", "experiment": "str", "repeat": "int64"})
    return pd.concat([keys.loc[np.repeat(keys.index, counts)].reset_index(drop=True), table], axis="columns")


def load_gpu(run_dir: str | Path) -> pd.DataFrame:
    """Load the GPU samples of one run: the fields of `gpu.jsonl`, no rows for a run without GPUs or a log.

    A GPU is identified by `host` and `gpu`, its index there; `host` is missing for a run on one machine.
    """
    table = pd.DataFrame(record_schema.read_lines(RunPaths(Path(run_dir)).gpu), columns=GPU_COLUMNS)
    numbers = table.drop(columns="host").apply(pd.to_numeric, errors="coerce")
    return numbers.assign(host=[name if isinstance(name, str) else None for name in table["host"]])[GPU_COLUMNS]


def _logged(logs: list[str], is_one_file: bool) -> Iterator[tuple[dict[str, Any], LoggedRun]]:
    """Yield the row of every run in other programs' logs, and the run; in a folder, bad logs are left out."""
    for path in map(Path, logs):
        try:
            runs = console.read(path)
            if is_one_file and not runs:
                raise LogError(path, console.UNSUPPORTED)
            names = names_from_log(str(path), runs)
            shown = Path(displayable(str(path)))
            made = [(logged_run.row(run, shown, name), run) for run, name in zip(runs, names, strict=True)]
        except MemoryError:
            raise
        except Exception as error:
            if not isinstance(error, LogError):  # one log must not keep the others of a folder from being read
                what = getattr(error, "strerror", None) or " ".join(f"{type(error).__name__}: {error}".split())[:200]
                error = LogError(path, f"cannot be read: {what}")
            if is_one_file:
                raise error from None
            warnings.warn(f"left out: {error}", DsnbWarning, stacklevel=2)
            continue
        yield from made


def newest_bandwidth_test(folder: str | Path) -> RunPaths | None:
    """Return the newest successful test of a sweep, or the folder itself if it is a test; None if there is none."""
    here = RunPaths(Path(folder))
    if here.bandwidth_plan.is_file():
        return here
    tests = [RunPaths(path.parent) for path in (here.dir / BANDWIDTH).glob("run*/bandwidth.json")]
    ok = [run for run in tests if (record_schema.read(run.result) or {}).get("status") == "ok"]
    return max(ok, key=lambda run: run.repeat or 0, default=None)


def load_bandwidth(folder: str | Path) -> pd.DataFrame:
    """Load the newest all-reduce test of a sweep, or the test in a folder: `BANDWIDTH_COLUMNS` by message size."""
    run = newest_bandwidth_test(folder)
    table = pd.DataFrame(record_schema.read_lines(run.bandwidth) if run else [], columns=BANDWIDTH_COLUMNS)
    for name in [*BANDWIDTH_COLUMNS[:2], *BANDWIDTH_COLUMNS[3:-1]]:
        table[name] = pd.to_numeric(table[name], errors="coerce")
    table["collective"] = (
        table["collective"].astype(object).fillna("all-reduce")
    )  # the only one that was measured before
    return table.dropna(subset=["bytes", "count", "time_us"]).reset_index(drop=True)


def planned_runs(folder: str | Path) -> Planned:
    """Return the planned runs of a sweep; none for a folder that is not a sweep's."""
    lists = [(name, repeats) for name, repeats in _plan(folder, "runs").items() if isinstance(repeats, list)]
    return [(name, repeat) for name, repeats in lists for repeat in repeats if type(repeat) is int]


def left_out(folder: str | Path) -> dict[str, str]:
    """Return the experiments that a sweep left out, and why; none for a folder that is not a sweep's."""
    return {name: why for name, why in _plan(folder, "left_out").items() if isinstance(why, str)}


def _plan(folder: str | Path, key: str) -> dict[str, Any]:
    value = (records.read_json(SweepPaths(Path(folder).absolute()).planned) or {}).get(key)
    return value if isinstance(value, dict) else {}


def still_to_come(runs: pd.DataFrame, folder: str | Path) -> tuple[Planned, int]:
    """Return the planned runs that have not ended, first repeats first, and the number of all planned runs."""
    planned = planned_runs(folder)
    ended = runs[runs["status"].isin(ENDED)] if "status" in runs else runs.head(0)
    done = set(zip(ended["experiment"], ended["repeat"], strict=True)) if len(ended) else set()
    return sorted((run for run in planned if run not in done), key=lambda run: run[1]), len(planned)
