"""Pairs of settings -> one table: change, interval, verdict, and all of it in words.

`dsnb.analysis.differences` and `dsnb.analysis.compare` say which settings are paired.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from dsnb.analysis import intervals, replicates
from dsnb.analysis.intervals import FEWEST_RUNS, FIGURES, Verdict
from dsnb.analysis.replicates import Setting
from dsnb.errors import SettingsError

MINUS = "\N{MINUS SIGN}"
NO_SPREAD = 1e-9
"""Standard errors of logarithms below this are rounding errors of equal values."""
VALUES = (
    "Values are means of the runs: geometric, or arithmetic if the figure is a percentage. With fewer than "
    f"{FEWEST_RUNS} runs of either setting they are medians. The difference is that of the values shown."
)
"""What tables of two settings show."""
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
    """What the figure is multiplied by to be a percentage, whose differences are percentage points; 0 if it is none."""

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
    "value": "What is compared: the mean of these runs, geometric or, of a percentage, arithmetic; the median of all "
    "runs where the verdict is `too few runs`.",
    "base_value": "The same for the base.",
    "change_pct": "`value` over `base_value`, less 1.",
    "low_pct": "Lower end of the interval of `change_pct`; missing where the verdict is `too few runs`.",
    "high_pct": "Its upper end.",
    "largest_pct": "Largest change, up or down, that is in the interval.",
    "p": "p value, adjusted for all pairs of settings of the task and for two figures.",
    "verdict": "`likely`, `unclear`, `no larger difference` or `too few runs`.",
    "better": "Whether the change is for the better; missing if it is none, or neither direction is better.",
    "note": "What else a reader must know of this comparison; empty if nothing.",
    "words": "Verdict, change and interval as text.",
}
"""Columns of a comparison and their meanings. Percentages are stored as such: 10 is 10 %."""


def table_of(pairs: Sequence[tuple[Setting, Setting]], among: int, rules: Rules) -> pd.DataFrame:
    """Return the comparison of each pair of a base and another setting of one task.

    Parameters
    ----------
    pairs
        Base and other setting.
    among
        Number of settings of the task that have repeats (`dsnb.analysis.replicates.repeated`), compared or not: it
        makes the interval of a pair the same in every table.
    rules
        How to compare them.

    Returns
    -------
    pandas.DataFrame
        One row per pair with the columns `COLUMNS`.
    """
    by_host = [not rules.hosts_alike and replicates.is_confounded(*pair) for pair in pairs]
    sides = [
        [setting.by_host() if own else setting.values for setting, own in zip(one, by_host, strict=True)]
        for one in zip(*pairs, strict=True)
    ] or [[], []]
    base, other = map(replicates.moments, sides)
    found = intervals.all_pairs(base, other, among, intervals.of_one_figure(rules.confidence))
    found = replace(found, level=base.mean if rules.percent_factor else None)
    fewest = np.minimum(base.count, other.count)
    verdicts = intervals.verdicts(found, fewest, rules.relevance, rules.fewest_runs)
    few = verdicts == Verdict.TOO_FEW
    before, after = (
        np.where(few, [pair[side].median for pair in pairs], one.mean if rules.percent_factor else np.exp(one.mean))
        for side, one in enumerate((base, other))
    )
    ends = [np.where(few, math.nan, end) for end in (found.low, found.high)]
    relative = [np.where(few, math.nan, 100 * change) for change in found.changes[1:]]
    table = pd.DataFrame(
        {
            "n": other.count.astype(int),
            "n_failed": [pair[1].failed for pair in pairs],
            "base_n": base.count.astype(int),
            "base_n_failed": [pair[0].failed for pair in pairs],
            "value": after,
            "base_value": before,
            "change_pct": 100 * (after - before) / np.where(before == 0, math.nan, before),
            "low_pct": relative[0],
            "high_pct": relative[1],
            "largest_pct": np.maximum(np.abs(relative[0]), np.abs(relative[1])),
            "p": np.where(few, math.nan, np.minimum(1, FIGURES * intervals.all_pairs_p(base, other, among))),
            "verdict": verdicts,
        }
    )
    table["better"] = [_is_better(difference, rules.better) for difference in after - before]
    spreads = intervals.welch(base, other).error
    positive = "" if rules.percent_factor else "positive "
    table["note"] = [_note(*parts, positive) for parts in zip(pairs, by_host, spreads, strict=True)]
    points = [rules.percent_factor * one for one in (after - before, *ends)]
    sizes = points if rules.percent_factor else [table[name] for name in ("change_pct", "low_pct", "high_pct")]
    unit = "points" if rules.percent_factor else "%"
    rows = zip(table.to_dict("records"), *sizes, strict=True)
    table["words"] = [_words(row, rules.fewest_runs, unit, *own) for row, *own in rows]
    return table[list(COLUMNS)]


def _is_better(difference: float, better: Better) -> bool | None:
    if not better or math.isnan(difference) or difference == 0:
        return None
    return bool((difference > 0) == (better == "higher"))


def _note(pair: tuple[Setting, Setting], by_host: bool, error: float, positive: str) -> str:
    unusable = sum(setting.unusable for setting in pair)
    notes = ["the settings ran on different hosts, so runs on one host count as one"] if by_host else []
    notes += [f"{unusable} ok {'run has' if unusable == 1 else 'runs have'} no {positive}figure"] if unusable else []
    notes += ["the figure is the same in every run"] if error < NO_SPREAD else []
    return "; ".join(notes)


def _words(row: dict[Any, Any], fewest_runs: int, unit: str, *sizes: float) -> str:
    """Return a comparison as text; `sizes` are the change and the ends of its interval in its unit."""
    change, low, high = (signed(size, unit) for size in sizes)
    if row["verdict"] == Verdict.NO_LARGER:
        return f"no difference larger than {larger(low, high)} ({low} to {high})"
    if row["verdict"] == Verdict.TOO_FEW:
        runs = f"({row['n']} and {row['base_n']} runs; {fewest_runs} of each are needed)"
        return f"too few runs {runs}" if math.isnan(sizes[0]) else f"too few runs: {change} {runs}"
    return f"{row['verdict']}: {change} ({low} to {high})"


def larger(low: str, high: str) -> str:
    """Return the larger of two bounds without its sign: of -1.6 % and +1.2 %, 1.6 %."""
    sizes = [text.lstrip(f"+{MINUS}") for text in (low, high)]
    return max(sizes, key=lambda text: float(text.partition(" ")[0].replace(",", "")))


def signed(size: float, unit: str = "%") -> str:
    """Return a change in per cent, or in another unit such as points, with its sign: `+9.8 %`."""
    text = f"{size:+,.{1 if abs(size) < 99.95 else 0}f}"
    return f"{'0' if text[1:] == '0.0' else text.replace('-', MINUS)} {unit}"
