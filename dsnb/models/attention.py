"""Fused causal attention where transformers has none, and a record of the kernel that computes it.

transformers passes a dense mask to torch's fused attention whenever a compiler traces the model,
since it cannot see then whether sequences are padded or packed. A mask rules out the flash kernel,
and the masked half of the square is computed as well (OLMo-2 1B, 8 x 2048, bf16, compiled, on one
H100: 56 ms of attention a step instead of 18). dsnb's sequences are whole, so where a model asks for
plainly causal attention none is made: `mask_beyond_causal` decides by what is asked for.

For BLOOM transformers has eager attention only. Here ALiBi becomes the mask of torch's SDPA, or, in
a model compiled for a GPU, a score modification of FlexAttention, which leaves out the masked half
(BLOOM-560M, 8 x 512, bf16, compiled, on one H200: 37.9 ms a step instead of 38.9, and 45.0 with
transformers' eager attention). The causal scores of a head are q k / sqrt(d) + slope x key
position. Softmax is invariant to a shift of a row, so slope x (key position - query position) is
equivalent. In half precision the small distances of near keys keep digits that positions in the
hundreds lose.
"""

import re
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch  # replaces functions of libraries temporarily

import torch
from torch import Tensor
from torch.autograd.profiler import profile
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers import AttentionInterface, AttentionMaskInterface, masking_utils
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from dsnb.settings.records.columns import MASKED, PARTLY_MASKED

CAUSAL = "causal_sdpa"
"""The name under which transformers finds torch's fused attention with masks only where they are needed."""
ALIBI_NAME = "sdpa with ALiBi"
FLEX_NAME = "flex with ALiBi"
_OPERATOR = re.compile(
    r"aten::_scaled_dot_product_(?:fused_)?(cudnn|flash|efficient)_?attention(_for_cpu)?$"
)
_MATH = {"aten::_scaled_dot_product_attention_math", "aten::_safe_softmax", "aten::_softmax"}


def mask_beyond_causal(
    *,
    q_length: int,
    kv_length: int,
    allow_is_causal_skip: bool = False,
    local_size: int | None = None,
    **asked: Any,
) -> Tensor | None:
    """Return the mask that a model asks for, or None if it is that of causal attention, for transformers.

    `allow_is_causal_skip` says that only a window, `local_size`, may be added to causality. With
    fewer queries than keys, as in generation with a cache, transformers decides.
    """
    sees_all = local_size is None or local_size >= kv_length
    is_whole = q_length == kv_length and asked.get("attention_mask") is None
    if allow_is_causal_skip and sees_all and is_whole:
        return None
    return sdpa_mask(
        q_length=q_length,
        kv_length=kv_length,
        local_size=local_size,
        allow_is_causal_skip=allow_is_causal_skip,
        **asked,
    )


AttentionInterface.register(CAUSAL, sdpa_attention_forward)
AttentionMaskInterface.register(CAUSAL, mask_beyond_causal)


@contextmanager
def whole_sequences() -> Iterator[None]:
    """Let transformers know that no sequences are packed in a row, which a compiler cannot see."""
    with patch.object(masking_utils, "find_packed_sequence_indices", _none_packed):
        yield


def _none_packed(*_: Any, **__: Any) -> None:
    """Say that no sequences are packed; the same function at each call, or graphs would be compiled again."""


def fastest(config: Any, model_class: type) -> str:
    """Return the name of the fastest attention that computes what a model's configuration asks for.

    transformers has no soft cap of scores, as in Gemma 2, in its fused attention. A few models,
    such as Falcon, choose among classes of their own instead of looking attention up by its name.
    """
    if getattr(config, "attn_logit_softcapping", None):
        return "eager"
    code = sys.modules[model_class.__module__]
    return CAUSAL if hasattr(code, "ALL_ATTENTION_FUNCTIONS") else "sdpa"


def use_fused_alibi(model: Any, flex_length: int = 0) -> None:
    """Replace the forward pass of every attention layer of a BLOOM model by a fused one.

    `flex_length` is the length of all sequences if FlexAttention is to compute it, 0 for torch's
    SDPA.
    """
    masks: dict[tuple[int, int, torch.dtype], Tensor] = {}
    if flex_length:
        heads = model.config.n_head
        two = torch.ones(1, 2, device=model.device, dtype=torch.long)
        slopes = _slopes(model.transformer.build_alibi_tensor(two, heads, torch.float32), heads)
        blocks = _causal_blocks(flex_length, model.device)
    for block in model.transformer.h:
        attention = block.self_attention
        attention.alibi_masks = masks
        if flex_length:
            attention.causal_blocks = blocks
            attention.slopes = slopes
        attention.attend = types.MethodType(_flex if flex_length else _sdpa, attention)
        attention.forward = types.MethodType(_forward, attention)
    model.config._attn_implementation_internal = FLEX_NAME if flex_length else ALIBI_NAME


def _causal_blocks(length: int, device: torch.device) -> BlockMask:
    def is_causal(batch: Any, head: Any, query: Tensor, key: Tensor) -> Tensor:
        return query >= key

    return create_block_mask(is_causal, None, None, length, length, device=str(device))


def _forward(
    self: Any,
    hidden_states: Tensor,
    residual: Tensor,
    alibi: Tensor,
    attention_mask: Tensor | None,
    **_: Any,
) -> tuple[Tensor, None]:
    query, key, value = self._reshape(self.query_key_value(hidden_states))
    output = self.dense(self.attend(query, key, value, alibi).transpose(1, 2).flatten(2))
    return residual + F.dropout(output, self.hidden_dropout, self.training), None


def _sdpa(self: Any, query: Tensor, key: Tensor, value: Tensor, alibi: Tensor) -> Tensor:
    mask = _mask(self.alibi_masks, alibi, query)
    dropout = self.attention_dropout.p if self.training else 0.0
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, scale=self.inv_norm_factor
    )


def _flex(self: Any, query: Tensor, key: Tensor, value: Tensor, alibi: Tensor) -> Any:
    def add_alibi(score: Tensor, batch: Any, head: Any, query: Tensor, key: Tensor) -> Tensor:
        return score + self.slopes[head] * (key - query)

    return flex_attention(
        query,
        key,
        value,
        score_mod=add_alibi,
        block_mask=self.causal_blocks,
        scale=self.inv_norm_factor,
    )


def _mask(masks: dict[Any, Tensor], alibi: Tensor, query: Tensor) -> Tensor:
    """Return the mask, shape (1, heads, length, length), in the dtype of the query; all layers share one in `masks`."""
    _, heads, length, _ = query.shape
    key = (heads, length, query.dtype)
    # A compiler sees by itself that the layers' masks are equal, and filling a cache breaks its
    # graph.
    is_compiling = torch.compiler.is_compiling()
    if not is_compiling and key in masks:
        return masks[key]
    position = torch.arange(length, device=query.device)
    distance = position - position[:, None]
    bias = _slopes(alibi, heads)[None, :, None, None] * distance
    mask = bias.masked_fill(distance > 0, float("-inf")).to(query.dtype)
    if not is_compiling:
        masks[key] = mask
    return mask


def _slopes(alibi: Tensor, heads: int) -> Tensor:
    """Return the slope of each head, shape (heads,), from an ALiBi tensor: its value at position 1."""
    return alibi.detach()[:heads, 0, 1].float()


class KernelWatch:
    """Detects which attention kernel runs in a step."""

    def __init__(self, flex: bool = False) -> None:
        self.kernel: str | None = "flex" if flex else None
        """`cudnn`, `flash`, `efficient`, `flex` or `math` (unfused), and whether it was given a mask;
        None if no step was watched or had attention."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the operators that are called; only the host is traced, which does not slow a GPU down."""
        if self.kernel:
            yield
            return
        with profile(use_device=None, use_kineto=False, record_shapes=True) as recorded:
            yield
        # The raw events: building the profiler's tree of them takes longer than the step.
        events = recorded.kineto_results.events()
        self.kernel = kernel_of((event.name(), event.shapes()) for event in events)


def kernel_of(operators: Iterable[tuple[str, Sequence[Any]]]) -> str | None:
    """Return the attention kernel among operators, given as their names and the shapes of their inputs.

    A fused kernel takes precedence over a softmax. Its only input besides queries, keys and values
    that is a tensor is a mask.
    """
    given: dict[str, list[bool]] = {}
    is_unfused = False
    for name, shapes in operators:
        fused = _OPERATOR.match(name)
        if fused:
            given.setdefault(fused[1], []).append(any(shapes[3:]))
        is_unfused = is_unfused or name in _MATH
    if not given:
        return "math" if is_unfused else None
    kernel = min(given)
    if all(given[kernel]):
        return kernel + MASKED
    return kernel + PARTLY_MASKED if any(given[kernel]) else kernel
