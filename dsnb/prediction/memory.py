"""The peak of a GPU's memory in a step: the largest of the moments that its strategy goes through.

The rules of the strategies were read in torch and DeepSpeed 0.19.8, and held to runs on CPU ranks
(docs/explanation/prediction.md). `N` is the number of data-parallel ranks, `P` the trained parameters of a rank.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dsnb.formulas import memory as formulas
from dsnb.formulas.memory import HALF, MOMENTS
from dsnb.formulas.model_shapes import SPLIT, facts
from dsnb.prediction.traces import Trace
from dsnb.settings.experiment import Experiment
from dsnb.settings.training import accumulates_in_fp32, compiles_blocks

GIB = 2**30
WORKSPACE_GIB = 0.07
"""Workspaces of cuBLAS and the like: the same in every measured row of `h200_memory` within 0.01."""
CONTEXT_GIB = 1.8
"""What the CUDA context, kernels and libraries take of a GPU: 1.60 to 1.79 on H200 and 1.61 to 1.70 on H100, from the
free memory that failed requests report."""
NCCL_GIB = 0.4
"""What NCCL takes besides if there are several GPUs: 0.25 to 0.4 on two H200."""
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
        """The GiB that tensors take if this moment is the peak, workspaces of libraries included."""
        return self.total / GIB + WORKSPACE_GIB

    def parts(self) -> dict[str, float]:
        """Return the bytes of each part."""
        return dict(zip(self._fields[1:], self[1:], strict=True))

    def with_more(self, name: str, **more: float) -> "Moment":
        """Return another moment, in which some parts are larger by so many bytes."""
        return self._replace(name=name, **{part: getattr(self, part) + size for part, size in more.items()})


@dataclass(frozen=True)
class Room:
    """The memory of a GPU, and the part of it that is reserved for what is no tensor."""

    capacity_gib: float
    context_gib: float = CONTEXT_GIB

    @property
    def tensors_gib(self) -> float:
        """What is left for tensors."""
        return self.capacity_gib - self.context_gib


def room(experiment: Experiment, gpu_gib: float) -> Room:
    """Return the room on a GPU of that capacity, or within `memory_limit_gib`, which limits torch's allocator alone."""
    whole = Room(gpu_gib, CONTEXT_GIB + (NCCL_GIB if experiment.gpus > 1 else 0.0))
    limit = [Room(experiment.memory_limit_gib, context_gib=0.0)] if experiment.memory_limit_gib else []
    return min([whole, *limit], key=lambda one: one.tensors_gib)


def peak_memory(experiment: Experiment, trace: Trace) -> Moment:
    """Return the predicted peak of the rank that needs most."""
    rule = RULES[experiment.strategy]
    moments = (moment for part in _of_ranks(experiment, trace) for moment in rule(engine_of(experiment, part)))
    return max(moments, key=lambda moment: moment.total)


def _of_ranks(experiment: Experiment, trace: Trace) -> list[Trace]:
    """Return the traces of the ranks that differ: the first and the last stage of a pipeline, else one."""
    split = _split_by_tensor_parallel(experiment, trace)
    stages = experiment.pipeline_parallel
    if stages == 1:
        return [split]
    in_flight = min(stages, experiment.grad_accum)
    first = split.kept * in_flight / stages
    last = split.kept / stages
    logits = split.moments[0][0] - split.kept
    # The engine keeps the logits of a micro-batch until the buffer is used again.
    outputs = 2 * int(experiment.micro_batch_size) * experiment.seq_len * trace.vocab
    return [
        replace(split, kept=first, forward_peak=first, moments=((first, 0.0),)),
        replace(split, kept=last, forward_peak=last, moments=((last + logits + in_flight * outputs, 0.0),)),
    ]


def _split_by_tensor_parallel(experiment: Experiment, trace: Trace) -> Trace:
    """Return the trace of one tensor-parallel rank: part of what a block keeps is kept by all (Korthikanti et al.)."""
    if experiment.tensor_parallel == 1:
        return trace
    tokens, width = int(experiment.micro_batch_size) * experiment.seq_len, 2 if experiment.precision in HALF else 4
    of_all = formulas.block_activations(tokens, trace.hidden, 0, 0, math.inf, width, experiment.dropout > 0)
    split = max(0.0, trace.kept - trace.layers * of_all)
    less = (1 - 1 / experiment.tensor_parallel) * split / max(1.0, trace.kept)
    # As much of what blocks keep is left as of their gradients is missing; frozen weights outside of them have none.
    of_blocks = max(1.0, trace.trainable if trace.trainable < trace.parameters else trace.trainable - trace.of_root)
    moments = tuple((size - less * trace.kept * max(0.0, 1 - done / of_blocks), done) for size, done in trace.moments)
    kept = trace.kept * (1 - less)
    return replace(trace, kept=kept, forward_peak=trace.forward_peak - less * trace.kept, moments=moments)


@dataclass(frozen=True)
class Engine:
    """The sizes that the rules are about; all but the elements in bytes."""

    experiment: Experiment
    trace: Trace
    width: int  # of a weight as the model computes with it: 2 if a half-precision copy is what trains, else 4
    trained: float  # elements of a rank
    frozen_bytes: float  # of the weights that LoRA freezes, which are in half precision where there is one
    moments: float  # of the optimizer's moments over all parameters
    ranks: int  # data-parallel ranks
    accumulates: bool  # whether gradients of earlier micro-batches are in memory when the last one is computed
    bucket: float  # of one bucket of gradients
    buckets: float  # of all buckets: two alternate if communication overlaps with computation


def engine_of(experiment: Experiment, trace: Trace) -> Engine:
    """Return the sizes of a setting."""
    # Embeddings, with which the output layer is tied, are whole on every tensor-parallel rank and on the outer stages.
    whole, half = trace.of_root / trace.parameters, experiment.precision in HALF
    split = 1 / (whole + (1 - whole) / (experiment.tensor_parallel * experiment.pipeline_parallel))
    width = 2 if half and experiment.mixed_precision == "native" and experiment.strategy == "deepspeed" else 4
    moments = MOMENTS * trace.trainable
    if experiment.optimizer == "adafactor":  # rows and columns
        known = facts(experiment.model)
        moments = 4 * trace.factored
        if known.get("family") in SPLIT or not trace.factored:
            moments = formulas.adafactor_moments(trace.layers, trace.hidden, trace.vocab, known.get("positions"))
    if experiment.optimizer == "muon":  # matrices of the blocks have one moment, everything else two
        moments = 4 * (2 * trace.trainable - trace.layers * trace.of_block)
    given = experiment.deepspeed.get("zero_optimization.reduce_bucket_size", 0)
    bucket = buckets = width * float(given or experiment.bucket_elements or BUCKET)
    # Under DeepSpeed's autocast, weights of linear layers have a bucket of their own, unless LoRA trains no others
    # (`torch_autocast.get_all_comm_dtypes`). ZeRO 3's is in half precision, the others' in that of the gradients.
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


def _passes(engine: Engine, base: Moment, gradient: float, held: float, later: float = 0) -> list[Moment]:
    """Return the forward pass of the last micro-batch, the backward pass of its loss, and the peak of the rest of it.

    `base` is there before it, gradients of earlier micro-batches included. Of each gradient, `gradient` bytes stay, 0
    if it is added to one that is there; at most `held` bytes are there besides, because they have not been reduced yet.
    `later` bytes are allocated when the first gradient leaves the backward pass.
    """
    trace, width = engine.trace, engine.width
    loss = trace.moments[0][0]
    logits = max(0.0, loss - trace.kept)
    found = [
        base.with_more("forward", activations=trace.forward_peak),
        base.with_more("loss", activations=loss - logits, logits=logits),
    ]
    sizes, done = trace.after_loss
    if len(sizes):
        computed = done * (engine.trained / max(1, trace.trainable))
        gradients = gradient * computed + np.minimum(held, width * computed)
        most = int(np.argmax(sizes + gradients))
        parts = {"activations": float(sizes[most]), "gradients": float(gradients[most]), "buffers": later}
        settings = vars(engine.experiment)
        # Of a model that is compiled as a whole, all gradients leave the backward pass at once, at its end.
        if settings["compile"] not in {"off", "deepcompile"} and not compiles_blocks(settings):
            parts["buffers"] = 0
            found.append(base.with_more("backward", gradients=width * engine.trained, buffers=later))
        found.append(base.with_more("backward", **parts))
    return found


def _plain(engine: Engine) -> list[Moment]:
    """Hold fp32 weights and optimizer; gradients stay until the update."""
    states = Moment("states", weights=4 * engine.trained + engine.frozen_bytes, optimizer=engine.moments)
    gradients = 4 * engine.trained
    base = states.with_more("states", gradients=gradients if engine.accumulates else 0)
    return [
        *_passes(engine, base, 0 if engine.accumulates else 4, 0),
        states.with_more("optimizer", gradients=gradients),
    ]


def _ddp(engine: Engine) -> list[Moment]:
    """Hold what one process does, and buckets for all gradients; those that have not been sent are not in them.

    Compressed gradients live until the next ones are sent, and PowerSGD keeps what it left out of the last ones
    (torch's `ddp_comm_hooks`). With AdamW and accumulation the second step, and no other, took as much as all gradients
    more (OPT-1.3B on H200, 4 and 8 x 1024); with Adafactor it does not, nor on CPU ranks, and why is not known.
    """
    sent = {"bf16": 2, "powersgd": 4}.get(engine.experiment.gradient_compression, 0)
    states = Moment("states", weights=4 * engine.trained + engine.frozen_bytes, optimizer=engine.moments)
    states = states.with_more("states", buffers=(4 + sent) * engine.trained)
    base = states.with_more("states", gradients=4 * engine.trained if engine.accumulates else 0)
    found = [*_passes(engine, base, 0, 0), states.with_more("optimizer")]
    if engine.accumulates and engine.experiment.optimizer == "adamw":
        found += [one.with_more("second step", buffers=4 * engine.trained) for one in found if one.name == "loss"]
    return found


def _fsdp(engine: Engine) -> list[Moment]:
    """Hold everything in shards; root and one block are gathered, and accumulated gradients are whole."""
    share = engine.trained / engine.ranks
    native = engine.experiment.precision in HALF and engine.experiment.mixed_precision == "native"
    gathered = (2 if native else 4) * (engine.trace.of_root + engine.trace.of_block)
    states = Moment(
        "states", weights=4 * share + engine.frozen_bytes / engine.ranks, optimizer=engine.moments / engine.ranks
    )
    base = states.with_more("states", buffers=gathered, gradients=4 * engine.trained if engine.accumulates else 0)
    gradient = 0 if engine.accumulates else 4 / engine.ranks
    # A block's gradients are copied to fp32 to be reduced, where the weights of the next one take less.
    reduced = 2 * engine.trace.of_block if native else 0
    return [*_passes(engine, base, gradient, 0, reduced), states.with_more("optimizer", gradients=4 * share)]


def _zero(engine: Engine) -> list[Moment]:
    """Return the moments of ZeRO's stage."""
    stage = engine.experiment.zero_stage
    if stage == 1 and accumulates_in_fp32(vars(engine.experiment)):
        return _zero1_in_fp32(engine)
    return (_zero0, _zero12, _zero12, _zero3)[stage](engine)


def _zero0(engine: Engine) -> list[Moment]:
    """Hold everything on every rank; gradients are flattened to be reduced, in half precision once more to step."""
    width, trained = engine.width, engine.trained
    masters = 4 * trained if engine.width == 2 else 0
    weights = width * trained + engine.frozen_bytes
    states = Moment("states", weights=weights, optimizer=masters + engine.moments)
    base = states.with_more("states", gradients=width * trained if engine.accumulates else 0)
    after = states.with_more("states", gradients=width * trained)
    # FP16_Optimizer.step: a list of all gradients in fp32, and a flat copy of them.
    flat = 8 * trained if engine.width == 2 else 0
    return [
        *_passes(engine, base, 0 if engine.accumulates else width, 0),
        after.with_more("reduction", buffers=width * trained if engine.ranks > 1 else 0),
        after.with_more("optimizer", buffers=flat),
    ]


def _zero12(engine: Engine) -> list[Moment]:
    """Hold optimizer states in shards, at ZeRO 2 gradients too; a bucket has the gradients to be reduced."""
    experiment, width, trained, ranks = engine.experiment, engine.width, engine.trained, engine.ranks
    offloaded = experiment.offload != "none"
    # Also without half precision the optimizer has masters of its own: clones of its share of the fp32 weights.
    optimizer = 0 if offloaded else (4 * trained + engine.moments) / ranks
    states = Moment("states", weights=width * trained + engine.frozen_bytes, optimizer=optimizer)
    partitioned = experiment.zero_stage == 2
    in_fp32 = accumulates_in_fp32(vars(experiment))
    own = (4 if in_fp32 else width) * trained / ranks
    if offloaded:
        return _offloaded_optimizer(engine, states)
    kept = own if partitioned else width * trained
    base = states.with_more("states", gradients=kept if engine.accumulates else 0)
    if not partitioned and engine.accumulates:
        base = base.with_more("states", buffers=engine.buckets)  # allocated by the first micro-batch
    later = 0 if not partitioned and engine.accumulates else engine.buckets
    gradient = 0 if engine.accumulates else (width / ranks if partitioned else width)
    held = min(engine.bucket, width * trained) if partitioned else 0
    after = states.with_more("states", gradients=own)
    # The share of the gradients is flattened, and cast to fp32 where it is not (stage_1_and_2.py, `step`).
    update = (4 if in_fp32 else width + (4 if width < 4 else 0)) * trained / ranks
    return [
        *_passes(engine, base, gradient, held, later),
        after.with_more("reduction", gradients=0 if partitioned else width * trained),
        after.with_more("optimizer", buffers=update),
    ]


def _offloaded_optimizer(engine: Engine, states: Moment) -> list[Moment]:
    """Keep the optimizer in host memory; at ZeRO 2 gradients go there too, through a buffer for the largest one."""
    width = engine.width
    states = states.with_more("states", buffers=width * engine.trace.largest)
    if engine.experiment.zero_stage == 2:
        held, largest = min(engine.bucket, width * engine.trained), engine.trace.largest
        beside = width * largest if width * largest > engine.bucket else 0  # else it is in the bucket
        # The norm of the rank's share of the largest gradient is taken in fp64: `set_norm_for_param_grad_in_gpu`.
        buffers = engine.buckets + 8 * min(largest, engine.trained / engine.ranks)
        norm = states.with_more("backward", gradients=beside, buffers=buffers)
        return [*_passes(engine, states, 0, held, engine.buckets), norm]
    base = states.with_more("states", gradients=width * engine.trained if engine.accumulates else 0)
    if engine.accumulates:
        base = base.with_more("states", buffers=engine.buckets)
    return _passes(engine, base, 0 if engine.accumulates else width, 0)


def _zero1_in_fp32(engine: Engine) -> list[Moment]:
    """Hold fp32 accumulators for all gradients on every rank: DeepSpeed's BF16_Optimizer."""
    trained, ranks = engine.trained, engine.ranks
    optimizer = 0 if engine.experiment.offload != "none" else (4 * trained + engine.moments) / ranks
    states = Moment("states", weights=2 * trained + engine.frozen_bytes, gradients=4 * trained, optimizer=optimizer)
    base = states.with_more("states", gradients=2 * trained)
    return [
        *_passes(engine, base, 0, 0),
        states.with_more("reduction", gradients=2 * trained, buffers=2 * trained),
        states.with_more("optimizer", gradients=2 * trained, buffers=2 * trained),
    ]


def _zero3(engine: Engine) -> list[Moment]:
    """Hold everything in shards; gathered weights stay as long as they are below a limit."""
    experiment, width = engine.experiment, engine.width
    share = engine.trained / engine.ranks
    weights = width * share + engine.frozen_bytes / engine.ranks
    optimizer = 4 * share + engine.moments / engine.ranks
    gradients = (4 if accumulates_in_fp32(vars(experiment)) else width) * share
    what = experiment.offload.partition("-")[0]
    states = Moment(
        "states",
        weights=0 if what == "all" else weights,
        optimizer=optimizer if what == "none" else 0,
        gradients=gradients if what == "none" else 0,
        buffers=engine.buckets,
    )
    limit = float(experiment.deepspeed.get("zero_optimization.stage3_max_live_parameters", LIVE))
    elements = engine.trained + engine.frozen_bytes / (2 if experiment.precision in HALF else 4)
    # One rank has whole parameters already: gathering them copies nothing unless they are in host memory.
    copied = engine.ranks > 1 or what == "all"
    gathered = width * min(elements, limit) if copied else 0
    base = states.with_more("states", buffers=gathered)
    update = (6 if engine.width == 2 else 4) * min(share, SUB_GROUP) if what == "none" else 0
    return [
        *_passes(engine, base, 0, min(engine.bucket, width * engine.trained)),
        states.with_more("optimizer", buffers=update),
    ]


RULES = {"plain": _plain, "ddp": _ddp, "fsdp": _fsdp, "deepspeed": _zero}
"""The moments of a step at which memory can be at its peak, by strategy."""
