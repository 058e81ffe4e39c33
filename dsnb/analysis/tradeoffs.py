"""Trade-offs: the Pareto front of two figures, and the effect of changing a single setting.

Pure pandas; the explorer's page computes the same in the browser, and tests compare the two.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from dsnb.analysis.noise import beyond_noise
from dsnb.analysis.summary import qualify_experiments, summarize
from dsnb.runs import labels
from dsnb.runs.column_aliases import rename_old_columns


def pareto_front(x: pd.Series, y: pd.Series, x_better: str, y_better: str) -> list[str]:
    """Return the entries that no other entry beats in both figures (the Pareto front).

    Parameters
    ----------
    x, y
        One figure each, with the same index; entries that lack one are left out.
    x_better, y_better
        `higher` or `lower`.

    Returns
    -------
    list of str
        From the best x to the best y; of equal entries, the first.
    """
    table = pd.DataFrame({"x": _lower_is_better(x, x_better), "y": _lower_is_better(y, y_better)}).dropna()
    table = table.sort_values(["x", "y"], kind="stable")
    best = table["y"].cummin().shift(fill_value=np.inf)
    return list(table.index[table["y"] < best])


def _lower_is_better(values: pd.Series, better: str) -> pd.Series:
    return -values if better == "higher" else values


def effects(runs: pd.DataFrame, base: str, axes: Sequence[str], metrics: Sequence[str]) -> pd.DataFrame:
    """Compare an experiment with every one that differs from it in a single setting.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` returns it.
    base
        The experiment to compare with, by its name in `summarize`.
    axes
        The settings that distinguish experiments; others are assumed equal.
    metrics
        The figures to compare.

    Returns
    -------
    pandas.DataFrame
        One row per other experiment, ordered by axis and value: `axis`, `before`, `after` (the setting's values),
        `experiment`, `n`, `n_failed`, and for each metric `<metric>_change` (0.1 is 10 % more than the base; NaN if
        either was not measured) and `<metric>_beyond_noise` (see `dsnb.analysis.noise`; None if unknown).
    """
    summary = summarize(runs)
    runs = qualify_experiments(rename_old_columns(runs))
    settings = runs.drop_duplicates("experiment").set_index("experiment")[list(axes)].astype(object)
    settings = settings.where(settings.notna(), None)
    own = settings.loc[base]
    rows: list[dict[str, Any]] = []
    for name, other in settings.iterrows():
        changed = [axis for axis in axes if other[axis] != own[axis]]
        if len(changed) == 1:
            row = {"axis": changed[0], "before": own[changed[0]], "after": other[changed[0]], "experiment": name}
            rows.append({**row, **_comparison(summary.loc[base], summary.loc[str(name)], metrics)})
    names = [f"{metric}_{what}" for metric in metrics for what in ("change", "beyond_noise")]
    rows.sort(key=lambda row: (list(axes).index(row["axis"]), labels.axis(row["axis"]).sort_key(row["after"])))
    return pd.DataFrame(rows, columns=["axis", "before", "after", "experiment", "n", "n_failed", *names])


def _comparison(own: pd.Series, other: pd.Series, metrics: Sequence[str]) -> dict[str, object]:
    result: dict[str, object] = {"n": int(other["n"]), "n_failed": int(other["n_failed"])}
    for metric in metrics:
        before, after = own[f"{metric}_median"], other[f"{metric}_median"]
        result[f"{metric}_change"] = after / before - 1 if before else float("nan")
        spreads = own[f"{metric}_std"], other[f"{metric}_std"]
        result[f"{metric}_beyond_noise"] = beyond_noise(before, after, *spreads)
    return result
