"""Columns of numbers as a page holds them: exact, and short enough for a page with thousands of runs."""

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

MANY = 1000
"""From this many runs on, a figure that is a multiple of another one is stored as such: six figures of eleven are."""
MOST_FACTORS = 16
CLOSE = 1e-15
"""Largest relative error of such a figure: the CSV has 15 digits."""
Numbers = npt.NDArray[np.float64]


def stored(figures: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return each column as the page holds it; `restored` reads it, and `columnOf` in `web/model.js`.

    Returns
    -------
    dict
        Name -> either `values` (base64 of 8 bytes for each run), or `of` (an earlier column), `factors`, and for each
        run the place of its own in `factors` (`codes`; None if there is one factor).
    """
    found: dict[str, dict[str, Any]] = {}
    for name in figures:
        values = figures[name].to_numpy()
        whole = [other for other, one in found.items() if "values" in one] if len(values) >= MANY else []
        multiples = (_multiple(values, figures[other].to_numpy(), other) for other in whole)
        found[name] = next((one for one in multiples if one), {"values": _packed(values)})
    return found


def restored(columns: Mapping[str, Mapping[str, Any]], index: pd.Index) -> pd.DataFrame:
    """Return the columns that `stored` returned as numbers: those that the page computes with."""
    found: dict[str, Numbers] = {}
    for name, one in columns.items():
        if "of" in one:
            found[name] = found[one["of"]] * np.array(one["factors"])[one["codes"] or 0]
        else:
            found[name] = np.frombuffer(base64.b64decode(one["values"]), dtype="<f8")
    return pd.DataFrame(found, index=index, dtype=float)


def _packed(values: Numbers) -> str:
    """Return numbers as base64 of 8 bytes each."""
    return base64.b64encode(values.astype("<f8").tobytes()).decode()


def _multiple(values: Numbers, base: Numbers, name: str) -> dict[str, Any] | None:
    """Return values as multiples of a base by a few factors; None if they are not."""
    known = np.isfinite(values)
    if not known.any() or not np.array_equal(known, np.isfinite(base)) or not (base[known] > 0).all():
        return None
    ratios = np.where(known, values, 1) / np.where(known, base, 1)
    if not _distinct(ratios[known][:MANY]) or not (factors := _distinct(ratios[known])):
        return None
    codes = np.abs(ratios[:, None] - np.array(factors)).argmin(axis=1)
    if not np.allclose(np.array(factors)[codes] * base, values, rtol=CLOSE, atol=0, equal_nan=True):
        return None
    return {"of": name, "factors": factors, "codes": codes.tolist() if len(factors) > 1 else None}


def _distinct(ratios: Numbers) -> list[float]:
    """Return the distinct ratios, those within rounding errors once; nothing if they are too many."""
    ordered = np.unique(ratios)
    apart = np.flatnonzero(np.diff(ordered) > 1e-12 * np.abs(ordered[1:])) + 1
    groups = np.split(ordered, apart) if len(apart) < MOST_FACTORS else []
    return [float(group[len(group) // 2]) for group in groups]
