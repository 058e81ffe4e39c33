"""Fused attention for BLOOM, which transformers computes in plain steps only: ALiBi becomes the mask of torch's SDPA.

The scores of a head are q k / sqrt(d) + slope x key position, and causal. Softmax does not change when a row is
shifted, so slope x (key position - query position) gives the same, and is the mask of `scaled_dot_product_attention`
here: in half precision near keys, whose distances are small, keep digits that positions in the hundreds lose. It is
made once a sequence length and shared by all blocks. Batches are without padding, as all of dsnb's are.
"""

import types
from typing import Any

import torch
from torch.nn import functional as F

NAME = "sdpa with ALiBi"


def use_fused_attention(model: Any) -> None:
    """Return every attention layer of a BLOOM model the fused forward pass."""
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
    """Return the mask of shape (1, heads, length, length) in the query's number format."""
    _, heads, length, _ = query.shape
    kind = (heads, length, query.dtype)
    if kind not in masks:
        slopes = alibi.detach()[:heads].view(1, heads, 1, length)[..., 1:2].float()  # the second position is 1
        position = torch.arange(length, device=query.device)
        distance = position - position[:, None]
        masks[kind] = (slopes * distance).masked_fill(distance > 0, float("-inf")).to(query.dtype)
    return masks[kind]
