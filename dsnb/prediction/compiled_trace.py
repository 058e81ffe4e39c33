"""Traces the memory of a compiled model without a GPU: what torch.compile keeps from the forward to the backward pass.

The real partitioner of torch's compiler decides what is kept and what is computed again; nothing is compiled, and no
tensor has memory. Blocks are alike, so models of two and three blocks are traced and the rest is added.
"""

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from dsnb.prediction.fake_model import CudaOperators, Size, autocast, build, size
from dsnb.settings.derived import compiles_blocks
from dsnb.settings.experiment import Experiment
from dsnb.train import attention
from dsnb.train.causal_loss import aligned, chunk_tokens
from dsnb.train.model import weights_dtype
from dsnb.train.model_parts import blocks, output_layer


def kept_size(experiment: Experiment, layers: int, micro_batch: int) -> Size:
    """Return what a compiled model of so many blocks keeps from its forward to its backward pass.

    Parameters
    ----------
    micro_batch
        Sequences of the pass, as `dsnb.prediction.fake_model.size` takes them.
    """
    model, fake = build(experiment.model_copy(update={"activation_checkpointing": False}), layers)
    torch._dynamo.reset()
    known = {tensor.untyped_storage()._cdata for tensor in [*model.parameters(), *model.buffers()]}
    kept: dict[int, tuple[int, torch.Tensor]] = {}
    compile_ = functools.partial(torch.compile, backend=_backend(functools.partial(_keep, kept, known)))
    if compiles_blocks(experiment.model_dump()):
        for module in [*blocks(model), *([] if model.chunked else [output_layer(model)])]:
            module.forward = compile_(module.forward)
        model._loss = model._loss if model.chunked else compile_(model._loss)
    elif model.chunked:
        model._hidden = compile_(model._hidden)  # type: ignore[method-assign]
    else:
        model._compute = compile_(model._compute)
    with fake:
        ids = torch.zeros(micro_batch, experiment.seq_len, dtype=torch.long)
        with CudaOperators(), autocast(experiment):
            loss = model(ids)
    del loss
    return functools.reduce(Size.plus, (size(number_of_bytes, micro_batch) for number_of_bytes, _ in kept.values()))


def loss_sizes(experiment: Experiment, vocab: int, width: int, micro_batch: int) -> tuple[list[Size], Size]:
    """Return what the loss and its backward pass can add to what is kept, and the size of the output layer's gradient.

    The gradient of the logits overwrites them if the compiler sees both, and if they have not been padded.

    Parameters
    ----------
    vocab, width
        Rows and columns of the output layer.
    micro_batch
        Sequences of the pass, which decide how many tokens a chunk of the loss has.
    """
    if experiment.loss == "chunked":
        return _chunked_sizes(experiment, vocab, width, micro_batch)
    of_number = _bytes_of_number(experiment)
    gradient, logits = Size(of_number * vocab * width), Size(0, of_number * experiment.seq_len * vocab)
    padded = aligned(vocab) > vocab and experiment.precision != "fp32"  # by the compiler, for tensor cores
    if compiles_blocks(experiment.model_dump()):
        return [Size().plus(logits, 2 if padded else 1)], gradient
    return [logits] if padded else [gradient, Size(0, of_number * experiment.seq_len * width)], gradient


def _chunked_sizes(experiment: Experiment, vocab: int, width: int, micro_batch: int) -> tuple[list[Size], Size]:
    """Return the sizes of a loss whose gradients are computed with the logits of each chunk, in the forward pass.

    The weight's gradient is added up in fp32. The weight is copied if it has to be cast or padded, and so are the
    hidden states, beside their gradient.
    """
    of_number, of_weight = _bytes_of_number(experiment), weights_dtype(experiment).itemsize
    columns, rows = aligned(vocab), chunk_tokens(micro_batch * experiment.seq_len)
    elements = 0 if experiment.lora_rank else columns * width
    copied = columns * width if of_weight != of_number or columns > vocab else 0
    during = Size(4 * elements + of_number * (columns * rows + copied), 2 * of_number * experiment.seq_len * width)
    return [during], Size(of_weight * elements)


def _bytes_of_number(experiment: Experiment) -> int:
    return 4 if experiment.precision in {"fp32", "tf32"} else 2


def _backend(keep: Callable[[Sequence[Any]], None]) -> Any:
    """Return a compiler that runs the partitioned graphs as they are and shows what leaves the forward graphs."""

    def forward(graph: torch.fx.GraphModule, example: Any) -> Any:
        def run(*arguments: Any) -> Any:
            results = graph(*arguments)
            keep(results)
            return results

        return make_boxed_func(run)

    def backward(graph: torch.fx.GraphModule, example: Any) -> Any:
        return make_boxed_func(graph)

    partition = importlib.import_module("torch._inductor.compile_fx").partition_fn
    return aot_autograd(
        fw_compiler=forward, bw_compiler=backward, partition_fn=partition, decompositions=select_decomp_table
    )


def _keep(kept: dict[int, tuple[int, torch.Tensor]], known: set[int], results: Sequence[Any]) -> None:
    for tensor in tree_leaves(results):
        if isinstance(tensor, torch.Tensor):
            storage = tensor.untyped_storage()
            if storage._cdata not in known:
                kept.setdefault(storage._cdata, (storage.nbytes(), tensor))


@contextlib.contextmanager
def flash_attention() -> Iterator[None]:
    """Let attention be the flash kernel of GPUs, whose output is laid out as its query is; a CPU's is not."""

    def fused(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, **options: Any) -> Any:
        if attn_mask is not None:
            return usual(query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, **options)
        scale = options.get("scale")
        return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, True, scale=scale)[0]

    def flex(query: Any, key: Any, value: Any, scale: float | None = None, **_: Any) -> Any:
        return fused(query, key, value, scale=scale)

    usual = F.scaled_dot_product_attention
    substitutes: list[tuple[Any, str, Any]] = [
        (F, "scaled_dot_product_attention", fused),
        (attention, "flex_attention", flex),
        (attention, "_causal_blocks", lambda *_: None),
    ]
    with contextlib.ExitStack() as stack:
        for module, name, substitute in substitutes:
            stack.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, substitute)
        yield
