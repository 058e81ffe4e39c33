"""What the worker sees of every strategy: a model with its optimizer."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from dsnb.settings.experiment import Experiment
from dsnb.train.model_parts import count_parameters

Section = Callable[[str], AbstractContextManager[Any]]
"""Marks a part of a step: `forward`, `backward`, `communication` or `optimizer`."""


def no_section(name: str) -> AbstractContextManager[None]:
    """Mark nothing, so that the timed steps are not disturbed."""
    return nullcontext()


class Trainer:
    """A model with its optimizer, ready to train.

    Parameters
    ----------
    model
        A causal language model of transformers, or peft's wrapper of one.

    Attributes
    ----------
    config
        Transformers' configuration of the whole model.
    parameters, trainable_parameters, block_parameters
        Counts over all ranks that share the model; tied parameters count once.
    section
        Marks the parts of a step.
    module
        The model as this rank has it.
    optimizer
        The optimizer, DeepSpeed's or torch's.
    """

    module: torch.nn.Module
    optimizer: Any

    def __init__(self, experiment: Experiment, model: Any) -> None:
        self.experiment, self.config = experiment, model.config
        self.parameters, self.trainable_parameters, self.block_parameters = count_parameters(model)
        self.section: Section = no_section

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
        raise NotImplementedError

    def grad_norm(self) -> torch.Tensor | float | None:
        """Return the gradient norm of the last step if it was computed; a tensor may be on the device."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Return what was actually built, for the record."""
        raise NotImplementedError
