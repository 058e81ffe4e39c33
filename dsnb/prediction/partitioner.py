"""What torch's compiler saves for the backward pass: its partitioner decides, and nothing is compiled.

A separate module, because eager traces need not wait for its import, which takes a second.
"""

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from functorch.compile import aot_function, make_boxed_func
from torch._inductor.compile_fx import partition_fn
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.virtualized import V
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._pytree import tree_leaves

from dsnb.prediction import fake_model
from dsnb.prediction.fake_model import MANY, CudaOperators, autocast, build
from dsnb.settings.experiment import Experiment
from dsnb.settings.training import compiles_blocks
from dsnb.train.model_parts import blocks, output_layer


@functools.lru_cache
def saved(settings: str, layers: int) -> list[tuple[int, int]]:
    """Return what a model of `layers` blocks saves: the number of the block (-1 outside of blocks) and the bytes."""
    experiment = Experiment.recorded(json.loads(settings))
    model, fake = build(experiment, layers)
    weights = {tensor.untyped_storage()._cdata for tensor in [*model.parameters(), *model.buffers()]}
    kept: dict[int, tuple[int, int, torch.Tensor]] = {}

    def keep(place: int, results: Sequence[Any]) -> None:
        for tensor in tree_leaves(results):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in weights:
                storage = tensor.untyped_storage()
                kept.setdefault(storage._cdata, (place, storage.nbytes(), tensor))

    outside = functools.partial(keep, -1)
    if compiles_blocks(experiment.model_dump()):
        for place, module in enumerate(blocks(model)):
            module.forward = _partitioned(module, module.forward, functools.partial(keep, place))
        head = output_layer(model)
        head.forward = _partitioned(head, head.forward, outside)
        model._loss = _partitioned(torch.nn.Module(), model._loss, outside)
    elif model.chunked:
        model._hidden = _partitioned(model, model._hidden, outside)  # type: ignore[method-assign]
    else:
        model._compute = _partitioned(model, model._compute, outside)
    with fake, V.set_fake_mode(fake):
        ids = torch.zeros(MANY, experiment.seq_len, dtype=torch.long)
        with CudaOperators(), autocast(experiment):
            result = model._hidden(ids) if model.chunked else model(ids)  # chunks do not grow with the micro-batch
    del result
    return [(place, number_of_bytes) for place, number_of_bytes, _ in kept.values()]


def _partitioned(
    module: torch.nn.Module, function: Callable[..., Any], keep: Callable[[Sequence[Any]], None]
) -> Callable[..., Any]:
    """Run a function of a module as the graphs of torch's compiler, without dynamo; `keep` sees the forward outputs."""

    def forward(graph: torch.fx.GraphModule, _: Any) -> Any:
        def run(*arguments: Any) -> Any:
            results = graph(*arguments)
            keep(results)
            return results

        return make_boxed_func(run)

    def pure(tensors: dict[str, torch.Tensor], arguments: Any, named: Any) -> Any:
        with (
            _reparametrize_module(module, tensors, tie_weights=True),
            fake_model.patched(torch.compiler, is_compiling=True),
        ):
            return function(*arguments, **named)

    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    compiled = aot_function(
        pure,
        fw_compiler=forward,
        bw_compiler=lambda graph, _: make_boxed_func(graph),
        partition_fn=partition_fn,
        decompositions=select_decomp_table(),
    )
    return lambda *arguments, **named: compiled(tensors, arguments, named)
