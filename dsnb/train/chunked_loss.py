"""The loss of a large vocabulary without its logits, which are in memory a chunk of tokens at a time.

The gradients are computed with each chunk's logits, so nothing is computed twice: the backward pass only scales them.
Only what is between the products is compiled, a graph of its own: in the model's, the compiler kept the gradients of
many chunks at once (BLOOM-560M, 8 x 1024, one H200: 24.2 GiB and 92 ms a step; with whole logits 18.5 GiB and 70 ms).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from dsnb.settings.training import CHUNK_TOKENS

ALIGNED = 8
"""Products of half precision are slow on GPUs if a width is no multiple of this (GPT-2's vocabulary: 50,257)."""
IGNORED = -100
"""Target of a token that has none."""

Differentiate = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def aligned(vocab: int) -> int:
    """Return the number of columns that logits are computed with."""
    return -(-vocab // ALIGNED) * ALIGNED


def chunk_tokens(tokens: int) -> int:
    """Return the number of tokens of a chunk of a micro-batch: all but the last are equally large."""
    return -(-tokens // -(-tokens // CHUNK_TOKENS))


def differentiate(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the sum of cross-entropies, shape (), computed in fp32, and overwrite the logits with its gradient.

    Parameters
    ----------
    logits
        Shape (tokens, columns).
    targets
        Shape (tokens,). A token whose target is `IGNORED` has no loss, but its gradient is not 0.
    """
    logs = F.log_softmax(logits, dim=1, dtype=torch.float32)
    wanted = targets.clamp(min=0)[:, None]
    losses = torch.where(targets == IGNORED, 0.0, -logs.gather(1, wanted).squeeze(1))
    if torch.compiler.is_compiling():  # a comparison is fused with the rest, a scatter is not
        shares = logs.exp() - (torch.arange(logits.shape[1], device=logits.device) == wanted).float()
    else:
        shares = logs.exp_().scatter_add_(1, wanted, -torch.ones_like(wanted, dtype=torch.float32))
    logits.copy_(shares)
    return losses.sum()


class _SumOfLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, loss_and_gradient: Differentiate
    ) -> torch.Tensor:
        kind, vocab = hidden.device.type, len(weight)
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        columns, rows, ignored = aligned(vocab), chunk_tokens(len(hidden)), (targets == IGNORED)[:, None]
        with torch.autocast(kind, enabled=False):
            weights = weight.detach().to(dtype)
            weights = F.pad(weights, (0, 0, 0, columns - vocab)) if columns > vocab else weights
            states = hidden.detach().to(dtype).masked_fill(ignored, 0)  # so they add nothing to the weight's gradient
            by_hidden, logits = torch.empty_like(states), weights.new_empty(rows, columns)
            by_weight = torch.zeros_like(weights, dtype=torch.float32) if weight.requires_grad else None
            total = torch.zeros((), device=hidden.device)
            for state, target, gradient in zip(*(one.split(rows) for one in (states, targets, by_hidden)), strict=True):
                values = torch.mm(state, weights.T, out=logits[: len(state)])
                values[:, vocab:] = -torch.inf
                total += loss_and_gradient(values, target)
                torch.ops.aten.mm.out(values, weights, out=gradient)
                if by_weight is not None:
                    _add_product(by_weight, values.T, state)
        ctx.save_for_backward(by_hidden.masked_fill_(ignored, 0), by_weight)
        ctx.dtypes, ctx.vocab = (hidden.dtype, weight.dtype), vocab
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        by_hidden, by_weight = ctx.saved_tensors
        of_hidden, of_weight = ctx.dtypes
        if by_weight is not None:
            by_weight = by_weight[: ctx.vocab].mul_(gradient).to(of_weight)
        return (by_hidden * gradient).to(of_hidden), by_weight, None, None


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add a product to a sum in fp32: unscaled, half precision would overflow, and round once for each chunk."""
    if total.dtype == left.dtype:
        torch.ops.aten.addmm.out(total, left, right, out=total)
    elif total.is_cuda:
        torch.ops.aten.addmm.dtype_out(total, left, right, total.dtype, out=total)
    else:
        total += torch.ops.aten.mm(left, right)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def sum_of_losses(
    layer: nn.Linear, hidden: torch.Tensor, targets: torch.Tensor, loss_and_gradient: Differentiate = differentiate
) -> torch.Tensor:
    """Return the sum of the cross-entropies of tokens, shape (), without all of their logits.

    Parameters
    ----------
    layer
        The output layer; without a bias.
    hidden
        Its input, shape (tokens, width).
    targets
        Shape (tokens,); `IGNORED` where there is none.
    loss_and_gradient
        `differentiate`, or the same compiled.
    """
    found: torch.Tensor = _SumOfLosses.apply(hidden, layer.weight, targets, loss_and_gradient)  # type: ignore[no-untyped-call]
    return found
