"""Predict what torch's allocator reserves for a training, from what its tensors take.

Freed memory stays reserved in pools of one stream and in segments that the next tensor may not fit. So the allocator
holds more than the peak of the tensors: a share of it, and some bytes per parameter that a rank has of the model,
gradients and states, which are allocated on other streams or in other sizes. Both are fitted to measured runs, by
allocator and sharing. If a GPU has no room for that, the allocator returns memory in every step and asks for it again,
while the GPU waits: such a setting is tight, and its speed is not promised.
"""

import json
from pathlib import Path
from typing import NamedTuple

from dsnb.prediction.calibration import PredictionError
from dsnb.prediction.memory import GIB
from dsnb.prediction.work import trained_parameters
from dsnb.settings.experiment import Experiment
from dsnb.settings.training import CUDA_GRAPHS


class Rule(NamedTuple):
    """What is reserved beyond the peak of the tensors."""

    share: float  # of that peak
    each: float  # bytes per trained parameter of a rank's share
    error: PredictionError

    def reserved_gib(self, allocated_gib: float, parameters: float) -> float:
        """Return what is reserved for tensors of this peak and a rank with this share of the trained parameters."""
        return (1 + self.share) * allocated_gib + self.each * parameters / GIB


RULES = {
    allocator: {
        name: Rule(row[0], row[1], PredictionError(*row[2:])) for name, row in rules.items()
    }
    for allocator, rules in json.loads(
        Path(__file__).with_name("reserved.json").read_text(encoding="utf-8")
    ).items()
}
"""Rules by allocator and kind, fitted to runs on H200 and H100 by `python -m benchmarks.reserved_memory`; each error is
that on models which were left out of the fit."""


def kinds(experiment: Experiment) -> tuple[str, ...]:
    """Return the kinds of a setting, the narrowest first: how ranks share the model, and CUDA graphs."""
    names = {"plain": "plain loop", "ddp": "DDP", "fsdp": "FSDP"}
    sharing = names.get(experiment.strategy, f"ZeRO {experiment.zero_stage}")
    return (f"{sharing}, CUDA graphs", sharing) if experiment.compile in CUDA_GRAPHS else (sharing,)


def rule(experiment: Experiment) -> tuple[str, Rule]:
    """Return the kind whose rule a setting follows, and the rule."""
    rules = RULES["default" if experiment.allocator == "default" else "expandable"]
    name = next(name for name in kinds(experiment) if name in rules)
    return name, rules[name]


def peak_reserved_gib(experiment: Experiment, allocated_gib: float) -> float:
    """Return the GiB that the allocator would hold if the GPU had room for it."""
    return rule(experiment)[1].reserved_gib(allocated_gib, parameters_of_rank(experiment))


def parameters_of_rank(experiment: Experiment) -> float:
    """Return the trained parameters over all ranks, whether or not the strategy shards them."""
    return trained_parameters(experiment) / experiment.gpus
