"""A folder of outputs, of other programs' logs, or of both -> tables with one row per run or per step.

Every run that was started is a row, whatever its status; what was not measured is missing (NaN), never 0. Runs are
named by their folders, so renaming the folder of an experiment renames its runs. The plan of a sweep and the all-reduce
tests of `dsnb bandwidth` are loaded here too.
"""

import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dsnb.base.errors import DsnbWarning, LogError, SettingsError
from dsnb.base.files import json_files
from dsnb.results.literature import tables
from dsnb.results.logs import checkpoints, console, logged_run
from dsnb.results.logs.reading import LoggedRun
from dsnb.results.runs import copies, run_folders
from dsnb.results.runs.copies import displayable, sweep_folder, sweep_names
from dsnb.results.runs.labels import count
from dsnb.results.runs.table import as_runs, without_noise
from dsnb.settings.records import columns, paths, record_schema
from dsnb.settings.records.columns import ENDED, GPU_COLUMNS, KEYS, STEP_COLUMNS
from dsnb.settings.records.paths import BANDWIDTH, PROBE, RunPaths, SweepPaths

Row = dict[str, Any]
"""A row of a table."""
MAX_UNREAD = 8
"""Maximum number of files that the warning about unread ones names."""
Planned = list[tuple[str, int]]
"""Experiment and repeat of each run."""
BANDWIDTH_COLUMNS = [
    "bytes", "count", "dtype", "ranks", "calls", "time_us", "algbw_gb_per_s", "busbw_gb_per_s", "errors", "collective",
]  # fmt: skip
_RUN = RunPaths(Path())
_EXPERIMENT, _BANDWIDTH_PLAN = _RUN.experiment.name, _RUN.bandwidth_plan.name
_RECORDS = {_RUN.result.name, _RUN.environment.name}
_OWN = {file.name for file in (_RUN.steps, _RUN.gpu, _RUN.bandwidth, _RUN.failures)}
"""dsnb's own records, which are no logs of other programs."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")


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
        loaded = [_load(path)] if path else []
        return pd.concat([*loaded, *map(tables.published, published)], ignore_index=True)
    return _load(path)


def _load(path: str | Path) -> pd.DataFrame:
    found, logs = find_runs(path)
    read = run_folders.read_records(found)
    folders, recorded = read.folders, run_folders.read_columns(read)
    names = name_runs(folders, recorded[run_folders.NAME], recorded[run_folders.MODEL_NAME])
    logged = [row for row, _ in _logged(logs, os.path.isfile(path), names_unread=True)]
    _tell_sweeps_apart(folders, names, logged)
    recorded |= {key: [name[key] for name in names] for key in KEYS} | {
        "run_dir": [*map(displayable, folders)]
    }
    nothing = [None] * len(folders)
    shown = [*columns.RUN_COLUMNS, *columns.key_columns(recorded)]
    table = pd.DataFrame(
        {name: recorded.get(name, nothing) + [row.get(name) for row in logged] for name in shown}
    )
    for name in columns.RUN_NUMBERS:
        table[name] = pd.to_numeric(table[name], errors="coerce")
    return as_runs(without_noise(table.copy()))  # a copy is in one piece, which pandas asks for


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
    found, logs = find_runs(path)
    read = run_folders.read_records(found)
    steps, counts = run_folders.read_steps(read.folders)
    names = name_runs(read.folders, *run_folders.names(read.by_file[_EXPERIMENT]))
    parts, logged = [steps], []
    for row, run in _logged(logs, os.path.isfile(path)):
        parts.append(logged_run.steps(run))
        counts.append(len(parts[-1]))
        logged.append(row)
    _tell_sweeps_apart(read.folders, names, logged)
    names += logged
    parts = [part for part in parts if len(part)] or parts[:1]
    table = pd.concat(parts, ignore_index=True).reindex(columns=STEP_COLUMNS)
    for name in columns.STEP_NUMBERS:
        table[name] = pd.to_numeric(table[name], errors="coerce").astype(float)
    keys = pd.DataFrame(names, columns=KEYS).astype(
        {"sweep": "str", "experiment": "str", "repeat": "int64"}
    )
    return pd.concat(
        [keys.loc[np.repeat(keys.index, counts)].reset_index(drop=True), table], axis="columns"
    )


def load_gpu(run_dir: str | Path) -> pd.DataFrame:
    """Load the GPU samples of one run: the fields of `gpu.jsonl`, no rows for a run without GPUs or a log.

    A GPU is identified by `host` and `gpu`, its index there; `host` is missing for a run on one machine.
    """
    table = pd.DataFrame(record_schema.read_lines(RunPaths(Path(run_dir)).gpu), columns=GPU_COLUMNS)
    numbers = table.drop(columns="host").apply(pd.to_numeric, errors="coerce")
    return numbers.assign(host=[name if isinstance(name, str) else None for name in table["host"]])[
        GPU_COLUMNS
    ]


def _logged(
    logs: list[str], is_one_file: bool, names_unread: bool = False
) -> Iterator[tuple[Row, LoggedRun]]:
    """Yield each run in other programs' logs with its row; unreadable logs and copies are left out of a folder."""
    contents = copies.shared_contents(logs)
    first_of: dict[bytes, str] = {}
    unread = []
    for path, runs in _read_all(logs, is_one_file):
        made: list[tuple[Row, LoggedRun]] = []
        with _left_out(path, is_one_file):
            if is_one_file and not runs:
                raise LogError(Path(path), console.UNSUPPORTED)
            if not runs and console.looks_like_log(Path(path)):
                unread.append(path)
            shown = Path(displayable(path))
            named = zip(runs, names_from_log(path, runs), strict=True)
            made = [(logged_run.row(run, shown, names), run) for run, names in named]
        content = contents.get(path)
        original = first_of.setdefault(content, path) if content and made else path
        if original != path:
            warnings.warn(
                f"{path} is left out: it is a copy of {original}", DsnbWarning, stacklevel=2
            )
            continue
        yield from made
    if names_unread and unread:
        warnings.warn(_not_read(unread), DsnbWarning, stacklevel=2)


def _read_all(logs: list[str], is_one_file: bool) -> Iterator[checkpoints.Read]:
    """Yield the runs of one log after the other, in constant memory but for records, which may be copies of another."""
    errors = console.error_files(logs)
    records = {}
    for path in [path for path in logs if path.endswith(checkpoints.RECORDS)]:
        with _left_out(path, is_one_file):
            records[path] = console.read(Path(path))
    kept = dict(checkpoints.without_copies([*records.items()]))
    for path in [path for path in logs if path not in errors.values()]:
        read: list[checkpoints.Read] = []
        if path in kept:
            read = [(path, kept[path])]
        elif not path.endswith(checkpoints.RECORDS):
            with _left_out(path, is_one_file):
                read = _read(path, errors.get(path))
        yield from read


def _read(path: str, errors: str | None) -> list[checkpoints.Read]:
    """Read a log, with the file of standard error if it belongs to its only run."""
    runs = console.read(Path(path))
    if errors is None:
        return [(path, runs)]
    if len(runs) != 1:
        return [(path, runs), (errors, console.read(Path(errors)))]
    console.read_errors(runs[0], Path(errors))
    return [(path, runs)]


@contextmanager
def _left_out(path: str, is_one_file: bool) -> Iterator[None]:
    """Warn of an error in a log of a folder, which must not keep the others from being read; raise LogError for one."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        if not isinstance(error, LogError):
            what = (
                getattr(error, "strerror", None)
                or " ".join(f"{type(error).__name__}: {error}".split())[:200]
            )
            error = LogError(Path(path), f"cannot be read: {what}")
        if is_one_file:
            raise error from None
        warnings.warn(f"left out: {error}", DsnbWarning, stacklevel=4)


def _not_read(paths: list[str]) -> str:
    """Return the sentence about files that may be logs but contain nothing that dsnb can read."""
    named = ", ".join(map(displayable, paths[:MAX_UNREAD]))
    more = f" and {len(paths) - MAX_UNREAD} more" if len(paths) > MAX_UNREAD else ""
    are = "is not a log" if len(paths) == 1 else "are not logs"
    return f"not read: {named}{more} {are} that dsnb can read (see docs/how-to/foreign_logs.md)"


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
    table = pd.DataFrame(
        record_schema.read_lines(run.bandwidth) if run else [], columns=BANDWIDTH_COLUMNS
    )
    for name in [*BANDWIDTH_COLUMNS[:2], *BANDWIDTH_COLUMNS[3:-1]]:
        table[name] = pd.to_numeric(table[name], errors="coerce")
    table["collective"] = (
        table["collective"].astype(object).fillna("all-reduce")
    )  # once the only one
    return table.dropna(subset=["bytes", "count", "time_us"]).reset_index(drop=True)


def planned_runs(folder: str | Path) -> Planned:
    """Return the planned runs of a sweep; none for a folder that is not a sweep's."""
    lists = [
        (name, repeats)
        for name, repeats in _plan(folder, "runs").items()
        if isinstance(repeats, list)
    ]
    return [(name, repeat) for name, repeats in lists for repeat in repeats if type(repeat) is int]


def left_out(folder: str | Path) -> dict[str, str]:
    """Return the experiments that a sweep left out, and why; none for a folder that is not a sweep's."""
    return {name: why for name, why in _plan(folder, "left_out").items() if isinstance(why, str)}


def _plan(folder: str | Path, key: str) -> dict[str, Any]:
    value = (json_files.read_json(SweepPaths(Path(folder).absolute()).planned) or {}).get(key)
    return value if isinstance(value, dict) else {}


def still_to_come(runs: pd.DataFrame, folder: str | Path) -> tuple[Planned, int]:
    """Return the planned runs that have not ended, first repeats first, and the number of all planned runs."""
    planned = planned_runs(folder)
    ended = runs[runs["status"].isin(ENDED)] if "status" in runs else runs.head(0)
    done = set(zip(ended["experiment"], ended["repeat"], strict=True)) if len(ended) else set()
    return sorted((run for run in planned if run not in done), key=lambda run: run[1]), len(planned)


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
            own = _OWN | (
                {_RUN.job_log.name, _RUN.console.name} if _RUN.slurm.name in files else set()
            )
            # No pipes, nor links to nothing.
            maybe = [name for name in sorted({*files} - own) if not name.startswith(".")]
            maybe = [name for name in maybe if not name.lower().endswith(console.NEVER)]
            logs += filter(os.path.isfile, (os.path.join(folder, name) for name in maybe))
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


def _tell_sweeps_apart(
    folders: Sequence[str], names: list[dict[str, Any]], logged: list[dict[str, Any]]
) -> None:
    """Give sweeps in different folders different names, also if their folders have the same name."""
    rows = [*names, *logged]
    places = [*map(sweep_folder, folders), *(_folder_of_log(row) for row in logged)]
    shown = sweep_names(places)
    for row, place in zip(rows, places, strict=True):
        if os.path.basename(displayable(place)) == row["sweep"]:
            row["sweep"] = shown[place]


def _folder_of_log(row: dict[str, Any]) -> str:
    """Return the folder for which a log's sweep is named (`names_from_log`)."""
    folder = os.path.dirname(str(row["run_dir"]))
    while folder and os.path.basename(folder) != row["sweep"] and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return folder


def names_from_path(path: str) -> dict[str, Any]:
    """Return the names in a run folder's path, `sweep/experiment/run<k>` or `sweep/experiment`."""
    *_, above, parent, name = ("", "", *displayable(path).split(os.sep))
    repeat = paths.repeat(name)
    if repeat is None:
        return {"sweep": parent, "experiment": name, "repeat": 1}
    return {"sweep": above, "experiment": parent, "repeat": repeat}


def names_from_log(path: str, logged_runs: list[LoggedRun]) -> list[dict[str, Any]]:
    """Return names for the runs in a log, by its folders or file name; with equal settings they are repeats."""
    folder, name = os.path.split(displayable(path))
    if paths.repeat(os.path.basename(folder)) is not None and len(logged_runs) == 1:
        return [names_from_path(folder)]
    sweep, name = os.path.basename(folder), os.path.splitext(name)[0]
    same = all(logged.settings == logged_runs[0].settings for logged in logged_runs)
    return [
        {
            "sweep": sweep,
            "experiment": name if same else f"{name}_start{number}",
            "repeat": number if same else 1,
        }
        for number in range(1, len(logged_runs) + 1)
    ]


def name_runs(
    folders: Sequence[str], recorded: Sequence[Any], models: Sequence[Any]
) -> list[dict[str, Any]]:
    """Return the names of runs by their sorted folders; a copy of another experiment's run is named for both."""
    names = [names_from_path(folder) for folder in folders]
    for (_, experiment), places in groupby(
        range(len(folders)),
        key=lambda place: (os.path.dirname(folders[place]), names[place]["experiment"]),
    ):
        settings = {
            place: f"{models[place]}_{recorded[place]}"
            for place in places
            if isinstance(recorded[place], str)
            and models[place]
            and _NAME.fullmatch(recorded[place])
        }
        counts = Counter(settings.values())
        fitting = [name for name in counts if f"_{name}".endswith(f"_{experiment}")]
        usual = max(fitting or counts, key=counts.__getitem__, default="")
        for place, name in settings.items():
            if name != usual and PROBE not in experiment:
                names[place]["experiment"] = f"{experiment}_{name}"
                warnings.warn(
                    f"{displayable(folders[place])} has the settings of {name}, unlike other runs of {experiment}: "
                    f"it is listed as {experiment}_{name}; move it to its own experiment's folder",
                    DsnbWarning,
                    stacklevel=3,
                )
    return names
