"""Skew between the ranks of a run, step by step: the slowest rank relative to the median.

A rank's step ends when its own last work is done. If a step ends with a collective (gradients are summed, parameters
gathered), all ranks end it together: one slow GPU makes every rank's step longer, and the skew of steps stays near 0
(measured: a rank that was 100 ms late to each step of 50 ms changed it from 4 % to 3 %). The first forward pass of each
step is therefore compared as well. With ZeRO 0 to 2 and DDP it contains no collective and the ranks begin it together,
so its skew is that of the GPU's arithmetic and of the data. With ZeRO 3, FSDP and tensor parallelism ranks wait for
each other in it too; only groups of nodes then show which one is slow (`dsnb.analysis.slow_nodes`).
"""

from typing import Any

import deepspeed
import torch


def over_ranks(times_s: list[float], forwards_s: list[float], device: torch.device) -> dict[str, Any]:
    """Compare the times of all ranks; every rank must call this, after the timed region.

    Parameters
    ----------
    times_s
        Times of this rank's timed steps; every rank has the same number.
    forwards_s
        Times from the start of each step to the end of its first forward pass; empty on every rank if not measured.
    device
        The device of the collectives.

    Returns
    -------
    dict
        `step_skew` and `forward_skew`: medians over steps of (slowest rank / median rank - 1), as fractions;
        `rank_step_s` and `rank_forward_s`: means by rank; `slowest_rank`: the rank with the largest sum, of forward
        passes if they were measured. Each is None for a single rank and if it was not measured.
    """
    steps, forwards = compare(_gathered(times_s, device)), compare(_gathered(forwards_s, device))
    return {
        "step_skew": steps["skew"],
        "forward_skew": forwards["skew"],
        "rank_step_s": steps["means_s"],
        "rank_forward_s": forwards["means_s"],
        "slowest_rank": steps["slowest"] if forwards["slowest"] is None else forwards["slowest"],
    }


def _gathered(times_s: list[float], device: torch.device) -> torch.Tensor:
    """Return the times of all ranks, shape (ranks, steps)."""
    mine = torch.tensor(times_s, dtype=torch.float64, device=device)
    every = [torch.empty_like(mine) for _ in range(deepspeed.comm.get_world_size())]
    if len(every) > 1 and times_s:
        deepspeed.comm.all_gather(every, mine)
    return torch.stack(every).cpu()


def compare(times_s: torch.Tensor) -> dict[str, Any]:
    """Compare times of shape (ranks, steps); every figure is None for a single rank or without steps."""
    if len(times_s) < 2 or not times_s.numel():
        return {"skew": None, "means_s": None, "slowest": None}
    ratios = times_s.amax(dim=0) / median(times_s)
    means = times_s.mean(dim=1)
    return {"skew": float(median(ratios) - 1), "means_s": means.tolist(), "slowest": int(means.argmax())}


def median(values: torch.Tensor) -> torch.Tensor:
    """Return the median along the first dimension; unlike torch's, the mean of the middle two of an even number."""
    ordered, count = values.sort(dim=0).values, len(values)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
