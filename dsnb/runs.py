"""A folder of outputs, of foreign logs, or of both -> tables: one row per run, and one row per step.

Every run that was ever started is a row, whatever became of it; what was not measured is missing (NaN), never 0.
"""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dsnb import cache, folders, forms, naming, run_records
from dsnb.errors import DsnbWarning, LogError
from dsnb.logs import find, step_csv
from dsnb.logs import rows as log_rows
from dsnb.logs.start import Start
from dsnb.paths import RunPaths
from dsnb.places import Found, log_names, look, shown
from dsnb.schema import GPU_COLUMNS, KEYS, RUN_COLUMNS, RUN_NUMBERS, STEP_COLUMNS, STEP_NUMBERS

KEY_TYPES = {"sweep": "str", "experiment": "str", "repeat": "int64"}


def load_runs(path: str | Path) -> pd.DataFrame:
    """Load all runs below a folder: dsnb's own, and those that logs of other programs tell of.

    Parameters
    ----------
    path
        A folder of outputs, of a sweep, of an experiment, of one run, of logs, or one log.

    Returns
    -------
    pandas.DataFrame
        One row per run, in the order of their folders: `sweep`, `experiment`, `repeat`, `status`, `cause`, `source`,
        every setting, every figure with its unit in its name (missing where it was not measured), wall seconds by
        phase, the environment, `origins` (which figures of a foreign log are as logged, and which derived),
        `run_dir` (of a foreign run: its log). A run of dsnb's without a result counts as `interrupted`.

    Raises
    ------
    SettingsError
        If there is no such folder or file.
    LogError
        If `path` is a file that cannot be read as a log. In a folder, such files are passed over.
    """

    def load() -> tuple[pd.DataFrame, list[str]]:
        found = look(path)
        return _runs(found), [*found.looked_at, *found.results]

    return cache.kept("runs", Path(path), load)


def load_steps(path: str | Path) -> pd.DataFrame:
    """Load the steps of all runs below a folder.

    Parameters
    ----------
    path
        As for `load_runs`.

    Returns
    -------
    pandas.DataFrame
        One row per optimizer step that was recorded: `sweep`, `experiment`, `repeat`, and the fields of
        `steps.jsonl`; `phase` is `warmup` or `timed`; `step_time_logged_s` is the time as a foreign log has it, where
        that is not the step's own.

    Raises
    ------
    SettingsError, LogError
        As `load_runs`.
    """

    def load() -> tuple[pd.DataFrame, list[str]]:
        found = look(path)
        return _steps(found), [*found.looked_at, *found.steps]

    return cache.kept("steps", Path(path), load)


def load_gpu(run_dir: str | Path) -> pd.DataFrame:
    """Load the samples of one run's GPUs: the fields of `gpu.jsonl`, empty where there was no GPU.

    Returns
    -------
    pandas.DataFrame
        A GPU is told by `host` and `gpu`, its number there; `host` is missing in a run on this machine alone.
    """
    path = Path(run_dir)
    if path.is_file():
        table = step_csv.load_gpu(path.with_name("gpu_log.csv")).reindex(columns=GPU_COLUMNS)
    else:
        table = pd.DataFrame(forms.read_lines(RunPaths(path).gpu), columns=GPU_COLUMNS)
    numbers = table.drop(columns="host").apply(pd.to_numeric, errors="coerce")
    return numbers.assign(host=[name if isinstance(name, str) else None for name in table["host"]])[GPU_COLUMNS]


def _starts(found: Found) -> Iterator[tuple[str, dict[str, Any], Start]]:
    """Read every foreign log; in a folder, what cannot be read is left out with a warning, what is no log without."""
    for path in found.logs:
        try:
            reader = find.reader(Path(path))
            if reader is None and not found.is_one_file:
                continue
            starts = find.read(Path(path), reader)
        except LogError as error:
            if found.is_one_file:
                raise
            warnings.warn(f"left out: {error}", DsnbWarning, stacklevel=2)
            continue
        for names, start in zip(log_names(path, starts), starts, strict=True):
            yield path, names, start


def _runs(found: Found) -> pd.DataFrame:
    own = folders.columns(found.runs, found.stepless)
    names = naming.names(found.runs, own[run_records.NAME], own["model"])
    own |= {key: [name[key] for name in names] for key in KEYS} | {"run_dir": [*map(shown, found.runs)]}
    nothing = [None] * len(found.runs)
    others = [log_rows.run(start, Path(shown(path)), names) for path, names, start in _starts(found)]
    table = pd.DataFrame(
        {name: own.get(name, nothing) + [row.get(name) for row in others] for name in RUN_COLUMNS}, columns=RUN_COLUMNS
    )
    for name in RUN_NUMBERS:
        table[name] = pd.to_numeric(table[name], errors="coerce")
    return table


def _steps(found: Found) -> pd.DataFrame:
    own, counts = folders.steps(found.runs)
    names, parts = naming.names(found.runs, *run_records.names(found.runs)), [own]
    for path, start_names, start in _starts(found):
        log_rows.run(start, Path(path), start_names)
        parts.append(log_rows.steps(start))
        counts.append(len(parts[-1]))
        names.append(start_names)
    parts = [part for part in parts if len(part)] or parts[:1]
    return _labelled(pd.concat(parts, ignore_index=True), names, counts)


def _labelled(steps: pd.DataFrame, names: list[dict[str, Any]], counts: list[int]) -> pd.DataFrame:
    """Put the names of the runs beside their steps."""
    places = np.repeat(np.arange(len(names)), counts)
    table = steps.reindex(columns=STEP_COLUMNS)
    for name in STEP_NUMBERS:
        if table[name].dtype != "float64":
            table[name] = pd.to_numeric(table[name], errors="coerce")
    for position, key in enumerate(KEYS):
        values = pd.Series([name[key] for name in names], dtype=KEY_TYPES[key])
        table.insert(position, key, values.array.take(places))
    return table
