"""Groups of nodes -> the hosts that slow them down or make them fail, each with the evidence.

Ranks wait for each other, so one slow host slows down every group that it is in: a slow group does not show which host
is slow. A host that is slow on its own is a suspect. In a larger slow group without such a host, the suspects are the
hosts that were in no group of full speed. Slow groups that a smaller group explains yield no further suspects.

A group counts as slow if it is further below the median of the groups of its experiment than `LEAST_PCT` and than
`DEVIATIONS` robust standard deviations (1.4826 x the median absolute deviation), of at least `FEWEST` groups.
"""

from dataclasses import dataclass

import pandas as pd

LEAST_PCT = 3.0
DEVIATIONS = 3.5
FEWEST = 3
MAX_NAMES = 8
COLUMNS = ["hosts", "off_pct", "evidence"]


@dataclass(frozen=True)
class Evidence:
    """Deviation of a set of hosts from the median, over all experiments in which it was compared."""

    hosts: frozenset[str]
    off_pct: float
    limit_pct: float
    others: int

    @property
    def is_slow(self) -> bool:
        """Whether it is further below the median than noise explains."""
        return self.off_pct < -self.limit_pct


def limits(table: pd.DataFrame) -> pd.Series:
    """Return how far below the median, in per cent, each group counts as slow; NaN if too few can be compared."""
    off = table["off_median_pct"]
    spread = off.abs().groupby(table["experiment"]).transform("median")
    return (DEVIATIONS * 1.4826 * spread).clip(lower=LEAST_PCT).where((table["compared_with"] >= FEWEST) & off.notna())


def suspects(table: pd.DataFrame) -> pd.DataFrame:
    """Return the hosts that slow their groups down.

    Parameters
    ----------
    table
        As `dsnb.analysis.node_groups.groups` returns it.

    Returns
    -------
    pandas.DataFrame
        `hosts` (one, or `a or b` if the groups do not distinguish them), `off_pct` (deviation from the median in per
        cent) and `evidence` in words; the slowest first. Empty if no host is slow or there is nothing to compare with.
    """
    known = evidence(table)
    found, _ = _explained(known)
    rows = [
        {"hosts": _either(hosts), "off_pct": one.off_pct, "evidence": _words(one, hosts, known)} for one, hosts in found
    ]
    return pd.DataFrame(rows, columns=COLUMNS).sort_values("off_pct", kind="stable", ignore_index=True)


def evidence(table: pd.DataFrame) -> list[Evidence]:
    """Return the evidence on every set of hosts that can be compared with others, small sets first."""
    rows = table.assign(limit=limits(table)).dropna(subset=["hosts", "limit"])
    rows = rows.assign(members=[frozenset(hosts.split(",")) for hosts in rows["hosts"]])
    found = [
        Evidence(hosts, part["off_median_pct"].median(), part["limit"].median(), int(part["compared_with"].max()))
        for hosts, part in rows.groupby("members", sort=False)
    ]
    return sorted(found, key=lambda one: len(one.hosts))


def _explained(known: list[Evidence]) -> tuple[list[tuple[Evidence, list[str]]], list[Evidence]]:
    """Return slow sets that no smaller set explains, each with its suspects, and slow sets without any suspect."""
    found: list[tuple[Evidence, list[str]]] = []
    unexplained: list[Evidence] = []
    cleared = set().union(*(one.hosts for one in known if len(one.hosts) > 1 and not one.is_slow))
    for one in known:
        if not one.is_slow or any(
            set(hosts) <= one.hosts and one.off_pct >= before.off_pct - one.limit_pct for before, hosts in found
        ):
            continue
        candidates = sorted(one.hosts if len(one.hosts) == 1 else one.hosts - cleared)
        if candidates:
            found.append((one, candidates))
        elif not any(before.hosts < one.hosts for before in unexplained):
            unexplained.append(one)
    return found, unexplained


def _words(one: Evidence, hosts: list[str], known: list[Evidence]) -> str:
    below = f"{-one.off_pct:.1f} % below the median of {one.others} {_groups(len(one.hosts))}"
    if len(one.hosts) > 1:
        alone = {other.hosts: other for other in known if len(other.hosts) == 1}
        fine = all(frozenset([host]) in alone and not alone[frozenset([host])].is_slow for host in hosts)
        more = "each is as fast as others on its own: check the network between them" if fine else ""
        more = more or ("the other hosts were in groups of full speed" if len(hosts) < len(one.hosts) else "")
        return f"{'together ' if len(hosts) > 1 else ''}{below}" + (f"; {more}" if more else "")
    larger = [other for other in known if other.hosts > one.hosts]
    slow = [other for other in larger if other.is_slow]
    if not larger:
        return f"alone {below}"
    if not slow:
        return f"alone {below}; but its larger groups were as fast as others"
    off = sorted(-other.off_pct for other in slow)
    between = f"{off[0]:.1f} %" if f"{off[0]:.1f}" == f"{off[-1]:.1f}" else f"{off[0]:.1f} to {off[-1]:.1f} %"
    return f"alone {below}; {len(slow)} of {len(larger)} larger groups with it are slow, too, by {between}"


def describe(table: pd.DataFrame) -> list[str]:
    """Return sentences on suspects, failures, groups below the expectation, and the spread between groups."""
    return [*_slow(table), *_failed(table), *_below(table), *_sizes(table)]


def _sizes(table: pd.DataFrame) -> list[str]:
    sentences = []
    slow = {host for _, hosts in _explained(evidence(table))[0] for host in hosts if len(hosts) == 1}
    for (name, nodes), part in table.dropna(subset="per_node").groupby(["experiment", "nodes"], sort=False):
        off = part["off_median_pct"].dropna()
        spread = f", {_signed(off.min())} to {_signed(off.max())} around it" if len(off) else ""
        rate = f"{part['per_node'].median():,.4g} samples/s per node"
        few = f" (fewer than {FEWEST} groups: too few to call one slow)" if 1 < len(off) < FEWEST else ""
        known = part["hosts"].dropna()
        all_slow = len(known) and all(slow & set(hosts.split(",")) for hosts in known)
        them = f" (a suspect is in {'each' if len(known) > 1 else 'it'})" if all_slow and slow else ""
        sentences.append(f"{name}: {len(part)} {_groups(nodes, len(part))}, median {rate}{spread}{few}{them}.")
    return sentences


def _slow(table: pd.DataFrame) -> list[str]:
    known = evidence(table)
    _, unexplained = _explained(known)
    rows = suspects(table).to_dict("records")
    sentences = [f"Suspect: {row['hosts']}, {_signed(row['off_pct'])}: {row['evidence']}." for row in rows]
    sentences += [
        f"The group {_some(sorted(one.hosts))} is {-one.off_pct:.1f} % below the median, but each of its hosts was in "
        "a group of full speed: none is a suspect."
        for one in unexplained
    ]
    if not sentences and known:
        sentences = [f"No host is slow: none is {LEAST_PCT:g} % below its median and outside the spread of the others."]
    return sentences


def _failed(table: pd.DataFrame) -> list[str]:
    """Return a sentence for each of the smallest groups that failed; larger groups with its hosts are counted."""
    bad = table[table["failed"] > 0]
    sentences, reported = [], list[set[str]]()
    for row in bad.to_dict("records"):
        hosts = set(row["hosts"].split(",")) if isinstance(row["hosts"], str) else set()
        if any(smaller < hosts for smaller in reported):
            continue
        larger = [set(other.split(",")) > hosts for other in bad["hosts"].dropna()] if hosts else []
        more = f"; {sum(larger)} larger groups with it also failed" if sum(larger) else ""
        who = _some(sorted(hosts)) if hosts else "a group whose hosts are not known"
        sentences.append(f"Failed: {who} ({row['experiment']}: {row['statuses']}): {row['cause']}{more}.")
        reported += [hosts] if hosts else []
    return sentences


def _below(table: pd.DataFrame) -> list[str]:
    slow = table[table["per_node"] < table["expected_per_node"]]
    if slow.empty:
        return []
    least = ", ".join(f"{value:,.4g}" for value in slow["expected_per_node"].drop_duplicates())
    return [f"{len(slow)} of {len(table)} groups are below the {least} samples/s per node expected of them."]


def _either(hosts: list[str]) -> str:
    return _some(hosts, " or ")


def _some(hosts: list[str], between: str = ", ") -> str:
    rest = len(hosts) - MAX_NAMES
    return between.join(hosts[:MAX_NAMES]) + (f"{between}{rest} more" if rest > 0 else "")


def _groups(nodes: float, count: int = 2) -> str:
    if nodes == 1:
        return "node" if count == 1 else "nodes"
    return f"group{'' if count == 1 else 's'} of {nodes:g} nodes"


def _signed(percent: float) -> str:
    return f"{percent:+.1f} %".replace("-", "\N{MINUS SIGN}")
