"""A folder of outputs, of other programs' logs, or of both -> tables with one row per run or per step.

Every run that was started is a row, whatever its status; what was not measured is missing (NaN),
never 0. Runs are named by their folders, so renaming the folder of an experiment renames its runs.
"""

import json
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from dsnb.base.errors import DsnbWarning, SettingsError
from dsnb.results.literature import tables
from dsnb.results.logs import console, logged_run
from dsnb.results.runs import copies, foreign_logs, stated
from dsnb.results.runs.labels import count
from dsnb.results.runs.names import tell_sweeps_apart
from dsnb.results.runs.run import Run
from dsnb.results.runs.same_folder import name_by_settings
from dsnb.results.runs.steps import RUN, read_steps, timed_steps
from dsnb.results.runs.table import as_runs, without_noise
from dsnb.settings.records import columns, paths, record_schema
from dsnb.settings.records.columns import GPU_COLUMNS, KEYS, SETTINGS, STEP_COLUMNS, key_columns
from dsnb.settings.records.paths import RunPaths

Row = dict[str, Any]
"""A row of a table."""
_RUN = RunPaths(Path())
_EXPERIMENT = _RUN.experiment.name
_BANDWIDTH_PLAN = _RUN.bandwidth_plan.name
_RECORDS = {_RUN.result.name, _RUN.environment.name}
_OWN = {file.name for file in (_RUN.steps, _RUN.gpu, _RUN.bandwidth, _RUN.failures)}
"""dsnb's own records, which are no logs of other programs."""
_SLURM = _RUN.slurm.name
_OF_JOB = {_RUN.job_log.name, _RUN.console.name}


def load_runs(
    path: str | Path,
    published: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
) -> pd.DataFrame:
    """Load all runs below a folder: dsnb's own, and those in logs of other programs.

    Parameters
    ----------
    path
        A folder of outputs, of a sweep, of an experiment, of one run, of logs, or one log.
    published
        Names of published tables (`dsnb.published`) to append; `path` may then be empty.
    settings
        What logs of other programs do not say, such as `{"gpus": 8, "model": "llama-3.1-8b"}`; `provenance` calls
        it stated.

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
        If the path does not exist, or if a log contradicts `settings`.
    LogError
        If `path` is a file that cannot be read as a log. In a folder, such files are left out.
    PublishedError
        If there is no such published table.

    Examples
    --------
    A log of transformers' Trainer:

    >>> log = Path("training.log")
    >>> _ = log.write_text("{'train_runtime': 100, 'train_steps_per_second': 2.0, 'epoch': 1.0}")
    >>> print(dsnb.load_runs(log)[["experiment", "status", "train_runtime_s", "steps_per_s"]].to_string())
      experiment status  train_runtime_s  steps_per_s
    0   training     ok            100.0          2.0
    """
    if not published:
        return _load(path, settings)
    loaded = [tables.published(name) for name in published]
    if path:
        loaded.insert(0, _load(path, settings))
    return pd.concat(loaded, ignore_index=True)


def _load(path: str | Path, settings: Mapping[str, Any] | None) -> pd.DataFrame:
    given = stated.checked(settings or {})
    folders, logs = find_runs(path)
    runs = _read(folders)
    for run in runs:
        run.clean()
    changed = [run for run in runs if run.has_changed_steps]
    folders = [run.folder for run in changed]
    for run, steps in zip(changed, timed_steps(folders), strict=True):
        run.timed_steps = steps
    rows = [run.row() for run in runs]
    for row in rows:
        stated.fill(row, given, is_known=row["source"] == "dsnb")
    logged = foreign_logs.read(logs, os.path.isfile(path), names_unread=True, settings=given)
    rows += [row for row, _ in logged]
    tell_sweeps_apart(rows)
    return without_noise(_table(rows, columns.RUN_COLUMNS))


def _read(folders: Sequence[str]) -> list[Run]:
    """Read run folders, each run once; copies are left out with a warning."""
    runs = copies.distinct([Run.read(folder) for folder in folders])
    name_by_settings(runs)
    return runs


def _table(rows: Sequence[Row], names: Iterable[str]) -> pd.DataFrame:
    """Return columns of rows, with keys of DeepSpeed's configuration that any row has."""
    keys = key_columns(set().union(*rows))
    content = {name: [row.get(name) for row in rows] for name in names}
    content |= {key: _of_one_type([row.get(key) for row in rows]) for key in keys}
    table = pd.DataFrame(content)
    unknown = {*table.select_dtypes(exclude=["number", "bool"])}
    for name in unknown.intersection(columns.RUN_NUMBERS):
        table[name] = pd.to_numeric(table[name], errors="coerce")
    return as_runs(table.copy())  # a copy is in one piece, which pandas asks for


def _of_one_type(values: list[Any]) -> list[Any]:
    """Return the values of a key; those of several types become text."""
    values = [json.dumps(value) if isinstance(value, list | dict) else value for value in values]
    if len({type(value) for value in values if value is not None}) > 1:
        return [None if value is None else str(value) for value in values]
    return values


def load_steps(path: str | Path, settings: bool = False) -> pd.DataFrame:
    r"""Load the steps of all runs below a folder.

    Parameters
    ----------
    path
        As for `load_runs`.
    settings
        Whether to join the settings of each run, to group or to draw the steps by them.

    Returns
    -------
    pandas.DataFrame
        One row per recorded optimizer step: `sweep`, `experiment`, `repeat`, and the fields of `steps.jsonl`; `phase`
        is `warmup` or `timed`; `step_time_logged_s` is the time as logged by another program if it had to be corrected.
        With `settings`, also `parallelism`, every setting, and the keys of DeepSpeed's configuration that a run sets;
        the setting `loss` is `loss_setting`, since `loss` is that of the step.

    Raises
    ------
    SettingsError, LogError
        As for `load_runs`.

    Examples
    --------
    >>> run = Path("sweep/a/run1")
    >>> run.mkdir(parents=True)
    >>> _ = (run / "experiment.json").write_text('{"model": "gpt2", "zero_stage": 3}')
    >>> _ = (run / "steps.jsonl").write_text('{"step": 1, "step_time_s": 2}\n{"step": 2, "step_time_s": 4}')
    >>> steps = dsnb.load_steps(run, settings=True)
    >>> print(steps[["experiment", "repeat", "zero_stage", "step", "step_time_s"]].to_string())
      experiment  repeat  zero_stage  step  step_time_s
    0          a       1           3   1.0          2.0
    1          a       1           3   2.0          4.0
    """
    folders, logs = find_runs(path)
    runs = _read(folders)
    rows = [run.names for run in runs]
    if settings:
        for run in runs:
            run.clean()
        rows = [run.names | run.setting_columns() for run in runs]
    parts = [read_steps([run.folder for run in runs])]
    for row, logged in foreign_logs.read(logs, os.path.isfile(path)):
        parts.append(logged_run.steps(logged).assign(**{RUN: len(rows)}))
        rows.append(row)
    tell_sweeps_apart(rows)
    filled = [part for part in parts if len(part)]
    steps = pd.concat(filled or parts[:1], ignore_index=True)
    table = steps.reindex(columns=STEP_COLUMNS)
    for name in columns.STEP_NUMBERS:
        table[name] = pd.to_numeric(table[name], errors="coerce").astype(float)
    keys = pd.DataFrame(rows, columns=KEYS)
    keys = keys.astype({"sweep": "str", "experiment": "str", "repeat": "int64"})
    if settings:
        names = {name: f"{name}_setting" for name in STEP_COLUMNS}
        keys = keys.join(_table(rows, SETTINGS).rename(columns=names))
    of_steps = keys.loc[steps[RUN].astype(int)].reset_index(drop=True)
    return pd.concat([of_steps, table], axis="columns")


def load_gpu(run_dir: str | Path) -> pd.DataFrame:
    """Load the GPU samples of one run: the fields of `gpu.jsonl`, no rows for a run without GPUs or a log.

    A GPU is identified by `host` and `gpu`, its index there; `host` is missing for a run on one
    machine.
    """
    table = pd.DataFrame(record_schema.read_lines(RunPaths(Path(run_dir)).gpu), columns=GPU_COLUMNS)
    numbers = table.drop(columns="host").apply(pd.to_numeric, errors="coerce")
    numbers["host"] = [name if isinstance(name, str) else None for name in table["host"]]
    return numbers[GPU_COLUMNS]


def find_runs(path: str | Path) -> tuple[list[str], list[str]]:
    """Return the run folders of dsnb and the files that may be logs below a folder, sorted, `run2` before `run10`."""
    root = os.path.abspath(path)
    if os.path.isfile(root):
        return [], [root]
    if not os.path.isdir(root):
        raise SettingsError(
            f"{str(path)!r} is not a folder or a file: choose a folder of outputs, such as outputs/quickstart, or a log"
        )
    runs: list[str] = []
    logs: list[str] = []
    for folder, below, files in os.walk(root, onerror=_warn):
        if _BANDWIDTH_PLAN in files:
            below.clear()
        elif _EXPERIMENT in files or _RECORDS.issubset(files):
            below.clear()
            runs.append(folder)
        else:
            others = {*files} - _OWN
            if _SLURM in files:
                others -= _OF_JOB
            for name in others:
                file = os.path.join(folder, name)
                may_be_log = not name.startswith(".") and not name.lower().endswith(console.NEVER)
                if may_be_log and os.path.isfile(file):  # no pipe, nor a link to nothing
                    logs.append(file)
    return sorted(runs, key=_sort_key), sorted(logs, key=_sort_key)


def _warn(error: OSError) -> None:
    warnings.warn(
        f"{error.filename} is left out: it cannot be read ({error.strerror})",
        DsnbWarning,
        stacklevel=2,
    )


def no_runs_message(path: str | Path) -> str:
    """Return the error message for a folder without runs."""
    files = sum(len(names) for _, _, names in os.walk(path))
    return (
        f"{str(path)!r} contains no runs: none of {count(files, 'file')} is a run of dsnb or a log that it can read; "
        f"supported are {console.KINDS}"
    )


def _sort_key(path: str) -> tuple[list[str], int, str]:
    *parent, name = path.split(os.sep)
    return parent, paths.repeat(name) or 0, name
