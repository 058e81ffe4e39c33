"""A folder of outputs, of foreign logs, or of both -> tables: one row per run, and one row per step.

Every run that was ever started is a row, whatever became of it; what was not measured is missing (NaN), never 0.
"""

import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dsnb import cache, folders, paths, records
from dsnb.errors import DsnbWarning, LogError, SettingsError
from dsnb.logs import find, step_csv
from dsnb.logs import rows as log_rows
from dsnb.logs.start import Start
from dsnb.paths import RunPaths
from dsnb.schema import GPU_COLUMNS, KEYS, RUN_COLUMNS, RUN_NUMBERS, STEP_COLUMNS, STEP_NUMBERS

KEY_TYPES = {"sweep": "str", "experiment": "str", "repeat": "int64"}


@dataclass
class Found:
    """What lies below a folder: dsnb's own run folders, other programs' logs, and what was looked at to know it."""

    runs: list[str] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    looked_at: list[str] = field(default_factory=list)
    """Logs and folders whose change would change the tables; a finished run's folder is not among them."""
    results: list[str] = field(default_factory=list)
    """`result.json` of every finished run, written last and in one step."""
    steps: list[str] = field(default_factory=list)
    """`steps.jsonl` of every finished run."""


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
    """Load the samples of one run's GPUs: the fields of `gpu.jsonl`, empty where there was no GPU."""
    path = Path(run_dir)
    if path.is_file():
        table = step_csv.load_gpu(path.with_name("gpu_log.csv")).reindex(columns=GPU_COLUMNS)
    else:
        table = pd.DataFrame(records.read_lines(RunPaths(path).gpu), columns=GPU_COLUMNS)
    return table.apply(pd.to_numeric, errors="coerce")


def look(path: str | Path) -> Found:
    """Find dsnb's run folders and other files below `path`, in order, `run2` before `run10`.

    Raises
    ------
    SettingsError
        If there is no such folder or file.
    """
    root = os.path.abspath(path)
    if os.path.isfile(root):
        return Found(logs=[root], looked_at=[root, os.path.join(os.path.dirname(root), "gpu_log.csv")])
    if not os.path.isdir(root):
        raise SettingsError(
            f"{str(path)!r} is no folder and no log: give a folder of outputs, such as outputs/quickstart, or a log"
        )
    found, waiting = Found(), [root]
    own, result, steps = (getattr(RunPaths(Path()), name).name for name in ("experiment", "result", "steps"))
    while waiting:
        folder = waiting.pop()
        inside, below = _scan(folder)
        if own in inside:
            found.runs.append(folder)
            if result in inside:
                found.results.append(os.path.join(folder, result))
                found.steps.append(os.path.join(folder, steps))
            else:
                found.looked_at += [folder, *(os.path.join(folder, name) for name in inside)]
            continue
        found.looked_at.append(folder)
        waiting += [os.path.join(folder, name) for name in below]
        logs = [os.path.join(folder, name) for name in inside if not name.startswith(".")]
        found.logs += [log for log in logs if os.path.splitext(log)[1].lower() not in find.NEVER]
    found.runs.sort(key=_place)
    found.logs.sort(key=_place)
    found.looked_at += found.logs
    return found


def _scan(folder: str) -> tuple[list[str], list[str]]:
    """Give the names of the files and of the folders in a folder; links to folders are not followed."""
    files, below = [], []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # a link that leads to itself
                    if entry.is_dir(follow_symlinks=False):
                        below.append(entry.name)
                    elif entry.is_file():
                        files.append(entry.name)
    except OSError as error:
        warnings.warn(f"{folder} is left out: {error.strerror}", DsnbWarning, stacklevel=2)
    return files, below


def _place(path: str) -> tuple[list[str], int, str]:
    *parent, name = path.split(os.sep)
    return parent, paths.repeat(name) or 0, name


def _shown(path: str) -> str:
    """Give a path as a table can hold it: bytes that are not UTF-8 become `?`."""
    return path.encode("utf-8", "replace").decode()


def _names(path: str) -> dict[str, Any]:
    """Name a run by its folders: `sweep/experiment/run<k>`, or `sweep/experiment`."""
    *_, above, parent, name = ("", "", *_shown(path).split(os.sep))
    repeat = paths.repeat(name)
    if repeat is None:
        return {"sweep": parent, "experiment": name, "repeat": 1}
    return {"sweep": above, "experiment": parent, "repeat": repeat}


def _log_names(path: str, starts: list[Start]) -> list[dict[str, Any]]:
    """Name the starts in a log: by the folders if they are a benchmark's `EXP/run<k>`, by the file's name else.

    Starts with the same settings are repeats; with others, they are experiments of their own.
    """
    folder, name = os.path.split(_shown(path))
    if paths.repeat(os.path.basename(folder)) is not None and len(starts) == 1:
        return [_names(folder)]
    sweep, name = os.path.basename(folder), os.path.splitext(name)[0]
    same = all(start.settings == starts[0].settings for start in starts)
    return [
        {"sweep": sweep, "experiment": name if same else f"{name}_start{number}", "repeat": number if same else 1}
        for number in range(1, len(starts) + 1)
    ]


def _starts(found: Found) -> Iterator[tuple[str, dict[str, Any], Start]]:
    """Read every foreign log; in a folder, what cannot be read is left out with a warning, what is no log without."""
    alone = not found.runs and found.looked_at[:1] == found.logs
    for path in found.logs:
        try:
            if not alone and find.reader(Path(path)) is None:
                continue
            starts = find.read(Path(path))
        except LogError as error:
            if alone:
                raise
            warnings.warn(f"left out: {error}", DsnbWarning, stacklevel=2)
            continue
        for names, start in zip(_log_names(path, starts), starts, strict=True):
            yield path, names, start


def _runs(found: Found) -> pd.DataFrame:
    own = folders.columns(found.runs)
    names = [_names(folder) for folder in found.runs]
    own |= {key: [name[key] for name in names] for key in KEYS} | {"run_dir": [*map(_shown, found.runs)]}
    nothing = [None] * len(found.runs)
    others = [log_rows.run(start, Path(_shown(path)), names) for path, names, start in _starts(found)]
    table = pd.DataFrame(
        {name: own.get(name, nothing) + [row.get(name) for row in others] for name in RUN_COLUMNS}, columns=RUN_COLUMNS
    )
    for name in RUN_NUMBERS:
        table[name] = pd.to_numeric(table[name], errors="coerce")
    return table


def _steps(found: Found) -> pd.DataFrame:
    own, counts = folders.steps(found.runs)
    parts = [_labelled(own, [_names(folder) for folder in found.runs], counts)]
    for path, names, start in _starts(found):
        log_rows.run(start, Path(path), names)
        steps = log_rows.steps(start)
        parts.append(_labelled(steps, [names], [len(steps)]))
    parts = [part for part in parts if len(part)] or parts[:1]
    return pd.concat(parts, ignore_index=True)


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
