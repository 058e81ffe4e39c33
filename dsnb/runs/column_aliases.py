"""Former names of columns: tables written by an earlier version, such as a CSV file of runs, keep working."""

import numpy as np
import pandas as pd

from dsnb.settings import aliases
from dsnb.settings.training import compile_mode

ALIASES = {
    "gpu": "gpu_name",
    "origins": "provenance",
    "not_ok": "n_failed",
    "timed_wall_s": "timed_s",
    **aliases.CURRENT_NAMES,
}
"""Former name of a column of runs or of a summary -> current name. (In GPU samples, `gpu` is an index and stays.)"""


def rename_old_columns(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table of runs or a summary under the current column names.

    Parameters
    ----------
    table
        As it was given; it is not changed.

    Returns
    -------
    pandas.DataFrame
        With old columns renamed; one whose current name is also there is left alone. `compile`, once true or false, is
        a mode.
    """
    table = table.rename(columns={old: new for old, new in ALIASES.items() if old in table and new not in table})
    if "compile" in table and any(isinstance(value, bool | np.bool_) for value in table["compile"].unique()):
        table = table.assign(compile=[compile_mode(value) for value in table["compile"].tolist()])
    return table
