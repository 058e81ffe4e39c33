"""Published tables: what others published, and what was measured with dsnb, in the columns of `dsnb.load_runs`.

The tables are CSV files in these columns; `README.md` names the source of each and how its columns were derived.
"""

from functools import lru_cache
from pathlib import Path

import pandas as pd

from dsnb.errors import PublishedError
from dsnb.run_folder import paths
from dsnb.run_folder.columns import KEYS, RUN_COLUMNS, RUN_NUMBERS, STEP_COLUMNS
from dsnb.runs.table import as_runs, without_noise
from dsnb.settings import aliases

FOREIGN = ("bigscience_1b3", "dist_training_gpt2", "jean_zay_bloom7b", "lambda_1cc_opt")
"""Tables that others published."""
OLDER = ("h200_gpt2_zero_precision", "h200_memory")
"""Tables measured with older versions of dsnb, which recorded less; the note of each run says so."""
WITH_STEPS = ("h200", "h100")
"""Tables measured with dsnb, with the steps of their runs."""
OWN = (*OLDER, *WITH_STEPS)
SOURCE = "published: "
"""What `source` begins with, in front of the name of the table."""


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
    return as_runs(without_noise(as_measured(name)))


def as_measured(name: str) -> pd.DataFrame:
    """Load a table with the utilization of short runs, which `published` leaves out; the errors are the same."""
    if name not in (*FOREIGN, *OWN):
        raise PublishedError(f"unknown published table {name!r}: choose one of {', '.join((*FOREIGN, *OWN))}")
    raw = pd.read_csv(paths.literature(name), low_memory=False)
    if name in OWN:
        raw = pd.DataFrame([aliases.with_former_defaults(row) for row in raw.to_dict("records")])
    further = [column for column in raw if column not in RUN_COLUMNS]  # keys of DeepSpeed's configuration
    runs = raw.assign(source=SOURCE + name).reindex(columns=[*RUN_COLUMNS, *further])
    for column in RUN_NUMBERS:
        runs[column] = pd.to_numeric(runs[column])
    runs = runs.astype(
        {column: object for column in RUN_COLUMNS if column not in RUN_NUMBERS and runs[column].isna().all()}
    )
    runs = runs.astype(dict.fromkeys(["cause", "note", *further], object))
    for column in further:  # a column with gaps was read as floats
        runs[column] = [
            int(value) if isinstance(value, float) and value.is_integer() else value for value in runs[column]
        ]
    return runs


def is_own(source: str) -> bool:
    """Return whether the column `source` of a run names a table measured with dsnb."""
    return source.startswith(SOURCE) and source.removeprefix(SOURCE) in OWN


def steps(source: str) -> pd.DataFrame:
    """Load the steps of a table's runs, as `dsnb.load_steps` returns them; no rows if they are not published.

    Parameters
    ----------
    source
        The column `source` of its runs.
    """
    name = source.removeprefix(SOURCE)
    return _steps(name) if source != name and name in WITH_STEPS else pd.DataFrame(columns=[*KEYS, *STEP_COLUMNS])


@lru_cache
def _steps(name: str) -> pd.DataFrame:
    return pd.read_parquet(steps_file(name)).reindex(columns=[*KEYS, *STEP_COLUMNS])


def steps_file(name: str) -> Path:
    """Return the path of the steps of a table's runs."""
    return paths.literature(name).with_name(f"{name}_steps.parquet")


def schedule() -> pd.DataFrame:
    """Load the batch-size ramp-up of the 1.3B benchmark.

    Returns
    -------
    pandas.DataFrame
        `gpu_name`, `nodes`, `global_batch_size`, `micro_batch_size`.
    """
    return pd.read_csv(paths.literature("bigscience_1b3_rampup"))
