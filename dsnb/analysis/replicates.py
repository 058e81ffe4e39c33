"""Runs -> independent values of one figure per setting, with what was left out of them and why.

The values of a percentage are compared as they are, those of any other figure by their logarithms.

Runs that failed, or did not measure the figure, are counted and have no value. Runs on one host share whatever that
host does to them. That cancels in a difference if both settings used the same hosts equally; otherwise the runs of a
setting on one host count as one, with the mean of their values.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from dsnb.analysis.intervals import Moments
from dsnb.runs.columns import numbers

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Setting:
    """The runs of one setting."""

    values: Array
    """Natural logarithms of the figure, one for each run with a positive one; of a percentage the figure itself."""
    hosts: tuple[str | None, ...]
    """The host, or hosts, of each of these runs; None if unknown."""
    median: float
    failed: int
    """Runs whose status is not ok."""
    unusable: int
    """Runs that are ok, but have no figure, or one that is not positive and so has no logarithm."""

    def by_host(self) -> Array:
        """Return one value per host: the mean of the values of its runs."""
        if not self.hosts:
            return self.values
        return pd.Series(self.values).groupby(list(self.hosts), sort=False).mean().to_numpy()


def repeated(settings: Iterable[Setting]) -> int:
    """Return the number of settings with several runs, which pairs with an interval can be formed of."""
    return sum(len(setting.values) > 1 for setting in settings)


def of_runs(runs: pd.DataFrame, by: str | list[str], figure: str, is_percentage: bool = False) -> dict[object, Setting]:
    """Return the settings of runs by their names, in order of appearance.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` returns it.
    by
        The column or columns that name a setting.
    figure
        The column that is compared.
    is_percentage
        Whether its values are compared as they are instead of by their logarithms.
    """
    ok = runs["status"] == "ok"
    values = numbers(runs, figure)
    table = pd.DataFrame({"ok": ok, "value": values.where(ok & np.isfinite(values)), "host": hosts(runs)})
    names = runs[by] if isinstance(by, str) else [runs[name] for name in by]
    groups = table.groupby(names, sort=False, dropna=False)
    return {name: _setting(part, is_percentage) for name, part in groups}


def hosts(runs: pd.DataFrame) -> list[str | None]:
    """Return the hosts of each run: those of its hostfile, otherwise the one machine; None if unknown."""
    known = runs.reindex(columns=["hosts", "host"]).astype(object)
    return [next((name for name in row if isinstance(name, str)), None) for row in known.itertuples(index=False)]


def _setting(part: pd.DataFrame, is_percentage: bool) -> Setting:
    own = part[part["value"].notna() if is_percentage else part["value"] > 0]
    values = own["value"].to_numpy(dtype=float)
    return Setting(
        values=values if is_percentage else np.log(values),
        hosts=tuple(name if isinstance(name, str) else None for name in own["host"]),
        median=float(part["value"].median()),
        failed=int((~part["ok"]).sum()),
        unusable=int(part["ok"].sum()) - len(own),
    )


def is_confounded(one: Setting, other: Setting) -> bool:
    """Return whether a host's effect adds more to the difference of two settings than their own spreads show.

    With p and q as the shares of the runs of each setting by host, effects of hosts of variance v add v sum (p - q)^2
    to the variance of the difference, while the two sample variances account for v (1 - sum p^2) / (n - 1) and the same
    of the other (variance components of the one-way layout: Searle, Casella and McCulloch 1992, Variance Components).
    """
    if not one.hosts or not other.hosts or None in one.hosts or None in other.hosts:
        return False
    p, q = _shares(one), _shares(other)
    adds = sum((p.get(host, 0) - q.get(host, 0)) ** 2 for host in {*p, *q})
    shown = sum(
        (1 - sum(part**2 for part in s.values())) / max(1, len(who.hosts) - 1) for s, who in ((p, one), (q, other))
    )
    return adds > shown + 1e-9


def _shares(setting: Setting) -> dict[str | None, float]:
    """Return the share of a setting's runs on each host."""
    return {host: count / len(setting.hosts) for host, count in Counter(setting.hosts).items()}


def moments(values: list[Array]) -> Moments:
    """Return mean, variance and number of the values of each setting; NaN where there are none, or too few."""
    means = [float(one.mean()) if len(one) else np.nan for one in values]
    variances = [float(one.var(ddof=1)) if len(one) > 1 else np.nan for one in values]
    return Moments(np.array(means), np.array(variances), np.array([float(len(one)) for one in values]))
