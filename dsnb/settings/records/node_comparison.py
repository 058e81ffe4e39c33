"""Differences in hardware and versions between the hosts of runs, which make runs slow or wrong."""

from collections.abc import Iterable, Mapping
from typing import Any

COMPARED = (
    "os", "cpu", "cores", "memory_gib", "gpus", "clocks", "driver", "cuda", "nccl", "nccl_package",
    "python", "torch", "deepspeed", "transformers", "dsnb", "git_commit", "variables",
)  # fmt: skip
"""The fields of a host's `environment` that should be the same everywhere."""
UNITS = {"memory_gib": "GiB", "sm_clock_max_mhz": "MHz", "power_limit_w": "W"}
MAX_NAMED_HOSTS = 4
MAX_CHARACTERS = 200


def environment_differences(
    environments: Iterable[tuple[str, Mapping[str, Any]]],
) -> dict[str, str]:
    """Return the fields in which hosts differ, each with a sentence: `torch: 2.13.0 on 63 nodes, 2.12.0 on n7`.

    Missing fields are unknown and not compared; None means that a host has none, for example no
    GPU.
    """
    hosts_by_value: dict[str, dict[str, set[str]]] = {name: {} for name in COMPARED}
    for host, environment in environments:
        for name in COMPARED:
            if name in environment:
                hosts_by_value[name].setdefault(_text(name, environment[name]), set()).add(host)
    return {
        name: _sentence(name, values) for name, values in hosts_by_value.items() if len(values) > 1
    }


def _text(name: str, value: Any) -> str:
    """Format a value identically for identical hosts: `NVIDIA H200 140 GiB`, `1980 MHz 700 W`."""
    if value is None or value in ([], {}):
        return "none"
    if name in UNITS and isinstance(value, int | float):
        return f"{value:.0f} {UNITS[name]}"  # identical hosts differ by some MiB
    if isinstance(value, list):
        items = [_text("", item) for item in value]
        return ", ".join(f"{items.count(item)} x {item}" for item in dict.fromkeys(items))[
            :MAX_CHARACTERS
        ]
    if isinstance(value, dict):
        if name == "variables":
            return " ".join(f"{key}={item}" for key, item in sorted(value.items()))[:MAX_CHARACTERS]
        return " ".join(_text(key, item) for key, item in value.items())[:MAX_CHARACTERS]
    return str(value)[:MAX_CHARACTERS]


def _sentence(name: str, hosts_by_value: dict[str, set[str]]) -> str:
    """List the hosts of each value, the most common value first."""
    parts = [
        f"{value} on {' and '.join(sorted(hosts)) if len(hosts) <= MAX_NAMED_HOSTS else f'{len(hosts)} nodes'}"
        for value, hosts in sorted(hosts_by_value.items(), key=lambda item: -len(item[1]))
    ]
    return f"{name}: {', '.join(parts)}"
