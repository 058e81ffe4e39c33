"""How evenly ranks work: their times, step by step."""

from typing import Any

import torch


def compare(times_s: torch.Tensor) -> dict[str, Any]:
    """Compare times of shape (ranks, steps); every figure is None for a single rank or without steps."""
    if len(times_s) < 2 or not times_s.numel():
        return {"skew": None, "means_s": None, "slowest": None}
    ratios = times_s.amax(dim=0) / times_s.quantile(0.5, dim=0)
    means = times_s.mean(dim=1)
    return {
        "skew": float(ratios.quantile(0.5) - 1),
        "means_s": means.tolist(),
        "slowest": int(means.argmax()),
    }
