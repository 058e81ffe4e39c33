"""Two sets of runs, such as one sweep before and after an upgrade -> what changed, setting by setting."""

import math

import numpy as np
import pandas as pd

from dsnb.analysis import replicates
from dsnb.analysis.comparison_table import Better, Rules, table_of
from dsnb.analysis.differences import direction, percent_factor
from dsnb.analysis.intervals import CONFIDENCE, FEWEST_RUNS, RELEVANCE
from dsnb.analysis.replicates import Setting
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
    fewest_runs: int = FEWEST_RUNS,
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
        Probability that all intervals of a task hold, in speed and memory: those of `dsnb.analysis.differences` for all
        settings of both sets, so that a pair has one interval wherever it is compared.
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
        either set: what is listed in `dsnb.analysis.comparison_table.COLUMNS`, where `base_` stands for `before`, and
        `only_in` (`before`, `after`, or empty for a setting of both).

    Raises
    ------
    SettingsError
        If either set has no such figure, or `relevance` or `confidence` is out of range.
    """
    sets = [as_runs(runs) for runs in (before, after)]
    ways = [direction(runs, figure, better) for runs in sets]
    keys = _settings_of(sets)
    factor = percent_factor(figure)
    numbered = [runs.assign(_key=own) for runs, own in zip(sets, keys, strict=True)]
    known = [replicates.of_runs(runs, "_key", figure, bool(factor)) for runs in numbered]
    # The name in `after` replaces that in `before`; the order is that of `before`.
    names = dict(zip([*keys[0], *keys[1]], [*sets[0]["experiment"], *sets[1]["experiment"]], strict=True))
    pairs = {key: (known[0].get(key, NOT_RUN), known[1].get(key, NOT_RUN)) for key in names}
    rules = Rules(relevance, confidence, ways[0], hosts_alike, fewest_runs, factor)
    parts = [_of_task({key: pairs[key] for key in own}, rules) for own in _by_task(numbered)]
    table = pd.concat(parts or [_of_task({}, rules)]).loc[list(pairs)]
    table["only_in"] = [_only_in(*pair) for pair in pairs.values()]
    table.index = pd.Index(list(names.values()), name="experiment")
    return table


def _of_task(pairs: dict[int, tuple[Setting, Setting]], rules: Rules) -> pd.DataFrame:
    among = replicates.repeated(setting for pair in pairs.values() for setting in pair)
    return table_of(list(pairs.values()), among, rules).set_axis(list(pairs))


def _by_task(numbered: list[pd.DataFrame]) -> list[list[int]]:
    """Return the numbers of the settings of each task."""
    return [list(dict.fromkeys(task.runs["_key"])) for task in tasks(pd.concat(numbered, ignore_index=True))]


def _only_in(before: Setting, after: Setting) -> str:
    return "before" if after is NOT_RUN else "after" if before is NOT_RUN else ""


def _settings_of(sets: list[pd.DataFrame]) -> list[list[int]]:
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
