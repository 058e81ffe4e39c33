"""The work of a model's blocks per token.

Models are counted operator by operator (`dsnb.models.observe.work`): presets once, in
`preset_counts.json`, which `python -m benchmarks.preset_counts` makes; others when they are first
asked for, with the part that tensor-parallel ranks share. GPT-2, OPT and BLOOM are counted by hand,
in `families.toml`.

A model that transformers builds but that cannot be counted, because its blocks differ, say, is
added by a package with an entry point: the type of the model, and a function of its configuration.

    # pyproject.toml
    [project.entry-points."dsnb.counts"]
    odd_llama = "odd_llama.work:counts"

    # odd_llama/work.py: 4 linear layers of hidden x hidden a block, bf16, fused attention
    from dsnb.prediction.shapes import Counts

    def counts(config):
        layers, h = config["num_hidden_layers"], config["hidden_size"]
        heads, vocab = config["num_attention_heads"], config["vocab_size"]
        # bytes per token and kernels, each forward and backward, without products and attention
        eager = [60 * h, 90 * h, 20, 40]
        compiled = [20 * h, 30 * h, 11, 24]
        traffic = {"eager": eager, "compiled": compiled}
        return Counts(
            family="odd_llama", layers=layers, hidden=h, vocab=vocab,
            parameters=layers * 4 * h * h + vocab * h, head=vocab * h,
            weights=4 * h * h, held=4 * h * h, numbers=8 * h, linear=4, adapted=8 * h,
            tensors=6, root_tensors=2, attention=[(h, None, heads)] * layers,
            traffic={"half": traffic, "autocast": traffic, "full": traffic},
        )
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, NamedTuple

from dsnb.base.errors import SettingsError
from dsnb.base.formulas.memory import lora_parameters
from dsnb.base.formulas.model_shapes import (
    COUNTED_BY_HAND,
    PRESETS,
    Shape,
    facts,
    local_config,
    local_fields,
)
from dsnb.prediction import traces, tuned
from dsnb.settings.experiment import Experiment

GROUP = "dsnb.counts"
"""The group of entry points that count models: `model_type = "module:function"`."""
PRESET_COUNTS = Path(__file__).with_name("preset_counts.json")
FAMILIES = tomllib.loads(Path(__file__).with_name("families.toml").read_text(encoding="utf-8"))
TRACED = tuned.rows(tuned.TUNED["traced_work"])


class Pass(NamedTuple):
    """One pass through one block."""

    bytes: float  # per token, without products and attention
    kernels: float  # on the GPU
    cast_kernels: float  # further ones for casts under autocast


@dataclass(frozen=True)
class Counts:
    """A model as the time of a step depends on it; figures of a block are means over all blocks."""

    family: str
    layers: int
    hidden: int
    vocab: int
    parameters: float
    head: float
    """Weights of the output layer."""
    weights: float
    """Of a block, that a token is multiplied with."""
    held: float
    """Of a block, that are read: more where each expert has a part of the tokens."""
    numbers: float
    """Inputs and outputs of a block's linear layers per token."""
    linear: float
    """Linear layers of a block."""
    adapted: float
    """Inputs and outputs of these layers, each weight once: LoRA's parameters at rank 1."""
    tensors: float
    """Parameter tensors of a block."""
    root_tensors: float
    """Parameter tensors outside blocks."""
    attention: Sequence[tuple[float, int | None, int]]
    """Of each block: heads x head size, window, heads."""
    targets: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """`linear` and `adapted` of the layers that other values of `lora_targets` mean."""
    recast: float = 0.0
    """Inputs of a block's linear layers, each once, that norms and activations make."""
    largest: float = 0.0
    """Weights of a block's largest linear layer."""
    projections: float = 0.0
    """Weights outside blocks that a token is multiplied with, without the output layer's."""
    grouped: float = 0.0
    """The experts' part of `weights`."""
    experts: float = 0.0
    """All weights of experts in a block."""
    capped: bool = False
    """Whether attention scores have a soft cap."""
    logits_capped: bool = False
    maskless: bool = True
    """Whether no mask is made, even where the model is compiled."""
    traffic: Mapping[str, Any] = field(default_factory=dict)
    """By numbers (`half`, `autocast`, `full`) and by kind (`eager`, `compiled`): bytes of a token without products and
    attention, forward and backward, and kernels, forward and backward. Empty where `families.toml`
    has the family."""
    inside: Mapping[str, Any] = field(default_factory=dict)
    """Of `traffic`, the bytes forward and backward that tensor-parallel ranks share."""

    @property
    def divided(self) -> float:
        """The part of `numbers` that tensor parallelism divides.

        It is one side of each linear layer; the other one, the hidden state, is whole on every
        rank.
        """
        return self.numbers - self.linear * self.hidden

    def adapters(self, targets: str) -> tuple[float, float]:
        """Return the linear layers of a block that LoRA adapts, and their inputs and outputs; raise SettingsError."""
        if targets == "linear":
            return self.linear, self.adapted
        if targets not in self.targets:
            raise SettingsError(
                f"lora_targets is '{targets}': which layers of {self.family} these are was not counted; use 'linear'"
            )
        layers, numbers = self.targets[targets]
        return layers, numbers

    def passes(self, experiment: Experiment, kind: str) -> tuple[Pass, Pass]:
        """Return the forward and the backward pass of a block, with attention's kernels but without its bytes.

        `kind` is `eager`, `compiled` or `megatron`, whose fused kernels are written by hand.
        """
        if not self.traffic:
            return _counted_by_hand(self, experiment, kind)
        if kind != "eager":
            kind = "compiled"
        numbers = experiment.numbers
        formats = "full" if numbers.computed_bytes == 4 else "half"
        if numbers.casts_weights:
            formats = "autocast"
        traced = self.traffic[formats][kind]
        inside = self.inside.get(formats, {}).get(kind, (0, 0))
        others = 1 - 1 / experiment.tensor_parallel
        uncast = self.traffic["full"][kind]
        by_hand = TRACED[kind]
        passes = []
        for direction in (0, 1):
            kernels = traced[direction + 2]
            casts = 0.0
            if numbers.casts_weights:
                casts = max(0.0, kernels - uncast[direction + 2])
            moved = by_hand[direction] * (traced[direction] - others * inside[direction])
            passes.append(Pass(moved, by_hand[direction + 2] * (kernels - casts), casts))
        forward, backward = passes
        return forward, backward


@lru_cache(maxsize=256)
def shape(model: str) -> Counts:
    """Return the counts of a preset or of a model with a configuration file."""
    preset = PRESETS.get(model)
    if preset and preset.has_formula:
        return _of_shape(preset)
    if preset:
        return _of_record(_of_presets()[model])
    config = local_fields(model)
    if config is None and local_config(model) is None:
        raise SettingsError(
            f"model is {model!r}: a prediction needs a preset or a configuration file on this machine"
        )
    config = config or {}
    for plugin in entry_points(group=GROUP, name=str(config.get("model_type"))):
        return _of_plugin(model, plugin, config)
    by_hand = _shape_of_file(model, config)
    if by_hand:
        return _of_shape(by_hand)
    try:
        return _of_record(traces.counts(model))
    except SettingsError as error:
        where = "its time cannot be predicted; where the model can be built, it can be measured"
        raise SettingsError(f"model is {model!r}: {where} ({error})") from error


@cache
def _of_presets() -> dict[str, dict[str, Any]]:
    return json.loads(PRESET_COUNTS.read_text(encoding="utf-8"))


def _of_record(record: Mapping[str, Any]) -> Counts:
    """Return the counts of a record; its attention may list the first blocks only, whose kinds the others repeat."""
    attention = [tuple(kind) for kind in record["attention"]] * record["layers"]
    blocks = max(record["layers"], len(record["attention"]))
    return Counts(**{**record, "attention": attention[:blocks]})


def _of_plugin(model: str, plugin: EntryPoint, config: Mapping[str, Any]) -> Counts:
    try:
        counts = plugin.load()(config)
    except Exception as error:  # a package of someone else, which may fail in any way
        reason = f"{type(error).__name__}: {error}"
        raise SettingsError(
            f"model is {model!r}: {plugin.value} could not count it ({reason})"
        ) from error
    if not isinstance(counts, Counts):
        raise SettingsError(f"model is {model!r}: {plugin.value} returned no Counts")
    return counts


def _shape_of_file(model: str, config: Mapping[str, Any]) -> Shape | None:
    """Return the shape of a local GPT-2, OPT or BLOOM; None if its MLP is not 4 x hidden, or its head not tied."""
    family = str(config.get("model_type"))
    hidden = config.get("n_embd") or config.get("hidden_size")
    inner = config.get("ffn_dim", 3072) if family == "opt" else config.get("n_inner")
    is_usual = inner is None or not isinstance(hidden, int) or inner == 4 * hidden
    if family not in COUNTED_BY_HAND or not is_usual or config.get("tie_word_embeddings") is False:
        return None
    sizes = {**facts(model), "hidden": hidden, "vocab": config.get("vocab_size")}
    needed = ["layers", "hidden", "heads", "vocab"]
    if family != "bloom":
        needed.append("positions")
    unknown = [name for name in needed if not isinstance(sizes.get(name), int)]
    if unknown:
        raise SettingsError(
            f"cannot read the shape of a {family} model from {local_config(model)}: "
            f"it has no {', '.join(unknown)}"
        )
    numbers = {"positions": None, **{name: sizes[name] for name in needed}}
    embedding = config.get("word_embed_proj_dim") or hidden
    return Shape(family, **numbers, embedding=None if embedding == hidden else embedding)


def _of_shape(model: Shape) -> Counts:
    """Return the counts of a GPT-2, OPT or BLOOM.

    A block has 12 h^2 weights, and per token 7 h inputs and 9 h outputs, of these 12 h divided by
    tensor parallelism. OPT's three layers for queries, keys and values read 2 h more.
    """
    h = model.hidden
    family = FAMILIES[model.family]
    targets = {}
    for name, (layers, numbers) in family["targets"].items():
        targets[name] = [layers, numbers * h]
    return Counts(
        model.family,
        model.layers,
        h,
        model.vocab,
        model.parameters,
        head=model.vocab * (model.embedding or h),
        projections=2 * (model.embedding or 0) * h,
        weights=12 * h * h,
        held=12 * h * h,
        numbers=family["numbers"] * h,
        linear=family["linear"],
        adapted=lora_parameters(1, h, 1, fused=model.family != "opt"),
        targets=targets,
        recast=family["recast"] * h,
        largest=4 * h * h,
        tensors=family["tensors"],
        root_tensors=4,
        attention=[(h, None, model.heads)] * model.layers,
    )


def _counted_by_hand(model: Counts, experiment: Experiment, kind: str) -> tuple[Pass, Pass]:
    """Return the passes of a block of a GPT-2, OPT or BLOOM; tensor-parallel ranks share the work between the norms."""
    by_family = FAMILIES[model.family]
    numbers = experiment.numbers
    is_eager = kind == "eager"
    block = by_family["eager"] if is_eager else FAMILIES["fused"]
    casts = cast_kernels = 0
    width = numbers.computed_bytes
    if numbers.casts_weights and is_eager:
        # Each linear layer casts its weight, its bias and, behind a norm, its input; the backward
        # pass casts them back.
        casts = by_family["linear"] - 2
        cast_kernels = 2 * by_family["linear"] + casts
        width = by_family["autocast_bytes"]
    drops = 6 if experiment.dropout > 0 and is_eager else 0
    passes = []
    for direction in (0, 1):
        moved = (block["stream"][direction] + drops) * numbers.stream_bytes
        moved += block["inner"][direction] * (width / experiment.tensor_parallel) + casts * 6
        kernels = block["kernels"][direction] + drops / 2
        passes.append(Pass(model.hidden * moved, kernels, cast_kernels))
    forward, backward = passes
    return forward, backward
