"""Two sets of runs, such as one sweep before and after an upgrade -> what changed, setting by setting."""

import math

import numpy as np
import pandas as pd

from dsnb.analysis import intervals
from dsnb.analysis.comparisons import Better, rules_of, table_of
from dsnb.analysis.intervals import CONFIDENCE, MIN_RUNS, RELEVANCE, Setting
from dsnb.analysis.tasks import tasks
from dsnb.run_folder.columns import SETTINGS, key_columns
from dsnb.runs.table import as_runs

NOT_RUN = Setting(values=np.empty(0), hosts=(), median=math.nan, failed=0, unusable=0)


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
        Probability that all intervals of a task hold, in speed and memory: those of
        `dsnb.analysis.comparisons.differences` for all settings of both sets, so that a pair has
        one interval wherever it is compared.
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
        either set: what is listed in `dsnb.analysis.comparisons.COLUMNS`, where `base_` stands for `before`, and
        `only_in` (`before`, `after`, or empty for a setting of both).

    Raises
    ------
    SettingsError
        If either set has no such figure, or `relevance` or `confidence` is out of range.
    """
    sets = [as_runs(runs) for runs in (before, after)]
    options = {"relevance": relevance, "confidence": confidence, "hosts_alike": hosts_alike, "fewest_runs": fewest_runs}
    rules, _ = (rules_of(runs, figure, better, **options) for runs in sets)
    keys = _keys(sets)
    numbered = [runs.assign(_key=own) for runs, own in zip(sets, keys, strict=True)]
    known = [intervals.settings_of(runs, "_key", figure, bool(rules.percent_factor)) for runs in numbered]
    # The name in `after` replaces that in `before`; the order is that of `before`.
    names = dict(zip([*keys[0], *keys[1]], [*sets[0]["experiment"], *sets[1]["experiment"]], strict=True))
    pairs = {key: (known[0].get(key, NOT_RUN), known[1].get(key, NOT_RUN)) for key in names}
    parts = []
    for task in tasks(pd.concat(numbered, ignore_index=True)):
        own = {key: pairs[key] for key in dict.fromkeys(task.runs["_key"])}
        among = intervals.repeated(setting for pair in own.values() for setting in pair)
        parts.append(table_of(list(own.values()), among, rules).set_axis(list(own)))
    table = pd.concat(parts or [table_of([], 0, rules)]).loc[list(pairs)]
    table["only_in"] = ["before" if b is NOT_RUN else "after" if a is NOT_RUN else "" for a, b in pairs.values()]
    table.index = pd.Index(list(names.values()), name="experiment")
    return table


def _keys(sets: list[pd.DataFrame]) -> list[list[int]]:
    """Return for each run of each set the number of its settings, the same number for equal ones."""
    names = [*SETTINGS, *key_columns({name for runs in sets for name in runs})]
    if all("allocator" not in runs or runs["allocator"].nunique() <= 1 for runs in sets):  # runs made before it was one
        names.remove("allocator")
    rows = [list(runs.reindex(columns=names).itertuples(index=False, name=None)) for runs in sets]
    numbers: dict[tuple[object, ...], int] = {}
    return [[numbers.setdefault(tuple(map(_comparable, row)), len(numbers)) for row in own] for own in rows]


def _comparable(value: object) -> object:
    """Return a setting in one form: a column with a missing value holds floats, and one read from CSV numpy's."""
    if pd.isna(value):  # type: ignore[call-overload]
        return None
    return int(value) if isinstance(value, float) and value.is_integer() else value
