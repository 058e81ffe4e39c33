"""Defaults of DeepSpeed 0.19.8 and torch 2.11 that dsnb leaves as they are, and predictions depend on."""

from typing import Any

DDP_BUCKET_BYTES = 25 * 2**20
"""Gradients in a message of torch's DDP, `bucket_cap_mb`."""
DDP_FIRST_BUCKET_BYTES = 2**20
"""Those in its first message."""
ZERO: dict[str, float] = {
    "reduce_bucket_size": 500_000_000,
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
    "sub_group_size": 1_000_000_000,
}
"""Elements that ZeRO reduces at a time, keeps gathered at stage 3, and updates at a time, by
DeepSpeed's keys."""


def zero_number(s: Any, key: str) -> float:
    """Return a number of DeepSpeed's section `zero_optimization`: as the settings give it, else the default."""
    return float(s.deepspeed.get(f"zero_optimization.{key}", ZERO[key]))
