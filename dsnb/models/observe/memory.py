"""Trace the memory of one training step without a GPU.

The model is built from torch's fake tensors and runs forward, loss and backward, while the bytes of
live storages are tracked operator by operator. For a compiled model, the partitioner of torch's
compiler decides which activations are saved and which are recomputed, but nothing is compiled.
Weights, optimizer states, buffers and collectives belong to the engine and are not traced.
"""

import functools
import json
import math
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dsnb.base.formulas.memory import kept_activations
from dsnb.models import attention
from dsnb.models.build import DTYPES, model_config
from dsnb.models.chunks import chunk_tokens
from dsnb.models.loss import CausalLoss, aligned
from dsnb.models.observe import TRACED
from dsnb.models.observe.fake import (
    MANY,
    Size,
    allocated,
    as_autocast,
    as_cuda,
    as_on_gpu,
    build,
    period,
    recompute_as_cuda,
)
from dsnb.models.parts import blocks, output_layer
from dsnb.settings.experiment import Experiment

Moment = tuple[Size, float, int]
"""Bytes at a peak, elements whose gradients are computed by then, and the place."""
BEFORE, INSIDE, BEHIND, OUTSIDE = range(-1, 3)
"""Places: before the forward pass of the second group of blocks and after its backward pass, inside it, behind it, and
outside of all blocks."""

OF_NO_SIZE = {"compile", "compile_unit", "checkpoint_every", "checkpoint_ops", "checkpoint_offload"}
"""Settings on which no size of a model depends, and for which none is refused when it is built."""


def trace(experiment: Experiment) -> dict[str, Any]:
    """Return the memory of one micro-batch, forward to backward: a record for `prediction.traces.MemoryTrace.of`.

    Of tensor-parallel ranks, the bytes are those of one; elements are those of the whole model.
    """
    config = model_config(experiment)
    compiled = experiment.compile != "off"
    with flash_attention(), as_on_gpu():
        sizes = model_sizes(experiment, config.num_hidden_layers)
        if compiled:
            record = sizes | _compiled(experiment, sizes)
        else:
            every = 1
            if experiment.activation_checkpointing:
                every = experiment.checkpoint_every
            every = math.lcm(every, period(config))
            with two_chunks(experiment):
                record = sizes | eager(experiment, sizes["layers"], every, MANY)
        if experiment.tensor_parallel == 1:
            return record
        whole = experiment.model_copy(update={"tensor_parallel": 1})
        return record | _of_whole(record, model_sizes(whole, config.num_hidden_layers))


def _of_whole(record: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    """Return the elements of a whole model, and the moments of one rank at these elements."""
    share = record["trainable"] / whole["trainable"]
    moments = [(fixed, each, done / share) for fixed, each, done in record["moments"]]
    return whole | {"moments": moments, "of_rank": record["parameters"]}


def model_sizes(experiment: Experiment, layers: int) -> dict[str, Any]:
    """Count the elements of a model, whose blocks are alike: only one is built."""
    settings = experiment.model_dump(include={*TRACED, "device"}, exclude=OF_NO_SIZE)
    config = model_config(experiment).to_json_string()
    return _sizes_of(json.dumps(settings), layers, config)


@functools.lru_cache
def _sizes_of(settings: str, layers: int, _config: str) -> dict[str, Any]:
    """Count the elements once; a file with another configuration is another model."""
    experiment = Experiment.recorded(json.loads(settings))
    model, fake = build(experiment, 1)
    parameters = list(model.parameters())
    block = list(blocks(model)[0].parameters())
    head = output_layer(model).weight

    def of_all(count: Callable[[Iterable[Tensor]], int]) -> int:
        return count(parameters) + (layers - 1) * count(block)

    inputs: list[Tensor] = []
    blocks(model)[0].register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    with fake, as_cuda(experiment):
        model(torch.zeros(1, experiment.seq_len, dtype=torch.long))
    return {
        "parameters": of_all(_elements),
        "trainable": of_all(_trainable),
        "layers": layers,
        "hidden": model.config.hidden_size,
        "of_block": _elements(block),
        "of_root": _elements(parameters) - _elements(block),
        "largest": max(weight.numel() for weight in parameters),
        "factored": of_all(_factored),
        "vocab": head.shape[0],
        "width_of_head": head.shape[1],
        "block_input": Size(0, inputs[0].nbytes),  # autocast may leave it in fp32
    }


def _elements(parameters: Iterable[Tensor]) -> int:
    return sum(weight.numel() for weight in parameters)


def _trainable(parameters: Iterable[Tensor]) -> int:
    return _elements(weight for weight in parameters if weight.requires_grad)


def _factored(parameters: Iterable[Tensor]) -> int:
    """Count the numbers that Adafactor stores: one for each row and column of each matrix."""
    shapes = [weight.shape for weight in parameters if weight.requires_grad]
    return sum(math.prod(shape[:-2]) * sum(shape[-2:]) for shape in shapes)


def eager(experiment: Experiment, layers: int, every: int, sequences: int) -> dict[str, Any]:
    """Track every operator of the forward and the backward pass.

    Blocks repeat with a period, `every`, so only a few are built. The second group of them
    represents those left out: what happens inside it is the same for each, and adds to what the
    others hold.
    """
    few = layers % every + 3 * every
    left_out = max(0, layers - few) // every
    model, fake = build(experiment, layers - left_out * every)
    with fake:
        live = LiveBytes([*model.parameters(), *model.buffers()], sequences)
        recorder = _Recorder(experiment, model, live, range(every, 2 * every))
        ids = torch.zeros(sequences, experiment.seq_len, dtype=torch.long)
        with live:
            with as_cuda(experiment):
                loss = model(ids)
                with_copies = live.now
            # Autocast drops its copies of weights that the backward pass does not need, those of
            # recomputed blocks.
            dropped = with_copies - live.now
            recorder.add_forward()
            loss.backward()
        recorder.add_backward(Size())
    before, done = recorder.ends[BEHIND]
    after, all_done = recorder.ends[INSIDE]
    freed = before - after

    def extrapolated(
        moments: list[Moment], group: Size, elements: float
    ) -> Iterator[tuple[Size, float]]:
        for size, done, place in moments:
            first = left_out if place in {BEHIND, OUTSIDE} else 0
            last = 0 if place == BEFORE else left_out
            for number in range(first, last + 1):  # of groups left out that hold memory
                yield size + number * group, done + (left_out - number) * elements

    forward = extrapolated(recorder.forward, recorder.kept_forward, 0)
    return {
        "forward": largest(peak for peak, _ in forward),
        "kept": recorder.kept - dropped + left_out * freed,
        "moments": _moments(extrapolated(recorder.backward, freed, all_done - done)),
    }


class _Recorder:
    """Records the peaks between places of the forward pass and between gradients, and what the blocks save."""

    def __init__(
        self, experiment: Experiment, model: CausalLoss, live: "LiveBytes", second: range
    ) -> None:
        self.forward: list[Moment] = []
        self.backward: list[Moment] = []
        self.ends = dict.fromkeys((INSIDE, BEHIND), (Size(), 0))
        """Bytes and finished gradient elements at the last gradient of each place."""
        self.kept = self.kept_forward = Size()
        self._live = live
        self._done = 0
        self._place = BEFORE
        self._places = dict.fromkeys(map(id, model.parameters()), OUTSIDE)
        modules = blocks(model)
        for number, block in enumerate(modules):
            place = INSIDE
            if number not in second:
                place = BEFORE if number < second.start else BEHIND
            self._places |= dict.fromkeys(map(id, block.parameters()), place)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._take)
        if len(modules) > second.stop:
            modules[second.start].register_forward_pre_hook(lambda *_: self._enter(INSIDE))
            modules[second.stop].register_forward_pre_hook(lambda *_: self._enter(BEHIND))
        modules[0].register_forward_pre_hook(lambda *_: self._count_kept(-1))
        modules[-1].register_forward_hook(lambda *_: self._count_kept(1))
        if experiment.activation_checkpointing:
            for block in modules[:: experiment.checkpoint_every]:
                recompute_as_cuda(block, experiment.checkpoint_offload)

    def add_forward(self) -> None:
        """Add the peaks of the forward pass since the last place."""
        self.forward += [(peak, 0, self._place) for peak in self._live.take_peaks()]

    def add_backward(self, gradient: Size) -> None:
        """Add the peaks since the last gradient, less the size of the gradient that was just computed."""
        for peak in self._live.take_peaks():
            self.backward.append((peak - gradient, self._done, self._place))

    def _enter(self, place: int) -> None:
        if self._place == place - 1:  # not where a block is recomputed
            self.add_forward()
            self._place = place
            self.kept_forward += (1 if place else -1) * self._live.now

    def _take(self, parameter: Tensor) -> None:
        """Free a gradient, which belongs to the engine."""
        gradient = parameter.grad
        parameter.grad = None
        size = Size()
        if gradient is not None:
            size = allocated(gradient.untyped_storage().nbytes(), 1)
        place = self._places[id(parameter)]
        self._place = min(self._place, place)
        self.add_backward(size)
        self._done += parameter.numel()
        del gradient
        self._live.take_peaks()
        self.ends[place] = self._live.now, self._done

    def _count_kept(self, times: int) -> None:
        self.kept += times * self._live.now


class LiveBytes(TorchDispatchMode):
    """Track the bytes of live storages, without those of existing tensors."""

    def __init__(self, existing: Iterable[Tensor], sequences: int) -> None:
        super().__init__()
        self.now = Size()
        self._known = {tensor.untyped_storage()._cdata for tensor in existing}
        self._sequences = sequences
        self._sizes: dict[int, Size] = {}
        self._peaks: list[Size] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._add(tensor.untyped_storage())
        return result

    def take_peaks(self) -> list[Size]:
        """Return the sizes that may have been the peak since the last call."""
        peaks = largest(self._peaks)
        self._peaks = [self.now]
        return peaks

    def _add(self, storage: Any) -> None:
        key = storage._cdata
        if key in self._known or key in self._sizes:
            return
        self._sizes[key] = allocated(storage.nbytes(), self._sequences)
        weakref.finalize(storage, self._remove, key)
        self.now += self._sizes[key]
        if not self._peaks or not _covers(self._peaks[-1], self.now):
            self._peaks.append(self.now)

    def _remove(self, key: int) -> None:
        self.now -= self._sizes.pop(key)


def largest(sizes: Iterable[Size]) -> list[Size]:
    """Return the sizes that can be the largest for some micro-batch."""
    kept: list[Size] = []
    for candidate in sorted(set(sizes), reverse=True):
        if not kept or candidate.per_sequence > kept[-1].per_sequence:
            kept.append(candidate)
    return kept


def _moments(candidates: Iterable[tuple[Size, float]]) -> list[tuple[float, float, float]]:
    """Return (constant, per sequence, done) of the moments that can be the peak for some micro-batch.

    A moment is dropped if another with at least as many gradients has at least as many bytes of
    both kinds. Moments of the loss's backward pass, before any gradient, are compared only with
    each other.
    """
    kept: list[tuple[Size, float]] = []
    for held, done in sorted(candidates, key=lambda moment: moment[::-1], reverse=True):
        others = [other for other, later in kept if done or not later]
        if not any(_covers(other, held) for other in others):
            kept.append((held, done))
    return [(*held, done) for held, done in reversed(kept)]


def _covers(larger: Size, smaller: Size) -> bool:
    return larger.constant >= smaller.constant and larger.per_sequence >= smaller.per_sequence


def _compiled(experiment: Experiment, sizes: dict[str, Any]) -> dict[str, Any]:
    """Extrapolate what torch's compiler saves from a model of few blocks."""
    outside, block = kept_sizes(experiment)
    kept, recomputed = kept_of_blocks(experiment, sizes, block)
    forward = outside + kept
    vocab = sizes["vocab"]
    width = sizes["width_of_head"]
    losses, head = loss_sizes(experiment, vocab, width)
    end = head
    if not experiment.compiles_blocks:
        if not experiment.lora_rank:
            # The embedding's gradient is summed in fp32 before the output layer's is added to it.
            end += Size(4 * vocab * width)
    elif experiment.loss == "chunked":  # both gradients are summed outside of the blocks' graphs
        end += head
    moments = [(forward + loss, 0) for loss in losses]
    moments += [(kept + recomputed + head, 1), (end, sizes["trainable"])]
    return {"forward": [forward], "kept": kept, "moments": _moments(moments)}


def kept_sizes(experiment: Experiment) -> tuple[Size, Size]:
    """Return what a compiled model saves for its backward pass outside of equal blocks and in one, not recomputed.

    The last block stands for those left out, or the last two where kinds of blocks alternate. Two
    blocks are enough, except under autocast: with parallel residuals, the second one saves other
    tensors than all later ones.
    """
    from dsnb.models.observe import (
        saved,  # takes a second to import, and only compiled models need it
    )

    kinds = min(2, period(model_config(experiment)))
    settings = experiment.model_dump(include={*TRACED, "device"})
    settings |= {"compile_unit": "model", "activation_checkpointing": False}
    settings |= {"checkpoint_every": 1, "checkpoint_offload": False}
    if experiment.numbers.natively_half:
        settings["strategy"] = "deepspeed"  # FSDP computes alike
    if experiment.compiles_blocks:  # the loss is outside of the blocks
        settings |= {"compile": "default", "compile_unit": "block", "loss": "whole"}
    needs_later = experiment.numbers.casts_weights and not experiment.compiles_blocks
    layers = 1 + kinds + needs_later
    totals: dict[int, Size] = defaultdict(Size)
    config = model_config(experiment).to_json_string()
    for place, number in saved.saved(json.dumps(settings), layers, config):
        totals[place] += allocated(number, MANY)
    outside = totals[-1]
    if experiment.compiles_blocks and experiment.loss == "chunked":
        outside = Size()
    of_blocks = [totals[place] for place in range(layers)]
    block = 1 / kinds * sum(of_blocks[-kinds:], Size())
    return sum(of_blocks, outside) - layers * block, block


def rows_of_chunk(experiment: Experiment) -> int:
    """Return the tokens in a chunk of the loss: alone of all sizes, they do not grow with the micro-batch."""
    return chunk_tokens(int(experiment.micro_batch_tokens))


@contextmanager
def two_chunks(experiment: Experiment) -> Iterator[None]:
    """Follow two chunks of a chunked loss, as large as those of the micro-batch: later ones are like the second."""

    def first(tensor: Tensor, rows: int) -> tuple[Tensor, ...]:
        chunks: tuple[Tensor, ...] = tensor[: 2 * rows].split(rows)
        return chunks

    def as_large(_: int) -> int:
        return rows_of_chunk(experiment)

    with patch.multiple("dsnb.models.loss", chunk_tokens=as_large, split=first):
        yield


def loss_sizes(experiment: Experiment, vocab: int, width: int) -> tuple[list[Size], Size]:
    """Return what the loss and its backward pass can add to saved activations, and the output layer's gradient.

    `vocab` and `width` are the rows and columns of the output layer. The gradient of the logits
    overwrites them if the compiler sees both and they are not padded. A chunked loss computes its
    gradients chunk by chunk in the forward pass, the weight's in fp32; it copies the weight to cast
    or pad it, and the hidden states beside their gradient.
    """
    of_number = 4 if experiment.precision in {"fp32", "tf32"} else 2
    is_trained = not experiment.lora_rank  # LoRA freezes the output layer
    hidden = of_number * experiment.seq_len * width
    columns = aligned(vocab)
    if experiment.loss == "chunked":
        of_weight = DTYPES[experiment.numbers.built].itemsize
        elements = columns * width
        in_chunk = of_number * columns * rows_of_chunk(experiment)
        if of_weight != of_number or columns > vocab:
            in_chunk += of_number * elements
        in_fp32 = 4 * is_trained * elements
        return [Size(in_chunk + in_fp32, 2 * hidden)], Size(is_trained * of_weight * elements)
    gradient = Size(is_trained * of_number * vocab * width)
    logits = Size(0, of_number * experiment.seq_len * vocab)
    is_padded = columns > vocab and experiment.precision != "fp32"  # for tensor cores
    if experiment.compiles_blocks:
        return [2 * logits if is_padded else logits], gradient
    if is_padded:
        return [logits], gradient
    return [gradient, Size(0, hidden)], gradient


def kept_of_blocks(experiment: Experiment, sizes: dict[str, Any], block: Size) -> tuple[Size, Size]:
    """Return the bytes that compiled blocks save, and those of a recomputed block.

    If consecutive blocks with LoRA are recomputed in one graph, the backward pass recomputes all of
    them at once and holds their inputs too: OPT-13B took 70 GiB with every block recomputed, 51 GiB
    with every second one. Pythia 410M without LoRA recomputed block by block (docs/LOG.md).
    """
    layers = sizes["layers"]
    block_input = sizes["block_input"]
    every = 0
    if experiment.activation_checkpointing:
        every = experiment.checkpoint_every
    if every == 1 and experiment.lora_rank and not experiment.compiles_blocks:
        return layers * (block + block_input), Size()
    both = [
        kept_activations(layers, saved, of_input, every, experiment.checkpoint_offload)
        for saved, of_input in zip(block, block_input, strict=True)
    ]
    kept, recomputed = zip(*both, strict=True)
    return Size(*kept), Size(*recomputed)


@contextmanager
def flash_attention() -> Iterator[None]:
    """Use the flash kernel of GPUs for attention, whose output has the layout of its query, unlike a CPU's."""
    usual = F.scaled_dot_product_attention

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
        scale = options.get("scale")
        query, key, value = as_autocast(query, key, value)
        has_shared_keys = query.shape[1] != key.shape[1]
        if query.dtype is torch.float32 and has_shared_keys:  # no kernel of fp32 takes these
            return torch._scaled_dot_product_attention_math(
                query, key, value, None, dropout_p, True, scale=scale, enable_gqa=True
            )[0]
        return torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, True, scale=scale
        )[0]

    def flex(query: Any, key: Any, value: Any, scale: float | None = None, **_: Any) -> Any:
        return fused(query, key, value, scale=scale)

    with (
        patch.object(F, "scaled_dot_product_attention", fused),
        patch.multiple(attention, flex_attention=flex, _causal_blocks=lambda *_: None),
    ):
        yield
