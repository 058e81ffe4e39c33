"""In what the nodes of all runs differ: a slow node often has another driver or fewer GPUs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from dsnb.run_folder import node_comparison, record_schema
from dsnb.run_folder.paths import RunPaths

MAX_CHARACTERS, MAX_SENTENCES = 500, 40


def differences(runs: pd.DataFrame) -> list[str]:
    """Return in what the nodes of all runs differ, a sentence each.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` returns it. The hosts in their `nodes.json` are compared over all runs, so
        that groups of a single node are compared as well.

    Returns
    -------
    list of str
        First what `dsnb.run_folder.node_comparison` finds, then what launches recorded of other fields.
    """
    nodes = list(_nodes(runs))
    compared = node_comparison.differences(pair for record in nodes for pair in _environments(record))
    recorded = dict.fromkeys(sentence for record in nodes for sentence in _recorded(record))
    # A launch records whole sentences, `field: ...`; those of fields that are compared here would say less.
    others = [sentence for sentence in recorded if sentence.partition(":")[0] not in compared]
    found = [*compared.values(), *others]
    rest = len(found) - MAX_SENTENCES
    return found[:MAX_SENTENCES] + ([f"and {rest} more"] if rest > 0 else [])


def _nodes(runs: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for folder in runs.loc[runs["hosts"].notna(), "run_dir"].dropna():
        if (record := record_schema.read(RunPaths(Path(folder)).nodes)) is not None:
            yield record


def _environments(record: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for node in record.get("nodes", []):
        if isinstance(node.get("environment"), dict):
            yield str(node.get("host")), node["environment"]


def _recorded(record: dict[str, Any]) -> list[str]:
    return [sentence[:MAX_CHARACTERS] for sentence in record.get("differences", [])]
