"""The shapes of models as published, and their exact parameter counts.

Pure data and arithmetic; `dsnb.models.build` builds the models.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any


@dataclass(frozen=True)
class Shape:
    """The shape of one causal language model; GPT-2, OPT and BLOOM follow from their sizes, others are `published`.

    `positions` is None if positions are not embedded (BLOOM's ALiBi) and any sequence length fits.
    """

    family: str
    layers: int
    hidden: int
    heads: int
    vocab: int
    positions: int | None
    hub_id: str | None = None
    embedding: int | None = None
    """Width of the token embedding if it differs from `hidden` (OPT-350M)."""
    published: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Its `config` and, of another family, its `parameters`, with experts those that are `active`
    for a token."""

    @property
    def has_formula(self) -> bool:
        """Whether the parameters follow from the sizes."""
        return "parameters" not in self.published

    @property
    def block_parameters(self) -> int:
        """Those of all blocks: attention 4h^2 + 4h, MLP 8h^2 + 5h, two layer norms 4h, in the first three families."""
        if self.has_formula:
            return self.layers * (12 * self.hidden * self.hidden + 13 * self.hidden)
        is_tied = self.published["config"].get("tie_word_embeddings", self.family in TIED)
        embeddings = 1 if is_tied else 2
        return self.parameters - embeddings * self.vocab * self.hidden  # but for a norm's

    @property
    def parameters(self) -> int:
        """All parameters, tied embeddings counted once."""
        if not self.has_formula:
            return int(self.published["parameters"])
        h = self.hidden
        positions = self.positions or 0
        if self.family == "gpt2":
            outside = self.vocab + positions + 2
        elif self.family == "bloom":
            outside = self.vocab + 4
        elif self.embedding:
            # OPT-350M projects its narrow embedding in and out, and norms after each block instead
            # of at the end.
            return (
                self.block_parameters + self.embedding * (self.vocab + 2 * h) + (positions + 2) * h
            )
        else:
            outside = self.vocab + positions + 4
        return self.block_parameters + outside * h

    def config(self) -> dict[str, Any]:
        """Return the fields of transformers' configuration class for this shape, `model_type` included."""
        return dict(self.published["config"])


def _presets() -> Iterator[tuple[str, Shape]]:
    """Yield the shapes of `presets.json` by their names.

    Radford et al. 2019, table 2; Zhang et al. 2022 (OPT), table 1; Le Scao et al. 2022 (BLOOM),
    table 3; and the configurations on the hub. `gpt-1.3b` is that of BigScience's benchmark (24 x
    2048, 16 heads, GPT-2's vocabulary; its script tr3m-1B3-emb-norm-pile). The `tiny` ones are
    dsnb's own, for CPUs and tests.

    The other families have the sizes of their configurations on the hub, which agree with Touvron
    et al. 2023 (Llama 2), table 1 of its appendix; Grattafiori et al. 2024 (Llama 3), table 3;
    Jiang et al. 2023 and 2024 (Mistral, Mixtral), tables 1; Yang et al. 2024 and 2025 (Qwen 2.5 and
    3), tables 1; Gemma Team 2024 (1 and 2), tables 1, and 2025 (3); Abdin et al. 2024 (Phi 3 and
    4); Biderman et al. 2023 (Pythia), table 1; Black et al. 2022 (GPT-NeoX); Almazrouei et al. 2023
    (Falcon).
    """
    text = Path(__file__).with_name("presets.json").read_text(encoding="utf-8")
    for name, published in json.loads(text).items():
        config = published["config"]
        sizes = _sizes(config)
        embedding = config.get("word_embed_proj_dim")
        yield (
            name,
            Shape(
                family=config["model_type"],
                vocab=config["vocab_size"],
                hub_id=published["hub_id"],
                embedding=None if embedding == sizes["hidden"] else embedding,
                published=published,
                **sizes,
            ),
        )


def _sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `positions`, `layers`, `heads` and `hidden` of a configuration, as far as they are known."""
    numbers = {
        "positions": config.get("n_positions") or config.get("max_position_embeddings"),
        "layers": config.get("n_layer") or config.get("num_hidden_layers"),
        "heads": config.get("n_head") or config.get("num_attention_heads"),
        "hidden": config.get("hidden_size") or config.get("n_embd") or config.get("d_model"),
    }
    sizes = {name: value for name, value in numbers.items() if isinstance(value, int) and value > 0}
    return {"positions": None, **sizes}


TIED = ("falcon", "gemma", "gemma2", "gemma3_text")
"""The model families whose output layer is tied to the embedding unless a configuration says
something else."""

PRESETS = dict(_presets())
PUBLISHED = {shape.hub_id: shape for shape in PRESETS.values() if shape.hub_id}
"""The shapes of presets by their hub ids."""

COUNTED_BY_HAND = ("gpt2", "opt", "bloom")
"""The model families whose counts follow from their sizes."""
STAGED = ("gpt2", "opt", "bloom")
"""The model families for which pipelines are tested against a single rank."""
DIVIDED = {
    "tensor_parallel": {"heads": "heads", "key_value_heads": "key-value heads"},
    "pipeline_parallel": {"layers": "layers"},
}
"""The sizes of a model that a setting must divide, and their words."""
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""Fields of configurations with a number of experts."""

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def local_config(model: str) -> Path | None:
    """Return the configuration file that `model` names, directly or by its folder; None if it names none."""
    try:
        path = Path(model).expanduser()
        if path.is_dir():
            path = path / "config.json"
        if path.suffix == ".json" and path.is_file():
            return path
        return None
    except (OSError, RuntimeError, ValueError):  # no such user, a name too long, a NUL in it
        return None


def local_fields(model: str) -> dict[str, Any] | None:
    """Return the fields of the configuration file that `model` names; None if it names none that can be read."""
    path = local_config(model)
    try:
        config = json.loads(path.read_text(encoding="utf-8")) if path else None
    except (OSError, ValueError, RecursionError):
        return None
    return config if isinstance(config, dict) else None


def fields(model: str) -> dict[str, Any] | None:
    """Return the fields of a model's configuration file, on disk or in the cache of the hub; None if there is none."""
    if not is_hub_id(model) or local_config(model):
        return local_fields(model)
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    path = try_to_load_from_cache(model, "config.json")
    return local_fields(path) if isinstance(path, str) else None


def is_hub_id(model: str) -> bool:
    """Return whether `model` has the form `owner/name` of a hub id."""
    return HUB_ID.fullmatch(model) is not None and ".." not in model


def preset_of(model: str) -> str | None:
    """Return the preset that a name means: its own, that on the hub, or a path that ends like one; None for others.

    >>> preset_of("/models/Llama-3.1-8B")
    'llama-3.1-8b'
    """
    last = model.rstrip("/").rpartition("/")[2].lower()
    for name, shape in PRESETS.items():
        if last in {name, str(shape.hub_id).rpartition("/")[2].lower()}:
            return name
    return None


def facts(model: str) -> dict[str, Any]:
    """Return `family`, `positions`, `layers`, `heads` and `hidden` of a model, as far as known without transformers."""
    preset = PRESETS.get(model) or PUBLISHED.get(model)
    config = preset.config() if preset else fields(model)
    if config is None:
        return {}
    return {"family": config.get("model_type"), **_sizes(config), **shared_sizes(config)}


def shared_sizes(config: Mapping[str, Any]) -> dict[str, int]:
    """Return `key_value_heads` and `experts` of a configuration, as far as they are in it."""
    numbers = {
        "key_value_heads": config.get("num_key_value_heads") or config.get("num_kv_heads"),
        "experts": next(filter(None, map(config.get, EXPERTS)), None),
    }
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        numbers["key_value_heads"] = 1
    return {name: value for name, value in numbers.items() if isinstance(value, int)}


def undivided(setting: str, ranks: int, sizes: Mapping[str, Any]) -> list[str]:
    """Return the sizes that a parallelism setting of so many ranks must divide but does not, in words."""
    found = []
    for name, words in DIVIDED[setting].items():
        number = sizes.get(name) or 0
        if number % ranks:
            found.append(f"{number} {words}")
    return found


def not_staged(stages: int, family: str) -> str:
    """Return the message for a pipeline of a model family for which it is not tested."""
    tested = f"{', '.join(STAGED[:-1])} and {STAGED[-1]}"
    return f"pipeline_parallel is {stages}: it is tested for {tested} only, not for {family}; set it to 1"


def not_split(ranks: int, reason: str) -> str:
    """Return the message for a model whose layers tensor-parallel ranks cannot share."""
    return f"tensor_parallel is {ranks}: {reason}; set it to 1"


def has_experts(model: str, experts: int) -> str:
    """Return why a model with experts is not split."""
    return f"{model} has {experts} experts, whose weights AutoTP does not split"


@lru_cache
def slug(model: str) -> str:
    """Return a model's name as part of a folder name; hub ids and paths keep their last part.

    Only the text decides, not the file system, so a run has the same name wherever it is read.
    """
    return _joined(_parts(model)[-1:])


def slugs(models: Iterable[str]) -> dict[str, str]:
    """Return each model's name as part of a folder name; equal names are extended to the left until they differ.

    `a/llama.json` and `b/llama.json` become `a-llama` and `b-llama`. Different spellings of one
    path stay equal.
    """
    parts = {model: _parts(model) for model in models}
    kept = dict.fromkeys(parts, 1)
    while True:
        names = {model: _joined(parts[model][-count:]) for model, count in kept.items()}
        counts = Counter(names.values())
        longer = [
            model for model in parts if counts[names[model]] > 1 and kept[model] < len(parts[model])
        ]
        if not longer:
            return names
        for model in longer:
            kept[model] += 1


def _parts(model: str) -> tuple[str, ...]:
    """Return the parts of a path or hub id; a configuration file counts as its folder, or by its stem."""
    path = PurePosixPath(model)
    if path.suffix == ".json":
        path = path.parent if path.name == "config.json" else path.with_suffix("")
    return path.parts


def _joined(parts: Sequence[str]) -> str:
    cleaned = (re.sub(r"[^A-Za-z0-9.-]+", "-", part).strip(".-")[:80] for part in parts)
    return "-".join(filter(None, cleaned))[-80:] or "model"
