"""The interface of all strategies to the worker: a model with its optimizer."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from dsnb.settings.experiment import Experiment
from dsnb.settings.training import ADAMW

Section = Callable[[str], AbstractContextManager[Any]]
"""Marks a part of a step: `forward`, `backward`, `communication` or `optimizer`."""
Batches = Callable[[], Sequence[torch.Tensor]]
"""Returns the micro-batches of the next step."""


def no_section(name: str) -> AbstractContextManager[None]:
    """Mark nothing, so that the timed steps are not disturbed."""
    return nullcontext()


class Trainer(Protocol):
    """A model with its optimizer, ready to train.

    Attributes
    ----------
    config
        Transformers' configuration of the whole model.
    parameters, trainable_parameters
        Counts over all ranks that share the model; tied parameters count once.
    section
        Marks the parts of a step.
    module
        The model as this rank has it.
    optimizer
        The optimizer, DeepSpeed's or torch's.
    block_parameters
        Count of the parameters in transformer blocks.
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
        """Return the gradient norm of the last step if the engine computed it; a tensor may be on the device."""

    def describe(self) -> dict[str, Any]:
        """Return what was actually built, for the record."""


def make_optimizer(experiment: Experiment, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer for training without DeepSpeed."""
    if experiment.optimizer == "adafactor":
        return torch.optim.Adafactor(parameters, lr=experiment.learning_rate, weight_decay=ADAMW["weight_decay"])
    fused = experiment.device == "cuda"
    return torch.optim.AdamW(parameters, lr=experiment.learning_rate, fused=fused, **ADAMW)


def client_optimizer(experiment: Experiment, parameters: Iterable[torch.nn.Parameter]) -> Any:
    """Return the optimizer to pass to DeepSpeed; None if DeepSpeed builds its own."""
    return make_optimizer(experiment, parameters) if experiment.optimizer == "adafactor" else None
