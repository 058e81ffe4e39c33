"""Pairs of settings -> one table: change, interval, verdict, and all of it in words.

`dsnb.analysis.differences` and `dsnb.analysis.compare` say which settings are paired.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from dsnb.analysis import intervals, replicates
from dsnb.analysis.intervals import Verdict
from dsnb.analysis.replicates import Setting
from dsnb.errors import SettingsError

MINUS = "\N{MINUS SIGN}"
NO_SPREAD = 1e-9
"""Standard errors of logarithms below this are rounding errors of equal values."""
Better = Literal["higher", "lower", ""]


@dataclass(frozen=True)
class Rules:
    """How settings are compared; the fields are parameters of `dsnb.analysis.differences`."""

    relevance: float
    confidence: float
    better: Better
    hosts_alike: bool
    fewest_runs: int
    percent_factor: float = 0
    """What the figure is multiplied by to be a percentage, whose changes are then worded in percentage points."""

    def __post_init__(self) -> None:
        if not 0 <= self.relevance < 1:
            raise SettingsError(f"relevance is {self.relevance!r}: must be 0 or more and less than 1 (0.02 is 2 %)")
        if not 0 < self.confidence < 1:
            raise SettingsError(f"confidence is {self.confidence!r}: must be between 0 and 1 (0.95 is 95 %)")
        if self.fewest_runs < 2:
            raise SettingsError(f"fewest_runs is {self.fewest_runs!r}: must be 2 or more, a single run has no spread")


COLUMNS = {
    "n": "Runs that count: ok, with a positive figure; hosts, where runs on one host count as one (see `note`).",
    "n_failed": "Runs of the setting that are not ok.",
    "base_n": "The same for the base.",
    "base_n_failed": "The same for the base.",
    "median": "Median of the figure over these runs.",
    "base_median": "The same for the base.",
    "change_pct": "Geometric mean of the figure over that of the base, less 1.",
    "low_pct": "Lower end of the interval of `change_pct`; missing if either has a single run.",
    "high_pct": "Its upper end.",
    "largest_pct": "Largest change, up or down, that is in the interval.",
    "p": "p value, adjusted for all comparisons of the page.",
    "verdict": "`likely`, `unclear`, `no larger difference` or `too few runs`.",
    "better": "Whether the change is for the better; missing if it is none, or neither direction is better.",
    "note": "What else a reader must know of this comparison; empty if nothing.",
    "words": "Verdict, change and interval as text.",
}
"""Columns of a comparison and their meanings. Percentages are stored as such: 10 is 10 %."""


def table_of(pairs: Sequence[tuple[Setting, Setting]], chosen_from: int | None, rules: Rules) -> pd.DataFrame:
    """Return the comparison of each pair of a base and another setting, all of them on one page.

    Parameters
    ----------
    pairs
        Base and other setting.
    chosen_from
        Number of settings that the base was chosen from by its runs; None if it was not.
    rules
        How to compare them.

    Returns
    -------
    pandas.DataFrame
        One row per pair with the columns `COLUMNS`.
    """
    by_host = [not rules.hosts_alike and replicates.is_confounded(*pair) for pair in pairs]
    sides = [
        [setting.by_host() if own else setting.logs for setting, own in zip(one, by_host, strict=True)]
        for one in zip(*pairs, strict=True)
    ] or [[], []]
    base, other = map(replicates.moments, sides)
    if chosen_from is None:
        found, p = intervals.given_base(base, other, rules.confidence), intervals.given_base_p(base, other)
    else:
        found = intervals.chosen_base(base, other, chosen_from, rules.confidence)
        p = intervals.chosen_base_p(base, other, chosen_from)
    table = pd.DataFrame(
        {
            "n": other.count.astype(int),
            "n_failed": [pair[1].failed for pair in pairs],
            "base_n": base.count.astype(int),
            "base_n_failed": [pair[0].failed for pair in pairs],
            "median": [pair[1].median for pair in pairs],
            "base_median": [pair[0].median for pair in pairs],
            "change_pct": 100 * np.expm1(found.estimate),
            "low_pct": 100 * np.expm1(found.low),
            "high_pct": 100 * np.expm1(found.high),
            "largest_pct": 100 * found.largest,
            "p": p,
            "verdict": intervals.verdicts(
                found, np.minimum(base.count, other.count), rules.relevance, rules.fewest_runs
            ),
        }
    )
    table["better"] = [_is_better(change, rules.better) for change in table["change_pct"]]
    spreads = intervals.welch(base, other).error
    table["note"] = [_note(*parts) for parts in zip(pairs, by_host, spreads, strict=True)]
    levels = rules.percent_factor * np.exp(base.mean) if rules.percent_factor else np.full(len(pairs), math.nan)
    rows = zip(table.to_dict("records"), levels, strict=True)
    table["words"] = [_words(row, rules.fewest_runs, float(level)) for row, level in rows]
    return table[list(COLUMNS)]


def _is_better(change_pct: float, better: Better) -> bool | None:
    if not better or math.isnan(change_pct) or change_pct == 0:
        return None
    return bool((change_pct > 0) == (better == "higher"))


def _note(pair: tuple[Setting, Setting], by_host: bool, error: float) -> str:
    unusable = sum(setting.unusable for setting in pair)
    notes = ["the settings ran on different hosts, so runs on one host count as one"] if by_host else []
    notes += [f"{unusable} ok {'run has' if unusable == 1 else 'runs have'} no positive figure"] if unusable else []
    notes += ["the figure is the same in every run"] if error < NO_SPREAD else []
    return "; ".join(notes)


def _words(row: dict[Any, Any], fewest_runs: int, level_pct: float) -> str:
    """Return a comparison as text; the largest change is rounded up, so that the sentence stays true."""
    change, low, high = (change_text(row[name], level_pct) for name in ("change_pct", "low_pct", "high_pct"))
    if row["verdict"] == Verdict.NO_LARGER:
        return f"no difference larger than {_rounded_up(row['largest_pct'], level_pct)}"
    if row["verdict"] == Verdict.TOO_FEW:
        runs = f"{row['n']} and {row['base_n']} runs; {fewest_runs} of each are needed"
        return f"too few runs: {change} ({runs})" if not math.isnan(row["change_pct"]) else f"too few runs ({runs})"
    return f"{row['verdict']}: {change} ({low} to {high})"


def change_text(change_pct: float, level_pct: float = math.nan) -> str:
    """Return a change as text: `+9.8 %`, or `+4.1 points` if the figure is a percentage.

    Parameters
    ----------
    change_pct
        Change relative to the base.
    level_pct
        The percentage that the base is at; NaN for figures that are no percentages.
    """
    if math.isnan(level_pct):
        return signed(change_pct)
    return signed(change_pct * level_pct / 100).replace("%", "points")


def _rounded_up(largest_pct: float, level_pct: float) -> str:
    points = largest_pct if math.isnan(level_pct) else largest_pct * level_pct / 100
    return f"{math.ceil(10 * points - 1e-6) / 10:g} {'%' if math.isnan(level_pct) else 'points'}"


def signed(change_pct: float) -> str:
    """Return a change in per cent with its sign, such as `+9.8 %`."""
    text = f"{change_pct:+,.{1 if abs(change_pct) < 99.95 else 0}f} %"
    return "0 %" if text[1:] == "0.0 %" else text.replace("-", MINUS)
