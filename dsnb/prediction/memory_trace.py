"""Traces the memory of one training step without a GPU: every storage that the model allocates, none of it real.

The model of the settings is built of torch's fake tensors, runs forward, loss and backward, and the bytes of living
storages are followed operator by operator. Of a compiled model, the real partitioner of torch's compiler decides what
is kept and what is computed again, but nothing is compiled. Weights, optimizer states, buffers and collectives are the
engine's and not part of it.
`python -m dsnb.prediction.memory_trace SECONDS` reads settings as JSON from its standard input and prints the traces,
so that a reader of them needs no torch.
"""

import contextlib
import functools
import importlib
import json
import math
import os
import select
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from functorch.compile import aot_function, make_boxed_func
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.virtualized import V
from torch.nn import functional as F
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._pytree import tree_leaves

from dsnb.formulas.memory import kept_activations
from dsnb.prediction import fake_model, model_counts
from dsnb.prediction.fake_model import MANY, CudaOperators, LiveBytes, Size, as_autocast, autocast, build, size
from dsnb.settings.experiment import Experiment
from dsnb.settings.training import compiles_blocks
from dsnb.train import attention
from dsnb.train import model as model_builder
from dsnb.train.causal_loss import CausalLoss, aligned, chunk_tokens
from dsnb.train.model_parts import blocks, output_layer


def trace(experiment: Experiment) -> dict[str, Any]:
    """Return the memory of one micro-batch, forward to backward, as a record for `dsnb.prediction.traces.Trace.of`."""
    # The size of a chunk of the loss does not grow with the micro-batch as all else does.
    micro_batch = int(experiment.micro_batch_size) if experiment.loss == "chunked" else MANY
    config = model_builder.model_config(experiment)
    layers, compiled = config.num_hidden_layers, experiment.compile != "off"
    with flash_attention(), fake_model.grouped_products(), fake_model.masks_of(compiled):
        sizes = _sizes(experiment, layers)
        if compiled:
            return {**sizes, **_compiled(experiment, sizes, micro_batch)}
        every = experiment.checkpoint_every if experiment.activation_checkpointing else 1
        return {**sizes, **_eager(experiment, micro_batch, layers, math.lcm(fake_model.period(config), every))}


def _eager(experiment: Experiment, micro_batch: int, layers: int, period: int) -> dict[str, Any]:
    """Follow every operator of the forward and the backward pass.

    Every `period` of blocks is like the one before, so few of them are built: the second one counts for all that are
    left out. What is between its ends is the same in each, and what the others keep is there besides.
    """
    few = layers % period + 3 * period
    left_out = max(0, layers - few) // period
    model, fake = build(experiment, layers - left_out * period)
    with fake:
        live = LiveBytes([*model.parameters(), *model.buffers()], micro_batch)
        recorder = _Recorder(experiment, model, live, range(period, 2 * period))
        ids = torch.zeros(micro_batch, experiment.seq_len, dtype=torch.long)
        with live:
            with CudaOperators(), autocast(experiment):
                loss = model(ids)
                before = live.now
            # Autocast drops its copies of weights that nothing needs in the backward pass, those of recomputed blocks.
            dropped = before.plus(live.now, -1)
            recorder.add_forward()
            loss.backward()
        recorder.add_peaks()
    kept, elements = recorder.of_second()
    moments = []
    for size_, done, place in recorder.moments:
        copies = range(left_out + 1) if place == 0 else [left_out if place > 0 else 0]
        moments += [(size_.plus(kept, of), done + (left_out - of) * elements) for of in copies]
    in_forward = recorder.kept_forward
    peaks = []
    for size_, place in recorder.forward:
        copies = range(left_out + 1) if place == 0 else [left_out if place > 0 else 0]
        peaks += [size_.plus(in_forward, of) for of in copies]
    return {
        "forward": fake_model.largest(peaks),
        "kept": recorder.kept.plus(dropped, -1).plus(kept, left_out),
        "moments": _moments(moments),
    }


class _Recorder:
    """Records what the blocks keep, and the peaks between the gradients of parameters, by their place.

    Places are -1 before the forward pass of the `second` blocks, and after their backward pass; 0 in it; 1 behind them.
    """

    def __init__(self, experiment: Experiment, model: CausalLoss, live: LiveBytes, second: range) -> None:
        self.moments: list[tuple[Size, float, int]] = []
        self.forward: list[tuple[Size, int]] = []
        self.kept, self.kept_forward, self._live, self._done = Size(), Size(), live, 0
        self._place, self._ends = -1, dict[int, tuple[Size, float]]()
        modules = blocks(model.model)
        number = {id(weight): place for place, block in enumerate(modules) for weight in block.parameters()}
        places = {own: -1 if place < second.start else int(place >= second.stop) for own, place in number.items()}
        outside = {id(weight) for weight in model.parameters()} - number.keys()
        self._places = places | dict.fromkeys(outside, 2)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._take)
        if len(modules) > second.stop:
            modules[second.start].register_forward_pre_hook(lambda *_: self._enter(0))
            modules[second.stop].register_forward_pre_hook(lambda *_: self._enter(1))
        modules[0].register_forward_pre_hook(lambda *_: self._count_kept(-1))
        modules[-1].register_forward_hook(lambda *_: self._count_kept(1))
        if experiment.activation_checkpointing:
            for block in modules[:: experiment.checkpoint_every]:
                fake_model.compute_recomputed_as_cuda(block, experiment.checkpoint_offload)

    def add_forward(self) -> None:
        """Add the peaks of the forward pass since the last place."""
        self.forward += [(peak, self._place) for peak in self._live.take_peaks()]

    def add_peaks(self, gradient: Size | None = None) -> None:
        """Add the peaks since the last gradient, without the size of one that is there now."""
        now = gradient or Size()
        self.moments += [(peak.plus(now, -1), self._done, self._place) for peak in self._live.take_peaks()]

    def of_second(self) -> tuple[Size, float]:
        """Return what the second blocks free in the backward pass, and the elements of their gradients."""
        if 0 not in self._ends or 1 not in self._ends:
            return Size(), 0
        (before, done), (after, all_done) = self._ends[1], self._ends[0]
        return before.plus(after, -1), all_done - done

    def _enter(self, place: int) -> None:
        if self._place == place - 1:  # not where a block is computed again
            self.add_forward()
            self._place = place
            self.kept_forward = self.kept_forward.plus(self._live.now, 1 if place else -1)

    def _take(self, parameter: torch.Tensor) -> None:
        """Free a gradient: gradients are the engine's."""
        gradient, parameter.grad = parameter.grad, None
        place = self._places[id(parameter)]
        self._place = min(self._place, place)
        self.add_peaks(None if gradient is None else size(gradient.untyped_storage().nbytes(), 1))
        self._done += parameter.numel()
        del gradient
        self._live.take_peaks()
        self._ends[place] = self._live.now, self._done

    def _count_kept(self, times: int) -> None:
        self.kept = self.kept.plus(self._live.now, times)


def _compiled(experiment: Experiment, sizes: dict[str, Any], micro_batch: int) -> dict[str, Any]:
    """Ask torch's compiler what it keeps of models of one and two blocks, and add the rest of the blocks.

    Where blocks alternate, it is a model of one block more, and the mean of the two.
    """
    kinds = min(2, fake_model.period(model_builder.model_config(experiment)))
    one, more = (_kept_size(experiment, layers, micro_batch) for layers in (1, 1 + kinds))
    block = Size(*((of_more - of_one) / kinds for of_one, of_more in zip(one, more, strict=True)))
    kept, again = _kept_of_blocks(experiment, sizes, block)
    whole = one.plus(block, -1).plus(kept)
    losses, head = loss_sizes(experiment, sizes["vocab"], sizes["width_of_head"], micro_batch)
    end = head
    if not compiles_blocks(experiment.model_dump()):
        # The embedding's gradient is summed up in fp32 before the output layer's is added to it.
        end = head.plus(Size(4 * sizes["vocab"] * sizes["width_of_head"]))
    last = kept.plus(again).plus(head)
    return {
        "forward": [whole],
        "kept": kept,
        "moments": _moments([*((whole.plus(loss), 0) for loss in losses), (last, 1), (end, sizes["trainable"])]),
    }


def _kept_size(experiment: Experiment, layers: int, micro_batch: int) -> Size:
    """Return what a compiled model of so many blocks keeps from its forward to its backward pass."""
    plain = {"activation_checkpointing": False, "checkpoint_every": 1, "checkpoint_offload": False}
    alike = experiment.model_copy(update=plain)
    key = json.dumps([alike.model_dump(mode="json"), layers, micro_batch])
    if key not in _KEPT:
        _KEPT[key] = _ask_partitioner(alike, layers, micro_batch)
    return _KEPT[key]


_KEPT: dict[str, Size] = {}
"""What compiled models keep, whichever of their blocks are computed again: asked once in a process."""


def _ask_partitioner(experiment: Experiment, layers: int, micro_batch: int) -> Size:
    model, fake = build(experiment, layers)
    known = {tensor.untyped_storage()._cdata for tensor in [*model.parameters(), *model.buffers()]}
    kept: dict[int, tuple[int, torch.Tensor]] = {}

    def keep(results: Sequence[Any]) -> None:
        for tensor in tree_leaves(results):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in known:
                storage = tensor.untyped_storage()
                kept.setdefault(storage._cdata, (storage.nbytes(), tensor))

    if compiles_blocks(experiment.model_dump()):
        for module in [*blocks(model), *([] if model.chunked else [output_layer(model)])]:
            module.forward = _partitioned(module, module.forward, keep)
        model._loss = model._loss if model.chunked else _partitioned(torch.nn.Module(), model._loss, keep)
    elif model.chunked:
        model._hidden = _partitioned(model, model._hidden, keep)  # type: ignore[method-assign]
    else:
        model._compute = _partitioned(model, model._compute, keep)
    with fake, V.set_fake_mode(fake):
        ids = torch.zeros(micro_batch, experiment.seq_len, dtype=torch.long)
        with CudaOperators(), autocast(experiment):
            loss = model(ids)
    del loss
    return functools.reduce(Size.plus, (size(number_of_bytes, micro_batch) for number_of_bytes, _ in kept.values()))


def loss_sizes(experiment: Experiment, vocab: int, width: int, micro_batch: int) -> tuple[list[Size], Size]:
    """Return what the loss and its backward pass can add to what is kept, and the size of the output layer's gradient.

    `vocab` and `width` are the rows and columns of the output layer. The gradient of the logits overwrites them if the
    compiler sees both, and if they have not been padded.

    A chunked loss computes its gradients with the logits of each chunk, in the forward pass. The weight's gradient is
    added up in fp32. The weight is copied if it has to be cast or padded, and so are the hidden states, beside their
    gradient.
    """
    of_number = 4 if experiment.precision in {"fp32", "tf32"} else 2
    if experiment.loss == "chunked":
        of_weight, columns = model_builder.weights_dtype(experiment).itemsize, aligned(vocab)
        elements = 0 if experiment.lora_rank else columns * width
        copied = columns * width if of_weight != of_number or columns > vocab else 0
        in_chunk = 4 * elements + of_number * (columns * chunk_tokens(micro_batch * experiment.seq_len) + copied)
        return [Size(in_chunk, 2 * of_number * experiment.seq_len * width)], Size(of_weight * elements)
    gradient, logits = Size(of_number * vocab * width), Size(0, of_number * experiment.seq_len * vocab)
    padded = aligned(vocab) > vocab and experiment.precision != "fp32"  # by the compiler, for tensor cores
    if compiles_blocks(experiment.model_dump()):
        return [Size().plus(logits, 2 if padded else 1)], gradient
    return [logits] if padded else [gradient, Size(0, of_number * experiment.seq_len * width)], gradient


def _partitioned(
    module: torch.nn.Module, function: Callable[..., Any], keep: Callable[[Sequence[Any]], None]
) -> Callable[..., Any]:
    """Return a function of a module that runs as the graphs which torch's compiler makes of it, without dynamo.

    It shows what leaves the forward graph.
    """

    def forward(graph: torch.fx.GraphModule, _: Any) -> Any:
        def run(*arguments: Any) -> Any:
            results = graph(*arguments)
            keep(results)
            return results

        return make_boxed_func(run)

    def pure(own: dict[str, torch.Tensor], arguments: Any, named: Any) -> Any:
        with (
            _reparametrize_module(module, own, tie_weights=True),
            fake_model.patched(torch.compiler, is_compiling=True),
        ):
            return function(*arguments, **named)

    own = dict(module.named_parameters()) | dict(module.named_buffers())
    compiled = aot_function(
        pure,
        fw_compiler=forward,
        bw_compiler=lambda graph, _: make_boxed_func(graph),
        partition_fn=importlib.import_module("torch._inductor.compile_fx").partition_fn,
        decompositions=select_decomp_table(),
    )
    return lambda *arguments, **named: compiled(own, arguments, named)


@contextlib.contextmanager
def flash_attention() -> Iterator[None]:
    """Let attention be the flash kernel of GPUs, whose output is laid out as its query is; a CPU's is not."""

    def fused(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, **options: Any) -> Any:
        if attn_mask is not None or query.shape[-1] != value.shape[-1]:
            return usual(query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, **options)
        scale, (query, key, value) = options.get("scale"), as_autocast(query, key, value)
        return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, True, scale=scale)[0]

    def flex(query: Any, key: Any, value: Any, scale: float | None = None, **_: Any) -> Any:
        return fused(query, key, value, scale=scale)

    usual = F.scaled_dot_product_attention
    of_bloom = fake_model.patched(attention, flex_attention=flex, _causal_blocks=None)
    with fake_model.patched(F, scaled_dot_product_attention=fused), of_bloom:
        yield


def _kept_of_blocks(experiment: Experiment, sizes: dict[str, Any], block: Size) -> tuple[Size, Size]:
    """Return the bytes that compiled blocks keep, and those of a block that is computed again.

    If recomputed blocks follow each other in one graph, the backward pass computes all of them again at once, beside
    the inputs that have been kept: OPT-13B took 70 GiB with every block recomputed, 51 GiB with every second one
    (docs/LOG.md).
    """
    layers, every = sizes["layers"], experiment.checkpoint_every
    at_once = every == 1 and not compiles_blocks(experiment.model_dump())
    if not experiment.activation_checkpointing:
        return Size().plus(block, layers), Size()
    if at_once:
        return Size().plus(block, layers).plus(sizes["block_input"], layers), Size()
    pairs = [
        kept_activations(layers, one, of_input, every, experiment.checkpoint_offload)
        for one, of_input in zip(block, sizes["block_input"], strict=True)
    ]
    return Size(*(kept for kept, _ in pairs)), Size(*(again for _, again in pairs))


def _sizes(experiment: Experiment, layers: int) -> dict[str, Any]:
    """Return the counts of a model's elements; its blocks are alike, so one of them is built."""
    model, fake = build(experiment, 1)
    parameters, block = list(model.parameters()), list(blocks(model.model)[0].parameters())
    whole, of_block, head = _elements(parameters), _elements(block), output_layer(model).weight
    trained, of_block_trained = (_elements(one for one in some if one.requires_grad) for some in (parameters, block))
    return {
        "parameters": whole + (layers - 1) * of_block,
        "trainable": trained + (layers - 1) * of_block_trained,
        "layers": layers,
        "hidden": model.config.hidden_size,
        "of_block": of_block,
        "of_root": whole - of_block,
        "largest": max(one.numel() for one in parameters),
        "factored": _factored(parameters) + (layers - 1) * _factored(block),
        "vocab": head.shape[0],
        "width_of_head": head.shape[1],
        "block_input": _block_input(experiment, model, fake),
    }


def _factored(parameters: Iterable[torch.Tensor]) -> int:
    """Return the numbers that Adafactor keeps: of a matrix those of its rows and columns, of each of those stacked."""
    shapes = [one.shape for one in parameters if one.requires_grad]
    return sum(math.prod(shape[:-2]) * sum(shape[-2:]) for shape in shapes)


def _elements(parameters: Iterable[torch.Tensor]) -> int:
    return sum(one.numel() for one in parameters)


def _block_input(experiment: Experiment, model: CausalLoss, fake: Any) -> Size:
    """Return the bytes of what a block takes, which autocast may leave in fp32."""
    found: list[torch.Tensor] = []
    blocks(model.model)[0].register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
    with fake, CudaOperators(), autocast(experiment):
        model(torch.zeros(1, experiment.seq_len, dtype=torch.long))
    return Size(0, found[0].nbytes)


def _moments(found: Iterable[tuple[Size, float]]) -> list[tuple[float, float, float]]:
    """Return (constant, per sequence, done) of the moments that can be a peak for some micro-batch.

    A moment is none if another one, with as many gradients, has as many bytes of both kinds. Those of the loss's
    backward pass, before any gradient, are compared with each other only.
    """
    kept: list[tuple[float, float, float]] = []
    for one, done in sorted(found, key=lambda moment: (moment[1], *moment[0]), reverse=True):
        others = (other for other in kept if done or not other[2])
        if not any(one.constant <= constant and one.per_sequence <= each for constant, each, _ in others):
            kept.append((*one, done))
    return kept[::-1]


def main() -> None:
    """Trace what is asked for on the standard input, a line of JSON each, and print a line for each record.

    Where a model cannot be traced, `error` says why. It ends after some seconds, its argument, without a question.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries log to the standard output
    while select.select([sys.stdin], [], [], float(sys.argv[1]))[0] and (line := sys.stdin.readline()):
        kind, settings = json.loads(line)
        experiment = Experiment.recorded(settings)
        try:
            record = trace(experiment) if kind == "memory" else model_counts.count(experiment)
        except Exception as error:
            words = " ".join(str(error).split()) or type(error).__name__
            record = {"error": f"model {experiment.model!r} could not be traced: {words[:300]}"}
        print(json.dumps(record), file=answers, flush=True)


if __name__ == "__main__":
    main()
    os._exit(0)  # torch takes seconds to end
