"""A causal language model together with its loss, as the one module that every strategy trains.

Only the loss leaves it. A compiled model then need not keep its logits as an output (OPT-1.3B, 8 x 2048, on one H200:
40.2 GiB instead of 43.1), and the loss is the same function for every strategy and family.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from dsnb.settings.experiment import Experiment

CHUNK_BYTES = 2**28
"""Approximate size of one chunk's fp32 logits."""


class CausalLoss(nn.Module):
    """Returns the loss of a batch.

    Parameters
    ----------
    model
        A causal language model of transformers, or peft's wrapper of one.
    chunked
        Whether to compute the logits in chunks of tokens, twice: they are never in memory as a whole.

    Attributes
    ----------
    config
        The configuration of the model.
    is_compiled
        Whether the computation is compiled.
    """

    def __init__(self, model: Any, chunked: bool = False) -> None:
        super().__init__()
        self.model, self.config = model, model.config
        self._compute = self._chunked if chunked else self._whole
        self._loss = causal_loss
        self.is_compiled = False

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the mean loss, shape (), of token ids of shape (batch, length)."""
        return self._compute(ids)

    def compile_inside(self, **how: Any) -> None:
        """Compile the computation, but none of the hooks of this module: an engine's would break the graph."""
        self._compute, self.is_compiled = torch.compile(self._compute, **how), True

    def compile_loss(self, **how: Any) -> None:
        """Compile the loss of whole logits alone, for a strategy that compiles block by block."""
        self._loss, self.is_compiled = torch.compile(self._loss, **how), True

    def _whole(self, ids: torch.Tensor) -> torch.Tensor:
        return self._loss(self.model(input_ids=ids).logits, ids)

    def _chunked(self, ids: torch.Tensor) -> torch.Tensor:
        """Sum the loss over chunks of tokens; the backward pass computes each chunk's logits again."""
        model = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        hidden = model.base_model(input_ids=ids).last_hidden_state.flatten(0, 1)
        head, targets = model.get_output_embeddings(), next_tokens(ids).flatten()
        rows = max(1, CHUNK_BYTES // (4 * self.config.vocab_size))
        sums = [
            checkpoint(_sum_of_losses, head, *part, use_reentrant=False)
            for part in zip(hidden.split(rows), targets.split(rows), strict=True)
        ]
        return torch.stack(sums).sum() / (len(ids) * (ids.shape[1] - 1))


def with_loss(experiment: Experiment, model: Any) -> CausalLoss:
    """Return a model with the loss that the settings ask for."""
    return CausalLoss(model, chunked=experiment.loss == "chunked")


def causal_loss(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of the next token, shape (), computed in fp32.

    The targets are shifted, not the logits, which would be copied; the last position has no target.

    Parameters
    ----------
    logits
        Shape (batch, length, vocabulary).
    ids
        Token ids, shape (batch, length).
    """
    return F.cross_entropy(logits.flatten(0, 1).float(), next_tokens(ids).flatten())


def next_tokens(ids: torch.Tensor) -> torch.Tensor:
    """Return the target of each position, shape (batch, length); the last ones are ignored by the cross-entropy."""
    return F.pad(ids[:, 1:], (0, 1), value=-100)


def _sum_of_losses(head: nn.Module, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(head(hidden).float(), targets, reduction="sum")
