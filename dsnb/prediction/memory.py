"""Predict the peak of a GPU's memory in a step: the largest of the moments of its strategy.

The rules follow the code of torch and DeepSpeed 0.19.8 and were checked against runs on CPU ranks
(docs/explanation/prediction.md). `N` is the number of data-parallel ranks, `P` the trained parameters of a rank.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dsnb.base.formulas import memory as formulas
from dsnb.base.formulas.memory import HALF, MOMENTS
from dsnb.base.formulas.model_shapes import SPLIT, facts
from dsnb.prediction.traces import MemoryTrace
from dsnb.settings.experiment import Experiment
from dsnb.settings.training import accumulates_in_fp32, compiles_blocks

GIB = 2**30
WORKSPACE_GIB = 0.07
"""Workspaces of cuBLAS and the like: the same in every measured row of `h200_memory` within 0.01."""
CONTEXT_GIB = 1.8
"""CUDA context, kernels and libraries: 1.60 to 1.79 on H200 and 1.61 to 1.70 on H100, from the free memory that failed
requests report."""
NCCL_GIB = 0.4
"""NCCL's own memory if there are several GPUs: 0.25 to 0.4 on two H200."""
BUCKET = 500_000_000
"""Elements of ZeRO's reduction bucket, `reduce_bucket_size`."""
LIVE = 1_000_000_000
"""Elements that ZeRO 3 keeps gathered, `stage3_max_live_parameters`."""
SUB_GROUP = 1_000_000_000
"""Elements that ZeRO 3 updates at a time, `sub_group_size`."""


class Moment(NamedTuple):
    """Bytes in a GPU's memory at one moment of a step."""

    name: str  # `forward`, `loss`, `backward`, `reduction`, `optimizer` or `second step`
    weights: float = 0
    gradients: float = 0
    optimizer: float = 0
    activations: float = 0
    logits: float = 0
    buffers: float = 0  # communication buckets, gathered weights, and temporaries of the optimizer

    @property
    def total(self) -> float:
        """The sum of all parts."""
        return sum(self[1:])

    @property
    def peak_allocated_gib(self) -> float:
        """The GiB that tensors take if this moment is the peak, with library workspaces."""
        return self.total / GIB + WORKSPACE_GIB

    def parts(self) -> dict[str, float]:
        """Return the bytes of each part."""
        return dict(zip(self._fields[1:], self[1:], strict=True))

    def plus(self, name: str = "states", **more: float) -> "Moment":
        """Return a moment with more bytes in some parts."""
        return self._replace(
            name=name, **{part: getattr(self, part) + size for part, size in more.items()}
        )


def room_gib(experiment: Experiment, gpu_gib: float) -> float:
    """Return the memory left for tensors: the GPU's less a reserve, or `memory_limit_gib`, which limits torch only."""
    left_gib = gpu_gib - (CONTEXT_GIB + (NCCL_GIB if experiment.gpus > 1 else 0.0))
    return min(left_gib, experiment.memory_limit_gib or left_gib)


def peak_memory(experiment: Experiment, trace: MemoryTrace) -> Moment:
    """Return the predicted peak of the rank that needs the most memory."""
    rule = RULES[experiment.strategy]
    moments = (
        moment
        for part in _of_ranks(experiment, trace)
        for moment in rule(engine_of(experiment, part))
    )
    return max(moments, key=lambda moment: moment.total)


def _of_ranks(experiment: Experiment, trace: MemoryTrace) -> list[MemoryTrace]:
    """Return the traces of the ranks that differ: the first and last stage of a pipeline, else one."""
    split = _split_by_tensor_parallel(experiment, trace)
    stages = experiment.pipeline_parallel
    if stages == 1:
        return [split]
    in_flight = min(stages, experiment.grad_accum)
    first, last = split.kept * in_flight / stages, split.kept / stages
    logits = split.moments[0][0] - split.kept
    # The engine keeps the logits of a micro-batch until the buffer is used again.
    outputs = 2 * int(experiment.micro_batch_size) * experiment.seq_len * trace.vocab
    return [
        replace(split, kept=kept, forward_peak=kept, moments=((kept + loss, 0.0),))
        for kept, loss in ((first, 0.0), (last, logits + in_flight * outputs))
    ]


def _split_by_tensor_parallel(experiment: Experiment, trace: MemoryTrace) -> MemoryTrace:
    """Return the trace of one tensor-parallel rank; ranks share part of a block's activations (Korthikanti et al.)."""
    if experiment.tensor_parallel == 1:
        return trace
    tokens, width = (
        int(experiment.micro_batch_size) * experiment.seq_len,
        2 if experiment.precision in HALF else 4,
    )
    replicated = formulas.block_activations(
        tokens, trace.hidden, 0, 0, math.inf, width, experiment.dropout > 0
    )
    split = max(0.0, trace.kept - trace.layers * replicated)
    less = (1 - 1 / experiment.tensor_parallel) * split / max(1.0, trace.kept)
    # The activations of blocks shrink as their gradients are computed; frozen weights outside of blocks have none.
    of_blocks = max(
        1.0,
        trace.trainable if trace.trainable < trace.parameters else trace.trainable - trace.of_root,
    )
    moments = tuple(
        (size - less * trace.kept * max(0.0, 1 - done / of_blocks), done)
        for size, done in trace.moments
    )
    kept = trace.kept * (1 - less)
    return replace(
        trace, kept=kept, forward_peak=trace.forward_peak - less * trace.kept, moments=moments
    )


@dataclass(frozen=True)
class Engine:
    """The sizes that the rules use, in bytes unless noted."""

    experiment: Experiment
    trace: MemoryTrace
    width: int  # of a weight in computation: 2 if a half-precision copy is trained, else 4
    trained: float  # elements on a rank
    frozen_bytes: float  # of the weights that LoRA freezes, in half precision if it is used
    moments: float  # of the optimizer's moments over all parameters
    ranks: int  # data-parallel ranks
    accumulates: (
        bool  # whether gradients of earlier micro-batches exist when the last one is computed
    )
    bucket: float  # of one gradient bucket
    buckets: float  # of all buckets: two alternate if communication overlaps with computation

    @property
    def masters(self) -> float:
        """The bytes of fp32 weights and the optimizer's moments over all ranks."""
        return 4 * self.trained + self.moments


def engine_of(experiment: Experiment, trace: MemoryTrace) -> Engine:
    """Return the sizes of a setting."""
    # Embeddings, which are tied to the output layer, are whole on each tensor-parallel rank and on the outer stages.
    root_share, half = trace.of_root / trace.parameters, experiment.precision in HALF
    split = 1 / (
        root_share + (1 - root_share) / (experiment.tensor_parallel * experiment.pipeline_parallel)
    )
    width = (
        2
        if half and experiment.mixed_precision == "native" and experiment.strategy == "deepspeed"
        else 4
    )
    moments = MOMENTS * trace.trainable
    if experiment.optimizer == "adafactor":  # rows and columns
        of_model = facts(experiment.model)
        moments = 4 * trace.factored
        if of_model.get("family") in SPLIT or not trace.factored:
            moments = formulas.adafactor_moments(
                trace.layers, trace.hidden, trace.vocab, of_model.get("positions")
            )
    if (
        experiment.optimizer == "muon"
    ):  # matrices of the blocks have one moment, everything else two
        moments = 4 * (2 * trace.trainable - trace.layers * trace.of_block)
    given = experiment.deepspeed.get("zero_optimization.reduce_bucket_size", 0)
    bucket = buckets = width * float(given or experiment.bucket_elements or BUCKET)
    # Under DeepSpeed's autocast, linear layers have their own bucket, unless LoRA trains nothing else
    # (`torch_autocast.get_all_comm_dtypes`). At ZeRO 3 it is in half precision, else in the gradients' precision.
    if experiment.mixed_precision == "autocast" and half:
        linear = bucket / 2 if experiment.zero_stage == 3 else bucket
        buckets = linear if experiment.lora_rank else bucket + linear
    return Engine(
        experiment,
        trace,
        width,
        trained=trace.trainable / split,
        frozen_bytes=(2 if half else 4) * (trace.parameters - trace.trainable) / split,
        moments=moments / split,
        ranks=experiment.data_parallel,
        accumulates=experiment.grad_accum > 1,
        bucket=bucket,
        buckets=buckets * (2 if experiment.overlap_comm == "on" else 1),
    )


def _passes(
    engine: Engine, states: Moment, kept: float, gradient: float, held: float = 0, later: float = 0
) -> list[Moment]:
    """Return the forward pass of the last micro-batch, the backward pass of its loss, and the peak of the rest.

    With accumulation, `kept` bytes of gradients exist beforehand, to which new ones are added; without it, `gradient`
    bytes of each new one stay. At most `held` bytes of gradients wait to be reduced. `later` bytes are allocated when
    the first gradient leaves the backward pass.
    """
    trace, width = engine.trace, engine.width
    base = states.plus(gradients=kept if engine.accumulates else 0)
    loss = trace.moments[0][0]
    logits = max(0.0, loss - trace.kept)
    moments = [
        base.plus("forward", activations=trace.forward_peak),
        base.plus("loss", activations=loss - logits, logits=logits),
    ]
    sizes, done = trace.after_loss
    if len(sizes):
        computed = done * (engine.trained / max(1, trace.trainable))
        staying = (0 if engine.accumulates else gradient) * computed
        gradients = staying + np.minimum(held, width * computed)
        peak = int(np.argmax(sizes + gradients))
        parts = {
            "activations": float(sizes[peak]),
            "gradients": float(gradients[peak]),
            "buffers": later,
        }
        settings = vars(engine.experiment)
        # If a model is compiled as a whole, all gradients leave the backward pass together, at its end.
        if settings["compile"] not in {"off", "deepcompile"} and not compiles_blocks(settings):
            parts["buffers"] = 0
            # With a loss in chunks the output layer's gradient is not in that graph, and is added to the embedding's.
            beside = float(sizes[-1]) if settings["loss"] == "chunked" else 0.0
            moments.append(
                base.plus(
                    "backward", activations=beside, gradients=width * engine.trained, buffers=later
                )
            )
        moments.append(base.plus("backward", **parts))
    return moments


def _plain(engine: Engine) -> list[Moment]:
    """Hold fp32 weights and optimizer; gradients stay until the update."""
    states = Moment(
        "states", weights=4 * engine.trained + engine.frozen_bytes, optimizer=engine.moments
    )
    gradients = 4 * engine.trained
    return [*_passes(engine, states, gradients, 4), states.plus("optimizer", gradients=gradients)]


def _ddp(engine: Engine) -> list[Moment]:
    """Hold the same as one process, and buckets for all gradients; unsent gradients are outside of the buckets.

    Compressed gradients live until the next ones are sent, and PowerSGD keeps its error feedback (torch's
    `ddp_comm_hooks`). With AdamW and accumulation, only the second step took additional memory, as much as all
    gradients (OPT-1.3B on H200, 4 and 8 x 1024). With Adafactor or on CPU ranks it did not; the reason is unknown.
    """
    sent = {"bf16": 2, "powersgd": 4}.get(engine.experiment.gradient_compression, 0)
    states = Moment(
        "states", weights=4 * engine.trained + engine.frozen_bytes, optimizer=engine.moments
    )
    states = states.plus(buffers=(4 + sent) * engine.trained)
    moments = [*_passes(engine, states, 4 * engine.trained, 0), states.plus("optimizer")]
    if engine.accumulates and engine.experiment.optimizer == "adamw":
        moments += [
            loss.plus("second step", buffers=4 * engine.trained)
            for loss in moments
            if loss.name == "loss"
        ]
    return moments


def _fsdp(engine: Engine) -> list[Moment]:
    """Hold everything in shards; the root and one block are gathered.

    Gradients of earlier micro-batches are shards, too, unless they are reduced once a step: then they are whole.
    """
    share = engine.trained / engine.ranks
    native = engine.experiment.precision in HALF and engine.experiment.mixed_precision == "native"
    gathered = (2 if native else 4) * (engine.trace.of_root + engine.trace.of_block)
    weights = 4 * share + engine.frozen_bytes / engine.ranks
    states = Moment("states", weights=weights, optimizer=engine.moments / engine.ranks)
    # A block's gradients are copied to fp32 to be reduced, where the weights of the next one take less.
    reduced = 2 * engine.trace.of_block if native else 0
    kept = 4 * (engine.trained if engine.experiment.reduce_gradients == "step" else share)
    passes = _passes(
        engine, states.plus(buffers=gathered), kept, gradient=4 / engine.ranks, later=reduced
    )
    return [*passes, states.plus("optimizer", gradients=4 * share)]


def _zero(engine: Engine) -> list[Moment]:
    """Return the moments of ZeRO's stage."""
    stage, is_offloaded = engine.experiment.zero_stage, engine.experiment.offload != "none"
    if stage == 1 and accumulates_in_fp32(vars(engine.experiment)) and not is_offloaded:
        return _zero1_in_fp32(engine)
    return (_zero0, _zero12, _zero12, _zero3)[stage](engine)


def _zero0(engine: Engine) -> list[Moment]:
    """Hold everything on every rank; gradients are flattened to be reduced, and again by half precision's update."""
    width, trained, is_half = engine.width, engine.trained, engine.width == 2
    weights = width * trained + engine.frozen_bytes
    states = Moment(
        "states", weights=weights, optimizer=(4 * trained if is_half else 0) + engine.moments
    )
    after = states.plus(gradients=width * trained)
    return [
        *_passes(engine, states, width * trained, width),
        after.plus("reduction", buffers=width * trained if engine.ranks > 1 else 0),
        # FP16_Optimizer.step: a list of all gradients in fp32, and a flat copy of them; FP16_UnfusedOptimizer, which
        # has every optimizer but AdamW, makes no copy.
        after.plus(
            "optimizer",
            buffers=(8 if engine.experiment.optimizer == "adamw" else 4) * trained * is_half,
        ),
    ]


def _zero12(engine: Engine) -> list[Moment]:
    """Hold optimizer states in shards, at ZeRO 2 gradients too; a bucket holds the gradients to reduce."""
    experiment, width, trained, ranks = (
        engine.experiment,
        engine.width,
        engine.trained,
        engine.ranks,
    )
    # Also in full precision, the optimizer has its own masters: clones of its share of the fp32 weights.
    optimizer = 0 if experiment.offload != "none" else engine.masters / ranks
    states = Moment("states", weights=width * trained + engine.frozen_bytes, optimizer=optimizer)
    if experiment.offload != "none":
        return _offloaded_optimizer(engine, states)
    in_fp32 = accumulates_in_fp32(vars(experiment))
    gradients = (4 if in_fp32 else width) * trained / ranks
    # The share of the gradients is flattened, and cast to fp32 where it is not (stage_1_and_2.py, `step`).
    update = (4 if in_fp32 else width + (4 if width < 4 else 0)) * trained / ranks
    after = states.plus(gradients=gradients)
    steps = [after.plus("optimizer", buffers=update)]
    if experiment.zero_stage == 2:
        held = min(engine.bucket, width * trained)
        return [
            *_passes(engine, states, gradients, width / ranks, held, engine.buckets),
            after.plus("reduction"),
            *steps,
        ]
    # With accumulation, the first micro-batch allocates the buckets.
    allocated, later = (engine.buckets, 0) if engine.accumulates else (0, engine.buckets)
    passes = _passes(engine, states.plus(buffers=allocated), width * trained, width, later=later)
    return [*passes, after.plus("reduction", gradients=width * trained), *steps]


def _offloaded_optimizer(engine: Engine, states: Moment) -> list[Moment]:
    """Hold the optimizer in host memory, at ZeRO 2 gradients too, which pass a buffer for the largest one."""
    width, largest = engine.width, engine.trace.largest
    states = states.plus(buffers=width * largest)
    if engine.experiment.zero_stage == 1:
        states = states.plus(buffers=engine.buckets if engine.accumulates else 0)
        accumulated = 4 if accumulates_in_fp32(vars(engine.experiment)) else width
        return _passes(engine, states, accumulated * engine.trained, width)
    held = min(engine.bucket, width * engine.trained)
    outside_bucket = width * largest if width * largest > engine.bucket else 0
    # The norm of the rank's share of the largest gradient is taken in fp64: `set_norm_for_param_grad_in_gpu`.
    buffers = engine.buckets + 8 * min(largest, engine.trained / engine.ranks)
    norm = states.plus("backward", gradients=outside_bucket, buffers=buffers)
    return [*_passes(engine, states, 0, 0, held, engine.buckets), norm]


def _zero1_in_fp32(engine: Engine) -> list[Moment]:
    """Hold fp32 accumulators for all gradients on every rank: DeepSpeed's BF16_Optimizer."""
    trained = engine.trained
    optimizer = engine.masters / engine.ranks
    states = Moment(
        "states",
        weights=2 * trained + engine.frozen_bytes,
        gradients=4 * trained,
        optimizer=optimizer,
    )
    after = states.plus(gradients=2 * trained)
    steps = [after.plus(name, buffers=2 * trained) for name in ("reduction", "optimizer")]
    return [*_passes(engine, after, 0, 0), *steps]


def _zero3(engine: Engine) -> list[Moment]:
    """Hold everything in shards; gathered weights stay up to a limit."""
    experiment, width = engine.experiment, engine.width
    share = engine.trained / engine.ranks
    optimizer = 4 * share + engine.moments / engine.ranks
    offloaded = experiment.offload.partition("-")[0]
    states = Moment("states", buffers=engine.buckets)
    if offloaded != "all":
        states = states.plus(weights=width * share + engine.frozen_bytes / engine.ranks)
    if offloaded == "none":
        gradient = 4 if accumulates_in_fp32(vars(experiment)) else width
        states = states.plus(optimizer=optimizer, gradients=gradient * share)
    limit = float(experiment.deepspeed.get("zero_optimization.stage3_max_live_parameters", LIVE))
    elements = engine.trained + engine.frozen_bytes / (2 if experiment.precision in HALF else 4)
    # A single rank has whole parameters: gathering copies nothing unless they are in host memory.
    gathered = width * min(elements, limit) if engine.ranks > 1 or offloaded == "all" else 0
    update = (6 if width == 2 else 4) * min(share, SUB_GROUP) if offloaded == "none" else 0
    return [
        *_passes(
            engine, states.plus(buffers=gathered), 0, 0, min(engine.bucket, width * engine.trained)
        ),
        states.plus("optimizer", buffers=update),
    ]


RULES = {"plain": _plain, "ddp": _ddp, "fsdp": _fsdp, "deepspeed": _zero}
"""The moments of a step at which memory can be at its peak, by strategy."""
