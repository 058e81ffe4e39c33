"""Peak memory of a run during training: of its GPUs, and of each host over all of its ranks.

Building the model is not included: it can take more memory than training, and depends on how weights are loaded.
"""

import os
import re
from pathlib import Path

import deepspeed
import torch

from dsnb.system.hardware import GIB

_PROCESS = Path("/proc/self")


def reset_host_peak() -> bool:
    """Reset the peak memory of this process; return False if the system does not allow it."""
    try:
        (_PROCESS / "clear_refs").write_text("5")
    except OSError:
        return False
    return True


def host_peak_gib() -> float | None:
    """Return the largest resident memory of this process since `reset_host_peak`, in GiB."""
    return _field("status", "VmHWM")


def host_shared_gib() -> float:
    """Return the memory that this process shares with others, in GiB; 0 if the system does not report it.

    Forked ranks share what the fork server has imported. `Pss` divides each shared page by its number of processes.
    """
    resident, proportional = _field("smaps_rollup", "Rss"), _field("smaps_rollup", "Pss")
    return 0.0 if resident is None or proportional is None else max(0.0, resident - proportional)


def _field(file: str, name: str) -> float | None:
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", (_PROCESS / file).read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 / GIB if found else None


def over_ranks(gpu_gib: dict[str, float], device: torch.device) -> dict[str, float | None]:
    """Combine the peaks of all ranks; every rank must call this, after the timed steps.

    Parameters
    ----------
    gpu_gib
        This rank's GPU figures, under the same names on every rank; empty on a CPU.

    Returns
    -------
    dict
        For each name of `gpu_gib` and for `rank_host_memory_gib` the maximum over ranks; `host_memory_gib`, the sum
        over the ranks of a host, of the fullest host. The peaks of ranks need not coincide, so the sum is an upper
        bound.
    """
    peak = host_peak_gib() or 0.0
    own = max(0.0, peak - host_shared_gib())
    mine = torch.tensor([peak, own, *gpu_gib.values()], dtype=torch.float64, device=device)
    place = torch.tensor([int(os.environ.get("GROUP_RANK", "0"))], dtype=torch.float64, device=device)
    everyone = _gathered(torch.cat([place, mine]))
    largest = dict(zip(gpu_gib, everyone[:, 3:].amax(dim=0).tolist(), strict=True))
    by_host: dict[float, float] = {}
    for host, rank_own in everyone[:, [0, 2]].tolist():
        by_host[host] = by_host.get(host, 0.0) + rank_own
    known = peak > 0
    return {
        **largest,
        "host_memory_gib": max(by_host.values()) if known else None,
        "rank_host_memory_gib": float(everyone[:, 1].max()) if known else None,
    }


def _gathered(mine: torch.Tensor) -> torch.Tensor:
    """Return every rank's figures, shape (ranks, figures)."""
    every = [torch.empty_like(mine) for _ in range(deepspeed.comm.get_world_size())]
    deepspeed.comm.all_gather(every, mine)
    return torch.stack(every).cpu()
