"""A causal language model together with its loss, as the one module that every strategy trains.

Only the loss leaves it. A compiled model then need not keep its logits as an output (OPT-1.3B, 8 x 2048, on one H200:
40.2 GiB instead of 43.1), and the loss is the same function for every strategy and family.

The logits of a large vocabulary can be in memory a chunk of tokens at a time. The gradients are computed with each
chunk's logits, so nothing is computed twice: the backward pass only scales them. Only what is between the products is
compiled, a graph of its own: in the model's, the compiler kept the gradients of many chunks at once (BLOOM-560M,
8 x 1024, one H200: 24.2 GiB and 92 ms a step; with whole logits 18.5 GiB and 70 ms).

It is also what torch.compile gets, in the modes of the settings, with counts of what that did in this process.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from dsnb.settings.experiment import Experiment
from dsnb.settings.training import CHUNK_TOKENS, CUDA_GRAPHS, compiles_blocks
from dsnb.train.model_parts import blocks, output_layer

ALIGNED = 8
"""Products of half precision are slow on GPUs if a width is no multiple of this (GPT-2's vocabulary: 50,257)."""
IGNORED = -100
"""Target of a token that has none."""
Differentiate = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class CausalLoss(nn.Module):
    """Returns the loss of a batch, for a causal language model of transformers or peft's wrapper of one.

    If it is chunked, the logits are never in memory as a whole.
    """

    def __init__(self, model: Any, chunked: bool = False) -> None:
        super().__init__()
        self.model, self.config, self.chunked = model, model.config, chunked
        self._compute = self._in_chunks if chunked else self._whole
        self._loss: Differentiate = differentiate if chunked else causal_loss
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

    def compile_loss(self) -> None:
        """Compile the loss alone, of whole logits or of a chunk, for a strategy that compiles block by block."""
        self._loss, self.is_compiled = torch.compile(self._loss), True

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
        layer.forward = functools.partial(sum_of_losses, layer, loss_and_gradient=self._loss)
        return layer(self._hidden(ids), next_tokens(ids).flatten()) / (len(ids) * (ids.shape[1] - 1))

    def _causal_model(self) -> Any:
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model


def causal_loss(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of the next token, shape (), computed in fp32.

    Logits have the shape (batch, length, vocabulary) and token ids (batch, length). The targets are shifted, not the
    logits, which would be copied; the last position has no target.
    """
    return F.cross_entropy(logits.flatten(0, 1).float(), next_tokens(ids).flatten())


def next_tokens(ids: torch.Tensor) -> torch.Tensor:
    """Return the target of each position, shape (batch, length); the last ones are ignored by the cross-entropy."""
    return F.pad(ids[:, 1:], (0, 1), value=IGNORED)


def aligned(vocab: int) -> int:
    """Return the number of columns that logits are computed with."""
    return -(-vocab // ALIGNED) * ALIGNED


def chunk_tokens(tokens: int) -> int:
    """Return the number of tokens of a chunk of a micro-batch: all but the last are equally large."""
    return -(-tokens // -(-tokens // CHUNK_TOKENS))


def differentiate(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the sum of cross-entropies, shape (), computed in fp32, and overwrite the logits with its gradient.

    Logits have the shape (tokens, columns) and targets (tokens,). A token whose target is `IGNORED` has no loss, but
    its gradient is not 0.
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

    The output layer has no bias; its input has the shape (tokens, width) and targets (tokens,).
    """
    found: torch.Tensor = _SumOfLosses.apply(hidden, layer.weight, targets, loss_and_gradient)  # type: ignore[no-untyped-call]
    return found


def compile_options(experiment: Experiment) -> dict[str, Any]:
    """Return the arguments of torch.compile for the mode of the settings."""
    return {"mode": experiment.compile} if experiment.compile in CUDA_GRAPHS else {}


def compile_model(experiment: Experiment, model: CausalLoss) -> None:
    """Compile the model and its loss, if the settings ask for it, inside of whatever an engine hooks to it."""
    if experiment.compile == "off":
        return
    separate_caches(experiment)
    if compiles_blocks(experiment.model_dump()):
        # The blocks, and the output layer, whose odd width only a compiled product pads: GPT-2's vocabulary of 50,257
        # keeps an eager product off the fast kernels (108 ms of the 600 ms that a step of GPT-2 XL, 24 x 1024, took on
        # two H200). The forward method is compiled, not the module: hooks that gather weights or reduce gradients stay
        # outside of the graph. With FSDP's in it, blocks were slower than eager ones (OPT-350M, 24 x 512, on one H200:
        # 158 ms instead of 130).
        for module in [*blocks(model), *([] if model.chunked else [output_layer(model)])]:
            module.forward = torch.compile(module.forward)
        model.compile_loss()
    else:
        model.compile_inside(**compile_options(experiment))


def separate_caches(experiment: Experiment) -> None:
    """Keep what torch has compiled and stored for one precision from runs in another.

    Torch 2.11 stores whether autocast is on, but not its format (pytorch#181564): on H200, GPT-2 in bf16 ran the graph
    of an earlier run in fp16, without its loss scaling, and its loss after 50 steps was 4.4 % higher.
    """
    torch.compiler.config.cache_key_tag = experiment.precision


def begin_graphs(experiment: Experiment) -> None:
    """Say that a step begins: what CUDA graphs returned in the one before may be overwritten."""
    if experiment.compile in CUDA_GRAPHS and experiment.device == "cuda":
        torch.compiler.cudagraph_mark_step_begin()


def compiled_graphs() -> int:
    """Return the number of graphs that torch.compile has compiled so far in this process."""
    return int(_counters("stats").get("unique_graphs", 0))


def graph_breaks() -> int:
    """Return the number of different reasons for which torch.compile left a graph so far in this process."""
    return len(_counters("graph_break"))


def _counters(kind: str) -> dict[str, int]:
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dict(dynamo.counters[kind]) if dynamo else {}
