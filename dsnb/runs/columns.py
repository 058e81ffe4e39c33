"""Columns of a table of runs that may be missing, or hold other things than numbers."""

import pandas as pd


def numbers(runs: pd.DataFrame, name: str) -> pd.Series:
    """Return a column as floats; NaN where it is missing or no number."""
    column = runs.get(name, pd.Series(index=runs.index, dtype=float))
    return pd.to_numeric(column, errors="coerce").astype(float)
