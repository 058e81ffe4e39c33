"""The peak of a GPU's memory in a step: the largest of the moments that its strategy goes through."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from dsnb.formulas import memory as formulas
from dsnb.formulas.memory import HALF
from dsnb.formulas.model_shapes import facts
from dsnb.prediction import torch_memory, zero_memory
from dsnb.prediction.engine import Engine, engine_of
from dsnb.prediction.moments import Moment, Trace
from dsnb.settings.experiment import Experiment

GIB = 2**30
WORKSPACE_GIB = 0.07
"""Workspaces of cuBLAS and the like: the same in every measured row of `h200_memory` within 0.01."""
CONTEXT_GIB = 1.6
"""What a GPU's capacity loses to the CUDA context, NCCL and other libraries: `device_memory_gib` less
`peak_reserved_gib` in `h200_memory`, 2.2 on two GPUs and 1.6 on one, less blocks that are cached."""

RULES: dict[str, Callable[[Engine], list[Moment]]] = {
    "plain": torch_memory.plain,
    "ddp": torch_memory.ddp,
    "fsdp": torch_memory.fsdp,
    "deepspeed": zero_memory.moments,
}
"""The moments of a step by strategy."""


@dataclass(frozen=True)
class Memory:
    """The predicted memory of one GPU.

    Attributes
    ----------
    moment
        The moment of the peak, with its parts in bytes.
    peak_allocated_gib
        The most that tensors take.
    """

    moment: Moment
    peak_allocated_gib: float


@dataclass(frozen=True)
class Room:
    """The memory of a GPU, or `memory_limit_gib`, which limits torch's allocator and not the CUDA context."""

    capacity_gib: float
    context_gib: float = CONTEXT_GIB

    @property
    def tensors_gib(self) -> float:
        """What is left for tensors."""
        return self.capacity_gib - self.context_gib


def room(experiment: Experiment, gpu_gib: float) -> Room:
    """Return the room on a GPU of that capacity, or within `memory_limit_gib` if that is less."""
    limit = [Room(experiment.memory_limit_gib, context_gib=0.0)] if experiment.memory_limit_gib else []
    return min([Room(gpu_gib), *limit], key=lambda one: one.tensors_gib)


def peak_memory(experiment: Experiment, trace: Trace) -> Memory:
    """Return the predicted peak of the rank that needs most."""
    candidates = [
        moment
        for part in _of_ranks(experiment, trace)
        for moment in RULES[experiment.strategy](engine_of(experiment, part, _moments(experiment, part)))
    ]
    peak = max(candidates, key=lambda moment: moment.total)
    return Memory(peak, peak.total / GIB + WORKSPACE_GIB)


def _moments(experiment: Experiment, trace: Trace) -> float | None:
    """Return the bytes of the optimizer's moments if it is not Adam: Adafactor's rows and columns, Muon's momentum."""
    if experiment.optimizer == "adafactor":
        positions = facts(experiment.model).get("positions")
        return formulas.adafactor_moments(trace.layers, trace.hidden, trace.vocab, positions)
    if experiment.optimizer == "muon":  # matrices of the blocks have one moment, everything else two
        return 4 * (2 * trace.trainable - trace.layers * trace.of_block)
    return None


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
