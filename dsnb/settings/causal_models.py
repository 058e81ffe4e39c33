"""Refuses configurations of models that are not causal language models: each token must see only those before it.

transformers builds a language model from more than that. BERT's family sees all tokens, among them the one that it
should predict, so that its loss falls without learning; of an encoder-decoder it builds a half. Types that transformers
does not build it refuses itself.
"""

from collections.abc import Mapping
from typing import Any

from dsnb.files.plain_text import short_repr
from dsnb.formulas import model_shapes

DECODERS_IF_SET = (
    "bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert",
    "reformer", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta", "xlm-roberta-xl",
    "xmod",
)  # fmt: skip
"""Types of encoders, which are causal only with `is_decoder: true`."""
ENCODER_DECODERS = (
    "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "musicgen", "musicgen_melody",
    "mvp", "pegasus", "plbart", "prophetnet", "whisper",
)  # fmt: skip
"""Types of encoder-decoders, by default, of which transformers builds the decoder."""
ALLOWED = "give a causal language model, such as GPT-2, Llama or Mixtral"
SEEN = "tokens also attend to later ones"


def problem(model: str, config: Mapping[str, Any]) -> str | None:
    """Return why a model is not trained, in one sentence; None if it is a causal language model.

    Parameters
    ----------
    config
        Fields of its configuration, as in `config.json`; those that are missing have transformers' defaults.
    """
    kind = config.get("model_type")
    says = f"model is {short_repr(model)}: "
    if not isinstance(kind, str):
        return f"{says}its configuration has no model_type; {ALLOWED}"
    if config.get("is_encoder_decoder", kind in ENCODER_DECODERS):
        return f"{says}{kind} is an encoder-decoder; {ALLOWED}"
    if kind in DECODERS_IF_SET and not config.get("is_decoder"):
        return f"{says}{kind} is an encoder: its {SEEN}; set is_decoder to true in its configuration, or {ALLOWED}"
    if kind == "xlnet" or (kind == "xlm" and not config.get("causal")):
        return f"{says}in {kind}, {SEEN}; {ALLOWED}"
    return None


def local_problem(model: str) -> str | None:
    """Return why the model of a local configuration is not trained; None if it is, or if it is not local."""
    config = model_shapes.local_fields(model)
    if config is None and model_shapes.local_config(model):
        return f"model is {short_repr(model)}: its configuration is not a JSON object; {ALLOWED}"
    return None if config is None else problem(model, config)
