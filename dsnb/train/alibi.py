"""Fused attention for BLOOM, for which transformers has eager attention only: ALiBi becomes the mask of torch's SDPA.

The causal scores of a head are q k / sqrt(d) + slope x key position. Softmax is invariant to a shift of a row, so
slope x (key position - query position) is equivalent, and serves as the mask of `scaled_dot_product_attention`: in half
precision the small distances of near keys keep digits that positions in the hundreds lose. The mask is computed once
per sequence length and shared by all blocks. Batches must have no padding, as dsnb's have.
"""

import types
from typing import Any

import torch
from torch.nn import functional as F

NAME = "sdpa with ALiBi"


def use_fused_attention(model: Any) -> None:
    """Replace the forward pass of every attention layer of a BLOOM model by the fused one."""
    masks: dict[tuple[int, int, torch.dtype], torch.Tensor] = {}
    for block in model.transformer.h:
        attention = block.self_attention
        attention.alibi_masks = masks
        attention.forward = types.MethodType(_forward, attention)
    model.config._attn_implementation_internal = NAME


def _forward(
    self: Any,
    hidden_states: torch.Tensor,
    residual: torch.Tensor,
    alibi: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    query, key, value = self._reshape(self.query_key_value(hidden_states))
    mask = _mask(self.alibi_masks, alibi, query)
    dropout = self.attention_dropout.p if self.training else 0.0
    context = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, scale=self.inv_norm_factor
    )
    output = self.dense(context.transpose(1, 2).flatten(2))
    return residual + F.dropout(output, self.hidden_dropout, self.training), None


def _mask(masks: dict[Any, torch.Tensor], alibi: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Return the mask, shape (1, heads, length, length), in the dtype of the query."""
    _, heads, length, _ = query.shape
    kind = (heads, length, query.dtype)
    if kind not in masks:
        slopes = alibi.detach()[:heads].view(1, heads, 1, length)[..., 1:2].float()  # the second position is 1
        position = torch.arange(length, device=query.device)
        distance = position - position[:, None]
        masks[kind] = (slopes * distance).masked_fill(distance > 0, float("-inf")).to(query.dtype)
    return masks[kind]
