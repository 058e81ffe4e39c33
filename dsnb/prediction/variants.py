"""Further axes, which are tried on the fastest candidates only.

Each of them gains little in most trainings, or matters only where memory ends, so all combinations
with the rest would be many and seldom the answer. Around a few good settings each is worth a
prediction, and what is predicted to be faster is worth a trace. `docs/explanation/search_space.md`
says of every setting whether it is varied, and why.
"""

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

from dsnb.base.errors import SettingsError
from dsnb.prediction.candidates import MICRO_BATCH_TOKENS, micro_batches
from dsnb.prediction.shapes import shape
from dsnb.settings.experiment import Experiment

RECOMPUTED_LESS = (3, 4)
"""One block in so many is recomputed; `candidates` has every block and every second one."""
ALIGNED = 64
"""Multiple to which a vocabulary is padded."""


def variants(setting: Experiment, fixed: Collection[str] = ()) -> list[Experiment]:
    """Return the settings that train the same and differ in one axis each, without those in `fixed`."""
    found = []
    for changed in _changes(setting):
        if any(name in fixed for name in changed):
            continue
        with suppress(SettingsError):
            found.append(Experiment(**{**setting.model_dump(), **changed}))
    return found


def _changes(setting: Experiment) -> Iterator[dict[str, Any]]:
    """Yield changes of single axes; the rules may refuse some of them."""
    chosen = setting.parallel_strategy
    accumulates = setting.grad_accum > 1
    # The hooks of ZeRO 3 break the graph of a whole model at each layer.
    if setting.compile == "default" and setting.zero_stage < 3:
        yield {"compile_unit": "model" if setting.compiles_blocks else "block"}
    if "reduce_gradients" in chosen.settings and accumulates:
        yield {"reduce_gradients": "step"}
    if "gathered_weights" in chosen.settings:
        yield {"gathered_weights": "micro-batch"}
    # DeepSpeed's native bf16 reduces gradients in bf16, too: the training is as exact.
    if "gradient_compression" in chosen.settings and setting.precision == "bf16":
        yield {"gradient_compression": "bf16"}
    if setting.zero_stage == 3 and not setting.gathers_blocks:
        yield {"leaf_modules": "blocks"}
    if shape(setting.model).vocab % ALIGNED:
        yield {"pad_vocab": ALIGNED}
    if setting.activation_checkpointing:
        for every in RECOMPUTED_LESS:
            yield {"checkpoint_every": every}
        if setting.compile == "off":
            yield {"checkpoint_ops": "cheap"}
    yield from _between(setting)


def _between(setting: Experiment) -> Iterator[dict[str, int]]:
    """Yield the micro-batches between a setting's and the next one of `candidates`, which may not fit."""
    own = setting.micro_batch_size
    sequences = own * setting.grad_accum
    end = MICRO_BATCH_TOKENS[1] // setting.seq_len + 1
    for size in micro_batches(sequences, setting.seq_len):
        if size > own:
            end = min(end, size)
    for size in range(own + 1, end):
        if sequences % size == 0:
            yield {"micro_batch_size": size, "grad_accum": sequences // size}
