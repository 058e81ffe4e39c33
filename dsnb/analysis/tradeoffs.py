"""Trade-offs: the Pareto front of two figures, and the effect of changing a single setting.

Pure pandas; the explorer's page computes the same in the browser, and tests compare the two.
"""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pandas as pd

from dsnb.analysis import replicates
from dsnb.analysis.choices import with_choices
from dsnb.analysis.comparison_table import Rules, table_of
from dsnb.analysis.differences import direction, percent_factor
from dsnb.analysis.intervals import CONFIDENCE, FEWEST_RUNS, RELEVANCE
from dsnb.runs import labels
from dsnb.runs.table import named_runs


def pareto_front(
    x: pd.Series,
    y: pd.Series,
    x_better: str,
    y_better: str,
    tolerance: float = RELEVANCE,
    unstable: Collection[str] = (),
) -> list[str]:
    """Return the entries that no other entry beats (the Pareto front, with a tolerance).

    One entry beats another if it is better by more than the tolerance in one figure, and worse by no more than the
    tolerance in the other. Of the strict front, every entry that is left out is beaten by one that is returned.

    Parameters
    ----------
    x, y
        One figure each, with the same index; entries that lack one are left out.
    x_better, y_better
        `higher` or `lower`.
    tolerance
        By how much an entry must be better to count, relative; 0 for the strict front, which figures that are not all
        positive get in any case.
    unstable
        Entries to leave out because their figures are those of no run (`dsnb.analysis.stability.unstable`).

    Returns
    -------
    list of str
        From the best x to the best y; of equal entries, the first.
    """
    known = pd.DataFrame({"x": x, "y": y}).dropna().drop(index=list(unstable), errors="ignore")
    table = known.assign(x=_lower_is_better(known["x"], x_better), y=_lower_is_better(known["y"], y_better))
    table = table.sort_values(["x", "y"], kind="stable")
    best = table["y"].cummin().shift(fill_value=np.inf)
    strict = list(table.index[table["y"] < best])
    if not tolerance or not (known > 0).to_numpy().all():
        return strict
    logs = np.log(known.loc[strict]) * [_sign(x_better), _sign(y_better)]  # lower is better
    margin = -np.log1p(-tolerance)
    kept: list[str] = []
    for name in logs.sum(axis=1).sort_values(kind="stable").index:  # nothing is beaten by what follows it
        gains = logs.loc[name] - logs.loc[kept]
        beaten = (gains.max(axis=1) > margin) & (gains.min(axis=1) >= -margin)
        if not beaten.any():
            kept.append(name)
    return [name for name in strict if name in kept]


def _sign(better: str) -> int:
    return -1 if better == "higher" else 1


def _lower_is_better(values: pd.Series, better: str) -> pd.Series:
    return -values if better == "higher" else values


def effects(
    runs: pd.DataFrame,
    base: str,
    axes: Sequence[str],
    metrics: Sequence[str],
    relevance: float = RELEVANCE,
    confidence: float = CONFIDENCE,
    task_runs: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Compare an experiment with every one that differs from it in a single setting.

    The intervals are those of `dsnb.analysis.differences`, whichever experiment is the base.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` returns it: those that are selected.
    base
        The experiment to compare with, by its name in `summarize`.
    axes
        The settings that distinguish experiments; others are assumed equal.
    metrics
        The figures to compare.
    relevance
        Smallest change that matters: 0.02 is 2 %.
    confidence
        As for `dsnb.analysis.differences`.
    task_runs
        All runs of the task, of which `runs` are a selection; by default `runs`.

    Returns
    -------
    pandas.DataFrame
        One row per other experiment, ordered by axis and value: `axis`, `before`, `after` (the setting's values),
        `experiment`, `n` and `n_failed` (runs that are ok, and others), and for each metric `<metric>_change` (0.1 is
        10 % more than the base; NaN if either was not measured) and `<metric>_<column>` for the columns of
        `dsnb.analysis.comparison_table.COLUMNS`.
    """
    runs = named_runs(runs)
    settings = with_choices(runs).drop_duplicates("experiment").set_index("experiment")[list(axes)].astype(object)
    settings = settings.where(settings.notna(), None)
    rows = _single_changes(settings, base)
    is_ok = (runs["status"] == "ok").groupby(runs["experiment"])
    ok, all_runs = is_ok.sum(), is_ok.size()
    for row in rows:
        name = row["experiment"]
        row |= {"n": int(ok[name]), "n_failed": int(all_runs[name] - ok[name])}
    table = pd.DataFrame(rows, columns=["axis", "before", "after", "experiment", "n", "n_failed"])
    known = runs if task_runs is None else named_runs(task_runs)
    pairs = [(base, name) for name in table["experiment"]]
    parts = [_compared(runs, known, pairs, metric, relevance, confidence) for metric in metrics]
    return pd.concat([table, *parts], axis=1)


def _single_changes(settings: pd.DataFrame, base: str) -> list[dict[str, Any]]:
    """Return the experiments that differ from the base in one setting, ordered by setting and value."""
    own, axes = settings.loc[base], list(settings.columns)
    rows: list[dict[str, Any]] = []
    for name, other in settings.iterrows():
        changed = [axis for axis in axes if other[axis] != own[axis]]
        if len(changed) == 1:
            (axis,) = changed
            rows.append({"axis": axis, "before": own[axis], "after": other[axis], "experiment": name})
    return sorted(rows, key=lambda row: (axes.index(row["axis"]), labels.axis(row["axis"]).sort_key(row["after"])))


def _compared(
    runs: pd.DataFrame,
    task_runs: pd.DataFrame,
    pairs: list[tuple[str, str]],
    metric: str,
    relevance: float,
    confidence: float,
) -> pd.DataFrame:
    """Return how one figure differs between experiments, a row for each pair of a base and another one."""
    factor = percent_factor(metric)
    selected, known = (replicates.of_runs(one, "experiment", metric, bool(factor)) for one in (runs, task_runs))
    rules = Rules(relevance, confidence, direction(runs, metric, None), False, FEWEST_RUNS, factor)
    own = [(selected[base], selected[other]) for base, other in pairs]
    table = table_of(own, replicates.repeated(known.values()), rules)
    table.insert(0, "change", table["change_pct"] / 100)
    return table.add_prefix(f"{metric}_")
