"""Whether training changes the weights: a run whose gradients never arrive is as fast as one that trains.

The optimizer's own tensors are compared before the first step and after the last one, a sample of each. For native half
precision these are the fp32 master weights: the half-precision copies may stay the same although training goes on.
"""

import math
from collections.abc import Iterator
from typing import Any

import deepspeed
import torch

SAMPLED = 4096
"""Weights of each tensor that are compared, evenly spread over it; kept in host memory."""
ROUNDING = 2e-7
"""Relative error of a weight after one update in fp32, which has steps of 6e-8 to 1.2e-7."""
MASTERS = (
    "fp32_partitioned_groups_flat",  # ZeRO 3
    "single_partition_of_fp32_groups",  # ZeRO 1 and 2
    "fp32_groups_flat_partition",  # BF16_Optimizer
    "fp32_groups_flat",  # FP16_Optimizer: ZeRO 0
    "fp32_groups",  # FP16_UnfusedOptimizer
)
"""Where DeepSpeed 0.19.8's optimizers keep what they update."""


class WeightWatch:
    """Compares an optimizer's weights with what they were when it was made.

    Parameters
    ----------
    optimizer
        DeepSpeed's or torch's.
    """

    def __init__(self, optimizer: Any) -> None:
        self._tensors = list(optimized_tensors(optimizer))
        self._before = self._sample()

    def update_rms(self, decay: float, device: torch.device) -> tuple[float | None, float]:
        """Return how far the weights of all ranks moved; all ranks must call this.

        Parameters
        ----------
        decay
            What weight decay alone has multiplied each weight by, which is no training.
        device
            Where the ranks' collectives work.

        Returns
        -------
        tuple
            Root mean square over the sampled weights of their change beyond weight decay, None where no rank has its
            weights at hand (offload to NVMe), and of the weights themselves.
        """
        sums = torch.zeros(3, dtype=torch.float64)
        for before, after in zip(self._before, self._sample(), strict=True):
            changed = after - before * decay
            sums += torch.stack([changed.square().sum(), after.square().sum(), torch.tensor(float(len(after)))])
        sums = sums.to(device)
        deepspeed.comm.all_reduce(sums)
        changed_squares, squares, count = sums.tolist()
        if not count:
            return None, math.nan
        return math.sqrt(changed_squares / count), math.sqrt(squares / count)

    def _sample(self) -> list[torch.Tensor]:
        samples = []
        for tensor in self._tensors:
            flat = tensor.detach().flatten()
            samples.append(flat[:: max(1, len(flat) // SAMPLED)][:SAMPLED].to("cpu", torch.float64))
        return samples


def is_unmoved(update_rms: float, weights_rms: float, updates: int) -> bool:
    """Check whether weights moved by no more than rounding does over so many updates."""
    return update_rms <= ROUNDING * weights_rms * math.sqrt(updates)


def optimized_tensors(optimizer: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that an optimizer updates on this rank."""
    held = next((getattr(optimizer, name) for name in MASTERS if getattr(optimizer, name, None)), None)
    if held is None:
        inner = getattr(optimizer, "optimizer", optimizer)
        held = [group["params"] for group in inner.param_groups]
    for tensor in (tensor for group in held for tensor in (group if isinstance(group, list | tuple) else [group])):
        yield tensor.to_local() if hasattr(tensor, "to_local") else tensor
