"""What torchao does for a training, imported only where a setting asks for it: an optimizer with states of 8 bits.

Packages that train hide torchao from transformers (`dsnb.measure.train`), so it is looked for anew.
"""

import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch

from dsnb.settings import checks
from dsnb.settings.experiment import Experiment
from dsnb.settings.training import ADAMW


def reveal_torchao(experiment: Experiment) -> None:
    """Make torchao importable again; raise ValueError if it is not installed."""
    if sys.modules.get("torchao") is None:
        sys.modules.pop("torchao", None)
    with suppress(ModuleNotFoundError):
        import torchao  # noqa: F401

        return
    raise ValueError("; ".join(map(checks.no_torchao, checks.needs_torchao(experiment))))


def eight_bit_adamw(
    experiment: Experiment, parameters: Iterable[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    """Return AdamW whose moments have 8 bits, with an fp32 scale for each 256 (Dettmers et al. 2021, arXiv:2110.02861).

    Tensors of fewer than 4,096 numbers, and those that 256 does not divide, have moments in their
    own format.
    """
    reveal_torchao(experiment)
    from torchao.optim import AdamW8bit
    from torchao.optim.subclass_8bit import OptimState8bit

    class AdamW(AdamW8bit):  # type: ignore[misc]
        """Moments that claim to be fp32: torchao 0.18 loses another claim where FSDP2 shards them."""

        @staticmethod
        def _subclass_zeros(weight: Any, signed: bool, block_size: int) -> Any:
            return OptimState8bit.zeros(weight.shape, signed, block_size, weight.device)

    AdamW.__name__ = AdamW8bit.__name__
    options: dict[str, Any] = {**ADAMW, "lr": experiment.learning_rate}
    optimizer: torch.optim.Optimizer = AdamW(parameters, **options)
    return optimizer
