"""The loss of a large vocabulary without its logits, which are in memory a chunk of tokens at a time.

The gradients are computed with each chunk's logits, so nothing is computed twice: the backward pass only scales them.
All of it is outside of compiled graphs but what is between the products. In a graph, the compiler kept the gradients of
many chunks at once (BLOOM-560M, 8 x 1024, on one H200: 24.2 GiB and 92 ms a step, 18.5 GiB and 70 ms with whole logits).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

CHUNK_BYTES = 2**29
"""The most bytes of one chunk's logits in fp32. The output layer's gradient is read and written once for each chunk, so
few tokens a chunk cost time: 512 of them, as for BLOOM, by data sheets about half of the layer's own under autocast."""
ALIGNED = 8
"""Products of half precision are slow on GPUs if a width is no multiple of this (GPT-2's vocabulary: 50,257)."""
IGNORED = -100
"""Target of a token that has none."""

Differentiate = Callable[[torch.Tensor, torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]


def chunk_rows(vocab: int) -> int:
    """Return the number of tokens whose logits are computed at once: a power of two, which divides most batches."""
    return 1 << (max(1, CHUNK_BYTES // (4 * vocab)).bit_length() - 1)


def aligned(vocab: int) -> int:
    """Return the number of columns that logits are computed with."""
    return -(-vocab // ALIGNED) * ALIGNED


def differentiate(logits: torch.Tensor, targets: torch.Tensor, vocab: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum of cross-entropies, shape (), computed in fp32, and its gradient by the logits.

    Parameters
    ----------
    logits
        Shape (tokens, columns); they are overwritten where they are fp32.
    targets
        Shape (tokens,); `IGNORED` where there is none.
    vocab
        Number of columns that count; the others get no gradient.
    """
    values = logits.float()
    values[:, vocab:] = -torch.inf
    total = torch.logsumexp(values, dim=1, keepdim=True)
    wanted, columns = targets[:, None], torch.arange(values.shape[1], device=values.device)
    losses = torch.where(wanted == IGNORED, 0.0, total - values.gather(1, wanted.clamp(min=0)))
    shares = values.sub_(torch.where(wanted == IGNORED, torch.inf, total)).exp_()
    return losses.sum(), shares.sub_((columns == wanted).byte()).to(logits.dtype)


class _SumOfLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, slope_of: Differentiate
    ) -> torch.Tensor:
        kind, vocab = hidden.device.type, len(weight)
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        with torch.autocast(kind, enabled=False):
            own, states = weight.detach().to(dtype), hidden.detach().to(dtype)
            if aligned(vocab) > vocab:
                own = F.pad(own, (0, 0, 0, aligned(vocab) - vocab))
            by_hidden = torch.empty_like(states)
            by_weight = torch.zeros_like(own, dtype=weight.dtype) if weight.requires_grad else None
            total = torch.zeros((), device=hidden.device)
            rows = chunk_rows(vocab)
            for state, target, slope in zip(*(one.split(rows) for one in (states, targets, by_hidden)), strict=True):
                loss, by_logits = slope_of(state @ own.T, target, vocab)
                total += loss
                torch.mm(by_logits, own, out=slope)
                if by_weight is not None:
                    _add_product(by_weight, by_logits.T, state)
        ctx.save_for_backward(by_hidden, by_weight)
        ctx.hidden_dtype, ctx.vocab = hidden.dtype, vocab
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        by_hidden, by_weight = ctx.saved_tensors
        own = None if by_weight is None else by_weight.mul_(gradient)[: ctx.vocab]
        return (by_hidden * gradient).to(ctx.hidden_dtype), own, None, None


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


@torch.compiler.disable
def sum_of_losses(
    layer: nn.Linear, hidden: torch.Tensor, targets: torch.Tensor, slope_of: Differentiate = differentiate
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
    slope_of
        `differentiate`, or the same compiled.
    """
    found: torch.Tensor = _SumOfLosses.apply(hidden, layer.weight, targets, slope_of)  # type: ignore[no-untyped-call]
    return found
