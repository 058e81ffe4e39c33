"""How far the ranks of a run are apart, step by step: the slowest one against the median.

A rank's step lasts until its own last work is done. Where a step ends behind a collective (gradients are summed,
parameters gathered), all ranks end it together: one slow GPU makes every rank's step longer and the skew of steps stays
near 0 (tried: a rank that came 100 ms late to each step of 50 ms changed it from 4 % to 3 %). So the first forward pass
of each step is compared as well. With ZeRO 0 to 2 and DDP it holds no collective, and the ranks begin it together: who
comes late to it is slow, and its skew is that of the GPU's arithmetic and of the data. With ZeRO 3, FSDP and tensor
parallelism ranks wait for each other in it too; only groups of nodes show who is slow then
(`dsnb.analysis.slow_nodes`).
"""

from typing import Any

import deepspeed
import torch


def over_ranks(times_s: list[float], forwards_s: list[float], device: torch.device) -> dict[str, Any]:
    """Gather every rank's times and compare them; all ranks must call this, after the timed region.

    Parameters
    ----------
    times_s
        This rank's timed steps, as many as every other's.
    forwards_s
        From the begin of each of them to the end of its first forward pass; empty, on every rank, if not measured.
    device
        Where the ranks' collectives work.

    Returns
    -------
    dict
        `step_skew` and `forward_skew`: medians over steps of (slowest rank / median rank - 1), fractions;
        `rank_step_s` and `rank_forward_s`: means by rank; `slowest_rank`: the one with the largest sum, of forward
        passes where they were measured. None, each of them, for a single rank and for what was not measured.
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
    """Return every rank's times, shape (ranks, steps)."""
    mine = torch.tensor(times_s, dtype=torch.float64, device=device)
    every = [torch.empty_like(mine) for _ in range(deepspeed.comm.get_world_size())]
    if len(every) > 1 and times_s:
        deepspeed.comm.all_gather(every, mine)
    return torch.stack(every).cpu()


def compare(times_s: torch.Tensor) -> dict[str, Any]:
    """Compare times of shape (ranks, steps); None, each, of a single rank or of no step."""
    if len(times_s) < 2 or not times_s.numel():
        return {"skew": None, "means_s": None, "slowest": None}
    ratios = times_s.amax(dim=0) / median(times_s)
    means = times_s.mean(dim=1)
    return {"skew": float(median(ratios) - 1), "means_s": means.tolist(), "slowest": int(means.argmax())}


def median(values: torch.Tensor) -> torch.Tensor:
    """Return the median along the first dimension; of an even number the mean of the middle two, unlike torch's."""
    ordered, count = values.sort(dim=0).values, len(values)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
