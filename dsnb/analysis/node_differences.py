"""What the nodes of runs are, and in what they differ: a slow one often has another driver, and says so."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from dsnb.run_folder import record_schema
from dsnb.run_folder.paths import RunPaths

FACTS = ["os", "cpu", "cores", "memory_gib", "gpus", "clocks", "driver", "cuda", "nccl", "nccl_package", "python"]
FACTS += ["torch", "deepspeed", "transformers", "dsnb", "git_commit"]
NEAR_GIB = 1
"""Machines of one kind report some megabytes more or less memory."""
MOST_HOSTS, MOST_SENTENCES = 4, 40


def differences(runs: pd.DataFrame) -> list[str]:
    """Say in what the nodes of all runs differ, `torch: 2.13.0 on 63 nodes, 2.12.0 on n7`, and what else was noted.

    Parameters
    ----------
    runs
        One row a run, as `dsnb.load_runs` gives it; what their `nodes.json` say of each host is compared over all of
        them, so that groups of one node are compared as well.
    """
    facts: dict[str, dict[str, set[str]]] = {}
    noted: list[str] = []
    for record in _records(runs):
        sentences = record.get("differences")
        noted += [str(one)[:500] for one in sentences] if isinstance(sentences, list) else []
        for host, environment in _environments(record):
            for name in FACTS:
                if (value := _value(name, environment.get(name))) is not None:
                    facts.setdefault(name, {}).setdefault(value, set()).add(host)
    found = [_sentence(name, hosts_of) for name, hosts_of in facts.items() if len(hosts_of) > 1]
    told = {sentence.partition(":")[0] for sentence in found}
    found += [one for one in dict.fromkeys(noted) if one.partition(":")[0] not in told]
    rest = len(found) - MOST_SENTENCES
    return found[:MOST_SENTENCES] + ([f"and {rest} more"] if rest > 0 else [])


def _records(runs: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for folder in runs.loc[runs["hosts"].notna(), "run_dir"].dropna():
        if (record := record_schema.read(RunPaths(Path(folder)).nodes)) is not None:
            yield record


def _environments(record: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    nodes = record.get("nodes")
    for node in nodes if isinstance(nodes, list) else []:
        if isinstance(node, dict) and isinstance(node.get("environment"), dict):
            yield str(node.get("host")), node["environment"]


def _value(name: str, value: Any) -> str | None:
    """Give one fact as a text that is the same for machines of one kind; None where it is not known."""
    if name == "gpus":
        names = [gpu.get("name") for gpu in value if isinstance(gpu, dict)] if isinstance(value, list) else []
        return ", ".join(f"{names.count(one)} x {one}" for one in dict.fromkeys(names)) or None
    if name == "memory_gib" and isinstance(value, int | float):
        return f"{round(value / NEAR_GIB) * NEAR_GIB:g} GiB"
    return None if value is None else str(value)[:200]


def _sentence(name: str, hosts_of: dict[str, set[str]]) -> str:
    most_first = sorted(hosts_of.items(), key=lambda item: -len(item[1]))
    return f"{name}: " + ", ".join(f"{value} on {_who(hosts)}" for value, hosts in most_first)


def _who(hosts: set[str]) -> str:
    return " and ".join(sorted(hosts)) if len(hosts) <= MOST_HOSTS else f"{len(hosts)} nodes"
