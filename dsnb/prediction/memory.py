"""Predict the peak of a GPU's memory in a step: the largest of the moments of its strategy.

What a micro-batch keeps comes from a trace of the model; `untraced` estimates it by the formulas of
`dsnb.base.formulas.memory`. Both give the same parts. The rules follow the code of torch and
DeepSpeed 0.19.8 and were checked against runs on CPU ranks (docs/explanation/prediction.md).
"""

import math
from dataclasses import replace

import numpy as np

from dsnb.base.formulas import memory as formulas
from dsnb.base.formulas.memory import MOMENTS_8_BIT, NF4, MemoryParts
from dsnb.base.formulas.model_shapes import COUNTED_BY_HAND, facts
from dsnb.base.system.hardware import GIB
from dsnb.prediction import tuned
from dsnb.prediction.shapes import shape
from dsnb.prediction.traces import MemoryTrace
from dsnb.prediction.work import quantized_parameters, recomputed_share
from dsnb.settings.experiment import Experiment
from dsnb.settings.framework_defaults import ZERO, zero_number
from dsnb.settings.strategies import load

MEMORY = tuned.numbers("memory")
UNTRACED = tuned.numbers("untraced")


def room_gib(experiment: Experiment, gpu_gib: float) -> float:
    """Return the memory left for tensors: the GPU's less a reserve, or `memory_limit_gib`, which limits torch only."""
    left_gib = gpu_gib - MEMORY.context_gib
    if experiment.gpus > 1:
        left_gib -= MEMORY.nccl_gib
    return min(left_gib, experiment.memory_limit_gib or left_gib)


def peak_memory(experiment: Experiment, trace: MemoryTrace) -> MemoryParts:
    """Return the predicted peak of the rank that needs the most memory, in bytes."""
    rule = load(experiment.parallel_strategy.memory_rule)
    moments: list[MemoryParts] = []
    for of_rank in _of_ranks(experiment, trace):
        moments += rule(Engine(experiment, of_rank))
    peak = max(moments, key=lambda moment: moment.total)
    return peak.plus(workspace=MEMORY.workspace_gib * GIB)


def need_gib(experiment: Experiment, likely: bool = False) -> float:
    """Return the memory that a setting needs at least, or is likely to need, without a trace of its model."""
    return peak_memory(experiment, untraced(experiment, likely)).gib


def untraced(experiment: Experiment, likely: bool) -> MemoryTrace:
    """Return a trace of a setting from formulas, for the least or the likely bytes that it keeps."""
    model = shape(experiment.model)
    tokens = experiment.micro_batch_tokens
    width = experiment.numbers.computed_bytes
    block = formulas.block_activations(
        tokens,
        model.hidden,
        heads=0,
        seq_len=0,
        width=width,
        dropout=likely and experiment.dropout > 0,
        fused=True,
        relu=not likely or model.family == "opt",
    )
    if not likely:
        block *= UNTRACED.least_block
        logit_bytes = width
    else:
        logit_bytes = UNTRACED.compiled_logit_bytes
        if experiment.compile == "off":
            logit_bytes = UNTRACED.eager_logit_bytes
        if experiment.numbers.casts_weights:
            block *= UNTRACED.autocast_block
    every = 0
    if experiment.activation_checkpointing:
        every = experiment.checkpoint_every
    block_input = float(width * tokens * model.hidden)
    kept, again = formulas.kept_activations(
        model.layers, block, block_input, every, experiment.checkpoint_offload
    )
    loss = kept
    if experiment.loss == "whole":
        loss += tokens * logit_bytes * model.vocab
    of_root = float(model.vocab * model.hidden)
    return MemoryTrace(
        forward_peak=kept,
        kept=kept,
        moments=((loss, 0.0), (kept + again, 1.0)),
        parameters=model.parameters,
        trainable=0.0 if experiment.lora_rank else model.parameters,
        of_root=of_root,
        largest=of_root,
        of_block=(model.parameters - of_root) / model.layers,
        layers=model.layers,
        hidden=model.hidden,
        vocab=model.vocab,
    )


def _of_ranks(experiment: Experiment, trace: MemoryTrace) -> list[MemoryTrace]:
    """Return the traces of the ranks that differ: the first and last stage of a pipeline, else one."""
    split = _split_by_tensor_parallel(experiment, trace)
    if experiment.matmul == "fp8" and experiment.compile != "off":
        split = _recast_in_fp8(experiment, split)
    stages = experiment.pipeline_parallel
    if stages == 1:
        return [split]
    in_flight = min(stages, experiment.grad_accum)
    logits = split.moments[0][0] - split.kept
    # The engine keeps the logits of a micro-batch until the buffer is used again.
    kept_logits = 2 * experiment.micro_batch_tokens * trace.vocab
    of_stages = []
    for micro_batches, loss in ((in_flight, 0.0), (1, logits + in_flight * kept_logits)):
        kept = split.kept * micro_batches / stages
        moments = ((kept + loss, 0.0),)
        of_stages.append(replace(split, kept=kept, forward_peak=kept, moments=moments))
    return of_stages


def _split_by_tensor_parallel(experiment: Experiment, trace: MemoryTrace) -> MemoryTrace:
    """Return the trace of one tensor-parallel rank; by formula ranks share part of a block (Korthikanti et al.)."""
    if experiment.tensor_parallel == 1 or trace.of_rank:
        return trace
    tokens = experiment.micro_batch_tokens
    replicated = trace.layers * formulas.block_activations(
        tokens,
        trace.hidden,
        heads=0,
        seq_len=0,
        tensor_parallel=math.inf,
        width=experiment.numbers.computed_bytes,
        dropout=experiment.dropout > 0,
    )
    less = (1 - 1 / experiment.tensor_parallel) * max(0.0, trace.kept - replicated)
    return _kept_less(trace, less)


def _recast_in_fp8(experiment: Experiment, trace: MemoryTrace) -> MemoryTrace:
    """Return the trace without what compiled blocks with products in fp8 make again instead of keeping it.

    A product in half precision keeps its input, which is a result of norms or activations; scaled
    to fp8, the compiler keeps what that is made from. Autocast has norms in fp32 besides.
    """
    model = shape(experiment.model)
    each = experiment.numbers.computed_bytes * model.recast
    if experiment.numbers.casts_weights:
        each += 4.0 * model.hidden
    blocks = trace.layers * (1 - recomputed_share(experiment))
    return _kept_less(trace, each * experiment.micro_batch_tokens * blocks)


def _kept_less(trace: MemoryTrace, less: float) -> MemoryTrace:
    """Return a trace whose blocks keep fewer bytes."""
    # The activations of blocks shrink as their gradients are computed; frozen weights outside of
    # blocks have none.
    of_blocks = trace.trainable
    if trace.trainable == trace.parameters:
        of_blocks -= trace.of_root
    moments = []
    for size, done in trace.moments:
        left = max(0.0, 1 - done / max(1.0, of_blocks))
        moments.append((size - less * left, done))
    forward_peak = trace.forward_peak - less
    return replace(trace, kept=trace.kept - less, forward_peak=forward_peak, moments=moments)


class Engine:
    """The sizes of one rank that the rules use, in bytes unless noted."""

    def __init__(self, experiment: Experiment, trace: MemoryTrace) -> None:
        # Embeddings, which are tied to the output layer, are whole on each tensor-parallel rank and
        # on the outer stages.
        root_share = trace.of_root / trace.parameters
        of_rank = root_share + (1 - root_share) / experiment.model_parallel
        if trace.of_rank and experiment.pipeline_parallel == 1:
            of_rank = trace.of_rank / trace.parameters
        self.experiment = experiment
        self.trace = trace
        self.numbers = experiment.numbers
        self.width = self.numbers.trained_bytes  # of a trained weight and of its gradient
        self.ranks = experiment.shard_ranks
        self.trained = trace.trainable * of_rank  # elements before data-parallel ranks share them
        self.share = self.trained / self.ranks  # elements where they do
        of_blocks = max(1.0, trace.parameters - trace.of_root)
        self.of_block = trace.of_block * (of_rank * trace.parameters - trace.of_root) / of_blocks
        self.whole = of_rank * trace.parameters  # elements that a rank gathers at most
        self.frozen = (trace.parameters - trace.trainable) * of_rank  # elements, by LoRA
        self.accumulates = experiment.grad_accum > 1
        self.offloaded = experiment.offload.partition("-")[0]  # `none`, `optimizer` or `all`
        moments = _moments(experiment, trace, self.numbers.state_bytes)
        self.states = _states(self, moments * of_rank)
        strategy = experiment.parallel_strategy
        given = experiment.deepspeed.get("zero_optimization.reduce_bucket_size")
        self.bucket = self.width * float(given or strategy.bucket_elements(experiment))
        # Under DeepSpeed's autocast, linear layers have their own bucket, unless LoRA trains nothing
        # else (`torch_autocast.get_all_comm_dtypes`). At ZeRO 3 it is in half precision, else in the
        # gradients' precision.
        buckets = self.bucket
        if strategy.is_deepspeed and self.numbers.autocast:
            linear = self.bucket / 2 if experiment.zero_stage == 3 else self.bucket
            buckets = linear if experiment.lora_rank else self.bucket + linear
        if experiment.overlap_comm == "on":  # two alternate
            buckets *= 2
        self.buckets = buckets


def _states(engine: Engine, moments: float) -> MemoryParts:
    """Return the weights and optimizer states of a rank.

    Also in full precision and in pure bf16, ZeRO 1 to 3 have masters of their own: clones of their
    share of the weights.
    """
    experiment = engine.experiment
    strategy = experiment.parallel_strategy
    is_shared = strategy.shards_optimizer(experiment)
    weights = engine.width * engine.trained + engine.numbers.computed_bytes * engine.frozen
    buffers = 0.0
    if experiment.frozen_weights == "nf4":
        half = engine.numbers.computed_bytes
        weights -= (half - NF4) * quantized_parameters(experiment)
        buffers = half * shape(experiment.model).largest  # made again for each product
    optimizer = moments
    if engine.numbers.masters or (strategy.is_deepspeed and is_shared):
        optimizer += engine.numbers.state_bytes * engine.trained
    if is_shared:
        optimizer /= engine.ranks
    if strategy.shards_weights(experiment):
        weights /= engine.ranks
    if engine.offloaded != "none":
        optimizer = 0
    if engine.offloaded == "all":
        weights = 0
    return MemoryParts(weights=weights, optimizer=optimizer, buffers=buffers)


def _moments(experiment: Experiment, trace: MemoryTrace, width: int) -> float:
    """Return the bytes of the optimizer's moments, of `width` bytes each unless they are quantized."""
    if experiment.optimizer == "muon":  # matrices of blocks have one moment, everything else two
        return width * (2 * trace.trainable - trace.layers * trace.of_block)
    if experiment.optimizer == "adamw-8bit":
        return MOMENTS_8_BIT * trace.trainable
    if experiment.optimizer != "adafactor":
        return 2 * width * trace.trainable
    known = facts(experiment.model)
    if known.get("family") in COUNTED_BY_HAND or not trace.factored:
        positions = known.get("positions")
        in_fp32 = formulas.adafactor_moments(trace.layers, trace.hidden, trace.vocab, positions)
        return width / 4 * in_fp32
    return width * trace.factored  # rows and columns


def _passes(
    engine: Engine,
    states: MemoryParts,
    kept: float,
    staying: float,
    held: float = 0,
    later: float = 0,
) -> list[MemoryParts]:
    """Return the forward pass of the last micro-batch, the backward pass of its loss, and the peak of the rest.

    With accumulation, `kept` bytes of gradients exist beforehand, to which new ones are added;
    without it, `staying` bytes of each new one stay. At most `held` bytes of gradients wait to be
    reduced. `later` bytes are allocated when the first gradient leaves the backward pass.
    """
    trace = engine.trace
    experiment = engine.experiment
    width = engine.width
    base = states
    if engine.accumulates:
        base = states.plus(gradients=kept)
        staying = 0
    loss = trace.moments[0][0]
    logits = max(0.0, loss - trace.kept)
    moments = [
        base.plus("forward", activations=trace.forward_peak),
        base.plus("loss", activations=loss - logits, output=logits),
    ]
    sizes, done = np.array(trace.moments[1:], dtype=float).reshape(-1, 2).T
    if not len(sizes):
        return moments
    # If a model is compiled as a whole, all gradients leave the backward pass together, at its end.
    is_compiled = experiment.compile not in {"off", "deepcompile"}
    if is_compiled and not experiment.compiles_blocks:
        # With a loss in chunks the output layer's gradient is not in that graph, and is added to
        # the embedding's.
        beside = 0.0
        if experiment.loss == "chunked":
            beside = float(sizes[-1])
        gradients = width * engine.trained
        moments.append(
            base.plus("backward", activations=beside, gradients=gradients, buffers=later)
        )
        later = 0
    computed = done * engine.trained / max(1, trace.trainable)
    waiting = staying * computed + np.minimum(held, width * computed)
    peak = int(np.argmax(sizes + waiting))
    moments.append(
        base.plus(
            "backward",
            activations=float(sizes[peak]),
            gradients=float(waiting[peak]),
            buffers=later,
        )
    )
    return moments


def plain(engine: Engine) -> list[MemoryParts]:
    """Keep all gradients until the update."""
    whole = engine.width * engine.trained
    passes = _passes(engine, engine.states, kept=whole, staying=engine.width)
    return [*passes, engine.states.plus("optimizer", gradients=whole)]


def ddp(engine: Engine) -> list[MemoryParts]:
    """Hold the same as one process, and buckets for all gradients; unsent gradients are outside of the buckets.

    Compressed gradients live until the next ones are sent, and PowerSGD keeps its error feedback
    (torch's `ddp_comm_hooks`). With AdamW and accumulation, only the second step took additional
    memory, as much as all gradients (OPT-1.3B on H200, 4 and 8 x 1024). With Adafactor or on CPU
    ranks it did not; the reason is unknown.
    """
    whole = engine.width * engine.trained
    sent = {"bf16": 2, "powersgd": 4}.get(engine.experiment.gradient_compression, 0)
    states = engine.states.plus(buffers=whole + sent * engine.trained)
    passes = _passes(engine, states, kept=whole, staying=0)
    moments = [*passes, states.plus("optimizer")]
    if engine.accumulates and engine.experiment.optimizer == "adamw":
        loss = next(moment for moment in passes if moment.moment == "loss")
        moments.append(loss.plus("second step", buffers=whole))
    return moments


def fsdp(engine: Engine) -> list[MemoryParts]:
    """Hold everything in shards; the root and one block are gathered, or all blocks if they are kept.

    Gradients of earlier micro-batches are shards, too, unless they are reduced once a step: then
    they are whole.
    """
    trace = engine.trace
    gathered_bytes = 2 if engine.numbers.natively_half else 4
    of_blocks = engine.of_block
    if engine.experiment.gathered_weights == "micro-batch":
        of_blocks = engine.whole - trace.of_root
    gathered = gathered_bytes * trace.of_root + _gathered_blocks(engine, gathered_bytes, of_blocks)
    states = engine.states.plus(buffers=gathered)
    # A block's gradients are copied to the format in which they are reduced, where the weights of
    # the next one take less.
    width = engine.width
    width_of_reduced = engine.numbers.accumulated_bytes
    reduced = (width_of_reduced - gathered_bytes) * engine.of_block
    share = width * engine.share
    kept = share
    if engine.experiment.reduce_gradients == "step":
        kept = width_of_reduced * engine.trained
    passes = _passes(engine, states, kept, staying=width / engine.ranks, later=reduced)
    return [*passes, engine.states.plus("optimizer", gradients=share)]


def _gathered_blocks(engine: Engine, each: int, elements: float) -> float:
    """Return the bytes of gathered weights of blocks, of which those of 4 bits are gathered as such."""
    trace = engine.trace
    share = quantized_parameters(engine.experiment) / (trace.layers * trace.of_block)
    return elements * (each - share * (each - NF4))


def zero(engine: Engine) -> list[MemoryParts]:
    """Return the moments of ZeRO's stage."""
    stage = engine.experiment.zero_stage
    if stage == 0:
        return _zero0(engine)
    if stage == 3:
        return _zero3(engine)
    if engine.offloaded != "none":
        return _offloaded_optimizer(engine)
    if stage == 1 and engine.numbers.accumulates_in_fp32:
        return _zero1_in_fp32(engine)
    return _zero1_or_2(engine)


def _zero0(engine: Engine) -> list[MemoryParts]:
    """Hold everything on every rank; gradients are flattened to be reduced, and again by half precision's update."""
    whole = engine.width * engine.trained
    after = engine.states.plus(gradients=whole)
    flat = whole if engine.ranks > 1 else 0
    update = 0.0
    if engine.numbers.masters:  # FP16_Optimizer.step: a list of all gradients in fp32
        update += 4 * engine.trained
        if engine.experiment.optimizer == "adamw":  # FP16_UnfusedOptimizer makes no flat copy
            update += 4 * engine.trained
    return [
        *_passes(engine, engine.states, whole, staying=engine.width),
        after.plus("reduction", buffers=flat),
        after.plus("optimizer", buffers=update),
    ]


def _zero1_or_2(engine: Engine) -> list[MemoryParts]:
    """Hold optimizer states in shards; whole gradients stay and pass buckets (1), or only those in a bucket (2).

    After the passes there is a share of the gradients. It is flattened, and cast to fp32 where it
    is not (stage_1_and_2.py, `step`).
    """
    whole = engine.width * engine.trained
    shared = engine.numbers.accumulated_bytes * engine.share
    after = engine.states.plus(gradients=shared)
    update = shared
    if engine.numbers.accumulated_bytes < engine.numbers.state_bytes:
        update += engine.numbers.state_bytes * engine.share
    if engine.experiment.zero_stage == 2:
        staying = engine.width / engine.ranks
        held = min(engine.bucket, whole)
        passes = _passes(engine, engine.states, shared, staying, held, later=engine.buckets)
        reduction = after.plus("reduction")
    else:
        states = engine.states
        later = engine.buckets
        if engine.accumulates:  # the first micro-batch allocates the buckets
            states = states.plus(buffers=engine.buckets)
            later = 0
        passes = _passes(engine, states, whole, staying=engine.width, later=later)
        reduction = after.plus("reduction", gradients=whole)
    return [*passes, reduction, after.plus("optimizer", buffers=update)]


def _offloaded_optimizer(engine: Engine) -> list[MemoryParts]:
    """Hold the optimizer in host memory, at ZeRO 2 gradients too, which pass a buffer for the largest one."""
    largest = engine.trace.largest
    of_largest = engine.width * largest
    states = engine.states.plus(buffers=of_largest)
    if engine.experiment.zero_stage == 1:
        if engine.accumulates:
            states = states.plus(buffers=engine.buckets)
        accumulated = engine.numbers.accumulated_bytes * engine.trained
        return _passes(engine, states, accumulated, staying=engine.width)
    held = min(engine.bucket, engine.width * engine.trained)
    outside_bucket = of_largest if of_largest > engine.bucket else 0
    # The norm of the rank's share of the largest gradient is taken in fp64:
    # `set_norm_for_param_grad_in_gpu`.
    buffers = engine.buckets + 8 * min(largest, engine.share)
    norm = states.plus("backward", gradients=outside_bucket, buffers=buffers)
    return [*_passes(engine, states, 0, 0, held, later=engine.buckets), norm]


def _zero1_in_fp32(engine: Engine) -> list[MemoryParts]:
    """Hold fp32 accumulators for all gradients on every rank: DeepSpeed's BF16_Optimizer."""
    of_half = 2 * engine.trained
    states = engine.states.plus(gradients=4 * engine.trained + of_half)
    steps = [states.plus(name, buffers=of_half) for name in ("reduction", "optimizer")]
    return [*_passes(engine, states, kept=0, staying=0), *steps]


def _zero3(engine: Engine) -> list[MemoryParts]:
    """Hold everything in shards; gathered weights stay up to a limit."""
    width = engine.width
    states = engine.states.plus(buffers=engine.buckets)
    update = 0.0
    if engine.offloaded == "none":
        states = states.plus(gradients=engine.numbers.accumulated_bytes * engine.share)
        each = engine.numbers.state_bytes
        if engine.numbers.masters:
            each += width
        update = each * min(engine.share, ZERO["sub_group_size"])
    gathered = 0.0
    # A single rank has whole parameters: gathering copies nothing unless they are in host memory.
    if engine.ranks > 1 or engine.offloaded == "all":
        limit = zero_number(engine.experiment, "stage3_max_live_parameters")
        gathered = width * min(engine.trained + engine.frozen, limit)
    held = min(engine.bucket, width * engine.trained)
    passes = _passes(engine, states.plus(buffers=gathered), kept=0, staying=0, held=held)
    return [*passes, states.plus("optimizer", buffers=update)]
