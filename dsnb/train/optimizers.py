"""Torch's optimizers; those of DeepSpeed are named in its configuration."""

from collections.abc import Iterable
from typing import Any

import torch

from dsnb.settings.experiment import Experiment
from dsnb.settings.training import ADAMW


def make_optimizer(experiment: Experiment, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer for training without DeepSpeed."""
    if experiment.optimizer == "adafactor":
        return torch.optim.Adafactor(parameters, lr=experiment.learning_rate, weight_decay=ADAMW["weight_decay"])
    fused = experiment.device == "cuda"
    return torch.optim.AdamW(parameters, lr=experiment.learning_rate, fused=fused, **ADAMW)


def client_optimizer(experiment: Experiment, parameters: Iterable[torch.nn.Parameter]) -> Any:
    """Return the optimizer to pass to DeepSpeed; None if DeepSpeed builds its own."""
    return make_optimizer(experiment, parameters) if experiment.optimizer == "adafactor" else None
