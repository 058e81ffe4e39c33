"""Runs on several groups of nodes -> one row per group: throughput per node, deviation from the median, verdict.

A group is a set of hosts that ran an experiment together; `dsnb.analysis.slow_nodes` finds the slow host of a slow
group. The throughput expected of each node, `expect_samples_per_s`, is in the sweep's params file.
"""

import math
import re
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from dsnb.analysis import scaling
from dsnb.errors import SettingsError
from dsnb.files import plain_text
from dsnb.run_folder.paths import PROBE, RunPaths, SweepPaths
from dsnb.runs import labels
from dsnb.runs.table import named_runs
from dsnb.settings import params_file

COLUMNS = [
    "workload",
    "experiment",
    "nodes",
    "gpus",
    "hosts",
    "n",
    "failed",
    "statuses",
    "samples_per_s",
    "per_node",
    "median_per_node",
    "off_median_pct",
    "compared_with",
    "expected_per_node",
    "verdict",
    "cause",
]
NEEDED = ["workload", "title", "experiment", "nodes", "gpus", "hosts", "status", "samples_per_s", "cause"]
UNFINISHED = "interrupted"
"""Status of a run that is still running or will be repeated; it does not count against its group."""


def groups(runs: pd.DataFrame, expected: dict[str, float] | float | None = None) -> pd.DataFrame:
    """Compare groups of nodes that ran the same experiments.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` returns it; runs without a hostfile are left out.
    expected
        Samples/s expected of every node: one number, or sweep -> number; by default those in the params files.

    Returns
    -------
    pandas.DataFrame
        One row per experiment and group, smallest groups first: `workload`, `experiment`, `nodes`, `gpus`, `hosts`
        (`a,b`; missing if a run ended before they were known), `n` (runs that are ok), `failed`, `statuses`,
        `samples_per_s` (median of the ok runs), `per_node`, `median_per_node` (over the groups of the same experiment),
        `off_median_pct` (NaN if there is no second group), `compared_with` (number of groups with a figure, including
        this one), `expected_per_node`, `verdict` (`pass`, `fail`, or `-` if nothing was expected or a run is not
        finished), `cause` (of the first run that failed).
    """
    runs = _on_chosen_hosts(runs)
    runs = runs.assign(samples_per_s=pd.to_numeric(runs["samples_per_s"], errors="coerce").astype(float))
    if runs.empty:
        return pd.DataFrame(columns=COLUMNS)
    wanted = expectations(runs) if expected is None else expected
    workloads = {name: workload for workload, part in scaling.workloads(runs) for name in part.index}
    runs = named_runs(runs.assign(workload=[workloads.get(name, "") for name in runs.index], title=runs["sweep"]))
    members: dict[object, list[dict[str, Any]]] = {}
    for run in runs[NEEDED].to_dict("records"):
        hosts = run["hosts"] if isinstance(run["hosts"], str) else None
        members.setdefault((labels.text(run["experiment"]), labels.text(run["nodes"]), hosts), []).append(run)
    table = pd.DataFrame([_row(runs_of, wanted) for runs_of in members.values()])
    same = table.groupby("experiment", sort=False)["per_node"]
    table["median_per_node"], table["compared_with"] = same.transform("median"), same.transform("count")
    off = 100 * (table["per_node"] / table["median_per_node"] - 1)
    table["off_median_pct"] = off.where(table["compared_with"] > 1)
    return table.sort_values("nodes", kind="stable", ignore_index=True)[COLUMNS]


def _on_chosen_hosts(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs on chosen hosts, without probes of a micro-batch."""
    named = runs["hosts"].notna()
    several = (runs["source"] == "dsnb") & (runs["nodes"] > 1)
    probes = [re.search(rf"{PROBE}\d+$", labels.text(name)) is not None for name in runs["experiment"]]
    siblings = pd.MultiIndex.from_frame(runs[["sweep", "experiment"]])
    chosen = named | several | siblings.isin(siblings[named])
    return runs[chosen & ~pd.Series(probes, index=runs.index, dtype=bool)].reset_index(drop=True)


def _row(runs: list[dict[str, Any]], wanted: dict[str, float] | float) -> dict[str, Any]:
    first, bad = runs[0], [run for run in runs if run["status"] not in {"ok", UNFINISHED}]
    rates = [run["samples_per_s"] for run in runs if run["status"] == "ok"]
    hosts = first["hosts"] if isinstance(first["hosts"], str) else None
    nodes = hosts.count(",") + 1 if hosts else first["nodes"]
    rate = median([rate for rate in rates if not math.isnan(rate)] or [math.nan])
    least = wanted.get(first["title"], math.nan) if isinstance(wanted, dict) else wanted
    return {
        "workload": first["workload"],
        "experiment": labels.text(first["experiment"]),
        "nodes": nodes,
        "gpus": first["gpus"],
        "hosts": hosts,
        "n": len(rates),
        "failed": len(bad),
        "statuses": ", ".join(f"{count} {status}" for status, count in Counter(run["status"] for run in runs).items()),
        "samples_per_s": rate,
        "per_node": rate / nodes,
        "expected_per_node": least,
        "verdict": _verdict(len(bad), len(rates) == len(runs), rate / nodes, least),
        "cause": next((plain_text.line(labels.text(run["cause"])) for run in bad), None),
    }


def _verdict(failed: int, complete: bool, per_node: float, least: float) -> str:
    if failed or per_node < least:
        return "fail"
    return "pass" if complete and per_node >= least else "-"


def expectations(runs: pd.DataFrame) -> dict[str, float]:
    """Return the samples/s expected of each node, from the params files of the runs' sweeps: sweep -> samples/s.

    Sweeps without an expectation or a valid params file are left out.
    """
    found = {}
    for sweep, folders in runs[runs["run_dir"].notna()].groupby("sweep")["run_dir"]:
        params = SweepPaths(Path(folders.iloc[0]).parent.parent).params
        if params.is_file() and RunPaths(Path(folders.iloc[0])).repeat is not None:
            try:
                least = params_file.read_params(params).expect_samples_per_s
            except SettingsError:  # reported elsewhere
                continue
            if least is not None:
                found[str(sweep)] = least
    return found
