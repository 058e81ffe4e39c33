"""How far the ranks of a run are apart, step by step: the slowest one against the median.

What this shows has a limit. A rank's step lasts until its own last work is done, so it shows what the ranks do not wait
for each other in. Where a step ends behind a collective (gradients are summed, parameters gathered), all ranks end it
together: one slow GPU then makes every rank's step longer and this skew stays near 0. Which node is slow is then told
by groups of nodes (`dsnb.groups`); a skew that is not near 0 says that ranks did work nobody waited for.
"""

from typing import Any

import deepspeed
import torch


def over_ranks(times_s: list[float], device: torch.device) -> dict[str, Any]:
    """Gather every rank's step times and compare them; all ranks must call this, after the timed region.

    Parameters
    ----------
    times_s
        This rank's timed steps, as many as every other's.
    device
        Where the ranks' collectives work.

    Returns
    -------
    dict
        `step_skew`: median over steps of (slowest rank / median rank - 1), a fraction. `slowest_rank`: the one with
        the largest sum. `rank_step_s`: mean step time by rank. None, each of them, for a single rank.
    """
    world = deepspeed.comm.get_world_size()
    if world == 1 or not times_s:
        return {"step_skew": None, "slowest_rank": None, "rank_step_s": None}
    mine = torch.tensor(times_s, dtype=torch.float64, device=device)
    every = [torch.empty_like(mine) for _ in range(world)]
    deepspeed.comm.all_gather(every, mine)
    return compare(torch.stack(every).cpu())


def compare(times_s: torch.Tensor) -> dict[str, Any]:
    """Compare step times of shape (ranks, steps)."""
    ratios = times_s.amax(dim=0) / median(times_s)
    means = times_s.mean(dim=1)
    return {
        "step_skew": float(median(ratios) - 1),
        "slowest_rank": int(means.argmax()),
        "rank_step_s": means.tolist(),
    }


def median(values: torch.Tensor) -> torch.Tensor:
    """Give the median along the first dimension; of an even number the mean of the middle two, unlike torch's."""
    ordered, count = values.sort(dim=0).values, len(values)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
