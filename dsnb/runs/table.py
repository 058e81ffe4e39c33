"""The door for tables of runs: every function that takes one from outside calls `as_runs` or `named_runs`, once.

What `dsnb.load_runs` and `dsnb.published` return has passed it. A table may also come from a file that an earlier
version wrote, or be several tables in one.
"""

import pandas as pd

from dsnb.runs import labels
from dsnb.runs.column_aliases import rename_old_columns
from dsnb.runs.yardstick import with_plain_ratio


def as_runs(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table of runs under the current column names, with the columns that are derived from other runs.

    Calling it again changes nothing.
    """
    return with_plain_ratio(rename_old_columns(table))


def named_runs(table: pd.DataFrame) -> pd.DataFrame:
    """Return `as_runs`, with the experiments of several sweeps named `sweep/experiment`.

    Sweeps may use one name for different models. A name that begins with its sweep is left alone.
    """
    runs = as_runs(table)
    if runs["sweep"].nunique() <= 1:
        return runs
    sweeps, names = (runs[name].map(labels.text) for name in ("sweep", "experiment"))
    full = [
        name if name.startswith(f"{sweep}/") else f"{sweep}/{name}" for sweep, name in zip(sweeps, names, strict=True)
    ]
    return runs.assign(experiment=full)
