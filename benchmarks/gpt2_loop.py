"""GPT-2 in plain torch, trained as many do by hand: one compiled module, autocast, fused AdamW.

The module computes what transformers' GPT-2 computes, with the vocabulary padded to a multiple of 64.
It starts with the weights of a transformers model, so that losses can be compared. This shows
what a loop for one family reaches; it uses no code of dsnb.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PADDED_TO = 64
"""The output layer's rows are a multiple of this: odd numbers of columns are slow to multiply."""


class Block(nn.Module):
    """A transformer block with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.mixed = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.widened = nn.Linear(width, 4 * width)
        self.narrowed = nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the next hidden states, shape (batch, length, width)."""
        hidden = hidden + self.attend(self.norm_1(hidden))
        inner = F.gelu(self.widened(self.norm_2(hidden)), approximate="tanh")
        return hidden + self.narrowed(inner)

    def attend(self, hidden: Tensor) -> Tensor:
        """Return the attention's output, shape (batch, length, width)."""
        batch, length, width = hidden.shape
        stacked = self.query_key_value(hidden).view(batch, length, 3, self.heads, -1)
        query, key, value = stacked.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.mixed(attended.transpose(1, 2).reshape(batch, length, width))


class Gpt2(nn.Module):
    """GPT-2 with its loss."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        rows = config.vocab_size + -config.vocab_size % PADDED_TO
        self.tokens = nn.Embedding(rows, config.n_embd)
        self.positions = nn.Embedding(config.n_positions, config.n_embd)
        self.blocks = nn.ModuleList(
            Block(config.n_embd, config.n_head) for _ in range(config.n_layer)
        )
        self.norm = nn.LayerNorm(config.n_embd)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the mean loss, shape (), of token ids of shape (batch, length)."""
        places = torch.arange(ids.shape[1], device=ids.device)
        hidden = self.tokens(ids) + self.positions(places)
        for block in self.blocks:
            hidden = block(hidden)
        logits = F.linear(self.norm(hidden), self.tokens.weight)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


@torch.no_grad()
def with_weights_of(model: Any) -> Gpt2:
    """Return a module with the weights of a GPT-2 of transformers; added rows of the vocabulary are zero."""
    source = model.transformer
    made = Gpt2(model.config).to(model.device)
    made.tokens.weight.zero_()
    made.tokens.weight[: model.config.vocab_size] = source.wte.weight
    made.positions.weight.copy_(source.wpe.weight)
    _copy(made.norm, source.ln_f)
    for block, original in zip(made.blocks, source.h, strict=True):
        _copy(block.norm_1, original.ln_1)
        _copy(block.query_key_value, original.attn.c_attn)
        _copy(block.mixed, original.attn.c_proj)
        _copy(block.norm_2, original.ln_2)
        _copy(block.widened, original.mlp.c_fc)
        _copy(block.narrowed, original.mlp.c_proj)
    return made


def _copy(module: Any, original: Any) -> None:
    """Copy weight and bias; transformers stores those of GPT-2's linear layers transposed."""
    weight = original.weight.T if isinstance(module, nn.Linear) else original.weight
    module.weight.copy_(weight)
    module.bias.copy_(original.bias)


def make_optimizer(model: Gpt2, rate: float, decay: float, **options: Any) -> torch.optim.AdamW:
    """Return fused AdamW that decays matrices only."""
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    vectors = [weight for weight in model.parameters() if weight.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, fused=True, **options)


def train(
    model: Gpt2,
    optimizer: torch.optim.Optimizer,
    steps: Sequence[Sequence[Tensor]],
    clipping: float,
    after_step: Callable[[int], None],
) -> list[float]:
    """Train on micro-batches of token ids in host memory, a list for each step; return the mean loss of each step."""
    device = model.tokens.weight.device
    is_cuda = device.type == "cuda"
    autocast = torch.autocast("cuda", dtype=torch.bfloat16) if is_cuda else nullcontext()
    torch.set_float32_matmul_precision("high")
    compiled = torch.compile(model)
    losses = []
    for number, micro_batches in enumerate(steps, start=1):
        total = torch.zeros((), device=device)
        for ids in micro_batches:
            with autocast:
                loss = compiled(ids.to(device, non_blocking=True)) / len(micro_batches)
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clipping)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(total)
        after_step(number)
    return [float(loss) for loss in losses]
