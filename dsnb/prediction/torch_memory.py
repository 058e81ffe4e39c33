"""What one process, DDP and FSDP hold in a GPU's memory besides activations.

Read in torch, and held to runs on CPU ranks (docs/explanation/prediction.md).
"""

from dsnb.formulas.memory import HALF
from dsnb.prediction.engine import Engine, frozen_bytes, passes
from dsnb.prediction.moments import Moment


def plain(engine: Engine) -> list[Moment]:
    """Hold fp32 weights and optimizer; gradients stay until the update."""
    states = Moment("states", weights=4 * engine.trained + frozen_bytes(engine), optimizer=engine.moments)
    gradients = 4 * engine.trained
    base = states.with_more("states", gradients=gradients if engine.accumulates else 0)
    return [
        *passes(engine, base, 0 if engine.accumulates else 4, 0),
        states.with_more("optimizer", gradients=gradients),
    ]


def ddp(engine: Engine) -> list[Moment]:
    """Hold what one process does, and buckets for all gradients; those that have not been sent are not in them.

    Compressed gradients live until the next ones are sent, and PowerSGD keeps what it left out of the last ones
    (torch's `ddp_comm_hooks`). With AdamW and accumulation the second step, and no other, took as much as all gradients
    more (OPT-1.3B on H200, 4 and 8 x 1024); with Adafactor it does not, nor on CPU ranks, and why is not known.
    """
    sent = {"bf16": 2, "powersgd": 4}.get(engine.experiment.gradient_compression, 0)
    states = Moment("states", weights=4 * engine.trained + frozen_bytes(engine), optimizer=engine.moments)
    states = states.with_more("states", buffers=(4 + sent) * engine.trained)
    base = states.with_more("states", gradients=4 * engine.trained if engine.accumulates else 0)
    found = [*passes(engine, base, 0, 0), states.with_more("optimizer")]
    if engine.accumulates and engine.experiment.optimizer == "adamw":
        found += [one.with_more("second step", buffers=4 * engine.trained) for one in found if one.name == "loss"]
    return found


def fsdp(engine: Engine) -> list[Moment]:
    """Hold everything in shards; root and one block are gathered, and accumulated gradients are whole."""
    share = engine.trained / engine.ranks
    native = engine.experiment.precision in HALF and engine.experiment.mixed_precision == "native"
    gathered = (2 if native else 4) * (engine.trace.of_root + engine.trace.of_block)
    states = Moment(
        "states", weights=4 * share + frozen_bytes(engine) / engine.ranks, optimizer=engine.moments / engine.ranks
    )
    base = states.with_more("states", buffers=gathered, gradients=4 * engine.trained if engine.accumulates else 0)
    gradient = 0 if engine.accumulates else 4 / engine.ranks
    # A block's gradients are copied to fp32 to be reduced, where the weights of the next one take less.
    reduced = 2 * engine.trace.of_block if native else 0
    return [*passes(engine, base, gradient, 0, reduced), states.with_more("optimizer", gradients=4 * share)]
