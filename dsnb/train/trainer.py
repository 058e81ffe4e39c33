"""What the worker drives: a model with its optimizer, whatever shares out the work among the ranks."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

Section = Callable[[str], AbstractContextManager[Any]]
"""Marks a part of a step: `forward`, `backward`, `communication` or `optimizer`."""


def no_section(name: str) -> AbstractContextManager[None]:
    """Mark nothing: the timed steps are not to be disturbed."""
    return nullcontext()


class Trainer(Protocol):
    """A model with its optimizer, ready to train.

    Attributes
    ----------
    config
        transformers' configuration of the whole model.
    parameters, trainable_parameters
        Counts over all ranks that share the model, tied ones once.
    section
        Marks the parts of a step while one is profiled.
    module
        The model as this rank has it, for DeepSpeed's flops profiler.
    optimizer
        What updates the weights, DeepSpeed's or torch's.
    block_parameters
        Those of the transformer blocks among `parameters`.
    """

    config: Any
    module: torch.nn.Module
    optimizer: Any
    parameters: int
    trainable_parameters: int
    block_parameters: int
    section: Section

    def step(self, micro_batches: Sequence[torch.Tensor]) -> tuple[torch.Tensor, bool]:
        """Train one optimizer step.

        Parameters
        ----------
        micro_batches
            Token ids, int64, each of shape (micro_batch_size, seq_len), on this rank's device.

        Returns
        -------
        tuple
            The mean loss over the micro-batches, shape (), still on the device, and whether the update was skipped.
        """

    def grad_norm(self) -> torch.Tensor | float | None:
        """Return the norm of the last step's gradients if the engine computed it; a tensor may be on the device."""

    def describe(self) -> dict[str, Any]:
        """Name what was really built, for the record."""
