"""A causal language model together with its loss, as the one module that every strategy trains.

Only the loss leaves it. A compiled model then need not keep its logits as an output (OPT-1.3B, 8 x 2048, on one H200:
40.2 GiB instead of 43.1), and the loss is the same function for every strategy and family.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from dsnb.settings.experiment import Experiment
from dsnb.train import chunked_loss
from dsnb.train.chunked_loss import IGNORED


class CausalLoss(nn.Module):
    """Returns the loss of a batch.

    Parameters
    ----------
    model
        A causal language model of transformers, or peft's wrapper of one.
    chunked
        Whether to compute the logits in chunks of tokens: they are never in memory as a whole.

    Attributes
    ----------
    config
        The configuration of the model.
    is_compiled
        Whether the computation is compiled.
    """

    def __init__(self, model: Any, chunked: bool = False) -> None:
        super().__init__()
        self.model, self.config, self.chunked = model, model.config, chunked
        self._compute = self._in_chunks if chunked else self._whole
        self._loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
        self._loss = chunked_loss.differentiate if chunked else causal_loss
        self.is_compiled = False

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the mean loss, shape (), of token ids of shape (batch, length)."""
        return self._compute(ids)

    def compile_inside(self, **how: Any) -> None:
        """Compile the computation, but none of the hooks of this module: an engine's would break the graph."""
        if self.chunked:
            self._hidden = torch.compile(self._hidden, **how)  # type: ignore[method-assign]
            self.compile_loss()  # not by `how`: a chunk's logits are overwritten, which CUDA graphs do not replay
        else:
            self._compute, self.is_compiled = torch.compile(self._compute, **how), True

    def compile_loss(self, **how: Any) -> None:
        """Compile the loss alone, of whole logits or of a chunk, for a strategy that compiles block by block."""
        self._loss, self.is_compiled = torch.compile(self._loss, **how), True

    def _whole(self, ids: torch.Tensor) -> torch.Tensor:
        return self._loss(self.model(input_ids=ids).logits, ids)

    def _hidden(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the input of the output layer, shape (tokens, width)."""
        hidden: torch.Tensor = self._causal_model().base_model(input_ids=ids).last_hidden_state
        return hidden.flatten(0, 1)

    def _in_chunks(self, ids: torch.Tensor) -> torch.Tensor:
        """Let the output layer return the loss, so that whatever gathers its weights sees it called.

        From then on it returns no logits. It is told so at each call: an engine may have replaced the layer.
        """
        layer = self._causal_model().get_output_embeddings()
        layer.forward = functools.partial(chunked_loss.sum_of_losses, layer, loss_and_gradient=self._loss)
        return layer(self._hidden(ids), next_tokens(ids).flatten()) / (len(ids) * (ids.shape[1] - 1))

    def _causal_model(self) -> Any:
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model


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
    return F.pad(ids[:, 1:], (0, 1), value=IGNORED)
