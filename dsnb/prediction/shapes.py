"""The shape of the model that an experiment names: a preset, or a configuration file of one of the three families."""

import json
from functools import lru_cache

from dsnb.errors import SettingsError
from dsnb.formulas.model_shapes import PRESETS, SPLIT, Shape, local_config


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
