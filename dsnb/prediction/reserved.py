"""Predict what torch's allocator reserves for a training, from what its tensors take.

Freed memory stays reserved in pools of one stream and in segments that the next tensor may not fit.
So the allocator holds more than the peak of the tensors: a share of it, and some bytes per
parameter that a rank has of the model, gradients and states, which are allocated on other streams
or in other sizes. Both are fitted to measured runs, by allocator and sharing. If a GPU has no room
for that, the allocator returns memory in every step and asks for it again, while the GPU waits:
such a setting is tight, and its speed is not promised.
"""

from typing import NamedTuple

from dsnb.base.system.hardware import GIB
from dsnb.prediction import tuned
from dsnb.prediction.accuracy import ExpectedError, PredictionError
from dsnb.prediction.work import trained_parameters
from dsnb.settings.experiment import Experiment
from dsnb.settings.training import CUDA_GRAPHS


class Rule(NamedTuple):
    """What is reserved beyond the peak of the tensors."""

    share: float  # of that peak
    each: float  # bytes per trained parameter of a rank's share
    expected: ExpectedError  # kind that it is fitted to, and error on models that were left out

    def reserved_gib(self, experiment: Experiment, allocated_gib: float) -> float:
        """Return the GiB that the allocator would hold if the GPU had room for it."""
        # Of a rank, whether or not the strategy shards them.
        parameters = trained_parameters(experiment) / experiment.gpus
        return (1 + self.share) * allocated_gib + self.each * parameters / GIB


RULES = {
    allocator: {
        kind: Rule(share, each, ExpectedError(kind, PredictionError(*error)))
        for kind, (share, each, *error) in tuned.rows(table).items()
    }
    for allocator, table in tuned.TUNED["reserved"].items()
}
"""Rules by allocator and kind."""


def kinds(experiment: Experiment) -> list[str]:
    """Return the kinds of a setting, the narrowest first: how ranks share the model, and CUDA graphs."""
    sharing = experiment.parallel_strategy.kind_of(experiment.zero_stage)
    if experiment.compile in CUDA_GRAPHS:
        return [f"{sharing}, CUDA graphs", sharing]
    return [sharing]


def rule(experiment: Experiment) -> Rule:
    """Return the rule that a setting follows."""
    rules = RULES[experiment.allocator]
    return next(rules[kind] for kind in kinds(experiment) if kind in rules)
