"""What a run does if its changes of the model are not proved: it trains without them, and says so.

Rank 0 computes the proof (`dsnb.models.proof`) for all ranks, before any of them builds its model.
"""

from typing import Any

import torch

from dsnb.models import proof
from dsnb.settings.experiment import Experiment


def proved(experiment: Experiment, device: torch.device) -> tuple[Experiment, str | None]:
    """Return the settings to train with, and a sentence if they are not those of the run, or not proved."""
    answer: list[Any] = [None]
    if torch.distributed.get_rank() == 0:
        answer = [_answer(experiment, device)]
    if torch.distributed.get_world_size() > 1:
        torch.distributed.broadcast_object_list(answer, device=device)
    wrong, sentence = answer[0]
    for name in wrong:
        experiment = experiment.model_copy(update=dict(proof.WITHOUT[name]))
    return experiment, sentence


def _answer(experiment: Experiment, device: torch.device) -> tuple[list[str], str | None]:
    try:
        wrong = proof.differing(experiment, device)
    except (
        Exception
    ) as error:  # of models, kernels and memory: the run itself may work all the same
        names = ", ".join(proof.adaptations(experiment))
        reason = str(error).strip().partition("\n")[0][:300]
        return [], f"{names}: not compared with transformers' computation before the run ({reason})"
    if not wrong:
        return [], None
    changes = []
    for name in wrong:
        changes.append(
            f"{name} was {proof.WITHOUT[name][name]!r} instead of {getattr(experiment, name)!r}"
        )
    words = "a small model of the same kind had another loss or gradient than transformers' own"
    return wrong, f"{', '.join(changes)}: {words}"
