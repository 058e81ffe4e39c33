"""What the caching allocator of a rank reserves, and whether it runs out of memory, from a recording of the model."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from dsnb.formulas.memory import HALF
from dsnb.prediction.memory import GIB
from dsnb.prediction.replay.allocator import CachingAllocator, OutOfMemoryError
from dsnb.prediction.replay.recording import Recording
from dsnb.prediction.replay.step import STEPS, Replay
from dsnb.prediction.replay.torch_engines import Ddp, Plain
from dsnb.prediction.replay.zero_engines import Accumulating, FlatMasters, Partitioned
from dsnb.settings.derived import accumulates_in_fp32
from dsnb.settings.experiment import Experiment

STEPS_WITHIN_LIMIT = 8
"""OPT-2.7B on an H100 ran out of memory in its fourth step, here as measured; no setting that gets through these was
seen to run out in 40 (docs/LOG.md, 2026-11-24)."""
TOLERANCE = 0.01
"""By how much more memory than there is a replay may need without being said to run out: its error, about."""


@dataclass(frozen=True)
class Simulated:
    """What a rank's allocator held at most, in GiB.

    Attributes
    ----------
    allocated_gib, reserved_gib
        The peaks without a limit.
    within_limit_gib
        The most that is reserved within the limit, where what is cached is given back; the limit if that is not enough.
    fits
        Whether that is enough, within `TOLERANCE`.
    """

    allocated_gib: float
    reserved_gib: float
    within_limit_gib: float
    fits: bool


def simulate(experiment: Experiment, recording: Recording, limit_gib: float = math.inf) -> Simulated | None:
    """Return what a few steps reserve on a GPU that lets tensors have `limit_gib`; None if no replay covers them."""
    engine = engine_of(experiment)
    if engine is None:
        return None
    allocated, reserved = _peaks(engine, experiment, recording, math.inf)
    if reserved <= limit_gib:
        return Simulated(allocated, reserved, reserved, fits=True)
    try:
        within = _peaks(engine, experiment, recording, limit_gib * (1 + TOLERANCE), STEPS_WITHIN_LIMIT)[1]
    except OutOfMemoryError:
        return Simulated(allocated, reserved, limit_gib, fits=False)
    return Simulated(allocated, reserved, min(within, limit_gib), fits=True)


def engine_of(experiment: Experiment) -> Callable[..., Replay] | None:
    """Return the replay of a strategy; None if there is none for the settings.

    CUDA graphs have memory of their own. ZeRO 3 and FSDP allocate on several streams, offloading through buffers of its
    own; a rank of tensor and pipeline parallelism holds part of the model. Why DDP with AdamW takes more in its second
    step with accumulation is not known.
    """
    s = experiment
    if s.compile not in {"off", "default"} or s.offload != "none" or s.tensor_parallel * s.pipeline_parallel > 1:
        return None
    if s.strategy == "ddp":
        known = s.gradient_compression == "none" and (s.grad_accum == 1 or s.optimizer == "adafactor")
        return Ddp if known else None
    return Plain if s.strategy == "plain" else _of_deepspeed(s)


def _of_deepspeed(s: Experiment) -> Callable[..., Replay] | None:
    if s.strategy != "deepspeed" or s.optimizer != "adamw" or s.overlap_comm == "on" or s.zeropp != "none":
        return None
    native = s.precision in HALF and s.mixed_precision == "native"
    if s.zero_stage == 1 and accumulates_in_fp32(vars(s)):
        return Accumulating if native else None
    by_stage: dict[int, Callable[..., Replay]] = {0: FlatMasters if native else Plain, 1: Partitioned, 2: Partitioned}
    return by_stage.get(s.zero_stage)


def _peaks(
    engine: Callable[..., Replay],
    experiment: Experiment,
    recording: Recording,
    limit_gib: float,
    steps: int = STEPS,
) -> tuple[float, float]:
    """Return the most GiB that a rank allocates and that one reserves."""
    found = []
    for rank in _ranks_that_differ(engine, experiment.data_parallel):
        allocator = CachingAllocator(limit_gib * GIB)
        engine(experiment, recording, allocator, rank).run(steps)
        found.append((allocator.peak_allocated / GIB, allocator.peak_reserved / GIB))
    allocated, reserved = zip(*found, strict=True)
    return max(allocated), max(reserved)


def _ranks_that_differ(engine: Callable[..., Replay], ranks: int) -> set[int]:
    """Return the first rank, which updates the embeddings, one in the middle, and the last one."""
    return {0, min(1, ranks - 1), ranks - 1} if engine is Partitioned else {0}
