"""Published tables: what others published, and what was measured with dsnb, in the columns of `dsnb.load_runs`.

The tables are CSV files in these columns; `README.md` names the source of each and how its columns were derived.
"""

from functools import lru_cache
from pathlib import Path

import pandas as pd

from dsnb.base.errors import PublishedError
from dsnb.results.runs.table import as_runs, without_noise
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

FOREIGN = ("bigscience_1b3", "dist_training_gpt2", "jean_zay_bloom7b", "lambda_1cc_opt")
"""Tables that others published."""
OLDER = ("h200_gpt2_zero_precision", "h200_memory")
"""Tables measured with older versions of dsnb, which recorded less, as the note of each run explains."""
WITH_STEPS = ("h200", "h100", "h200_archive")
"""Tables measured with dsnb, with the steps of their runs; runs in the archive were replaced by longer ones."""
OWN = (*OLDER, *WITH_STEPS)
TOLERANCE = 0.1
"""Largest relative difference of a published figure from the one that follows from others."""
_DEFAULTS = {name: DEFAULTS[name] for name in SETTINGS if DEFAULTS[name] != ""}
SOURCE = "published: "
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
    """
    if name not in (*FOREIGN, *OWN):
        raise PublishedError(
            f"unknown published table {name!r}: choose one of {', '.join((*FOREIGN, *OWN))}"
        )
    return _read(name).copy()


@lru_cache
def _read(name: str) -> pd.DataFrame:
    raw = pd.read_csv(paths.literature(name), low_memory=False).rename(columns=FORMER_FIGURES)
    if name in OWN:
        # A setting that is missing was added after the run was made, so its former default applied.
        raw = pd.DataFrame(
            [{**_DEFAULTS, **with_former_defaults(row)} for row in raw.to_dict("records")]
        )
    further = [
        column for column in raw if column not in RUN_COLUMNS
    ]  # keys of DeepSpeed's configuration
    runs = raw.assign(source=SOURCE + name).reindex(columns=[*RUN_COLUMNS, *further])
    for column in RUN_NUMBERS:
        runs[column] = pd.to_numeric(runs[column])
    for column in further:  # a column with gaps was read as floats
        values = runs[column].astype(object)
        runs[column] = [
            int(value) if isinstance(value, float) and value.is_integer() else value
            for value in values
        ]
    texts = [column for column in runs if column not in RUN_NUMBERS and runs[column].isna().all()]
    return as_runs(without_noise(runs.astype(dict.fromkeys(["cause", "note", *texts], object))))


def is_own(source: str) -> bool:
    """Return whether a run's `source` is a table measured with dsnb."""
    return source.startswith(SOURCE) and source.removeprefix(SOURCE) in OWN


@lru_cache
def steps(source: str) -> pd.DataFrame:
    """Load the steps of a table's runs, by their `source`, as `dsnb.load_steps` returns them; none if unpublished."""
    name, columns = source.removeprefix(SOURCE), [*KEYS, *STEP_COLUMNS]
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
        f"{row['experiment']}: {row['figure']} is published as {_text(row['published'])}, "
        f"but {row['from']} would be {_text(row['computed'])}, {row['ratio']:.2g} times as much"
        for row in wrong.to_dict("records")
    ]


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.4g}"
