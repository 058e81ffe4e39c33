"""What DeepSpeed's ZeRO stages hold in a GPU's memory besides activations.

Read in DeepSpeed 0.19.8, and held to runs on CPU ranks (docs/explanation/prediction.md).
`N` is the number of data-parallel ranks, `P` the trained parameters of a rank.
"""

from dsnb.prediction.engine import Engine, frozen_bytes, passes
from dsnb.prediction.moments import Moment
from dsnb.settings.derived import accumulates_in_fp32

LIVE = 1_000_000_000
"""Elements that ZeRO 3 keeps gathered, `stage3_max_live_parameters`."""
SUB_GROUP = 1_000_000_000
"""Elements that ZeRO 3 updates at a time, `sub_group_size`."""


def moments(engine: Engine) -> list[Moment]:
    """Return the moments of a step at which memory can be at its peak."""
    experiment = engine.experiment
    if experiment.zero_stage == 3:
        return _zero3(engine)
    if experiment.zero_stage == 0:
        return _zero0(engine)
    accumulates = accumulates_in_fp32(vars(experiment)) and experiment.zero_stage == 1
    return _zero1_in_fp32(engine) if accumulates else _zero12(engine)


def _zero0(engine: Engine) -> list[Moment]:
    """Hold everything on every rank; gradients are flattened to be reduced, in half precision once more to step."""
    width, trained = engine.width, engine.trained
    masters = 4 * trained if engine.keeps_masters else 0
    weights = width * trained + frozen_bytes(engine)
    states = Moment("states", weights=weights, optimizer=masters + engine.moments)
    base = states.with_more("states", gradients=width * trained if engine.accumulates else 0)
    after = states.with_more("states", gradients=width * trained)
    # FP16_Optimizer.step: a list of all gradients in fp32, and a flat copy of them.
    flat = 8 * trained if engine.keeps_masters else 0
    return [
        *passes(engine, base, 0 if engine.accumulates else width, 0),
        after.with_more("reduction", buffers=width * trained if engine.ranks > 1 else 0),
        after.with_more("optimizer", buffers=flat),
    ]


def _zero12(engine: Engine) -> list[Moment]:
    """Hold optimizer states in shards, at ZeRO 2 gradients too; a bucket has the gradients to be reduced."""
    experiment, width, trained, ranks = engine.experiment, engine.width, engine.trained, engine.ranks
    offloaded = experiment.offload != "none"
    # Also without half precision the optimizer has masters of its own: clones of its share of the fp32 weights.
    optimizer = 0 if offloaded else (4 * trained + engine.moments) / ranks
    states = Moment("states", weights=width * trained + frozen_bytes(engine), optimizer=optimizer)
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
        *passes(engine, base, gradient, held, later),
        after.with_more("reduction", gradients=0 if partitioned else width * trained),
        after.with_more("optimizer", buffers=update),
    ]


def _offloaded_optimizer(engine: Engine, states: Moment) -> list[Moment]:
    """Keep the optimizer in host memory; at ZeRO 2 gradients go there too, through a buffer for the largest one."""
    width = engine.width
    states = states.with_more("states", buffers=width * engine.trace.largest)
    if engine.experiment.zero_stage == 2:
        held = min(engine.bucket, width * engine.trained)
        return [*passes(engine, states, 0, held, engine.buckets), _norm_in_fp64(engine, states)]
    base = states.with_more("states", gradients=width * engine.trained if engine.accumulates else 0)
    if engine.accumulates:
        base = base.with_more("states", buffers=engine.buckets)
    return passes(engine, base, 0 if engine.accumulates else width, 0)


def _norm_in_fp64(engine: Engine, states: Moment) -> Moment:
    """Take the norm of the rank's share of the largest gradient: `set_norm_for_param_grad_in_gpu`."""
    largest = engine.trace.largest
    beside = engine.width * largest if engine.width * largest > engine.bucket else 0  # else it is in the bucket
    in_fp64 = 8 * min(largest, engine.trained / engine.ranks)
    return states.with_more("backward", gradients=beside, buffers=engine.buckets + in_fp64)


def _zero1_in_fp32(engine: Engine) -> list[Moment]:
    """Hold fp32 accumulators for all gradients on every rank: DeepSpeed's BF16_Optimizer."""
    trained, ranks = engine.trained, engine.ranks
    optimizer = 0 if engine.experiment.offload != "none" else (4 * trained + engine.moments) / ranks
    states = Moment("states", weights=2 * trained + frozen_bytes(engine), gradients=4 * trained, optimizer=optimizer)
    base = states.with_more("states", gradients=2 * trained)
    return [
        *passes(engine, base, 0, 0),
        states.with_more("reduction", gradients=2 * trained, buffers=2 * trained),
        states.with_more("optimizer", gradients=2 * trained, buffers=2 * trained),
    ]


def _zero3(engine: Engine) -> list[Moment]:
    """Hold everything in shards; gathered weights stay as long as they are below a limit."""
    experiment, width = engine.experiment, engine.width
    share = engine.trained / engine.ranks
    weights = width * share + frozen_bytes(engine) / engine.ranks
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
    # One rank has whole parameters already: gathering them copies nothing unless they are in host memory.
    copied = engine.ranks > 1 or what == "all"
    gathered = width * min(engine.trained + engine.frozen, limit) if copied else 0
    base = states.with_more("states", buffers=gathered)
    update = (6 if engine.keeps_masters else 4) * min(share, SUB_GROUP) if what == "none" else 0
    return [
        *passes(engine, base, 0, min(engine.bucket, width * engine.trained)),
        states.with_more("optimizer", buffers=update),
    ]
