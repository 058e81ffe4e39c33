"""Published tables: what others published, and what was measured with dsnb, in the columns of `dsnb.load_runs`.

The tables are CSV files in these columns; `README.md` names the source of each and how its columns
were derived.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from dsnb.base.errors import PublishedError
from dsnb.results.runs.labels import short_number
from dsnb.results.runs.table import as_runs, without_noise
from dsnb.settings import programs
from dsnb.settings.experiment import DEFAULTS, with_former_defaults
from dsnb.settings.records import paths
from dsnb.settings.records.columns import (
    FORMER_FIGURES,
    KEYS,
    RUN_COLUMNS,
    RUN_NUMBERS,
    SETTINGS,
    STEP_COLUMNS,
)
from dsnb.settings.training import text

FOREIGN = ("bigscience_1b3", "dist_training_gpt2", "jean_zay_bloom7b", "lambda_1cc_opt")
"""Tables that others published."""
OLDER = ("h200_gpt2_zero_precision", "h200_memory")
"""Tables measured with older versions of dsnb, which recorded less, as the note of each run
explains."""
WITH_STEPS = ("h200", "h100", "h200_archive")
"""Tables measured with dsnb, with the steps of their runs; runs in the archive were replaced by
longer ones."""
OWN = (*OLDER, *WITH_STEPS)
TOLERANCE = 0.1
"""Largest relative difference of a published figure from the one that follows from others."""
_DEFAULTS = {name: DEFAULTS[name] for name in SETTINGS if DEFAULTS[name] != ""}
SOURCE = programs.PUBLISHED
"""Prefix of the table's name in `source`."""


def published(name: str) -> pd.DataFrame:
    """Load a published table.

    Parameters
    ----------
    name
        `bigscience_1b3`, `dist_training_gpt2`, `jean_zay_bloom7b`, `lambda_1cc_opt`, or one measured with dsnb (`OWN`).

    Returns
    -------
    pandas.DataFrame
        One row per published figure in the columns of `load_runs`: `source` is `published: <name>`, and
        `provenance` says which figures are as published and which are derived.

    Raises
    ------
    PublishedError
        If there is no such table.

    Examples
    --------
    >>> table = dsnb.published("lambda_1cc_opt").query("model == 'opt-350m' and gpus <= 8")
    >>> print(table[["model", "gpus", "tokens_per_s", "source"]].to_string())
          model  gpus  tokens_per_s                     source
    0  opt-350m     1         60928  published: lambda_1cc_opt
    1  opt-350m     8        482816  published: lambda_1cc_opt
    """
    names = (*FOREIGN, *OWN)
    if name not in names:
        raise PublishedError(f"unknown published table {name!r}: choose one of {', '.join(names)}")
    return _read(name).copy()


@lru_cache
def _read(name: str) -> pd.DataFrame:
    raw = pd.read_csv(paths.literature(name), low_memory=False).rename(columns=FORMER_FIGURES)
    if name in OWN:
        # A setting that is missing was added after the run was made, so its former default applied.
        raw = pd.DataFrame(map(_with_defaults, raw.to_dict("records")))
    # Keys of DeepSpeed's configuration.
    further = raw.columns.difference(RUN_COLUMNS, sort=False)
    source = SOURCE + name
    raw = raw.assign(source=source, program=programs.of_source(source))
    runs = raw.reindex(columns=[*RUN_COLUMNS, *further])
    for column in further:
        runs[column] = runs[column].astype(object).map(_whole)
    for column in runs.columns.difference(RUN_NUMBERS):
        if column in {"cause", "note"} or runs[column].isna().all():
            runs[column] = runs[column].astype(object)
    for column in RUN_NUMBERS:
        runs[column] = pd.to_numeric(runs[column])
    return as_runs(without_noise(runs))


def _with_defaults(row: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in row.items() if text(value) != "-"}
    return _DEFAULTS | with_former_defaults(known)


def _whole(value: object) -> object:
    """Return a whole number as such, since a column with gaps was read as floats."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def is_own(source: str) -> bool:
    """Return whether a run's `source` is a table measured with dsnb."""
    return source.startswith(SOURCE) and source.removeprefix(SOURCE) in OWN


@lru_cache
def steps(source: str) -> pd.DataFrame:
    """Load the steps of a table's runs, by their `source`, as `dsnb.load_steps` returns them; none if unpublished."""
    name = source.removeprefix(SOURCE)
    columns = [*KEYS, *STEP_COLUMNS]
    if source == name or name not in WITH_STEPS:
        return pd.DataFrame(columns=columns)
    return pd.read_parquet(steps_file(name)).reindex(columns=columns)


def steps_file(name: str) -> Path:
    """Return the path of the steps of a table's runs."""
    return paths.literature(name).with_name(f"{name}_steps.parquet")


def agreement(name: str) -> pd.DataFrame:
    """Load the published figures of a table that follow from others by a formula.

    Returns
    -------
    pandas.DataFrame
        One row per figure: `table`, `experiment`, `figure`, `published`, `from` (its sources),
        `computed`, `ratio` (computed over published).
    """
    checks = pd.read_csv(paths.literature("agreement"))
    checks = checks[checks["table"] == name].reset_index(drop=True)
    return checks.assign(ratio=checks["computed"] / checks["published"])


def contradictions(name: str) -> list[str]:
    """Return a sentence for each published figure that contradicts another."""
    checks = agreement(name)
    wrong = checks[(checks["ratio"] - 1).abs() > TOLERANCE]
    return [
        f"{row['experiment']}: {row['figure']} is published as {short_number(row['published'])}, "
        f"but {row['from']} would be {short_number(row['computed'])}, {row['ratio']:.2g} times as much"
        for row in wrong.to_dict("records")
    ]
