"""Proof that dsnb's changes of a model leave its loss and gradients as they are, on a small witness, before a run.

Fused attention without a mask, a loss in chunks, a padded vocabulary and recomputed blocks are
compared with transformers' eager attention and whole logits, in fp32 on the device of the run.
Nothing is known about families: a model of next month is compared as well.
"""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from dsnb.models import witness
from dsnb.models.attention import whole_sequences
from dsnb.models.build import adapt
from dsnb.models.compile import recompute_around
from dsnb.models.loss import CausalLoss
from dsnb.models.parts import blocks
from dsnb.settings.experiment import Experiment

WITHOUT: dict[str, Mapping[str, Any]] = {
    "attention": {"attention": "eager"},
    "loss": {"loss": "whole"},
    "pad_vocab": {"pad_vocab": 0},
    "activation_checkpointing": {
        "activation_checkpointing": False,
        "checkpoint_every": 1,
        "checkpoint_ops": "all",
        "checkpoint_offload": False,
    },
}
"""Settings that change how a model computes its loss -> settings of a run without them."""
SEQUENCES = 2
TOLERANCE = 1e-3
"""Relative difference of losses and of gradients; roundings of fp32 are below a tenth of it."""


def adaptations(experiment: Experiment) -> list[str]:
    """Return the settings of a run that change how its model computes the loss."""
    names = []
    for name, without in WITHOUT.items():
        if getattr(experiment, name) != without[name]:
            names.append(name)
    return names


def differing(experiment: Experiment, device: torch.device) -> list[str]:
    """Return the settings with which a run's model has another loss or gradient than without them.

    Raise ValueError if the model has no small witness.
    """
    names = adaptations(experiment)
    if not names:
        return []
    with undisturbed(device), whole_sequences():
        expected = _computed(experiment, [], device)
        if is_close(_computed(experiment, names, device), expected):
            return []
        wrong = []
        for name in names:
            if not is_close(_computed(experiment, [name], device), expected):
                wrong.append(name)
    return wrong or names


@contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """Compute in fp32, and in one thread, which is faster for a small model; leave all else as it was."""
    devices = [device] if device.type == "cuda" else []
    threads = torch.get_num_threads()
    has_tf32 = torch.backends.cuda.matmul.allow_tf32
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.cuda.matmul.allow_tf32 = has_tf32
        if devices:
            gc.collect()  # half a second on a CPU, where a few MB do not matter
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)


def _computed(experiment: Experiment, kept: list[str], device: torch.device) -> list[Tensor]:
    """Return the loss of the witness and gradients of its embedding and output layer, with these adaptations only."""
    changes = dict(witness.ALONE)
    for name, without in WITHOUT.items():
        if name not in kept:
            changes |= without
    small = experiment.model_copy(update=changes)
    model = adapt(small, witness.build(small, device))
    if small.activation_checkpointing and experiment.compiles_blocks:
        for block in blocks(model):
            recompute_around(block, block.forward)
    vocab = model.config.vocab_size
    ids = torch.randint(1, vocab, (SEQUENCES, witness.TOKENS), device=device)
    loss = CausalLoss(model, small.loss == "chunked")(ids)
    loss.backward()
    embedded = model.get_input_embeddings().weight.grad[:vocab]
    output = model.get_output_embeddings().weight.grad[:vocab]
    return [loss.detach(), embedded, output]


def is_close(found: list[Tensor], expected: list[Tensor]) -> bool:
    """Return whether a loss and gradients are equal up to rounding; what is not a number is not."""
    for ours, theirs in zip(found, expected, strict=True):
        is_equal = (ours - theirs).norm() <= TOLERANCE * theirs.norm()
        if not is_equal:
            return False
    return True
