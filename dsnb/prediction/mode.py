"""What an experiment trains and how it computes: what follows from its settings before any work is counted."""

import json
from dataclasses import dataclass
from functools import lru_cache

from dsnb.errors import SettingsError
from dsnb.formulas.memory import HALF, lora_parameters, recomputed_blocks
from dsnb.formulas.model_shapes import PRESETS, SPLIT, Shape, local_config
from dsnb.prediction import kernels
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
    path = local_config(model)
    if path is None:
        raise SettingsError(f"model is {model!r}: a prediction needs a preset or a configuration file on this machine")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        return _from_config(config)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise SettingsError(f"cannot read the shape of a {', '.join(SPLIT)} model from {path}: {error}") from None


def _from_config(config: dict[str, object]) -> Shape:
    family = str(config["model_type"])
    if family not in SPLIT:
        raise ValueError(f"its model_type is {family!r}")

    def number(*names: str) -> int:
        found = next((config[name] for name in names if config.get(name)), None)
        if found is None:
            raise ValueError(f"it has no {' or '.join(names)}")
        return int(str(found))

    hidden = number("n_embd", "hidden_size")
    embedding = int(str(config.get("word_embed_proj_dim") or hidden))
    return Shape(
        family,
        number("n_layer", "num_hidden_layers"),
        hidden,
        number("n_head", "num_attention_heads"),
        number("vocab_size"),
        None if family == "bloom" else number("n_positions", "max_position_embeddings"),
        embedding=None if embedding == hidden else embedding,
    )
