"""Activation checkpointing of all or every k-th transformer block, optionally with the inputs in host memory."""

from collections.abc import Callable
from typing import Any

from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from dsnb.settings.experiment import Experiment
from dsnb.train.model_parts import blocks


def checkpoint_activations(experiment: Experiment, model: Any) -> None:
    """Enable activation checkpointing, through whichever of its two names transformers has."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    for number, block in enumerate(blocks(model)):
        block.gradient_checkpointing = number % experiment.checkpoint_every == 0
        if experiment.checkpoint_offload:
            block._gradient_checkpointing_func = offloaded_checkpoint(pin_memory=experiment.device == "cuda")
    if experiment.checkpoint_offload:
        model.enable_input_require_grads()  # else a reentrant checkpoint behind frozen layers trains nothing
    elif experiment.lora_rank:
        model.disable_input_require_grads()  # peft's hook for reentrant checkpoints breaks a compiled graph


def offloaded_checkpoint(pin_memory: bool) -> Callable[..., Any]:
    """Return a checkpoint function that keeps its saved inputs in host memory.

    It is reentrant, because only that kind saves its inputs through autograd's hooks.
    """

    def run(function: Callable[..., Any], *inputs: Any) -> Any:
        with save_on_cpu(pin_memory=pin_memory):
            return checkpoint(function, *inputs, use_reentrant=True)

    return run
