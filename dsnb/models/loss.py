"""A causal language model with its loss: the one module that every strategy trains, and that torch.compile compiles.

Only the loss is returned. A compiled model then need not keep its logits as an output (OPT-1.3B, 8
x 2048, on one H200: 40.2 GiB instead of 43.1), and the loss is the same function for every strategy
and family.

The logits of a large vocabulary can be in memory a chunk of tokens at a time. Gradients are
computed with each chunk's logits, so nothing is computed twice: the backward pass only scales them.
Only the operations between the matrix products are compiled, as a separate graph: within the
model's graph, the compiler kept the gradients of many chunks at once (BLOOM-560M, 8 x 1024, one
H200: 24.2 GiB and 92 ms a step; with whole logits 18.5 GiB and 70 ms). Chunks need a linear output
layer, with or without a bias; a factor or soft cap of a model's logits is observed
(`dsnb.models.logits`).
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dsnb.models.chunks import chunk_tokens
from dsnb.models.logits import PRODUCT, LogitMap, logit_map
from dsnb.models.parts import below_output, language_model

ALIGNED = 8
"""Half-precision products are slow on GPUs if a width is not a multiple of this (GPT-2's
vocabulary: 50,257)."""
IGNORED = -100
"""Target of a token without a next token."""
Differentiate = Callable[..., Tensor]


class CausalLoss(nn.Module):
    """Returns the loss of a batch, for a causal language model of transformers or peft's wrapper of one."""

    def __init__(self, model: Any, chunked: bool = False) -> None:
        super().__init__()
        self.model = model
        self.config = model.config
        self.chunked = chunked
        self._compute = self._in_chunks if chunked else self._whole
        self._loss: Differentiate = differentiate if chunked else causal_loss
        self.is_compiled = False
        if chunked:
            self._map = chunkable(model)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the mean loss, shape (), of token ids of shape (batch, length)."""
        return self._compute(ids)

    def compile_inside(self, **how: Any) -> None:
        """Compile the computation without this module's hooks: an engine's would break the graph."""
        if self.chunked:
            self._hidden = torch.compile(self._hidden, **how)  # type: ignore[method-assign]
            self.compile_loss()  # without `how`: a chunk's logits are overwritten, which CUDA graphs cannot replay
        else:
            self._compute = torch.compile(self._compute, **how)
            self.is_compiled = True

    def compile_loss(self) -> None:
        """Compile only the loss, of whole logits or of a chunk."""
        self._loss = torch.compile(self._loss)
        self.is_compiled = True

    def _whole(self, ids: Tensor) -> Tensor:
        return self._loss(self.model(input_ids=ids).logits, ids)

    def _hidden(self, ids: Tensor) -> Tensor:
        """Return the input of the output layer, shape (tokens, width)."""
        hidden: Tensor = below_output(language_model(self.model))(input_ids=ids).last_hidden_state
        return hidden.flatten(0, 1)

    def _in_chunks(self, ids: Tensor) -> Tensor:
        """Make the output layer return the loss instead of logits, so that hooks which gather its weights run.

        Its forward method is replaced at each call, because an engine may have replaced the layer.
        """
        layer = language_model(self.model).get_output_embeddings()
        layer.forward = functools.partial(
            sum_of_losses, layer, loss_and_gradient=self._loss, made=self._map
        )
        total = layer(self._hidden(ids), next_tokens(ids).flatten())
        return total / (len(ids) * (ids.shape[1] - 1))


def chunkable(model: Any) -> LogitMap:
    """Return how a model, maybe in peft's wrapper, makes its logits; raise ValueError if not a chunk at a time."""
    try:
        return logit_map(language_model(model))
    except ValueError as error:
        raise ValueError(f"loss is 'chunked': {error}; use 'whole'") from error


def causal_loss(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the mean cross-entropy of the next token, shape (), computed in fp32.

    Logits have the shape (batch, length, vocabulary) and token ids (batch, length). The targets are
    shifted, because shifting the logits would copy them.
    """
    return F.cross_entropy(logits.flatten(0, 1).float(), next_tokens(ids).flatten())


def next_tokens(ids: Tensor) -> Tensor:
    """Return the target of each position, shape (batch, length); the last position has none."""
    return F.pad(ids[:, 1:], (0, 1), value=IGNORED)


def aligned(vocab: int) -> int:
    """Return the number of columns of logits, padded for speed."""
    return -(-vocab // ALIGNED) * ALIGNED


def split(tensor: Tensor, rows: int) -> tuple[Tensor, ...]:
    """Return the chunks of a tensor; the last may have fewer rows."""
    chunks: tuple[Tensor, ...] = tensor.split(rows)
    return chunks


def differentiate(products: Tensor, targets: Tensor, made: LogitMap = PRODUCT) -> Tensor:
    """Return the sum of cross-entropies, shape (), computed in fp32, and overwrite the products with its gradient.

    `products` of the output layer, of which logits are `made`, have the shape (tokens, columns) and
    targets (tokens,). A token whose target is `IGNORED` has no loss, but its gradient is not 0.
    """
    logits = products
    if not made.is_product:
        logits = made.logits(products.float())
    logs = F.log_softmax(logits, dim=1, dtype=torch.float32)
    column = targets.clamp(min=0)[:, None]
    losses = torch.where(targets == IGNORED, 0.0, -logs.gather(1, column).squeeze(1))
    if torch.compiler.is_compiling():  # a comparison is fused with the rest, a scatter is not
        is_target = torch.arange(logits.shape[1], device=logits.device) == column
        gradient = logs.exp() - is_target.float()
    else:
        minus_one = -torch.ones_like(column, dtype=torch.float32)
        gradient = logs.exp_().scatter_add_(1, column, minus_one)
    if not made.is_product:
        gradient *= made.slope(logits)
    products.copy_(gradient)
    return losses.sum()


class _SumOfLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        made: LogitMap,
        loss_and_gradient: Differentiate,
    ) -> Tensor:
        kind = hidden.device.type
        vocab = len(weight)
        # A soft cap would make the logits of added columns finite.
        columns = vocab if made.cap else aligned(vocab)
        rows = chunk_tokens(len(hidden))
        ignored = (targets == IGNORED)[:, None]
        dtype = weight.dtype
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
        with torch.autocast(kind, enabled=False):
            weights = weight.detach().to(dtype)
            if columns > vocab:
                weights = F.pad(weights, (0, 0, 0, columns - vocab))
            biases = None if bias is None else bias.detach().to(dtype)
            # Ignored tokens add nothing to the weight's gradient.
            states = hidden.detach().to(dtype).masked_fill(ignored, 0)
            by_hidden = torch.empty_like(states)
            products = weights.new_empty(rows, columns)
            by_weight = None
            if weight.requires_grad:
                by_weight = torch.zeros_like(weights, dtype=torch.float32)
            by_bias = None
            if bias is not None and bias.requires_grad:
                by_bias = torch.zeros_like(bias, dtype=torch.float32)
            total = torch.zeros((), device=hidden.device)
            chunks = (split(tensor, rows) for tensor in (states, targets, ignored, by_hidden))
            for state, target, is_ignored, gradient in zip(*chunks, strict=True):
                values = torch.mm(state, weights.T, out=products[: len(state)])
                if biases is not None:
                    values[:, :vocab] += biases
                values[:, vocab:] = -torch.inf
                total += loss_and_gradient(values, target, made)
                torch.ops.aten.mm.out(values, weights, out=gradient)
                if by_weight is not None:
                    _add_product(by_weight, values.T, state)
                if by_bias is not None:
                    of_tokens = values[:, :vocab].masked_fill_(is_ignored, 0)
                    by_bias += of_tokens.sum(0, dtype=torch.float32)
        ctx.save_for_backward(by_hidden.masked_fill_(ignored, 0), by_weight, by_bias)
        ctx.dtypes = hidden.dtype, weight.dtype
        ctx.vocab = vocab
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        by_hidden, by_weight, by_bias = ctx.saved_tensors
        of_hidden, of_weight = ctx.dtypes
        if by_weight is not None:
            by_weight = by_weight[: ctx.vocab].mul_(gradient).to(of_weight)
        if by_bias is not None:
            by_bias = by_bias.mul_(gradient).to(of_weight)
        return (by_hidden * gradient).to(of_hidden), by_weight, by_bias, None, None, None


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add a product to an fp32 sum: in half precision it would overflow, and be rounded once per chunk."""
    if total.dtype == left.dtype:
        torch.ops.aten.addmm.out(total, left, right, out=total)
    elif total.is_cuda:
        torch.ops.aten.addmm.dtype_out(total, left, right, total.dtype, out=total)
    else:
        total += torch.ops.aten.mm(left, right)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def sum_of_losses(
    layer: nn.Linear,
    hidden: Tensor,
    targets: Tensor,
    loss_and_gradient: Differentiate = differentiate,
    made: LogitMap = PRODUCT,
) -> Tensor:
    """Return the sum of the cross-entropies of tokens, shape (), with the logits of one chunk at a time in memory.

    The output layer's input has the shape (tokens, width) and targets (tokens,).
    """
    if made.inputs != 1:
        hidden = hidden * made.inputs
    total: Tensor = _SumOfLosses.apply(  # type: ignore[no-untyped-call]
        hidden, layer.weight, layer.bias, targets, made, loss_and_gradient
    )
    return total
