"""How ranks share a training, as one value of several settings: "ZeRO 3", "TP 2 x ZeRO 1", "HSDP 8"."""

from collections.abc import Mapping
from typing import Any

from dsnb.settings.strategies import STRATEGIES, strategy
from dsnb.settings.training import text

SIZES = {"TP": "tensor_parallel", "PP": "pipeline_parallel"}
"""Settings that split layers, by their display names."""
SHARDS = "shard_size"
"""The setting of groups that hold copies of one another's shards."""
SHARING = ("strategy", "zero_stage", *SIZES.values(), SHARDS)
"""The settings that are one value here."""


def parallelism(run: Mapping[str, Any]) -> str:
    """Return how ranks share a training; empty if nothing is known.

    A size without a value is `?`, since it need not be 1; a row without the column has no such
    size.
    """
    chosen = strategy(run.get("strategy"))
    stage = text(run.get("zero_stage"))
    label = chosen.label_of(None if stage == "-" else stage)
    unshown = {"0", "1"}
    if not label or not chosen.may_split_layers:
        unshown.add("-")
    parts = []
    for short, name in SIZES.items():
        size = text(run[name]) if name in run else "1"
        if size not in unshown:
            parts.append(f"{short} {size.replace('-', '?')}")
    size = text(run.get(SHARDS))
    if size not in {"0", "-"}:
        label = f"{chosen.label_of_groups} {size}"
    if label:
        parts.append(label)
    return " x ".join(parts)


def parallelism_order() -> tuple[str, ...]:
    """Return the values of `parallelism` without split layers, in display order."""
    order: list[str] = []
    for chosen in sorted(STRATEGIES.values(), key=lambda each: each.has_zero_stages):
        if chosen.is_runnable:
            order.extend(chosen.labels())
    return tuple(order)
