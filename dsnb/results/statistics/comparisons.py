"""Compare pairs of settings: change, interval and verdict, as numbers and in words.

`differences` compares every setting with the best or a named one of its task, `compare` two sets of runs. Intervals are
over runs, not over the steps of a run, which are correlated. Changes are ratios of geometric means; of percentages,
differences of means. Extreme runs are not excluded; `dsnb.results.statistics.flags` names them.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from dsnb.base.errors import SettingsError
from dsnb.results.runs import labels
from dsnb.results.runs.number_text import signed
from dsnb.results.runs.table import as_runs, current_name, named_runs
from dsnb.results.runs.templates import fill
from dsnb.results.statistics import intervals
from dsnb.results.statistics.intervals import (
    CONFIDENCE,
    FIGURES,
    MIN_RUNS,
    RELEVANCE,
    Repeated,
    Setting,
    Verdict,
)
from dsnb.results.statistics.summary import unstable
from dsnb.results.statistics.tasks import tasks
from dsnb.settings.records.columns import SETTINGS, key_columns

NO_SPREAD = 1e-18
"""Variances of logarithms below this are rounding errors of equal values."""
VALUES = (
    "Values are means of the runs: geometric, or arithmetic for percentages; medians below "
    f"{MIN_RUNS} runs of either setting. The difference is that of the values shown."
)
"""The note below tables of two settings."""
TOGETHER = (
    f"The {100 * CONFIDENCE:g} % intervals of speed and memory of all pairs of settings of a task hold together (Games "
    "and Howell 1976)"
)
"""The error rate that the intervals of a page control."""
WORDS = {
    Verdict.TOO_FEW: "too few {counted}s[: {change}] ({n} and {base_n} {counted}s; {needed} of each are needed)",
    Verdict.NO_LARGER: "no difference larger than {largest} ({low} to {high})",
    Verdict.LIKELY: "likely[: {change}] ({low} to {high})",
    Verdict.UNCLEAR: "unclear[: {change}] ({low} to {high})",
}
"""Templates by verdict (`dsnb.results.runs.templates.fill`)."""
COLUMNS = {
    "task": "What is trained, as in `gpt2, sequence 512`; settings of different tasks are not compared.",
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
Better = Literal["higher", "lower", ""]
Pair = tuple[Setting, Setting]
NOT_RUN = Setting(values=np.empty(0), hosts=(), median=math.nan, failed=0, unusable=0)


@dataclass(frozen=True)
class Rules:
    """How settings are compared; the fields are parameters of `differences`."""

    relevance: float = RELEVANCE
    confidence: float = CONFIDENCE
    better: Better = ""
    hosts_alike: bool = False
    fewest_runs: int = MIN_RUNS
    percent_factor: float = 0
    """Factor that turns a fraction into a percentage, which is compared in points; 0 if the figure is no percentage."""

    def __post_init__(self) -> None:
        if not 0 <= self.relevance < 1:
            raise SettingsError(
                f"relevance is {self.relevance!r}: must be 0 or more and less than 1 (0.02 is 2 %)"
            )
        if not 0 < self.confidence < 1:
            raise SettingsError(
                f"confidence is {self.confidence!r}: must be between 0 and 1 (0.95 is 95 %)"
            )
        if self.fewest_runs < 2:
            raise SettingsError(
                f"fewest_runs is {self.fewest_runs!r}: must be 2 or more, a single run has no spread"
            )


def rules_of(
    runs: pd.DataFrame, figure: str, better: Better | None = None, **options: Any
) -> Rules:
    """Return the rules for a figure; raise SettingsError if runs lack it. `options` are fields of `Rules`."""
    if figure not in runs:
        raise SettingsError(
            f"runs have no column {figure!r}: choose one such as 'tokens_per_s' or 'step_time_mean_s'"
        )
    metric = labels.METRIC_LABELS.get(figure) or labels.Metric(figure, "")
    better = better if better is not None else metric.better
    return Rules(
        better=better, percent_factor=metric.factor if metric.unit == "%" else 0, **options
    )


def compared(
    pairs: Sequence[Pair], among: Repeated, rules: Rules, with_p: bool = False
) -> pd.DataFrame:
    """Compare pairs of a base and another setting; with many pairs, p values take most of the time.

    `among` are all settings of the task with repeats, so that a pair has the same interval in every table. A row has
    `COLUMNS` without `words`; `counted`, what `n` and `base_n` count (`run` or `host`); and `change`, `low` and `high`
    in per cent or percentage points.
    """
    by_host = np.array(
        [not rules.hosts_alike and intervals.is_confounded(*pair) for pair in pairs], dtype=bool
    )
    base, other = (
        intervals.moments(
            [
                p[side].by_host if is_by_host else p[side].values
                for p, is_by_host in zip(pairs, by_host, strict=True)
            ]
        )
        for side in (0, 1)
    )
    least = np.where(by_host, 0.0, among.variance)  # means of hosts vary less than runs
    bounds = intervals.all_pairs(
        base, other, among.count, 1 - (1 - rules.confidence) / FIGURES, least
    )
    bounds = replace(bounds, level=base.mean if rules.percent_factor else None)
    verdicts = intervals.verdicts(
        bounds, np.minimum(base.count, other.count), rules.relevance, rules.fewest_runs
    )
    few = verdicts == Verdict.TOO_FEW
    before, after = (
        np.where(
            few,
            [pair[side].median for pair in pairs],
            mean if rules.percent_factor else np.exp(mean),
        )
        for side, mean in enumerate((base.mean, other.mean))
    )
    change_pct = 100 * (after - before) / np.where(before == 0, math.nan, before)
    low_pct, high_pct = (np.where(few, math.nan, 100 * end) for end in bounds.changes[1:])
    points = [rules.percent_factor * size for size in (after - before, bounds.low, bounds.high)]
    change, low, high = points if rules.percent_factor else (change_pct, low_pct, high_pct)
    fewest = np.array([min(len(setting.values) for setting in pair) for pair in pairs])
    is_same = np.maximum(base.variance, other.variance) < NO_SPREAD
    kind = "" if rules.percent_factor else "positive "
    p = intervals.all_pairs_p(base, other, among.count, least) if with_p else math.nan
    return pd.DataFrame(
        {
            "n": other.count.astype(int),
            "n_failed": [pair[1].failed for pair in pairs],
            "base_n": base.count.astype(int),
            "base_n_failed": [pair[0].failed for pair in pairs],
            "value": after,
            "base_value": before,
            "change_pct": change_pct,
            "low_pct": low_pct,
            "high_pct": high_pct,
            "largest_pct": np.maximum(np.abs(low_pct), np.abs(high_pct)),
            "p": np.where(few, math.nan, np.minimum(1, FIGURES * p)),
            "verdict": verdicts,
            "better": [
                bool((up > 0) == (rules.better == "higher"))
                if rules.better and abs(up) > 0
                else None
                for up in after - before
            ],
            "note": [_note(*parts, kind) for parts in zip(pairs, by_host, is_same, strict=True)],
            "counted": np.where(by_host & (fewest >= rules.fewest_runs), "host", "run"),
            "change": change,
            "low": low,
            "high": high,
        }
    )


def _note(pair: Pair, by_host: bool, is_same: bool, kind: str) -> str:
    unusable = sum(setting.unusable for setting in pair)
    notes = {
        "the settings ran on different hosts, so runs on one host count as one": by_host,
        f"{unusable} ok {'run has' if unusable == 1 else 'runs have'} no {kind}figure": unusable
        > 0,
        "the figure is the same in every run": is_same,
    }
    return "; ".join(note for note, holds in notes.items() if holds)


def table_of(pairs: Sequence[Pair], among: Repeated, rules: Rules, task: str = "") -> pd.DataFrame:
    """Return the comparison of each pair of a task, with the columns `COLUMNS`."""
    table = compared(pairs, among, rules, with_p=True).assign(task=task)
    table["words"] = [
        _words(row, pair, rules) for row, pair in zip(table.to_dict("records"), pairs, strict=True)
    ]
    return table[list(COLUMNS)]


def _words(row: Mapping[str, Any], pair: Pair, rules: Rules) -> str:
    """Return a comparison as text."""
    unit = "points" if rules.percent_factor else "%"
    sizes = {
        name: "" if math.isnan(row[name]) else signed(row[name], unit)
        for name in ("change", "low", "high")
    }
    largest = signed(max(abs(row["low"]), abs(row["high"])), unit, plus="") if sizes["low"] else ""
    base_n, n = (
        (row["base_n"], row["n"])
        if row["counted"] == "host"
        else (len(setting.values) for setting in pair)
    )
    facts = {
        "largest": largest,
        "needed": rules.fewest_runs,
        "base_n": base_n,
        "n": n,
        "counted": row["counted"],
    }
    return fill(WORDS[row["verdict"]], {**sizes, **facts})


def differences(
    runs: pd.DataFrame,
    by: str | list[str] = "experiment",
    figure: str = "tokens_per_s",
    baseline: object = None,
    relevance: float = RELEVANCE,
    confidence: float = CONFIDENCE,
    better: Better | None = None,
    hosts_alike: bool = False,
    fewest_runs: int = MIN_RUNS,
) -> pd.DataFrame:
    """Compare every setting with the best one of its task, or with a baseline.

    Tasks (a model, a sequence length, data, what is trained) are never compared with each other: each has its own base.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` returns it: all settings of a task, since error rates hold for a task.
    by
        The column or columns that name a setting. With several sweeps, experiments are named `sweep/experiment`.
    figure
        The column to compare; its values must be positive, but for percentages.
    baseline
        The setting to compare with, by default the one with the best median of those whose repeats agree. In tasks
        without this setting, it is the best one. Intervals are the same for any choice
        (`dsnb.results.statistics.intervals.all_pairs`).
    relevance, confidence, better, hosts_alike, fewest_runs
        As for `dsnb.compare`.

    Returns
    -------
    pandas.DataFrame
        Indexed by `by`, a row for every setting but the bases, the task with the most runs first: `base`, which it is
        compared with, and what is listed in `COLUMNS`. Empty if no setting has a figure.

    Raises
    ------
    SettingsError
        If there is no such figure, if the baseline is in no task, if neither direction is known to be better and a task
        has no baseline, or if `relevance` or `confidence` is out of range.
    """
    runs, figure = named_runs(runs), current_name(figure)
    by = by if isinstance(by, str) or len(by) > 1 else by[0]
    options = {
        "relevance": relevance,
        "confidence": confidence,
        "hosts_alike": hosts_alike,
        "fewest_runs": fewest_runs,
    }
    rules = rules_of(runs, figure, better, **options)
    parts = [
        (task.title, intervals.settings_of(task.runs, by, figure, bool(rules.percent_factor)))
        for task in tasks(runs)
    ]
    if baseline is not None:
        _require(baseline, [name for _, settings in parts for name in settings])
    not_ranked = set(unstable(runs)) if by == "experiment" else set()
    tables = [_from_base({}, None, rules, by)]
    for title, settings in parts:
        base = _base(settings, figure, rules.better, baseline, not_ranked)
        tables.append(_from_base(settings, base, rules, by, title))
    return pd.concat([table for table in tables if len(table)] or tables[:1])


def _from_base(
    settings: Mapping[object, Setting],
    base: object,
    rules: Rules,
    by: str | list[str],
    task: str = "",
) -> pd.DataFrame:
    """Return the comparison of each setting of a task with the base; empty without a base."""
    names = [name for name in settings if base is not None and name is not base]
    pairs = [(settings[base], settings[name]) for name in names]
    table = table_of(pairs, intervals.repeated(settings.values()), rules, task)
    table.insert(0, "base", [base] * len(table))
    return table.set_axis(
        pd.Index(names, name=by)
        if isinstance(by, str)
        else pd.MultiIndex.from_tuples(names, names=by)
    )


def _require(baseline: object, names: Sequence[object]) -> None:
    """Raise SettingsError if a baseline is not among the names of settings."""
    if not any(_is_same(name, baseline) for name in names):
        distinct = ", ".join(dict.fromkeys(map(str, names)))
        raise SettingsError(f"baseline {baseline!r} is not among the settings: {distinct}")


def _base(
    settings: Mapping[object, Setting],
    figure: str,
    better: Better,
    baseline: object,
    not_ranked: Collection[object],
) -> object:
    """Return the baseline of a task, or else its best stable setting; None if none has a figure."""
    for name in settings:
        if baseline is not None and _is_same(name, baseline):
            return name
    if baseline is not None and not better:
        raise SettingsError(
            f"baseline {baseline!r} is not in every task, and neither direction of {figure!r} is better: pass the runs "
            "of one task, or say which is (better=...)"
        )
    stable = {name: setting for name, setting in settings.items() if name not in not_ranked}
    return _best(stable or settings, figure, better)


def _is_same(name: object, other: object) -> bool:
    """Return whether two names of settings are equal, in which a missing value equals another."""
    if isinstance(name, tuple) and isinstance(other, tuple | list):
        return len(name) == len(other) and all(map(_is_same, name, other))
    return bool(name == other) or labels.text(name) == labels.text(other) == labels.text(None)


def _best(settings: Mapping[object, Setting], figure: str, better: Better) -> object:
    """Return the setting with the best median; None if none has one.

    A single run that is hardly better is no base: within the relevance, settings with `MIN_RUNS` runs come first.
    """
    if not better:
        raise SettingsError(
            f"neither direction of {figure!r} is better: give a baseline, or say which is (better=...)"
        )
    medians = {name: setting.median for name, setting in settings.items() if setting.median > 0}
    if not medians:
        return None
    choose = max if better == "higher" else min
    best = choose(medians, key=lambda name: medians[name])
    if len(settings[best].values) >= MIN_RUNS:
        return best
    near = {
        name for name, median in medians.items() if _ratio(median, medians[best]) >= 1 - RELEVANCE
    }
    sure = [name for name in medians if name in near and len(settings[name].values) >= MIN_RUNS]
    return choose(sure, key=lambda name: medians[name]) if sure else best


def _ratio(first: float, second: float) -> float:
    """Return the smaller of two positive numbers over the larger."""
    return min(first, second) / max(first, second)


def compare(
    before: pd.DataFrame,
    after: pd.DataFrame,
    figure: str = "tokens_per_s",
    relevance: float = RELEVANCE,
    confidence: float = CONFIDENCE,
    better: Better | None = None,
    hosts_alike: bool = False,
    fewest_runs: int = MIN_RUNS,
) -> pd.DataFrame:
    """Compare two sets of runs setting by setting, such as one sweep before and after an upgrade.

    Settings match if they are equal in every setting that is a column, keys of DeepSpeed's configuration included;
    names of experiments and sweeps, versions and hosts may differ, and so may torch's allocator if neither set has runs
    with both. Runs of one set with equal settings are repeats.

    Parameters
    ----------
    before, after
        One row per run, as `load_runs` returns it. `before` is what the changes are relative to.
    figure
        The column to compare; its values must be positive.
    relevance
        Smallest change that matters: 0.02 is 2 %.
    confidence
        Probability that all intervals of a task hold, in speed and memory: those of `differences` for all settings of
        both sets, so that a pair has one interval wherever it is compared.
    better
        Which direction of the figure is better, by default that of the tables.
    hosts_alike
        Whether runs on different hosts count as independent. By default, a setting that ran on one host before and on
        another one after has a single independent run in each set: the hosts may differ, not the versions.
    fewest_runs
        Runs of either setting below which the verdict is `too few runs`. From four on, a test by ranks alone can reach
        5 %; with two or three, a verdict relies on noise that is about normal on the log scale.

    Returns
    -------
    pandas.DataFrame
        Indexed by `experiment` (its name in `after`, or in `before` if it is only there), a row for every setting of
        either set: what is listed in `COLUMNS`, where `base_` stands for `before`, and `only_in`
        (`before`, `after`, or empty for a setting of both).

    Raises
    ------
    SettingsError
        If either set has no such figure, or `relevance` or `confidence` is out of range.
    """
    sets, figure = [as_runs(runs) for runs in (before, after)], current_name(figure)
    options = {
        "relevance": relevance,
        "confidence": confidence,
        "hosts_alike": hosts_alike,
        "fewest_runs": fewest_runs,
    }
    rules, _ = (rules_of(runs, figure, better, **options) for runs in sets)
    keys = _keys(sets)
    numbered = [runs.assign(_key=run_keys) for runs, run_keys in zip(sets, keys, strict=True)]
    settings = [
        intervals.settings_of(runs, "_key", figure, bool(rules.percent_factor)) for runs in numbered
    ]
    # The name in `after` replaces that in `before`; the order is that of `before`.
    names = dict(
        zip([*keys[0], *keys[1]], [*sets[0]["experiment"], *sets[1]["experiment"]], strict=True)
    )
    pairs = {key: (settings[0].get(key, NOT_RUN), settings[1].get(key, NOT_RUN)) for key in names}
    parts = []
    for task in tasks(pd.concat(numbered, ignore_index=True)):
        of_task = {key: pairs[key] for key in dict.fromkeys(task.runs["_key"])}
        among = intervals.repeated(setting for pair in of_task.values() for setting in pair)
        parts.append(
            table_of(list(of_task.values()), among, rules, task.title).set_axis(list(of_task))
        )
    table = pd.concat(parts or [table_of([], Repeated(), rules)]).loc[list(pairs)]
    table["only_in"] = [
        "before" if b is NOT_RUN else "after" if a is NOT_RUN else "" for a, b in pairs.values()
    ]
    table.index = pd.Index(list(names.values()), name="experiment")
    return table


def _keys(sets: list[pd.DataFrame]) -> list[list[int]]:
    """Return a number per run of each set; runs with equal settings have equal numbers."""
    names = [*SETTINGS, *key_columns({name for runs in sets for name in runs})]
    if all(
        "allocator" not in runs or runs["allocator"].nunique() <= 1 for runs in sets
    ):  # runs made before it was one
        names.remove("allocator")
    rows = [list(runs.reindex(columns=names).itertuples(index=False, name=None)) for runs in sets]
    numbers: dict[tuple[object, ...], int] = {}
    return [
        [numbers.setdefault(tuple(map(_comparable, row)), len(numbers)) for row in of_set]
        for of_set in rows
    ]


def _comparable(value: object) -> object:
    """Normalize a setting: columns with missing values hold floats, those read from CSV numpy types."""
    if pd.isna(value):  # type: ignore[call-overload]
        return None
    return int(value) if isinstance(value, float) and value.is_integer() else value
