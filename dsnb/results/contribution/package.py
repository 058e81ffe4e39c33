"""A contribution: the rows of a folder's runs that pass every check, their manifest, and the two files to send.

Every refusal is raised at once, and nothing is written before.
"""

import contextlib
import functools
import getpass
import hashlib
import os
import re
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from dsnb.base.errors import SettingsError
from dsnb.base.files import json_files
from dsnb.base.files.plain_text import short_repr
from dsnb.results.contribution import checks, hosts, rows
from dsnb.results.runs.load import load_runs, load_steps, no_runs_message
from dsnb.results.statistics.flags import load_samples
from dsnb.settings.records import contributed
from dsnb.version import __version__

LICENCE = "CC-BY-4.0"
FORMAT = 1
"""Number of the manifest's form."""
ROWS = "rows.parquet"
MANIFEST = "manifest.json"
READABLE = "rows.csv"
"""The rows for a reader; it is not sent."""
CONTRIBUTOR = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,37}[A-Za-z0-9])?")
MAX_NAMED = 3
"""Runs that the sentence of a refusal names."""


@dataclass(frozen=True)
class Contribution:
    """What would leave the machine, and what stays."""

    rows: list[rows.Row]
    parquet: bytes
    manifest: dict[str, Any]
    left_out: Mapping[str, int]
    """Status of runs that are left out -> how many."""
    staying: list[str]
    """Columns and variables that have values and stay."""

    def table(self) -> pd.DataFrame:
        """Return the rows without empty columns."""
        return rows.table(self.rows).to_pandas().dropna(axis=1, how="all")

    def csv(self) -> str:
        """Return every value of the rows as CSV."""
        return self.table().to_csv(index=False)

    def write(self, folder: Path) -> None:
        """Write the rows, the manifest, and the rows for a reader into a new folder."""
        json_files.write_bytes(folder / ROWS, self.parquet)
        json_files.write_text(folder / READABLE, self.csv())
        json_files.write_json(folder / MANIFEST, self.manifest)


def of_folder(
    folder: Path, contributor: str, link: str = "nvlink", is_single: bool = False
) -> Contribution:
    """Return the contribution of a folder of runs; raise SettingsError with every reason against it.

    Parameters
    ----------
    folder
        A folder of outputs, of a sweep, of an experiment or of one run.
    contributor
        The name of the contributor's account, which the data set names.
    link
        How the GPUs are connected, as `dsnb predict --link` takes it.
    is_single
        Whether settings with too few runs are accepted, and marked.
    """
    refused = _wrong_name(contributor)
    runs = load_runs(folder)
    if runs.empty:
        raise SettingsError([*refused, no_runs_message(folder)])
    is_folder = runs["run_dir"].map(os.path.isdir)
    refused += _logs(runs[~is_folder])
    runs = runs[is_folder]
    refused += _interrupted(runs[runs["status"] == "interrupted"])
    chosen = runs[runs["status"].isin(checks.STATUSES)].reset_index(drop=True).assign(link=link)
    if chosen.empty:
        refused.append(f"{folder} has no run that is ok or oom: run its settings again")
    else:
        refused += _refusals(chosen, folder, is_single)
    if refused:
        raise SettingsError(refused)
    made = _rows(chosen, hosts.salt())
    raw = rows.parquet(made)
    counts = Counter(runs["status"])
    left_out = {status: count for status, count in counts.items() if status not in checks.STATUSES}
    return Contribution(made, raw, manifest(made, raw, contributor), left_out, _staying(chosen))


def _wrong_name(contributor: str) -> list[str]:
    if CONTRIBUTOR.fullmatch(contributor):
        return []
    return [
        f"contributor is {short_repr(contributor)}: give the name of an account, up to 39 letters, "
        "digits and hyphens"
    ]


def _logs(runs: pd.DataFrame) -> list[str]:
    """Refuse runs of logs and tables, which anybody can write: a run folder has records that agree."""
    return [
        f"{run['run_dir']} is a log of {run['program']}: only run folders of dsnb are collected; "
        "record the training (`dsnb.record`), or remove the log"
        for run in runs.to_dict("records")
    ]


def _interrupted(runs: pd.DataFrame) -> list[str]:
    """Refuse runs whose records are incomplete or contradict each other: they may have been edited."""
    return [
        f"{_name(run)}: status is interrupted: {run['cause']}, or remove its folder"
        for run in runs.to_dict("records")
    ]


def _refusals(runs: pd.DataFrame, folder: Path, is_single: bool) -> list[str]:
    """Return why runs cannot be contributed: each reason once, with the runs that it is true of."""
    disturbed = checks.disturbances(runs, load_steps(folder), load_samples(runs))
    private = _names_here(runs)
    reasons: dict[str, list[str]] = {}
    for run, disturbance in zip(runs.to_dict("records"), disturbed, strict=True):
        found = checks.of_run(run)
        if disturbance:
            found.append(disturbance)
        if not found:
            row = _row(run, b"")
            found = [*contributed.problems(row), *_personal(row, private)]
        for sentence in found:
            reasons.setdefault(sentence, []).append(_name(run))
    refused = [f"{_named(names)}: {sentence}" for sentence, names in reasons.items()]
    if not is_single:
        refused += _too_few(runs)
    return refused


def _too_few(runs: pd.DataFrame) -> list[str]:
    """Refuse settings with too few runs; their folders' names are those of their first runs."""
    setting = rows.settings_of([_row(run, b"") for run in runs.to_dict("records")])
    folders = runs["experiment"].groupby(setting, sort=False).first()
    short = checks.too_few(runs, setting)
    return [f"{folders[name]}: {sentence}" for name, sentence in short.items()]


def _names_here(runs: pd.DataFrame) -> set[str]:
    """Return the names of this machine, its user, and the hosts of runs."""
    names = {socket.gethostname()}
    with contextlib.suppress(KeyError, OSError):  # a user without a name
        names.add(getpass.getuser())
    for column in ("host", "hosts"):
        for text in runs[column].dropna().unique():
            names |= {*text.split(",")}
    short = {name.partition(".")[0] for name in names}
    return names | short


def _personal(row: rows.Row, private: set[str]) -> Iterator[str]:
    """Yield a sentence for each text of a row that has one of these names among its words."""
    for name, value in row.items():
        if not isinstance(value, str):
            continue
        words = {value, *re.split(r"[^\w.-]+", value), *re.split(r"\W+", value)}
        found = words & private
        if found:
            yield (
                f"{name} is {short_repr(value)}: {min(found)!r} is the name of a host or a user; "
                "correct it in the record"
            )


def _name(run: Mapping[Any, Any]) -> str:
    return f"{run['experiment']}, run {run['repeat']:.0f}"


def _named(names: Sequence[str]) -> str:
    shown = "; ".join(names[:MAX_NAMED])
    if len(names) > MAX_NAMED:
        return f"{shown} and {len(names) - MAX_NAMED} more"
    return shown


def _row(run: Mapping[Any, Any], secret: bytes) -> rows.Row:
    """Return the row of a run that is not yet known to be a single one."""
    row = rows.of_run(run, functools.partial(hosts.hashed, secret=secret))
    return {**row, "single": False}


def _rows(runs: pd.DataFrame, secret: bytes) -> list[rows.Row]:
    """Return the rows of runs that may be contributed."""
    made = [_row(run, secret) for run in runs.to_dict("records")]
    setting = rows.settings_of(made)
    rows.number(made, setting)
    short = checks.too_few(runs, setting)
    for row, name in zip(made, setting, strict=True):
        row["single"] = name in short
    return made


def _staying(runs: pd.DataFrame) -> list[str]:
    """Return the columns and variables that have values and do not leave the machine."""
    has_values = runs.columns[runs.notna().any()]
    columns = [name for name in has_values if name not in contributed.COLUMNS]
    variables: dict[str, None] = {}
    for text in runs["variables"].dropna().unique():
        variables |= dict.fromkeys(rows.split_variables(text)[1])
    return [*columns, *(f"variable {name}" for name in variables)]


def manifest(made: Sequence[rows.Row], raw: bytes, contributor: str) -> dict[str, Any]:
    """Return what the manifest of rows in a Parquet file says."""
    setting = rows.settings_of(made)
    singles = {name for row, name in zip(made, setting, strict=True) if row["single"]}
    return {
        "format": FORMAT,
        "contributor": contributor,
        "licence": LICENCE,
        "dsnb": __version__,
        "file": ROWS,
        "bytes": len(raw),
        "sha256": hashlib.sha256(raw).hexdigest(),
        "runs": len(made),
        "settings": int(setting.nunique()),
        "single": len(singles),
        "hosts": len({row["host"] for row in made}),
        "gpus": sorted({row["gpu_name"] for row in made}),
    }
