"""Checks that training changes the weights: a run without gradients is as fast as one that trains.

A sample of each of the optimizer's tensors is compared before the first step and after the last. In native half
precision these are the fp32 master weights: the half-precision copies may stay equal while training proceeds.
"""

import math
from collections.abc import Iterator
from typing import Any

import deepspeed
import torch

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


class WeightWatch:
    """Compares an optimizer's weights with those at the time of construction.

    Parameters
    ----------
    optimizer
        DeepSpeed's or torch's.
    """

    def __init__(self, optimizer: Any) -> None:
        self._tensors = list(optimized_tensors(optimizer))
        self._before = self._sample()

    def changes(self, experiment: Experiment, updates: int, device: torch.device) -> dict[str, Any]:
        """Return how much the weights changed, over all ranks; every rank must call this.

        Parameters
        ----------
        updates
            Number of optimizer steps that were not skipped.
        device
            The device of the collectives.

        Returns
        -------
        dict
            `update_rms`, the root mean square of the sampled weights' change beyond weight decay, and `weights_moved`,
            whether it is more than rounding errors; None if no rank holds its weights in memory (offload to NVMe).
        """
        decay = (1 - experiment.learning_rate * ADAMW["weight_decay"]) ** updates
        sums = torch.zeros(3, dtype=torch.float64)
        for before, after in zip(self._before, self._sample(), strict=True):
            changed = after - before * decay
            sums += torch.stack([changed.square().sum(), after.square().sum(), torch.tensor(float(len(after)))])
        sums = sums.to(device)
        deepspeed.comm.all_reduce(sums)
        changed_squares, squares, count = sums.tolist()
        if not count:
            return {"update_rms": None, "weights_moved": None}
        update_rms, weights_rms = math.sqrt(changed_squares / count), math.sqrt(squares / count)
        return {
            "update_rms": update_rms,
            "weights_moved": not update_rms <= ROUNDING * weights_rms * math.sqrt(updates),
        }

    def _sample(self) -> list[torch.Tensor]:
        samples = []
        for tensor in self._tensors:
            flat = tensor.detach().flatten()
            samples.append(flat[:: max(1, len(flat) // SAMPLED)][:SAMPLED].to("cpu", torch.float64))
        return samples


def optimized_tensors(optimizer: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that an optimizer updates on this rank."""
    held = next((getattr(optimizer, name) for name in MASTERS if getattr(optimizer, name, None)), None)
    if held is None:
        inner = getattr(optimizer, "optimizer", optimizer)
        held = [group["params"] for group in inner.param_groups]
    for tensor in (tensor for group in held for tensor in (group if isinstance(group, list | tuple) else [group])):
        yield tensor.to_local() if hasattr(tensor, "to_local") else tensor
