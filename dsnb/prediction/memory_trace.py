"""Trace the memory of one training step without a GPU.

The model is built from torch's fake tensors and runs forward, loss and backward, while the bytes of live storages are
tracked operator by operator. For a compiled model, the partitioner of torch's compiler decides which activations are
saved and which are recomputed, but nothing is compiled. Weights, optimizer states, buffers and collectives belong to
the engine and are not traced. `main` runs in a separate process, so that the caller needs no torch: it reads settings
as JSON from its standard input and prints the traces.
"""

import contextlib
import functools
import gc
import json
import math
import os
import select
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn import functional as F

from dsnb.base.formulas.memory import kept_activations
from dsnb.models import attention
from dsnb.models import build as model_builder
from dsnb.models.loss import CausalLoss, aligned, chunk_tokens
from dsnb.models.parts import blocks, output_layer
from dsnb.prediction import fake_model, model_counts
from dsnb.prediction.fake_model import (
    MANY,
    CudaOperators,
    LiveBytes,
    Size,
    as_autocast,
    autocast,
    build,
    size,
)
from dsnb.prediction.shapes import Mode
from dsnb.prediction.traces import TRACED
from dsnb.settings.experiment import Experiment
from dsnb.settings.training import compiles_blocks


def trace(experiment: Experiment) -> dict[str, Any]:
    """Return the memory of one micro-batch, forward to backward: a record for `prediction.traces.MemoryTrace.of`."""
    # The size of a chunk of the loss does not grow with the micro-batch as all else does.
    micro_batch = int(experiment.micro_batch_size) if experiment.loss == "chunked" else MANY
    config = model_builder.model_config(experiment)
    layers, compiled = config.num_hidden_layers, experiment.compile != "off"
    with flash_attention(), fake_model.grouped_products(), fake_model.masks_of(compiled):
        sizes = _sizes(experiment, layers)
        if compiled:
            return {**sizes, **_compiled(experiment, sizes, micro_batch)}
        every = experiment.checkpoint_every if experiment.activation_checkpointing else 1
        return {
            **sizes,
            **_eager(experiment, micro_batch, layers, math.lcm(fake_model.period(config), every)),
        }


def _eager(experiment: Experiment, micro_batch: int, layers: int, period: int) -> dict[str, Any]:
    """Track every operator of the forward and the backward pass.

    Blocks repeat with `period`, so only a few are built. The second group of `period` blocks represents those left out:
    what happens inside it is the same for each, and adds to what the others hold.
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
            # Autocast drops its copies of weights that the backward pass does not need, those of recomputed blocks.
            dropped = before.plus(live.now, -1)
            recorder.add_forward()
            loss.backward()
        recorder.add_backward(Size())
    (before, done), (after, all_done) = recorder.ends[1], recorder.ends[0]
    freed, elements = before.plus(after, -1), all_done - done

    def extrapolated(
        moments: list[Moment], group: Size, elements: float
    ) -> list[tuple[Size, float]]:
        copies = {-1: [0], 0: range(left_out + 1)}  # groups left out that hold memory, by place
        return [
            (size_.plus(group, number), done + (left_out - number) * elements)
            for size_, done, place in moments
            for number in copies.get(place, [left_out])
        ]

    return {
        "forward": fake_model.largest(
            peak for peak, _ in extrapolated(recorder.forward, recorder.kept_forward, 0)
        ),
        "kept": recorder.kept.plus(dropped, -1).plus(freed, left_out),
        "moments": _moments(extrapolated(recorder.backward, freed, elements)),
    }


Moment = tuple[Size, float, int]
"""Bytes at a peak, elements whose gradients are computed by then, and the place: -1 before the forward pass of the
second group of blocks and after its backward pass, 0 inside it, 1 behind it, 2 outside of all blocks."""


class _Recorder:
    """Records the peaks between places of the forward pass and between gradients, and what the blocks save."""

    def __init__(
        self, experiment: Experiment, model: CausalLoss, live: LiveBytes, second: range
    ) -> None:
        self.forward: list[Moment] = []
        self.backward: list[Moment] = []
        self.ends = {0: (Size(), 0), 1: (Size(), 0)}
        """Bytes and finished gradient elements at the last gradient of each place."""
        self.kept, self.kept_forward, self._live, self._done, self._place = (
            Size(),
            Size(),
            live,
            0,
            -1,
        )
        modules = blocks(model.model)
        number = {
            id(weight): place
            for place, block in enumerate(modules)
            for weight in block.parameters()
        }
        places = {
            weight: -1 if place < second.start else int(place >= second.stop)
            for weight, place in number.items()
        }
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
        self.forward += [(peak, 0, self._place) for peak in self._live.take_peaks()]

    def add_backward(self, gradient: Size) -> None:
        """Add the peaks since the last gradient, less the size of the gradient that was just computed."""
        self.backward += [
            (peak.plus(gradient, -1), self._done, self._place) for peak in self._live.take_peaks()
        ]

    def _enter(self, place: int) -> None:
        if self._place == place - 1:  # not where a block is recomputed
            self.add_forward()
            self._place = place
            self.kept_forward = self.kept_forward.plus(self._live.now, 1 if place else -1)

    def _take(self, parameter: torch.Tensor) -> None:
        """Free a gradient, which belongs to the engine."""
        gradient, parameter.grad = parameter.grad, None
        place = self._places[id(parameter)]
        self._place = min(self._place, place)
        self.add_backward(
            size(gradient.untyped_storage().nbytes(), 1) if gradient is not None else Size()
        )
        self._done += parameter.numel()
        del gradient
        self._live.take_peaks()
        self.ends[place] = self._live.now, self._done

    def _count_kept(self, times: int) -> None:
        self.kept = self.kept.plus(self._live.now, times)


def _compiled(experiment: Experiment, sizes: dict[str, Any], micro_batch: int) -> dict[str, Any]:
    """Extrapolate what torch's compiler saves from a model of few blocks."""
    outside, block = _kept_sizes(experiment, micro_batch)
    kept, recomputed = _kept_of_blocks(experiment, sizes, block)
    forward = outside.plus(kept)
    losses, head = loss_sizes(experiment, sizes["vocab"], sizes["width_of_head"], micro_batch)
    end = head
    if not compiles_blocks(experiment.model_dump()):
        # The embedding's gradient is summed in fp32 before the output layer's is added to it.
        end = head.plus(
            Size(0 if experiment.lora_rank else 4 * sizes["vocab"] * sizes["width_of_head"])
        )
    elif experiment.loss == "chunked":  # both gradients are summed outside of the blocks' graphs
        end = head.plus(head)
    last = kept.plus(recomputed).plus(head)
    return {
        "forward": [forward],
        "kept": kept,
        "moments": _moments(
            [*((forward.plus(loss), 0) for loss in losses), (last, 1), (end, sizes["trainable"])]
        ),
    }


def _kept_sizes(experiment: Experiment, micro_batch: int) -> tuple[Size, Size]:
    """Return what a compiled model saves for its backward pass outside of equal blocks and in one, not recomputed.

    The last block stands for those left out, or the last two where kinds of blocks alternate. Two blocks are enough,
    except under autocast: with parallel residuals, the second one saves other tensors than all later ones.
    """
    from dsnb.prediction import (
        partitioner,  # takes a second to import, and only compiled models need it
    )

    values = experiment.model_dump()
    kinds = min(2, fake_model.period(model_builder.model_config(experiment)))
    settings = {name: values[name] for name in (*TRACED, "device")} | {"compile_unit": "model"}
    settings |= {
        "activation_checkpointing": False,
        "checkpoint_every": 1,
        "checkpoint_offload": False,
    }
    if (
        values["strategy"] == "fsdp" and values["mixed_precision"] == "native"
    ):  # it computes as DeepSpeed does
        settings["strategy"] = "deepspeed"
    if compiles_blocks(values):  # the loss is outside of the blocks
        settings |= {"compile": "default", "compile_unit": "block", "loss": "whole"}

    def total(wanted: int) -> Size:
        numbers = (
            number if number % MANY else number // MANY * micro_batch
            for at, number in saved
            if at == wanted
        )
        return functools.reduce(
            Size.plus, (size(number, micro_batch) for number in numbers), Size()
        )

    is_later_needed = Mode.of(experiment).autocast and not compiles_blocks(values)
    layers = 3 if is_later_needed else 1 + kinds
    saved = partitioner.saved(json.dumps(settings), layers)
    outside, *of_blocks = map(total, range(-1, layers))
    if compiles_blocks(values) and experiment.loss == "chunked":
        outside = Size()
    block = Size().plus(functools.reduce(Size.plus, of_blocks[-kinds:]), 1 / kinds)
    return functools.reduce(Size.plus, of_blocks, outside).plus(block, -len(of_blocks)), block


def loss_sizes(
    experiment: Experiment, vocab: int, width: int, micro_batch: int
) -> tuple[list[Size], Size]:
    """Return what the loss and its backward pass can add to saved activations, and the output layer's gradient.

    `vocab` and `width` are the rows and columns of the output layer. The gradient of the logits overwrites them if the
    compiler sees both and they are not padded. A chunked loss computes its gradients chunk by chunk in the forward
    pass, the weight's in fp32; it copies the weight to cast or pad it, and the hidden states beside their gradient.
    """
    of_number = 4 if experiment.precision in {"fp32", "tf32"} else 2
    trained = 0 if experiment.lora_rank else 1  # LoRA freezes the output layer
    if experiment.loss == "chunked":
        of_weight, columns = model_builder.weights_dtype(experiment).itemsize, aligned(vocab)
        elements = trained * columns * width
        copied = columns * width if of_weight != of_number or columns > vocab else 0
        in_chunk = 4 * elements + of_number * (
            columns * chunk_tokens(micro_batch * experiment.seq_len) + copied
        )
        return [Size(in_chunk, 2 * of_number * experiment.seq_len * width)], Size(
            of_weight * elements
        )
    gradient, logits = (
        Size(trained * of_number * vocab * width),
        Size(0, of_number * experiment.seq_len * vocab),
    )
    padded = (
        aligned(vocab) > vocab and experiment.precision != "fp32"
    )  # by the compiler, for tensor cores
    if compiles_blocks(experiment.model_dump()):
        return [Size().plus(logits, 2 if padded else 1)], gradient
    return [logits] if padded else [
        gradient,
        Size(0, of_number * experiment.seq_len * width),
    ], gradient


@contextlib.contextmanager
def flash_attention() -> Iterator[None]:
    """Use the flash kernel of GPUs for attention, whose output has the layout of its query, unlike a CPU's."""

    def fused(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        **options: Any,
    ) -> Any:
        if attn_mask is not None or query.shape[-1] != value.shape[-1]:
            return usual(query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, **options)
        scale, (query, key, value) = options.get("scale"), as_autocast(query, key, value)
        if (
            query.dtype is torch.float32 and query.shape[1] != key.shape[1]
        ):  # no kernel of fp32 takes shared keys
            shared: dict[str, Any] = {"scale": scale, "enable_gqa": True}
            return torch._scaled_dot_product_attention_math(
                query, key, value, None, dropout_p, True, **shared
            )[0]
        return torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, True, scale=scale
        )[0]

    def flex(query: Any, key: Any, value: Any, scale: float | None = None, **_: Any) -> Any:
        return fused(query, key, value, scale=scale)

    usual = F.scaled_dot_product_attention
    of_bloom = fake_model.patched(attention, flex_attention=flex, _causal_blocks=None)
    with fake_model.patched(F, scaled_dot_product_attention=fused), of_bloom:
        yield


def _kept_of_blocks(
    experiment: Experiment, sizes: dict[str, Any], block: Size
) -> tuple[Size, Size]:
    """Return the bytes that compiled blocks save, and those of a recomputed block.

    If consecutive blocks with LoRA are recomputed in one graph, the backward pass recomputes all of them at once and
    holds their inputs too: OPT-13B took 70 GiB with every block recomputed, 51 GiB with every second one. Pythia 410M
    without LoRA recomputed block by block (docs/LOG.md).
    """
    layers, block_input = sizes["layers"], sizes["block_input"]
    every = experiment.checkpoint_every if experiment.activation_checkpointing else 0
    if every == 1 and experiment.lora_rank and not compiles_blocks(experiment.model_dump()):
        return Size().plus(block, layers).plus(block_input, layers), Size()
    kept, recomputed = zip(
        *(
            kept_activations(layers, saved, of_input, every, experiment.checkpoint_offload)
            for saved, of_input in zip(block, block_input, strict=True)
        ),
        strict=True,
    )
    return Size(*kept), Size(*recomputed)


def _sizes(experiment: Experiment, layers: int) -> dict[str, Any]:
    """Count the elements of a model, whose blocks are alike: only one is built."""
    model, fake = build(experiment, 1)
    parameters, block = list(model.parameters()), list(blocks(model.model)[0].parameters())
    elements, of_block, head = _elements(parameters), _elements(block), output_layer(model).weight
    trained, of_block_trained = (
        _elements(p for p in some if p.requires_grad) for some in (parameters, block)
    )
    return {
        "parameters": elements + (layers - 1) * of_block,
        "trainable": trained + (layers - 1) * of_block_trained,
        "layers": layers,
        "hidden": model.config.hidden_size,
        "of_block": of_block,
        "of_root": elements - of_block,
        "largest": max(weight.numel() for weight in parameters),
        "factored": _factored(parameters) + (layers - 1) * _factored(block),
        "vocab": head.shape[0],
        "width_of_head": head.shape[1],
        "block_input": _block_input(experiment, model, fake),
    }


def _factored(parameters: Iterable[torch.Tensor]) -> int:
    """Count the numbers that Adafactor stores: one for each row and column of each matrix."""
    shapes = [weight.shape for weight in parameters if weight.requires_grad]
    return sum(math.prod(shape[:-2]) * sum(shape[-2:]) for shape in shapes)


def _elements(parameters: Iterable[torch.Tensor]) -> int:
    return sum(weight.numel() for weight in parameters)


def _block_input(experiment: Experiment, model: CausalLoss, fake: Any) -> Size:
    """Return the bytes of a block's input, which autocast may leave in fp32."""
    block_inputs: list[torch.Tensor] = []
    blocks(model.model)[0].register_forward_pre_hook(
        lambda _, inputs: block_inputs.append(inputs[0])
    )
    with fake, CudaOperators(), autocast(experiment):
        model(torch.zeros(1, experiment.seq_len, dtype=torch.long))
    return Size(0, block_inputs[0].nbytes)


def _moments(candidates: Iterable[tuple[Size, float]]) -> list[tuple[float, float, float]]:
    """Return (constant, per sequence, done) of the moments that can be the peak for some micro-batch.

    A moment is dropped if another with at least as many gradients has at least as many bytes of both kinds. Moments of
    the loss's backward pass, before any gradient, are compared only with each other.
    """
    kept: list[tuple[float, float, float]] = []
    for held, done in sorted(candidates, key=lambda moment: (moment[1], *moment[0]), reverse=True):
        others = (other for other in kept if done or not other[2])
        if not any(
            held.constant <= constant and held.per_sequence <= each for constant, each, _ in others
        ):
            kept.append((*held, done))
    return kept[::-1]


def main() -> None:
    """Read requests from standard input, a line of JSON each, and print a record (or an `error`) for each.

    The process ends when no request arrives for the seconds in its argument.
    """
    if not select.select([sys.stdin], [], [], 0)[0]:  # idle: prepare for compiled models
        from dsnb.prediction import partitioner  # noqa: F401
    gc.freeze()  # what was imported stays: collections need not look at it
    gc.enable()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries log to the standard output
    while select.select([sys.stdin], [], [], float(sys.argv[1]))[0] and (
        line := sys.stdin.readline()
    ):
        kind, settings = json.loads(line)
        experiment = Experiment.recorded(settings)
        try:
            record = trace(experiment) if kind == "memory" else model_counts.count(experiment)
        except Exception as error:
            words = " ".join(str(error).split()) or type(error).__name__
            record = {"error": f"model {experiment.model!r} could not be traced: {words[:300]}"}
        print(json.dumps(record), file=answers, flush=True)
    os._exit(0)  # torch takes seconds to end
