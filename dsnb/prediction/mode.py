"""How an experiment computes, and what it trains: what follows from its settings before any work is counted."""

from dataclasses import dataclass

from dsnb.formulas.memory import HALF, lora_parameters, recomputed_blocks
from dsnb.prediction import kernels
from dsnb.prediction.shapes import shape
from dsnb.settings.experiment import Experiment

MEGATRON = "megatron-deepspeed"
"""The strategy of published runs of Megatron with DeepSpeed."""


@dataclass(frozen=True)
class Mode:
    """How an experiment computes: what follows from its precision, strategy and compilation."""

    width: int
    stream_width: int
    autocast: bool
    kind: str
    fused_attention: bool

    @classmethod
    def of(cls, experiment: Experiment) -> "Mode":
        """Return the mode of an experiment."""
        half = experiment.precision in HALF
        cast = experiment.mixed_precision == "autocast" or experiment.strategy in {"ddp", "plain"}
        autocast = half and cast and not experiment.lora_rank
        kind = "compiled" if experiment.compile != "off" else "eager"
        if experiment.strategy == MEGATRON:
            kind = "megatron"
        width = 2 if half else 4
        return cls(width, 4 if autocast else width, autocast, kind, experiment.attention != "eager")


def trained_parameters(experiment: Experiment) -> float:
    """Return the parameters that are trained: all, or those of LoRA's adapters."""
    model = shape(experiment.model)
    if not experiment.lora_rank:
        return model.parameters
    return lora_parameters(model.layers, model.hidden, experiment.lora_rank, fused=model.family != "opt")


def parameter_tensors(experiment: Experiment) -> int:
    """Return the number of trained parameter tensors."""
    model = shape(experiment.model)
    if experiment.lora_rank:
        return 2 * model.layers * kernels.LINEAR_LAYERS.get(model.family, 4)
    return model.layers * kernels.TENSORS.get(model.family, 12) + 4


def recomputed_share(experiment: Experiment) -> float:
    """Return the share of blocks whose forward pass runs again in the backward pass."""
    if not experiment.activation_checkpointing:
        return 0.0
    layers = shape(experiment.model).layers
    return recomputed_blocks(layers, experiment.checkpoint_every) / layers
