"""Compare groups of hosts, and hosts, with the median of a sweep, and describe the slow ones.

A group is a set of hosts that ran an experiment together. Ranks wait for each other, so one slow
host slows down all of its groups: a host is suspect if all of its groups were slow. A group is slow
if it is below the median of its experiment's groups by more than `MIN_PCT` and by more than
`DEVIATIONS` robust standard deviations (1.4826 x the median absolute deviation); this needs at
least `MIN_GROUPS` groups. `expect_samples_per_s` in the sweep's params file is the throughput
expected of each node, as in Lambda's benchmark.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from dsnb.base.errors import SettingsError
from dsnb.base.files import plain_text
from dsnb.results.answers.decide import is_probe
from dsnb.results.answers.sentences import Sentence, say
from dsnb.results.runs import labels
from dsnb.results.runs.number_text import signed
from dsnb.results.runs.table import named_runs, numbers
from dsnb.results.statistics import scaling
from dsnb.settings import params_file
from dsnb.settings.records import node_comparison, record_schema
from dsnb.settings.records.paths import RunPaths, SweepPaths

MIN_PCT, DEVIATIONS, MIN_GROUPS = 3.0, 3.5, 3
MAX_NAMES = 8
COLUMNS = [
    "workload", "experiment", "nodes", "gpus", "hosts", "n", "failed", "statuses", "samples_per_s", "per_node",
    "median_per_node", "off_median_pct", "limit_pct", "compared_with", "expected_per_node", "verdict", "cause",
]  # fmt: skip


def groups(runs: pd.DataFrame) -> pd.DataFrame:
    """Compare groups of hosts that ran the same experiments; runs without a hostfile are left out.

    Returns `COLUMNS`, one row per experiment and group, smallest groups first. `hosts` (`a,b`) is
    missing if a run ended before they were known, `n` counts ok runs, rates are medians of these,
    `median_per_node` is over the groups of the experiment, `compared_with` counts those with a
    figure, `limit_pct` is how far below the median a group is slow (NaN with too few groups),
    `verdict` is `pass`, `fail`, or `-` without an expectation or with unfinished runs, and `cause`
    is that of the first failed run.
    """
    named = runs["hosts"].notna()
    several = (runs["source"] == "dsnb") & (runs["nodes"] > 1)
    siblings = pd.MultiIndex.from_frame(runs[["sweep", "experiment"]])
    is_of_group = named | several | siblings.isin(siblings[named])
    runs = runs[is_of_group & ~is_probe(runs)].reset_index(drop=True)
    if runs.empty:
        return pd.DataFrame(columns=COLUMNS)
    expected = runs["sweep"].map(expectations(runs)).astype(float)
    rates = numbers(runs, "samples_per_s").where(runs["status"] == "ok")
    runs = named_runs(runs).assign(rate=rates, expected=expected)
    for workload, part in scaling.workloads(runs):
        runs.loc[part.index, "workload"] = workload
    by_group = runs.groupby(["experiment", "nodes", "hosts"], sort=False, dropna=False)
    table = pd.DataFrame([_group(part) for _, part in by_group])
    same = table.groupby("experiment", sort=False)["per_node"]
    table["median_per_node"] = same.transform("median")
    table["compared_with"] = same.transform("count")
    off_pct = 100 * (table["per_node"] / table["median_per_node"] - 1)
    off_pct = off_pct.where(table["compared_with"] > 1)
    spread_pct = off_pct.abs().groupby(table["experiment"]).transform("median")
    limit_pct = (DEVIATIONS * 1.4826 * spread_pct).clip(lower=MIN_PCT)
    is_comparable = (table["compared_with"] >= MIN_GROUPS) & off_pct.notna()
    table["off_median_pct"] = off_pct
    table["limit_pct"] = limit_pct.where(is_comparable)
    return table.sort_values("nodes", kind="stable", ignore_index=True)[COLUMNS]


def _group(runs: pd.DataFrame) -> dict[str, Any]:
    first = runs.iloc[0]
    # An interrupted run is still running or will be repeated.
    failed = runs[~runs["status"].isin(["ok", "interrupted"])]
    statuses = Counter(runs["status"])
    per_node = float(runs["rate"].median()) / first["nodes"]
    verdict = "-"
    if len(failed) or per_node < first["expected"]:
        verdict = "fail"
    elif statuses["ok"] == len(runs) and per_node >= first["expected"]:
        verdict = "pass"
    hosts = None
    if isinstance(first["hosts"], str):
        hosts = first["hosts"]
    cause = None
    if len(failed):
        cause = plain_text.line(labels.text(failed["cause"].iloc[0]))
    return {
        **first[["workload", "nodes", "gpus"]],
        "experiment": labels.text(first["experiment"]),
        "hosts": hosts,
        "n": statuses["ok"],
        "failed": len(failed),
        "statuses": ", ".join(f"{count} {status}" for status, count in statuses.items()),
        "samples_per_s": per_node * first["nodes"],
        "per_node": per_node,
        "expected_per_node": first["expected"],
        "verdict": verdict,
        "cause": cause,
    }


def expectations(runs: pd.DataFrame) -> dict[str, float]:
    """Return the samples/s expected of each node by sweep, from params files; sweeps without one are left out."""
    expected: dict[str, float] = {}
    for sweep, folders in runs[runs["run_dir"].notna()].groupby("sweep")["run_dir"]:
        run = RunPaths(Path(folders.iloc[0]))
        params = SweepPaths(run.dir.parent.parent).params
        with contextlib.suppress(SettingsError):  # a damaged params file is reported elsewhere
            if run.repeat is not None and params.is_file():
                expected[str(sweep)] = (
                    params_file.read_params(params).expect_samples_per_s or math.nan
                )
    return expected


def is_slow(table: pd.DataFrame) -> pd.Series:
    """Return which groups are further below their median than noise explains."""
    return table["off_median_pct"] < -table["limit_pct"]


def hosts(table: pd.DataFrame) -> pd.DataFrame:
    """Compare the hosts of a table of `groups`, slowest first.

    `groups` counts those that could be compared, `slow` the slow ones of these; `off_median_pct` is
    that of the smallest group with the host (the median of several), and `is_suspect` whether all
    of its groups are slow.
    """
    comparable = table[table["hosts"].notna() & table["limit_pct"].notna()]
    members = comparable["hosts"].str.split(",")
    rows = comparable.assign(slow=is_slow(comparable), host=members).explode("host")
    smallest = rows["nodes"] == rows.groupby("host")["nodes"].transform("min")
    rows["smallest"] = rows["off_median_pct"].where(smallest)
    by_host = rows.groupby("host", sort=False).agg(
        groups=("slow", "size"), slow=("slow", "sum"), off_median_pct=("smallest", "median")
    )
    by_host["is_suspect"] = by_host["slow"] == by_host["groups"]
    return by_host.sort_values("off_median_pct", kind="stable")


def describe(table: pd.DataFrame) -> list[Sentence]:
    """Return sentences on suspects, failures, and groups below the expectation."""
    sentences = [*_slow(table), *_failed(table)]
    below = table[table["per_node"] < table["expected_per_node"]]
    if len(below):
        expected = below["expected_per_node"].unique()
        least = ", ".join(f"{value:,.4g}" for value in expected)
        sentences.append(say("below", below=len(below), groups=len(table), least=least))
    return sentences


def _slow(table: pd.DataFrame) -> list[Sentence]:
    compared = hosts(table)
    suspects = compared[compared["is_suspect"]]
    sentences = []
    for name, host in suspects.iterrows():
        facts = {"off": signed(host["off_median_pct"]), "slow": host["slow"]}
        sentences.append(say("suspect", host=name, groups=host["groups"], **facts))
    for row, members in _smallest(table[is_slow(table)]):
        if members and members.isdisjoint(suspects.index):
            off = f"{-row['off_median_pct']:.1f}"
            sentences.append(say("network", members=_some(members), off=off))
    if sentences:
        return sentences
    if compared.empty:
        return [say("none.few", min_groups=MIN_GROUPS)]
    return [say("none", min_pct=f"{MIN_PCT:g}")]


def _smallest(table: pd.DataFrame) -> Iterator[tuple[dict[Any, Any], set[str]]]:
    """Yield the groups that contain no smaller one of the table, and their hosts, smallest first."""
    smaller: list[set[str]] = []
    for row in table.to_dict("records"):
        members: set[str] = set()
        if isinstance(row["hosts"], str):
            members = set(row["hosts"].split(","))
        if any(other < members for other in smaller):
            continue
        if members:
            smaller.append(members)
        yield row, members


def _failed(table: pd.DataFrame) -> Iterator[Sentence]:
    """Yield a sentence for each failed group that contains no smaller failed one."""
    for row, members in _smallest(table[table["failed"] > 0]):
        facts = {name: row[name] for name in ("experiment", "statuses", "cause")}
        yield say("failed_group", members=_some(members) or "unknown hosts", **facts)


def _some(names: set[str]) -> str:
    shown = ", ".join(sorted(names)[:MAX_NAMES])
    more = len(names) - MAX_NAMES
    if more > 0:
        return f"{shown}, {more} more"
    return shown


def node_differences(runs: pd.DataFrame) -> list[str]:
    """Describe the hardware and versions in which hosts differ, as `nodes.json` records them, a sentence each."""
    folders = runs.loc[runs["hosts"].notna(), "run_dir"].dropna()
    records = (record_schema.read(RunPaths(Path(folder)).nodes) or {} for folder in folders)
    environments = [
        (str(node.get("host")), node["environment"])
        for record in records
        for node in record.get("nodes", [])
        if isinstance(node.get("environment"), dict)
    ]
    return list(node_comparison.environment_differences(environments).values())
