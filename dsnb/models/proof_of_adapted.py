"""Proof that `dsnb.adapt` leaves a model's loss and gradients as they are, for batches of every kind.

The batches of a user's loop may be padded on either side or packed, and a Trainer divides the loss
by the number of tokens of a whole step. A small model of the same class (`dsnb.models.witness`)
computes each kind of batch with transformers' eager attention and its own loss, and with the changes.
"""

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dsnb.models import witness
from dsnb.models.loss import IGNORED
from dsnb.models.proof import SEQUENCES, is_close, undisturbed
from dsnb.settings.experiment import Experiment

CHANGES = {
    "attention": "eager", "activation_checkpointing": False, "pad_vocab": 0, "loss": "whole",
}  # fmt: skip
"""Changes that are compared -> the setting without one."""
PADDING = 11
"""Padding tokens of one sequence; the other has none."""


class Proof(NamedTuple):
    """Which changes compute something else, and what was compared."""

    unequal: list[str]
    sentence: str


def compare(model: Any, experiment: Experiment, change: Callable[..., Any]) -> Proof:
    """Compare the changes that `change` makes of a small model like `model` with transformers' computation."""
    names = []
    for name, without in CHANGES.items():
        if getattr(experiment, name) != without:
            names.append(name)
    if not names:
        return Proof([], "not needed: nothing changes how the loss is computed")
    device = model.device
    if device.type == "meta":
        device = torch.device("cpu")
    try:
        with undisturbed(device):
            unequal = _unequal(model, experiment, change, names, device)
    except (
        Exception
    ) as error:  # of models, kernels and memory: the changes may be right all the same
        reason = str(error).strip().partition("\n")[0][:300]
        return Proof(
            [], f"{', '.join(names)}: not compared with transformers' computation ({reason})"
        )
    words = "loss and gradients equal transformers' own on a small model of the same kind"
    equal = [name for name in names if name not in unequal]
    if not equal:
        return Proof(unequal, "nothing is left that changes how the loss is computed")
    return Proof(unequal, f"{', '.join(equal)}: {words}, also with padded and packed batches")


def _unequal(
    model: Any,
    experiment: Experiment,
    change: Callable[..., Any],
    names: list[str],
    device: torch.device,
) -> list[str]:
    """Return the changes with which the small model has another loss or gradient."""
    small = witness.build_like(model, device)
    batches = _batches(small, device)
    expected = [_computed(small, batches[0])]
    for batch in batches[1:]:
        try:
            expected.append(_computed(small, batch))
        except Exception:  # transformers computes no such batch for these models
            expected.append([])

    def is_equal(kept: list[str]) -> bool:
        changed = copy.deepcopy(small)
        skipped = [name for name in CHANGES if name not in kept]
        change(changed, experiment, _uncompiled, skipped)
        for batch, theirs in zip(batches, expected, strict=True):
            if theirs and not is_close(_computed(changed, batch), theirs):
                return False
        return True

    if is_equal(names):
        return []
    wrong = [name for name in names if not is_equal([name])]
    return wrong or names


def _uncompiled(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
    """Stand for `torch.compile`, which takes longer than all else."""
    return function


def _batches(model: Any, device: torch.device) -> list[dict[str, Any]]:
    """Return whole, padded and packed sequences of a model's tokens."""
    length = witness.TOKENS
    ids = torch.randint(1, model.config.vocab_size, (SEQUENCES, length), device=device)
    ones = torch.ones_like(ids)
    right = ones.clone()
    right[0, -PADDING:] = 0
    left = right.flip(1)
    whole = {"input_ids": ids, "labels": ids}
    batches = [whole, {**whole, "attention_mask": ones}]
    for mask in (right, left):
        labels = ids.masked_fill(mask == 0, IGNORED)
        # Padding that predicts the first token sees nothing: what it computes is nobody's promise.
        labels[:, 1:].masked_fill_(mask[:, :-1] < mask[:, 1:], IGNORED)
        batches.append({"input_ids": ids, "labels": labels, "attention_mask": mask})
    arguments = inspect.signature(model.forward).parameters
    if any(one.kind is one.VAR_KEYWORD for one in arguments.values()):
        batches.append(
            {**batches[2], "num_items_in_batch": torch.tensor(3 * length, device=device)}
        )
    if "position_ids" in arguments:
        positions = torch.arange(length, device=device).expand(SEQUENCES, length)
        packed = torch.cat([positions[:, :PADDING], positions[:, : length - PADDING]], dim=1)
        batches += [{**whole, "position_ids": positions}, {**whole, "position_ids": packed}]
    return batches


def _computed(model: Any, batch: Mapping[str, Any]) -> list[Tensor]:
    """Return the loss of a batch and all gradients."""
    model.train()
    model.zero_grad()
    loss = model(**batch, use_cache=False).loss
    loss.backward()
    gradients = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
    return [loss.detach(), torch.cat(gradients)]
