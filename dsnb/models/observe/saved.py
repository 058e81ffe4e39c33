"""What torch's compiler saves for the backward pass: its partitioner decides, and nothing is compiled.

A separate module, because eager traces need not wait for its import, which takes a second.
"""

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any
from unittest.mock import patch

import torch
from functorch.compile import aot_function, make_boxed_func
from torch import Tensor, nn
from torch._inductor.compile_fx import partition_fn
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.virtualized import V
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._pytree import tree_leaves

from dsnb.models.build import model_config
from dsnb.models.observe.fake import MANY, as_cuda, build, period
from dsnb.models.parts import blocks, output_layer
from dsnb.settings.experiment import Experiment

Function = Callable[..., Any]
Results = Sequence[Any]


@functools.lru_cache
def saved(settings: str, layers: int, config: str) -> list[tuple[int, int]]:
    """Return what a model of `layers` blocks saves: the number of the block (-1 outside of blocks) and the bytes.

    `config` is the model's, by which a changed file is another model.
    """
    experiment = Experiment.recorded(json.loads(settings))
    model, fake = build(experiment, layers)
    existing = [*model.parameters(), *model.buffers()]
    weights = {tensor.untyped_storage()._cdata for tensor in existing}
    kept: dict[int, tuple[int, int, Tensor]] = {}

    def keep(places: Iterable[int], results: Results) -> None:
        for place, tensor in zip(places, results, strict=False):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in weights:
                    kept.setdefault(storage._cdata, (place, storage.nbytes(), tensor))

    def alone(module: nn.Module, function: Function) -> Function:
        return _partitioned(module, function, lambda _, results: keep(repeat(-1), results))

    compute = model._hidden if model.chunked else model.forward  # chunks do not grow with MANY
    if experiment.compiles_blocks:
        _partition_blocks(blocks(model), period(model_config(experiment)), keep)
        head = output_layer(model)
        head.forward = alone(head, head.forward)
        model._loss = alone(nn.Module(), model._loss)
    else:
        places = _Places(blocks(model))
        compute = _partitioned(
            model, compute, lambda graph, results: keep(places.of(graph), results), places
        )
    with fake, V.set_fake_mode(fake), as_cuda(experiment):
        compute(torch.zeros(MANY, experiment.seq_len, dtype=torch.long))
    return [(place, number_of_bytes) for place, number_of_bytes, _ in kept.values()]


class _Places:
    """The block (-1: none) in which each operator of a model's graph was recorded."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._of_name: dict[str, int] = {}
        self._outputs: list[str] = []
        """The last operator of each block."""
        for place, module in enumerate(modules):
            module.register_forward_pre_hook(lambda *_, before=place - 1: self.end(before))
        modules[-1].register_forward_hook(lambda *_: self.end(len(modules) - 1))

    def of(self, graph: torch.fx.GraphModule) -> Iterator[int]:
        """Yield the place of each result; operators that the partitioner has added are where their inputs are."""
        places: dict[torch.fx.Node, int] = {}
        for node in graph.graph.nodes:
            inputs = (places[used] for used in node.all_input_nodes)
            places[node] = self._of_name.get(node.name, max(inputs, default=-1))
        results: Any = graph.graph.output_node().args[0]
        of_root = self._only_for_root({str(result) for result in results})
        for result in results:
            place = places.get(result, -1)
            yield -1 if str(result) == of_root else place

    def _only_for_root(self, kept: set[str]) -> str | None:
        """Return the output of the last block, if it is kept for the final norm and no other block's is.

        Blocks whose norms follow their products, as OLMo-2's, need no sum of theirs again.
        """
        *others, last = self._outputs
        if kept.intersection(others):
            return None
        return last

    def end(self, place: int) -> None:
        """Note that all operators since the last call belong to a place."""
        mode = get_proxy_mode()
        if mode and place >= 0:
            self._outputs.append(next(reversed(mode.tracer.graph.nodes)).name)
        for node in reversed(mode.tracer.graph.nodes) if mode else ():
            if node.name in self._of_name:
                break
            self._of_name[node.name] = place


def _partition_blocks(
    modules: Sequence[nn.Module], every: int, keep: Callable[[Iterable[int], Results], None]
) -> None:
    """Run each block as its own graphs, which blocks of a kind share if their weights and inputs are alike.

    Kinds of blocks repeat with the period `every`; `keep` sees the number of a block with what it saves.
    """
    made: dict[Any, Function] = {}
    running = -1

    def keep_of_block(_: Any, results: Results) -> None:
        keep(repeat(running), results)

    def partitioned(place: int, block: nn.Module) -> Function:
        whole = block.forward
        tensors = _tensors(block)

        def forward(*arguments: Any, **named: Any) -> Any:
            nonlocal running
            running = place
            leaves = tree_leaves((tensors, arguments, named))
            kind = type(block), place % every, *map(_format, leaves)
            if kind not in made:
                made[kind] = _graphs(block, whole, keep_of_block)
            return made[kind](tensors, arguments, named)

        return forward

    for place, block in enumerate(modules):
        block.forward = partitioned(place, block)


def _format(value: Any) -> Any:
    """Return all of an input that its graph depends on."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.requires_grad
    return repr(value)


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_parameters()) | dict(module.named_buffers())


def _partitioned(
    module: nn.Module,
    function: Function,
    keep: Callable[[torch.fx.GraphModule, Results], None],
    places: _Places | None = None,
) -> Function:
    """Run a function of a module as the graphs of torch's compiler."""
    tensors = _tensors(module)
    compiled = _graphs(module, function, keep, places)
    return lambda *arguments, **named: compiled(tensors, arguments, named)


def _graphs(
    module: nn.Module,
    function: Function,
    keep: Callable[[torch.fx.GraphModule, Results], None],
    places: _Places | None = None,
) -> Function:
    """Return a function of a module's tensors, arguments and named arguments as the graphs of torch's compiler.

    They are made when it is first called, without dynamo; `keep` sees the forward outputs.
    """

    def forward(graph: torch.fx.GraphModule, _: Any) -> Any:
        def run(*arguments: Any) -> Any:
            results = graph(*arguments)
            keep(graph, results)
            return results

        return make_boxed_func(run)

    def pure(tensors: dict[str, Tensor], arguments: Any, named: Any) -> Any:
        with (
            _reparametrize_module(module, tensors, tie_weights=True),
            patch("torch.compiler.is_compiling", lambda: True),
        ):
            result = function(*arguments, **named)
        if places:
            places.end(-1)  # what follows the last block
        return result

    compiled: Function = aot_function(
        pure,
        fw_compiler=forward,
        bw_compiler=lambda graph, _: make_boxed_func(graph),
        partition_fn=partition_fn,
        decompositions=select_decomp_table(),
    )
    return compiled
