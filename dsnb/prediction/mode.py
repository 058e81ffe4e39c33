"""What an experiment trains and how it computes: what follows from its settings before any work is counted."""

from dataclasses import dataclass
from functools import lru_cache

from dsnb.errors import SettingsError
from dsnb.formulas.memory import HALF, lora_parameters, recomputed_blocks
from dsnb.formulas.model_shapes import PRESETS, SPLIT, Shape, facts, local_config, local_fields
from dsnb.settings.experiment import Experiment

MEGATRON = "megatron-deepspeed"
"""The strategy of published runs of Megatron with DeepSpeed."""
LINEAR_LAYERS = {"gpt2": 4, "bloom": 4, "opt": 6}
"""Linear layers of a block: OPT's queries, keys and values come from three."""
TENSORS = {"gpt2": 12, "bloom": 12, "opt": 16}
"""Parameter tensors of a block."""


@dataclass(frozen=True)
class Mode:
    """How an experiment computes: what follows from its precision, strategy and compilation."""

    width: int  # bytes of a number
    stream_width: int  # of the residual stream, which autocast leaves in fp32
    autocast: bool
    kind: str  # `eager`, `compiled`, or `megatron` (hand-written fused kernels)
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


def recomputed_share(experiment: Experiment) -> float:
    """Return the share of blocks whose forward pass runs again in the backward pass."""
    if not experiment.activation_checkpointing:
        return 0.0
    layers = shape(experiment.model).layers
    return recomputed_blocks(layers, experiment.checkpoint_every) / layers


@lru_cache(maxsize=256)
def shape(model: str) -> Shape:
    """Return the shape of a model.

    Raises
    ------
    SettingsError
        If the model is neither a preset nor a local configuration of a GPT-2, OPT or BLOOM.
    """
    if model in PRESETS:
        return PRESETS[model]
    path, config = local_config(model), local_fields(model) or {}
    if path is None:
        raise SettingsError(f"model is {model!r}: a prediction needs a preset or a configuration file on this machine")
    family, hidden = str(config.get("model_type")), config.get("n_embd") or config.get("hidden_size")
    known = {**facts(model), "hidden": hidden, "vocab": config.get("vocab_size")}
    needed = ["layers", "hidden", "heads", "vocab", *(["positions"] if family != "bloom" else [])]
    unknown = [name for name in needed if not isinstance(known.get(name), int)]
    if family not in SPLIT or unknown:
        why = f"it does not tell {', '.join(unknown)}" if family in SPLIT else f"its model_type is {family!r}"
        raise SettingsError(f"cannot read the shape of a {', '.join(SPLIT)} model from {path}: {why}")
    embedding = config.get("word_embed_proj_dim") or hidden
    numbers = {"positions": None, **{name: known[name] for name in needed}}
    return Shape(family, **numbers, embedding=None if embedding == hidden else embedding)
