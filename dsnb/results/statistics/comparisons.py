"""Compare pairs of settings: change, interval and verdict, as numbers and in words.

`differences` compares every setting with the best or a named one of its task, `compare` two sets of
runs. Intervals are over runs, not over the steps of a run, which are correlated. Changes are ratios
of geometric means; of percentages, differences of means. Extreme runs are not excluded;
`dsnb.results.statistics.flags` names them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from dsnb.base.errors import SettingsError
from dsnb.results.runs import labels
from dsnb.results.runs.number_text import signed
from dsnb.results.runs.table import as_runs, current_name, loops, named_runs
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
from dsnb.results.statistics.summary import grouping_columns, unstable
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
    """Factor that turns a fraction into a percentage, which is compared in points; 0 if the figure
    is no percentage."""

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

    @property
    def is_percentage(self) -> bool:
        """Whether the figure is a percentage."""
        return self.percent_factor > 0

    def counts_hosts(self, pair: Pair) -> bool:
        """Return whether the runs of a pair on one host count as one."""
        return not self.hosts_alike and intervals.is_confounded(*pair)

    def is_better(self, change: float) -> bool | None:
        """Return whether a change is for the better; None if it is none, or neither direction is."""
        if not self.better or not abs(change) > 0:
            return None
        return (change > 0) == (self.better == "higher")


def rules_of(
    runs: pd.DataFrame, figure: str, better: Better | None = None, **options: Any
) -> Rules:
    """Return the rules for a figure; raise SettingsError if runs lack it. `options` are fields of `Rules`."""
    if figure not in runs:
        raise SettingsError(
            f"runs have no column {figure!r}: choose one such as 'tokens_per_s' or 'step_time_mean_s'"
        )
    metric = labels.METRIC_LABELS.get(figure) or labels.Metric(figure, "")
    if better is None:
        better = metric.better
    percent_factor = 0.0
    if metric.unit == "%":
        percent_factor = metric.factor
    return Rules(better=better, percent_factor=percent_factor, **options)


def compared(
    pairs: Sequence[Pair], among: Repeated, rules: Rules, with_p: bool = False
) -> pd.DataFrame:
    """Compare pairs of a base and another setting; with many pairs, p values take most of the time.

    `among` are all settings of the task with repeats, so that a pair has the same interval in every
    table. A row has `COLUMNS` without `words`; `counted`, what `n` and `base_n` count (`run` or
    `host`); and `change`, `low` and `high` in per cent or percentage points.
    """
    by_host = np.array([rules.counts_hosts(pair) for pair in pairs], dtype=bool)
    base = _moments([pair[0] for pair in pairs], by_host)
    other = _moments([pair[1] for pair in pairs], by_host)
    least = np.where(by_host, 0.0, among.variance)  # means of hosts vary less than runs
    confidence = 1 - (1 - rules.confidence) / FIGURES
    bounds = intervals.all_pairs(base, other, among.count, confidence, least)
    if rules.is_percentage:
        bounds = replace(bounds, level=base.mean)
    fewest = np.minimum(base.count, other.count)
    verdicts = intervals.verdicts(bounds, fewest, rules.relevance, rules.fewest_runs)
    few = verdicts == Verdict.TOO_FEW
    # Medians where there are too few runs, means elsewhere.
    means = [base.mean, other.mean]
    if not rules.is_percentage:
        means = [np.exp(mean) for mean in means]
    before = np.where(few, [setting.median for setting, _ in pairs], means[0])
    after = np.where(few, [setting.median for _, setting in pairs], means[1])
    _, low, high = bounds.changes
    table = pd.DataFrame(
        {
            "n": other.count.astype(int),
            "n_failed": [setting.failed for _, setting in pairs],
            "base_n": base.count.astype(int),
            "base_n_failed": [setting.failed for setting, _ in pairs],
            "verdict": verdicts,
            "value": after,
            "base_value": before,
            "change_pct": 100 * (after - before) / np.where(before == 0, math.nan, before),
            "low_pct": 100 * low,
            "high_pct": 100 * high,
        }
    )
    table.loc[few, ["low_pct", "high_pct"]] = math.nan
    table["largest_pct"] = table[["low_pct", "high_pct"]].abs().max(axis=1)
    table[["change", "low", "high"]] = table[["change_pct", "low_pct", "high_pct"]]
    if rules.is_percentage:
        table["change"] = rules.percent_factor * (after - before)
        table["low"] = rules.percent_factor * bounds.low
        table["high"] = rules.percent_factor * bounds.high
    p: intervals.Array | float = math.nan
    if with_p:
        p = intervals.all_pairs_p(base, other, among.count, least)
    table["p"] = np.where(few, math.nan, np.minimum(1, FIGURES * p))
    table["better"] = pd.Series([rules.is_better(up) for up in after - before], dtype=object)
    runs = np.array([min(len(setting.values) for setting in pair) for pair in pairs])
    table["counted"] = np.where(by_host & (runs >= rules.fewest_runs), "host", "run")
    is_same = np.maximum(base.variance, other.variance) < NO_SPREAD
    table["note"] = [_note(*row, rules) for row in zip(pairs, by_host, is_same, strict=True)]
    return table


def _moments(settings: Sequence[Setting], by_host: np.ndarray) -> intervals.Moments:
    pairs = zip(settings, by_host, strict=True)
    return intervals.moments([each.by_host if hosts else each.values for each, hosts in pairs])


def _note(pair: Pair, by_host: bool, is_same: bool, rules: Rules) -> str:
    notes = []
    if by_host:
        notes.append("the settings ran on different hosts, so runs on one host count as one")
    unusable = pair[0].unusable + pair[1].unusable
    if unusable:
        runs = "run has" if unusable == 1 else "runs have"
        kind = "figure" if rules.is_percentage else "positive figure"
        notes.append(f"{unusable} ok {runs} no {kind}")
    if is_same:
        notes.append("the figure is the same in every run")
    return "; ".join(notes)


def table_of(pairs: Sequence[Pair], among: Repeated, rules: Rules, task: str = "") -> pd.DataFrame:
    """Return the comparison of each pair of a task, with the columns `COLUMNS`."""
    table = compared(pairs, among, rules, with_p=True).assign(task=task)
    rows = zip(table.to_dict("records"), pairs, strict=True)
    table["words"] = [_words(row, pair, rules) for row, pair in rows]
    return table[list(COLUMNS)]


def _words(row: Mapping[str, Any], pair: Pair, rules: Rules) -> str:
    """Return a comparison as text."""
    unit = "points" if rules.is_percentage else "%"
    facts = {"counted": row["counted"], "needed": rules.fewest_runs}
    for name in ("change", "low", "high"):
        facts[name] = ""
        if not math.isnan(row[name]):
            facts[name] = signed(row[name], unit)
    if facts["low"]:
        largest = max(abs(row["low"]), abs(row["high"]))
        facts["largest"] = signed(largest, unit, plus="")
    if row["counted"] == "host":
        facts |= {"base_n": row["base_n"], "n": row["n"]}
    else:
        facts |= {"base_n": len(pair[0].values), "n": len(pair[1].values)}
    return fill(WORDS[row["verdict"]], facts)


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

    Tasks (a model, a sequence length, data, what is trained, the program that trains) are never
    compared with each other: each has its own base.

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
        If there is no such figure or column, if the baseline is in no task, if neither direction
        is known to be better and a task has no baseline, or if `relevance` or `confidence` is out
        of range.

    Examples
    --------
    Ten per cent between the geometric means of four runs each, with hardly any spread:

    >>> runs = pd.DataFrame({"sweep": "s", "experiment": 4 * ["a"] + 4 * ["b"], "status": "ok",
    ...                      "tokens_per_s": [99.0, 100.0, 100.0, 101.0, 109.0, 110.0, 110.0, 111.0]})
    >>> table = dsnb.differences(runs)
    >>> print(table[["base", "n", "base_n", "change_pct", "verdict"]].round(1).to_string())
               base  n  base_n  change_pct verdict
    experiment
    a             b  4       4        -9.1  likely
    """
    runs = named_runs(runs)
    figure = current_name(figure)
    keys = grouping_columns(runs, by)
    by = keys[0] if len(keys) == 1 else keys
    rules = rules_of(
        runs,
        figure,
        better,
        relevance=relevance,
        confidence=confidence,
        hosts_alike=hosts_alike,
        fewest_runs=fewest_runs,
    )
    unranked: list[str] = []
    if by == "experiment":
        unranked = unstable(runs)
    parts = [
        (task.title, intervals.settings_of(task.runs, by, figure, rules.is_percentage))
        for task in tasks(runs)
    ]
    bases = [_named(settings, baseline) for _, settings in parts]
    if baseline is not None and bases == [None] * len(bases):
        names = ", ".join(dict.fromkeys(str(name) for _, settings in parts for name in settings))
        raise SettingsError(f"baseline {baseline!r} is not among the settings: {names}")
    tables = []
    for (title, settings), named in zip(parts, bases, strict=True):
        base = named
        if base is None:
            if not rules.better:
                raise SettingsError(_no_direction(figure, baseline))
            stable = {name: settings[name] for name in settings if name not in unranked}
            base = _best(stable or settings, rules.better)
        if base is not None:
            tables.append(_from_base(settings, base, rules, by, title))
    tables = [table for table in tables if len(table)]
    return pd.concat(tables or [_from_base({}, None, rules, by)])


def _from_base(
    settings: Mapping[object, Setting],
    base: object,
    rules: Rules,
    by: str | list[str],
    task: str = "",
) -> pd.DataFrame:
    """Return the comparison of each setting of a task with the base."""
    names = [name for name in settings if name is not base]
    pairs = [(settings[base], settings[name]) for name in names]
    table = table_of(pairs, intervals.repeated(settings.values()), rules, task)
    table.insert(0, "base", [base] * len(table))
    if isinstance(by, str):
        return table.set_axis(pd.Index(names, name=by))
    return table.set_axis(pd.MultiIndex.from_tuples(names, names=by))


def _no_direction(figure: str, baseline: object) -> str:
    """Return why there is no best setting to compare with."""
    if baseline is None:
        return f"neither direction of {figure!r} is better: give a baseline, or say which is (better=...)"
    return (
        f"baseline {baseline!r} is not in every task, and neither direction of {figure!r} is better: pass the runs "
        "of one task, or say which is (better=...)"
    )


def _named(settings: Mapping[object, Setting], baseline: object) -> object:
    """Return the name of the setting that a baseline names; None if there is none."""
    if baseline is None:
        return None
    return next((name for name in settings if _is_same(name, baseline)), None)


def _is_same(name: object, other: object) -> bool:
    """Return whether two names of settings are equal, in which a missing value equals another."""
    if isinstance(name, tuple) and isinstance(other, tuple | list):
        return len(name) == len(other) and all(map(_is_same, name, other))
    return bool(name == other) or labels.text(name) == labels.text(other) == labels.text(None)


def _best(settings: Mapping[object, Setting], better: Better) -> object:
    """Return the setting with the best median; None if none has one.

    A single run that is hardly better is no base: within the relevance, settings with `MIN_RUNS`
    runs come first.
    """
    medians = {name: setting.median for name, setting in settings.items() if setting.median > 0}
    if not medians:
        return None
    choose = max if better == "higher" else min
    best = choose(medians, key=medians.__getitem__)
    sure = []
    for name, median in medians.items():
        is_near = min(median, medians[best]) / max(median, medians[best]) >= 1 - RELEVANCE
        if is_near and len(settings[name].values) >= MIN_RUNS:
            sure.append(name)
    if best in sure:
        return best
    return choose(sure, key=medians.__getitem__, default=best)


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

    Settings match if they are equal in every setting that is a column, keys of DeepSpeed's
    configuration included; names of experiments and sweeps, versions and hosts may differ, and so
    may torch's allocator if neither set has runs with both. Runs of one set with equal settings are
    repeats.

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

    Examples
    --------
    >>> before = pd.DataFrame({"sweep": "s", "experiment": "a", "status": "ok", "zero_stage": 1,
    ...                        "tokens_per_s": [99.0, 100.0, 100.0, 101.0]})
    >>> after = before.assign(tokens_per_s=[109.0, 110.0, 110.0, 111.0])
    >>> print(dsnb.compare(before, after)[["change_pct", "verdict"]].round(1).to_string())
                change_pct verdict
    experiment
    a                 10.0  likely
    """
    before = as_runs(before)
    after = as_runs(after)
    figure = current_name(figure)
    for runs in (before, after):
        rules = rules_of(
            runs,
            figure,
            better,
            relevance=relevance,
            confidence=confidence,
            hosts_alike=hosts_alike,
            fewest_runs=fewest_runs,
        )
    runs = pd.concat([before, after], ignore_index=True)
    runs["setting"] = _setting_numbers(runs, [before, after])
    is_before = runs.index < len(before)
    first = intervals.settings_of(runs[is_before], "setting", figure, rules.is_percentage)
    second = intervals.settings_of(runs[~is_before], "setting", figure, rules.is_percentage)
    tables = [table_of([], Repeated(), rules)]
    for task in tasks(runs):
        numbers = task.runs["setting"].unique()
        pairs = [(first.get(number, NOT_RUN), second.get(number, NOT_RUN)) for number in numbers]
        among = intervals.repeated(setting for pair in pairs for setting in pair)
        tables.append(table_of(pairs, among, rules, task.title).set_axis(numbers))
    table = pd.concat([table for table in tables if len(table)] or tables)
    # The name in `after` replaces that in `before`; the order is that of `before`.
    names = dict(zip(runs["setting"], runs["experiment"], strict=True))
    table = table.loc[list(names)]
    table["only_in"] = ""
    table.loc[~table.index.isin(second), "only_in"] = "before"
    table.loc[~table.index.isin(first), "only_in"] = "after"
    return table.set_axis(pd.Index(names.values(), name="experiment"))


def _setting_numbers(runs: pd.DataFrame, sets: Sequence[pd.DataFrame]) -> pd.Series:
    """Return a number for each run; runs with equal settings have equal numbers."""
    names = [*SETTINGS, *key_columns(runs)]
    if all("allocator" not in own or own["allocator"].nunique() <= 1 for own in sets):
        names.remove("allocator")  # runs made before it was a setting
    settings = runs.reindex(columns=names).astype(object).assign(program=loops(runs))
    return settings.groupby([*settings], sort=False, dropna=False).ngroup()
