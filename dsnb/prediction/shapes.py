"""The work of a model's blocks per token: counted by hand for GPT-2, OPT and BLOOM, traced for other families.

Bytes of a block are in multiples of the hidden size, read or written per token: a kernel that reads two tensors and
writes one counts 3. Eager counts follow transformers 5.17's forward functions line by line, and autograd's formulas for
the backward pass; compiled counts assume that neighbouring elementwise operations are fused into one kernel. Other
families are counted operator by operator (`dsnb.models.observe.work`); the ratio of both counts for these three
families sets the factors of `TRACED`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from dsnb.base.errors import SettingsError
from dsnb.base.formulas.memory import HALF, lora_parameters
from dsnb.base.formulas.model_shapes import PRESETS, SPLIT, Shape, facts, local_config, local_fields
from dsnb.prediction import traces
from dsnb.settings.experiment import Experiment

MEGATRON = "megatron-deepspeed"
"""The strategy of published runs of Megatron with DeepSpeed."""
LINEAR_LAYERS = {"gpt2": 4, "bloom": 4, "opt": 6}
"""Linear layers of a block: OPT's queries, keys and values come from three."""
TENSORS = {"gpt2": 12, "bloom": 12, "opt": 16}
"""Parameter tensors of a block."""
# Forward and backward pass of a block. Activation functions on 4 x hidden numbers: ReLU reads 1 and writes 1, its
# backward pass reads 2 and writes 1; GPT-2's and BLOOM's GELU by tanh is eight kernels, and about twelve backward,
# unless something fuses them.
ACTIVATION = {"relu": (8, 12), "gelu": (72, 100)}
# Layer norms read 1 and write 1, backward 2 and 1, sums of residuals 2 and 1. Fused with each other they read the
# stream and the branch, and write the stream and its norm.
RESIDUAL = {"eager": (10, 12), "fused": (8, 10)}
KERNELS = {"relu": (14, 32), "gelu": (21, 48), "fused": (11, 24)}
TRACED = {"eager": (1.0, 0.9, 1.2, 1.2), "compiled": (1.1, 0.7, 1.15, 1.35)}
"""Counts by hand over those of a trace: bytes and kernels, of the forward and the backward pass each."""


class Mode(NamedTuple):
    """How an experiment computes, from its precision, strategy and compilation."""

    width: int  # bytes of a number
    stream_width: int  # of the residual stream, which autocast leaves in fp32
    autocast: bool
    casts_adapters: bool  # LoRA's, which are in fp32 under autocast
    kind: str  # `eager`, `compiled`, or `megatron` (hand-written fused kernels)
    fused_attention: bool

    @classmethod
    def of(cls, experiment: Experiment) -> "Mode":
        """Return the mode of an experiment."""
        half = experiment.precision in HALF
        casts = half and (
            experiment.mixed_precision == "autocast" or experiment.strategy in {"ddp", "plain"}
        )
        has_adapters = experiment.lora_rank > 0
        autocast = casts and not has_adapters
        kind = "compiled" if experiment.compile != "off" else "eager"
        if experiment.strategy == MEGATRON:
            kind = "megatron"
        width = 2 if half else 4
        fused_attention = experiment.attention != "eager"
        return cls(
            width, 4 if autocast else width, autocast, casts and has_adapters, kind, fused_attention
        )


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
    head: float  # weights of the output layer
    projections: float  # other weights outside blocks that a token is multiplied with
    weights: float  # of a block, that a token is multiplied with
    held: float  # of a block, that are read: more where each expert has a part of the tokens
    numbers: float  # inputs and outputs of a block's linear layers per token
    divided: float  # the part of them that tensor parallelism divides
    linear: float  # linear layers of a block
    adapted: (
        float  # inputs and outputs of these layers, each weight once: LoRA's parameters at rank 1
    )
    tensors: float  # parameter tensors of a block, and outside blocks
    root_tensors: float
    attention: Sequence[
        tuple[float, int | None, int]
    ]  # of each block: heads x head size, window, heads
    grouped: float = 0.0  # the experts' part of `weights`, and all weights of experts
    experts: float = 0.0
    capped: bool = False  # whether attention scores, and logits, have a soft cap
    logits_capped: bool = False
    maskless: bool = True  # whether no mask is made, even where the model is compiled
    traffic: Mapping[str, Any] = field(default_factory=dict)

    @property
    def heads(self) -> int:
        """Heads of the first block's attention."""
        return self.attention[0][2] if self.attention else 1

    def passes(self, mode: Mode, dropout: bool, split: int) -> tuple[Pass, Pass]:
        """Return the forward and the backward pass of a block, with attention's kernels but without its bytes.

        `split` tensor-parallel ranks share the work between the norms.
        """
        if not self.traffic:
            return _counted_by_hand(self.family, self.hidden, mode, dropout, split)
        kind = "eager" if mode.kind == "eager" else "compiled"
        full = self.traffic["full"][kind]
        traced = self.traffic[
            "autocast" if mode.autocast else "full" if mode.width == 4 else "half"
        ][kind]

        def pass_of(place: int) -> Pass:
            kernels = traced[place + 2]
            casts = kernels - min(kernels, full[place + 2]) if mode.autocast else 0.0
            return Pass(
                TRACED[kind][place] * traced[place],
                TRACED[kind][place + 2] * (kernels - casts),
                casts,
            )

        return pass_of(0), pass_of(1)


@lru_cache(maxsize=256)
def shape(model: str) -> Counts:
    """Return the counts of a preset or of a model with a configuration file."""
    preset, path = PRESETS.get(model), local_config(model)
    if preset and preset.has_formula:
        return _of_shape(preset)
    if not preset and path is None:
        raise SettingsError(
            f"model is {model!r}: a prediction needs a preset or a configuration file on this machine"
        )
    if not preset and (by_hand := _shape_of_file(model)):
        return _of_shape(by_hand)
    try:
        record = traces.counts(model)
    except SettingsError as error:
        where = "its time cannot be predicted; where the model can be built, it can be measured"
        raise SettingsError(f"model is {model!r}: {where} ({error})") from error
    attention = [tuple(layer) for layer in record["attention"]]
    return Counts(**{**record, "attention": attention, "projections": 0.0, "divided": 0.0})


def _shape_of_file(model: str) -> Shape | None:
    """Return the shape of a local GPT-2, OPT or BLOOM; None if its MLP is not 4 x hidden, or its head not tied."""
    config = local_fields(model) or {}
    family, hidden = (
        str(config.get("model_type")),
        config.get("n_embd") or config.get("hidden_size"),
    )
    inner = config.get("ffn_dim", 3072) if family == "opt" else config.get("n_inner")
    is_usual = inner is None or not isinstance(hidden, int) or inner == 4 * hidden
    if family not in SPLIT or not is_usual or config.get("tie_word_embeddings") is False:
        return None
    sizes = {**facts(model), "hidden": hidden, "vocab": config.get("vocab_size")}
    needed = ["layers", "hidden", "heads", "vocab", *(["positions"] if family != "bloom" else [])]
    if unknown := [name for name in needed if not isinstance(sizes.get(name), int)]:
        path, missing = local_config(model), ", ".join(unknown)
        raise SettingsError(
            f"cannot read the shape of a {family} model from {path}: it has no {missing}"
        )
    embedding = config.get("word_embed_proj_dim") or hidden
    numbers = {"positions": None, **{name: sizes[name] for name in needed}}
    return Shape(family, **numbers, embedding=None if embedding == hidden else embedding)


def _of_shape(model: Shape) -> Counts:
    """Return the counts of a GPT-2, OPT or BLOOM.

    A block has 12 h^2 weights, and per token 7 h inputs and 9 h outputs, of these 12 h divided by tensor parallelism.
    OPT's three layers for queries, keys and values read 2 h more.
    """
    h, wide = model.hidden, model.embedding or model.hidden
    return Counts(
        model.family,
        model.layers,
        h,
        model.vocab,
        model.parameters,
        head=model.vocab * wide,
        projections=2 * wide * h if model.embedding else 0,
        weights=12 * h * h,
        held=12 * h * h,
        numbers=h * (18 if model.family == "opt" else 16),
        divided=12 * h,
        linear=LINEAR_LAYERS[model.family],
        adapted=lora_parameters(1, h, 1, fused=model.family != "opt"),
        tensors=TENSORS[model.family],
        root_tensors=4,
        attention=[(h, None, model.heads)] * model.layers,
    )


def _counted_by_hand(
    family: str, hidden: int, mode: Mode, dropout: bool, split: int
) -> tuple[Pass, Pass]:
    """Return the passes of a block of a GPT-2, OPT or BLOOM.

    `residual` has the width of the residual stream: layer norms, sums, dropout. `inner` is divided by tensor
    parallelism: activation function, biases, transposed heads.
    """
    fused, linear = mode.kind != "eager", LINEAR_LAYERS[family]
    kind = "relu" if family == "opt" else "gelu"
    residual = RESIDUAL["fused" if fused else "eager"]
    activation, kernels = ACTIVATION["relu" if fused else kind], KERNELS["fused" if fused else kind]
    # Each linear layer casts its weight, its bias and, behind a norm, its input; the backward pass casts them back.
    casts = linear - 2 if mode.autocast and not fused else 0
    cast_kernels = 2 * linear + casts if mode.autocast and not fused else 0
    drops = 6 if dropout and not fused else 0
    heads, biases = ((2, 4), 4) if fused else ((4, 8), 9)
    # Autocast computes GPT-2's power in fp32.
    width = (
        4 if mode.autocast and mode.kind == "eager" and family == "gpt2" else mode.width
    ) / split

    def pass_of(place: int, inner: float) -> Pass:
        numbers = (residual[place] + drops) * mode.stream_width + inner * width + casts * 6
        return Pass(hidden * numbers, kernels[place] + drops / 2, cast_kernels)

    return pass_of(0, activation[0] + heads[0]), pass_of(1, activation[1] + heads[1] + biases)
