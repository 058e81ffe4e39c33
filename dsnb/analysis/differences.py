"""Runs of several settings -> how far each is from the best, or from a named one, with interval and verdict.

The interval is over runs, never over steps: the steps of a run share whatever happened to it. Changes are ratios of
geometric means, of percentages differences of means; tables of comparisons show these means. Nothing is left out
because it is extreme; `dsnb.analysis.flags` says what is.
"""

import pandas as pd

from dsnb.analysis import replicates
from dsnb.analysis.comparison_table import Better, Rules, table_of
from dsnb.analysis.intervals import CONFIDENCE, FEWEST_RUNS, RELEVANCE
from dsnb.analysis.replicates import Setting
from dsnb.analysis.stability import unstable
from dsnb.errors import SettingsError
from dsnb.runs import labels
from dsnb.runs.table import named_runs


def differences(
    runs: pd.DataFrame,
    by: str | list[str] = "experiment",
    figure: str = "tokens_per_s",
    baseline: object = None,
    relevance: float = RELEVANCE,
    confidence: float = CONFIDENCE,
    better: Better | None = None,
    hosts_alike: bool = False,
    fewest_runs: int = FEWEST_RUNS,
) -> pd.DataFrame:
    """Compare every setting with the best one, or with a baseline.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` returns it: all settings of a task, since error rates hold for a task.
    by
        The column or columns that name a setting. With several sweeps, experiments are named `sweep/experiment`.
    figure
        The column to compare; its values must be positive, but for percentages.
    baseline
        The setting to compare with, by default the one with the best median of those whose repeats agree. Intervals
        are the same for any choice (`dsnb.analysis.intervals.all_pairs`).
    relevance
        Smallest change that matters: 0.02 is 2 %.
    confidence
        Probability that the intervals of all pairs hold, in speed and memory; each figure has half of the error rate.
    better
        Which direction of the figure is better, by default that of `dsnb.runs.labels`.
    hosts_alike
        Whether runs on different hosts count as independent, even if two settings did not use the same hosts.
    fewest_runs
        As for `dsnb.compare`.

    Returns
    -------
    pandas.DataFrame
        Indexed by `by`, a row for every setting but the base: `base`, and what is listed in
        `dsnb.analysis.comparison_table.COLUMNS`. Empty if no setting has a figure.

    Raises
    ------
    SettingsError
        If there is no such figure or baseline, if neither direction is known to be better and no baseline is given, or
        if `relevance` or `confidence` is out of range.
    """
    runs = named_runs(runs)
    better = direction(runs, figure, better)
    rules = Rules(relevance, confidence, better, hosts_alike, fewest_runs, percent_factor(figure))
    settings = replicates.of_runs(runs, by, figure, bool(rules.percent_factor))
    shaky = set(unstable(runs)) if by == "experiment" else set()
    stable = {name: one for name, one in settings.items() if name not in shaky} or settings
    base = _best(stable, figure, better) if baseline is None else baseline
    if baseline is not None and baseline not in settings:
        raise SettingsError(f"baseline {baseline!r} is not among the settings: {', '.join(map(str, settings))}")
    others = {name: setting for name, setting in settings.items() if name != base and base is not None}
    pairs = [(settings[base], other) for other in others.values()]
    table = table_of(pairs, replicates.repeated(settings.values()), rules)
    table.insert(0, "base", [base] * len(table))
    names = [by] if isinstance(by, str) else by
    keys = [name if isinstance(name, tuple) else (name,) for name in others]
    table.index = (
        pd.MultiIndex.from_tuples(keys, names=names) if len(names) > 1 else pd.Index(list(others), name=names[0])
    )
    return table


def direction(runs: pd.DataFrame, figure: str, better: Better | None) -> Better:
    """Return which direction of a figure is better, or raise `SettingsError` if there is no such figure."""
    if figure not in runs:
        raise SettingsError(f"runs have no column {figure!r}: choose a figure such as 'tokens_per_s' or 'step_time_s'")
    metric = labels.METRIC_LABELS.get(figure)
    return better if better is not None else metric.better if metric else ""


def percent_factor(figure: str) -> float:
    """Return what a figure is multiplied by to be a percentage; 0 for figures that are none."""
    metric = labels.METRIC_LABELS.get(figure)
    return metric.factor if metric and metric.unit == "%" else 0


def _best(settings: dict[object, Setting], figure: str, better: Better) -> object:
    """Return the setting with the best median; None if none has one."""
    if not better:
        raise SettingsError(f"neither direction of {figure!r} is better: give a baseline, or say which is (better=...)")
    medians = {name: setting.median for name, setting in settings.items() if setting.median > 0}
    if not medians:
        return None
    return (max if better == "higher" else min)(medians, key=lambda name: medians[name])


def page_note(confidence: float = CONFIDENCE) -> str:
    """Return a sentence on what intervals and verdicts control.

    Parameters
    ----------
    confidence
        As for `differences`.
    """
    return (
        f"The {100 * confidence:g} % intervals hold for speed and memory of all pairs of settings of a task together "
        f"(Games and Howell 1976): where all settings are equal, any two are called different for at most about "
        f"{100 * (1 - confidence):.3g} % of tasks."
    )
