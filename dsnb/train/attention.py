"""Causal attention without a mask, and a record of the kernel that computes it.

transformers passes a dense mask to torch's fused attention whenever a compiler traces the model (5.17), which costs the
masked half of the square and the flash kernel. dsnb's batches have no padding: `is_causal` says all of it.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.profiler import profile
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

CAUSAL = "causal_sdpa"
"""The name under which transformers finds the attention of this module."""
MASKLESS = {"gpt2", "opt"}
"""Families whose attention is causal and nothing else: no sliding window, no bias, no packed sequences."""
FLEX = "flex"
_OPERATOR = re.compile(r"aten::_scaled_dot_product_(?:fused_)?(cudnn|flash|efficient)_?attention(_for_cpu)?$")
_MATH = {"aten::_scaled_dot_product_attention_math", "aten::_safe_softmax", "aten::_softmax"}


def causal_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Compute causal attention for transformers; queries, keys and values are (batch, heads, length, head size)."""
    return sdpa_attention_forward(module, query, key, value, None, **{**options, "is_causal": True})


AttentionInterface.register(CAUSAL, causal_attention)


class KernelWatch:
    """Finds out which attention kernel runs in a step.

    Attributes
    ----------
    kernel
        `cudnn`, `flash`, `efficient`, `flex` or `math` (the unfused one); None if nothing was watched or found.
    """

    def __init__(self, flex: bool = False) -> None:
        self.kernel: str | None = FLEX if flex else None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the operators that are called; only the host is traced, which leaves no trace on a GPU's speed."""
        if self.kernel:
            yield
            return
        with profile(use_device=None, use_kineto=False) as found:
            yield
        # The raw events: to make a tree of them, which nobody asks for here, takes longer than the step.
        self.kernel = kernel_of(event.name() for event in found.kineto_results.events())


def kernel_of(operators: Any) -> str | None:
    """Return the attention kernel among the names of operators; a fused one counts, whatever softmax is beside it."""
    names = set(operators)
    for name in sorted(names):
        if match := _OPERATOR.match(name):
            return match[1]
    return "math" if names & _MATH else None
