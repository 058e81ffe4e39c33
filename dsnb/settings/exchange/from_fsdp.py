"""FSDP's options, as accelerate and the Trainer have them, in dsnb's settings."""

from collections.abc import Mapping, Sequence
from typing import Any

from dsnb.settings.exchange.imported import Imported
from dsnb.settings.exchange.incoming import INCOMING

SHARDING: dict[str, dict[str, str]] = INCOMING["sharding"]
NUMBERS = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
"""Names of FSDP1's sharding strategies, whose numbers begin at 1."""
NODE = "node"
"""Sharding within each node."""
FSDP2 = 2


def read(words: Sequence[str], options: Mapping[str, Any], found: Imported) -> None:
    """Add the settings of FSDP: words of `--fsdp`, and options without their prefix `fsdp_`."""
    found.put("fsdp", strategy="fsdp")
    if options.get("activation_checkpointing") is True:
        found.put("fsdp_activation_checkpointing", activation_checkpointing=True)
    if "offload" in words or True in {options.get("offload_params"), options.get("cpu_offload")}:
        found.problems.append(
            "FSDP offloads parameters to the host, which dsnb does not measure: leave it out, or use ZeRO 3 and offload"
        )
    kind = _kind(words, options)
    if kind in SHARDING:
        _put(kind, SHARDING[kind], found)
    elif kind == "NO_SHARD":
        found.problems.append(
            "FSDP's sharding is NO_SHARD, which shards nothing: it is DDP; use distributed_type MULTI_GPU"
        )
    elif kind:
        found.problems.append(f"FSDP's sharding is {kind!r}: allowed are {', '.join(SHARDING)}")
    if str(options.get("version", "1")) != str(FSDP2):
        found.dropped["fsdp_version"] = "dsnb measures FSDP2, whose traffic is the same"


def _kind(words: Sequence[str], options: Mapping[str, Any]) -> str:
    """Return the name of the sharding; empty if nothing is said."""
    reshards = options.get("reshard_after_forward")
    given = options.get("sharding_strategy")
    if isinstance(reshards, bool):
        return "FULL_SHARD" if reshards else "SHARD_GRAD_OP"
    given = str(given or reshards or "")
    if given.isdecimal() and 0 < int(given) <= len(NUMBERS):
        return NUMBERS[int(given) - 1]
    named = [word.upper() for word in words if word.upper() in NUMBERS]
    return given.upper() or next(iter(named), "")


def _put(kind: str, settings: Mapping[str, str], found: Imported) -> None:
    for name, value in settings.items():
        if value != NODE:
            found.put(kind, **{name: value})
            continue
        gpus = found.settings.get("gpus")
        nodes = found.settings.get("nodes")
        if not gpus or not nodes:
            found.left_open[name] = f"{kind} shards within a node: give the number of its GPUs"
        elif nodes > 1:
            found.put(kind, **{name: gpus // nodes})
