"""How right the answers of a planner are: errors, bias, ranking, shortages, ranges, and how many rows it answers.

Errors are factors in per cent: half and twice the measured figure are both 100 % off, so that a
planner gains nothing by being wrong on the low side. Each score says how many rows it is made of;
where there are none, it is None.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd

MIN_RANKED = 3
"""Answered rows of a source below which its order says nothing."""
MIN_GAP = 1.02
"""Ratio of two measured speeds below which either may be the faster one."""
MEASURED = ("row", "source", "group", "measured", "mem", "oom")
"""Columns of the measured side of a table, of `table`."""
FIGURES = ("tokens_per_s", "low", "high", "memory_gib", "fits")
"""Columns of the answers."""


class FigureError(NamedTuple):
    """Errors of one figure in per cent, as factors."""

    measured: int  # rows
    answered: int  # of them
    median_pct: float
    bias_pct: float  # geometric mean; above 0 if the predicted figure is too large


class Ranking(NamedTuple):
    """Whether a planner orders the speeds of one project as they were measured."""

    sources: int
    correlation: float  # Spearman's, mean over the sources
    pairs: int  # of settings of one task: same model, GPUs and source
    ordered: float  # of these pairs, in the measured order; a tie counts half


class Shortages(NamedTuple):
    """Whether a planner tells what runs out of memory."""

    short: int  # rows that ran out of memory and have an answer
    found: int  # of them, predicted not to fit
    ran: int  # rows that ran and have an answer
    false_alarms: int  # of them, predicted not to fit


class Coverage(NamedTuple):
    """How many measured speeds are within the stated range."""

    stated: int
    within_pct: float


class Score(NamedTuple):
    """What the answers of a planner come to on some rows."""

    rows: int
    answered: int  # with any figure
    speed: FigureError | None
    memory: FigureError | None
    ranking: Ranking | None
    shortages: Shortages | None
    coverage: Coverage | None


def score(table: pd.DataFrame) -> Score:
    """Return the score of a table of rows with columns `MEASURED` and `FIGURES`; unknown figures are missing."""
    answered = table[["tokens_per_s", "memory_gib", "fits"]].notna().any(axis=1)
    return Score(
        len(table),
        int(answered.sum()),
        figure_error(table["tokens_per_s"], table["measured"]),
        figure_error(table["memory_gib"], table["mem"]),
        ranking(table),
        shortages(table),
        coverage(table),
    )


def figure_error(predicted: pd.Series, measured: pd.Series) -> FigureError | None:
    """Return the error of a figure; None if no measured row has an answer."""
    known = measured > 0
    both = known & (predicted > 0)
    if not both.any():
        return None
    logs = np.log(predicted[both].astype(float) / measured[both].astype(float))
    median_pct = 100 * float(np.expm1(logs.abs().median()))
    bias_pct = 100 * float(np.expm1(logs.mean()))
    return FigureError(int(known.sum()), int(both.sum()), median_pct, bias_pct)


def closer(predicted: pd.Series, other: pd.Series, measured: pd.Series) -> int:
    """Return on how many measured rows a figure is closer to the measured one than another planner's."""
    own_logs = np.log(predicted.astype(float) / measured.astype(float)).abs()
    other_logs = np.log(other.astype(float) / measured.astype(float)).abs()
    return int((own_logs < other_logs).sum())


def ranking(table: pd.DataFrame) -> Ranking | None:
    """Return how well speeds are ordered; None if no source and no pair can tell."""
    timed = table[(table["measured"] > 0) & (table["tokens_per_s"] > 0)]
    correlations = []
    for _, part in timed.groupby("source", sort=False):
        correlation = rank_correlation(part)
        if correlation is not None:
            correlations.append(correlation)
    points = pair_points(timed)
    if not correlations and not points:
        return None
    mean = float(np.mean(correlations)) if correlations else float("nan")
    ordered = float(np.mean(points)) if points else float("nan")
    return Ranking(len(correlations), mean, len(points), ordered)


def rank_correlation(part: pd.DataFrame) -> float | None:
    """Return Spearman's correlation of some rows; None if they are too few, or all the same on one side."""
    if len(part) < MIN_RANKED:
        return None
    predicted = part["tokens_per_s"].rank()
    measured = part["measured"].rank()
    if predicted.nunique() < 2 or measured.nunique() < 2:
        return None
    return float(np.corrcoef(predicted, measured)[0, 1])


def pair_points(timed: pd.DataFrame) -> list[float]:
    """Return 1 for each pair of settings of a task in the measured order, 0 for one in the other, 0.5 for a tie."""
    points = []
    for _, part in timed[timed["group"] != ""].groupby(["source", "group"], sort=False):
        rows = list(zip(part["measured"], part["tokens_per_s"], strict=True))
        for first, second in combinations(rows, 2):
            slower, faster = sorted([first, second])
            if faster[0] < MIN_GAP * slower[0]:
                continue
            points.append(_point(slower[1], faster[1]))
    return points


def _point(predicted_slower: float, predicted_faster: float) -> float:
    if predicted_faster == predicted_slower:
        return 0.5
    return float(predicted_faster > predicted_slower)


def shortages(table: pd.DataFrame) -> Shortages | None:
    """Return how shortages are told; None if no row has an answer."""
    said = table[table["fits"].notna()]
    if said.empty:
        return None
    short = said["oom"].astype(bool)
    alarm = said["fits"].eq(False)
    return Shortages(
        int(short.sum()),
        int((short & alarm).sum()),
        int((~short).sum()),
        int((~short & alarm).sum()),
    )


def coverage(table: pd.DataFrame) -> Coverage | None:
    """Return how many speeds are within their range; None if no range is stated."""
    stated = table[(table["measured"] > 0) & table["low"].notna() & table["high"].notna()]
    if stated.empty:
        return None
    above = stated["low"] <= stated["measured"]
    below = stated["measured"] <= stated["high"]
    return Coverage(len(stated), 100 * float((above & below).mean()))


def table(published: Sequence[Mapping[str, object]], answers: pd.DataFrame) -> pd.DataFrame:
    """Return what was measured beside the answers of a planner, one line for each published row.

    Raises
    ------
    ValueError
        If the answers are not those of these rows.
    """
    measured = []
    for row in published:
        measured.append(
            {
                "row": row["id"],
                "source": row["source"],
                "group": row.get("group") or "",
                "measured": row.get("tps"),
                "mem": row.get("mem"),
                "oom": bool(row.get("oom")),
            }
        )
    known = pd.DataFrame(measured, columns=list(MEASURED))
    for name in ("measured", "mem"):
        known[name] = pd.to_numeric(known[name])
    if sorted(known["row"]) != sorted(answers["row"]):
        raise ValueError(
            f"{len(answers)} answers are not those of the {len(known)} rows: predict them again"
        )
    return known.merge(answers[["row", *FIGURES]], on="row", validate="one_to_one")
