"""Strategies: how ranks share a training, and which number formats they use.

Each strategy is one class in one module, without torch. It answers the questions that the rest of
dsnb asks: its labels, the settings that it does not have, number formats, model states, traffic,
and the names of its trainer and of its rule of memory, which are imported where they are used.

A package adds a strategy in one file, and an entry point in the group `dsnb.strategies`:

>>> # pyproject.toml: [project.entry-points."dsnb.strategies"]
>>> #                 fsdp_kept = "my_package:FsdpKept"
>>> from dsnb.settings.strategies.fsdp import Fsdp
>>> class FsdpKept(Fsdp):
...     "FSDP2 that keeps gathered weights until the backward pass."
...
...     name = "fsdp_kept"
...     label = "FSDP, weights kept"
...     gathers_per_micro_batch = 1
...     trainer_class = f"{__name__}:build_trainer"
>>> def build_trainer(experiment, ds_config, device):
...     from dsnb.measure.train.trainer import FsdpTrainer  # torch is imported in the ranks only
...
...     trainer = FsdpTrainer(experiment, ds_config, device)
...     trainer.wrapped.set_reshard_after_forward(False)
...     return trainer

Labels, errors of predictions and the rule of memory are those of the base class unless the class
has its own (`memory_rule`); here each rank holds whole weights, which its own rule should add.
"""

from dsnb.settings.strategies.base import (
    HALF,
    ModelSize,
    Numbers,
    States,
    Strategy,
    Traffic,
)
from dsnb.settings.strategies.registry import NAMES, STRATEGIES, load, strategy, without_zero

__all__ = [
    "HALF", "NAMES", "STRATEGIES", "ModelSize", "Numbers", "States", "Strategy", "Traffic", "load",
    "strategy", "without_zero",
]  # fmt: skip
