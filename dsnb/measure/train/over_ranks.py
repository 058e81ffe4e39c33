"""Figures over all ranks of a run: sums, means, peak memory, skew, changed weights. Every rank must call them.

Peak memory excludes building the model, which can take more than training and depends on how
weights are loaded.

Skew is the slowest rank relative to the median, step by step. If a step ends with a collective, all
ranks end it together, and the skew of steps stays near 0 (measured: a rank 100 ms late to each step
of 50 ms changed it from 4 % to 3 %). The first forward pass of each step is therefore compared as
well: with ZeRO 0 to 2 and DDP it contains no collective, so its skew shows slow GPUs or uneven
data. With ZeRO 3, FSDP and tensor parallelism ranks wait for each other in it too; only groups of
nodes then show which one is slow (`dsnb.results.answers.hosts`).

Training must change the weights, because a run without gradients is as fast as one that trains. A
sample of each of the optimizer's tensors is compared before the first step and after the last: in
native half precision the fp32 master weights, since the half-precision copies may stay equal while
training proceeds.
"""

import math
import os
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import deepspeed
import torch

from dsnb.base.system import own_memory
from dsnb.measure.record.skew import compare
from dsnb.settings.experiment import Experiment
from dsnb.settings.training import ADAMW

SAMPLED = 4096
"""Number of weights compared per tensor, evenly spaced; they are kept in host memory."""
ROUNDING = 2e-7
"""Relative rounding error of a weight after one update; fp32 has a spacing of 6e-8 to 1.2e-7."""
MASTERS = (
    "fp32_partitioned_groups_flat",  # ZeRO 3
    "single_partition_of_fp32_groups",  # ZeRO 1 and 2
    "fp32_groups_flat_partition",  # BF16_Optimizer
    "fp32_groups_flat",  # FP16_Optimizer: ZeRO 0
    "fp32_groups",  # FP16_UnfusedOptimizer
)
"""Attributes in which the optimizers of DeepSpeed 0.19.8 keep the weights that they update."""


def peaks_of_ranks(gpu_gib: dict[str, float], device: torch.device) -> dict[str, float | None]:
    """Combine the peaks of all ranks; `gpu_gib` has the same names on every rank, and is empty on a CPU.

    `gpu_gib` and `rank_host_memory_gib` are maxima over ranks. `host_memory_gib` is the sum over
    the ranks of the fullest host: an upper bound, since the peaks of ranks need not coincide.
    """
    peak = own_memory.gib("status", "VmHWM")  # since `reset_host_peak`
    # Forked ranks share what the fork server has imported. `Pss` divides each shared page by its
    # number of processes.
    shared = 0.0
    proportional = own_memory.gib("smaps_rollup", "Pss")
    if proportional:
        shared = max(0.0, own_memory.gib("smaps_rollup", "Rss") - proportional)
    host = float(os.environ.get("GROUP_RANK", "0"))
    ranks = _of_ranks([host, peak, max(0.0, peak - shared), *gpu_gib.values()], device)
    by_host: dict[float, float] = defaultdict(float)
    for host, rank_gib in ranks[:, [0, 2]].tolist():
        by_host[host] += rank_gib
    return {
        **dict(zip(gpu_gib, ranks[:, 3:].amax(dim=0).tolist(), strict=True)),
        "host_memory_gib": max(by_host.values()) if peak else None,
        "rank_host_memory_gib": float(ranks[:, 1].max()) if peak else None,
    }


def skew_of_ranks(
    times_s: list[float], forwards_s: list[float], device: torch.device
) -> dict[str, Any]:
    """Compare the times of all ranks' timed steps and first forward passes; `forwards_s` may be empty.

    Skews are medians over steps of (slowest rank / median rank - 1), times of ranks are means.
    `slowest_rank` has the longest forward passes or, if they were not measured, steps. All are None
    for a single rank.
    """
    steps = compare(_of_ranks(times_s, device))
    forwards = compare(_of_ranks(forwards_s, device))
    slowest = steps["slowest"] if forwards["slowest"] is None else forwards["slowest"]
    return {
        "step_skew": steps["skew"],
        "forward_skew": forwards["skew"],
        "rank_step_s": steps["means_s"],
        "rank_forward_s": forwards["means_s"],
        "slowest_rank": slowest,
    }


def _of_ranks(figures: list[float], device: torch.device) -> torch.Tensor:
    """Return every rank's figures, shape (ranks, figures), on the CPU."""
    of_this_rank = torch.tensor(figures, dtype=torch.float64, device=device)
    of_each_rank = [torch.empty_like(of_this_rank) for _ in range(deepspeed.comm.get_world_size())]
    if figures:
        deepspeed.comm.all_gather(of_each_rank, of_this_rank)
    return torch.stack(of_each_rank).cpu()


def mean_of_ranks(losses: torch.Tensor) -> list[float]:
    """Return the losses, shape (steps,), averaged over ranks; called after the timed region."""
    losses = losses.clone()
    deepspeed.comm.all_reduce(losses)
    return [float(loss) for loss in losses / deepspeed.comm.get_world_size()]


def sum_of_ranks(value: float | None, device: torch.device) -> float | None:
    """Return the sum of a figure over all ranks; None if any rank lacks it."""
    total = float(_of_ranks([math.nan if value is None else value], device).sum())
    return total if math.isfinite(total) else None


def max_of_ranks(value: float | None, device: torch.device) -> float | None:
    """Return the maximum of a figure over all ranks; None if it is None on all of them."""
    if value is None:
        return None
    return float(_of_ranks([value], device).max())


class WeightWatch:
    """Compares the weights of DeepSpeed's or torch's optimizer with those at the time of construction."""

    def __init__(self, optimizer: Any) -> None:
        self._tensors = list(_optimized_tensors(optimizer))
        self._before = self._sample()

    def changes(self, experiment: Experiment, updates: int, device: torch.device) -> dict[str, Any]:
        """Return how much the weights changed in a number of updates.

        `update_rms` is the root mean square of the sampled weights' change beyond weight decay, and
        `weights_moved` whether it exceeds rounding errors; None if no rank holds its weights in
        memory (offload to NVMe). Weights in bf16 lose the decay of a step to rounding.
        """
        decay = (1 - experiment.learning_rate * ADAMW["weight_decay"]) ** updates
        if experiment.numbers.state_bytes == 2:
            decay = 1.0
        sums = torch.zeros(3, dtype=torch.float64)
        for before, after in zip(self._before, self._sample(), strict=True):
            changed = after - before * decay
            sums[0] += changed.square().sum()
            sums[1] += after.square().sum()
            sums[2] += len(after)
        changed_squares, squares, count = _of_ranks(sums.tolist(), device).sum(dim=0).tolist()
        if not count:
            return {"update_rms": None, "weights_moved": None}
        update_rms = math.sqrt(changed_squares / count)
        weights_rms = math.sqrt(squares / count)
        moved = not update_rms <= ROUNDING * weights_rms * math.sqrt(updates)
        return {"update_rms": update_rms, "weights_moved": moved}

    def _sample(self) -> list[torch.Tensor]:
        samples = []
        for tensor in self._tensors:
            flat = tensor.detach().flatten()
            samples.append(flat[:: max(1, len(flat) // SAMPLED)][:SAMPLED].to("cpu", torch.float64))
        return samples


def _optimized_tensors(optimizer: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that an optimizer updates on this rank."""
    groups = next(filter(None, (getattr(optimizer, name, None) for name in MASTERS)), None)
    if groups is None:
        inner = getattr(optimizer, "optimizer", optimizer)
        groups = [group["params"] for group in inner.param_groups]
    for group in groups:
        for tensor in group if isinstance(group, list | tuple) else [group]:
            yield tensor.to_local() if hasattr(tensor, "to_local") else tensor
