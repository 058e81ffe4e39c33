"""The settings of what is trained and measured: name, type, default and meaning; their words are in `settings.toml`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

from dsnb.settings.strategies import NAMES
from dsnb.settings.strategies.registry import DEFAULT
from dsnb.settings.tables import SHOWN

ADAMW: dict[str, Any] = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
"""Fixed options of the optimizer: torch's defaults. Adafactor uses the weight decay alone."""

LIMIT = 2**63
"""Integers are smaller than this: torch's have 64 bits."""
CUDA_GRAPHS = ("reduce-overhead", "max-autotune")
"""Modes of `compile` that use CUDA graphs on a GPU."""
CHUNK_TOKENS = 2048
"""Maximum number of tokens in a chunk of the loss. The output layer's gradient is read and written once for each
chunk: with half as many, the layer and its loss took 4 to 15 % longer, compiled (docs/LOG.md)."""
LONG = 100_000
"""Smallest number whose thousands are grouped."""
GENERAL = {"default": "default", "none": "no", "-": "unknown"}
"""Labels with one meaning in all settings, and the word for it in front of a setting's title."""


def file_name(path: str) -> str:
    """Return the name of a configuration's file or folder; other names are returned as they are.

    >>> file_name("params/mixtral-8x100m.json"), file_name("models/olmo/config.json"), file_name("gpt2")
    ('mixtral-8x100m', 'olmo', 'gpt2')
    """
    place = PurePath(path)
    if place.name == "config.json":
        place = place.parent
    return place.name.removesuffix(".json") or path


@dataclass(frozen=True)
class Setting:
    """How a setting is displayed, as `settings.toml` says; `phrase` describes a value, as in "ZeRO 3"."""

    title: str = ""
    """By default the setting's name with spaces."""
    phrase: str = ""
    """By default the title and the value."""
    short: str = ""
    """Part of an experiment's name for a value other than the default (`experiment.PARTS` has exceptions); empty if the
    setting is in no name."""
    phrases: Mapping[str, str] = field(default_factory=dict)
    """Phrases for values that `phrase` does not fit, such as a 0 that turns something off, by their text."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Display names of values that are no plain words, by their text."""
    only_with: str = ""
    """Another setting; while it is off, this one has no effect."""
    off: tuple[str, ...] = ("false", "0", "off", "none")
    """Values, as text, with which settings that depend on this one by `only_with` have no effect."""
    order: tuple[object, ...] = ()
    """Order of the values, by default that of its type, numeric or alphabetic."""
    is_axis: bool = False
    """Whether this is one of the most important settings, which views show first."""
    omit_default: bool = False
    """Whether the default is omitted when an experiment is described by its settings."""
    is_supervision: bool = False
    """Whether it does not affect what is measured: it is in no column, and may change when a sweep is resumed."""
    is_needed: bool = False
    """Whether a prediction needs its value. Other programs hardly change the rest, whose defaults are
    assumed where they are unknown."""
    usual: object = None
    """The value to omit; None for none."""
    is_file: bool = False
    """Whether a value may be the path of a file, which is shown by its name."""

    @classmethod
    def of(cls, name: str, about: FieldInfo) -> Self:
        """Return how a setting is displayed, completed from its name, type and default."""
        shown = cls(**{"title": name.replace("_", " "), **SHOWN.get(name, {})})
        if name == "strategy":
            shown = replace(shown, order=NAMES)
        elif get_origin(about.annotation) is Literal:
            shown = replace(shown, order=get_args(about.annotation))
        if shown.omit_default:
            return replace(shown, usual=about.default)
        return shown

    def describe(self, value: object) -> str:
        """Return a phrase for a value, also for `none`, `auto` and a missing one."""
        label = self.label(value)
        if text(value) in self.phrases:
            return self.phrases[text(value)]
        if label in GENERAL:
            return f"{GENERAL[label]} {self.title.partition(' (')[0]}"
        phrase = self.phrase or f"{self.title} {{}}"
        if value == 1 and phrase.startswith("{} "):
            phrase = phrase.removesuffix("s")
        return phrase.replace("{}", label)

    def label(self, value: object) -> str:
        """Return the name of a value below the setting's title, as in a legend or a table."""
        shown = text(value)
        if self.is_file:
            shown = file_name(shown)
        if isinstance(value, bool):
            shown = self.words.get(shown, "on" if value else "off")
        elif isinstance(value, int) and abs(value) >= LONG:
            shown = f"{value:,}"
        return self.words.get(shown, {"auto": "default", "": "none"}.get(shown, shown))

    def describe_unusual(self, value: object) -> str:
        """Return a phrase for a value, empty for the usual one."""
        if self.usual is not None and value == self.usual:
            return ""
        return self.describe(value)

    def sort_key(self, value: object) -> tuple[int, float, str]:
        """Return a sort key for values: `order` first, then numbers, then texts, missing values last."""
        if text(value) == "-":
            return 3, 0, ""
        if isinstance(value, int | float) and value not in self.order:
            return 1, float(value), ""
        if value in self.order:
            return (0, self.order.index(value), "")
        return (2, 0, str(value))


def text(value: object) -> str:
    """Return a value of a setting as text: `true` and `false` in lower case, a dash for a missing value."""
    if value is None or str(value) in {"nan", "<NA>", "NaT"}:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def compile_mode(value: object) -> object:
    """Return the mode of `compile` for the truth values of earlier versions."""
    if isinstance(value, bool):
        return {True: "default", False: "off"}[value]
    return value


def on_or_off(value: object) -> object:
    """Return `on` or `off` for a truth value: YAML reads the bare words so."""
    if isinstance(value, bool):
        return {True: "on", False: "off"}[value]
    return value


CompileMode = Annotated[
    Literal["off", "default", "reduce-overhead", "max-autotune", "deepcompile"],
    BeforeValidator(compile_mode),
]
AutoOnOff = Annotated[Literal["auto", "on", "off"], BeforeValidator(on_or_off)]
OnOff = Annotated[Literal["on", "off"], BeforeValidator(on_or_off)]
Flag = Annotated[bool, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=0, lt=LIMIT)]
AtLeast1 = Annotated[int, Field(strict=True, ge=1, lt=LIMIT)]
NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
if TYPE_CHECKING:
    StrategyName = str
else:
    StrategyName = Literal[(DEFAULT, *sorted({*NAMES} - {DEFAULT}))]


class Training(BaseModel):
    """The settings of a training that are the same on every machine, in the order of tables."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, protected_namespaces=(),
        defer_build=True,  # never used by itself
    )  # fmt: skip

    model: str = "gpt2"
    """A preset (gpt2, opt-350m, bloom-7b1, ...), a folder or JSON file with a model's configuration, or a hub id."""
    weights: Literal["random", "pretrained"] = "random"
    """`random` initializes them as configured, which does not affect speed; `pretrained` loads them."""
    strategy: StrategyName = DEFAULT
    """DeepSpeed, torch's DDP, torch's FSDP2 (sharded by block), or `plain`: one process without any, the yardstick."""
    zero_stage: Literal[0, 1, 2, 3] = 0
    """What ZeRO partitions across ranks: 0 nothing, 1 optimizer states, 2 gradients too, 3 parameters too. In tables of
    runs it is missing for a strategy without ZeRO."""
    offload: Literal["none", "optimizer-cpu", "all-cpu", "optimizer-nvme", "all-nvme"] = "none"
    """Where ZeRO keeps optimizer states, or these and parameters (`all`): host memory, or files in `nvme_path`."""
    nvme_path: str = ""
    """Folder for `offload` to NVMe."""
    optimizer: Literal["adamw", "adamw-8bit", "adafactor", "muon"] = "adamw"
    """AdamW (fused on a GPU), AdamW with moments of 8 bits (torchao), Adafactor (factored second moments), or
    DeepSpeed's Muon (orthogonalized updates)."""
    learning_rate: Positive = 1e-4
    """The optimizer's constant learning rate."""
    gradient_clipping: NotNegative = 0.0
    """Maximum gradient norm; 0 for no clipping."""
    gradient_compression: Literal["none", "bf16", "powersgd"] = "none"
    """Compression of the gradients that DDP sends: none, rounded to bf16, or low-rank factors (PowerSGD)."""
    powersgd_rank: AtLeast1 = 1
    """Rank of PowerSGD's factors."""
    lora_rank: Count = 0
    """Train only LoRA adapters of this rank (peft), with frozen base weights in half precision; 0 trains everything."""
    lora_targets: Literal["linear", "attention", "query-value"] = "linear"
    """The layers of blocks that LoRA adapts: all linear ones, those of attention, or those of queries and values (one
    layer where a model makes them together)."""
    frozen_weights: Literal["auto", "nf4"] = "auto"
    """Number format of the weights of blocks that LoRA leaves frozen: that of `precision`, or NF4, 4 bits with double
    quantisation (QLoRA; torchao)."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability of every dropout in the model (0.1 in the configurations of 2019; 0 is usual today)."""
    tensor_parallel: AtLeast1 = 1
    """Tensor-parallel size: ranks that split every layer (DeepSpeed's AutoTP)."""
    pipeline_parallel: AtLeast1 = 1
    """Pipeline stages (DeepSpeed's pipeline engine); a step has `grad_accum` micro-batches."""
    precision: Literal["auto", "fp32", "tf32", "fp16", "bf16"] = "bf16"
    """Number format of the training; fp16 and bf16 keep fp32 weights or masters, unless `mixed_precision` is `none`.
    `auto` is bf16 where a product in bf16 takes at most twice as long as in fp32 (on a GPU: from compute capability
    8.0), elsewhere fp32."""
    mixed_precision: Literal["native", "autocast", "none"] = "native"
    """For fp16 and bf16. `native` is the strategy's own: DeepSpeed keeps weights in half precision and fp32 master
    copies, FSDP gathers fp32 shards in half precision, DDP computes under autocast. `autocast`
    keeps fp32 weights. `none` is pure bf16: weights, gradients and optimizer states, without
    anything in fp32; small updates are lost to rounding."""
    attention: Literal["auto", "eager", "sdpa"] = "auto"
    """Attention implementation: `sdpa` is torch's fused one (BLOOM's ALiBi is its mask); `auto` uses it if it can."""
    compile: CompileMode = "off"
    """Mode of torch.compile for the model and its loss. `reduce-overhead` and `max-autotune` use CUDA graphs,
    `deepcompile` is DeepSpeed's compiler of ZeRO's communication. `true` is `default`, `false` is
    `off`."""
    compile_unit: Literal["auto", "model", "block"] = "auto"
    """What torch.compile compiles at once: the whole model, or each transformer block and the output layer, so that
    communication can begin between them. `auto` is `block` for ZeRO 3, FSDP, and activation
    checkpointing without CUDA graphs, otherwise `model`."""
    loss: Literal["whole", "chunked"] = "whole"
    """`chunked` computes the logits of 2,048 tokens at a time: less memory for a large vocabulary."""
    pad_vocab: Count = 0
    """Pad the output layer's rows to a multiple of this, such as 64 for GPT-2's 50,257, for faster products; 0 for
    none. A bias leaves the additional logits out of the loss, so it is the same; their rows count
    as parameters."""
    matmul: Literal["auto", "fp8"] = "auto"
    """Number format of the products of blocks: that of `precision`, or `fp8`, scaled by tensor (torchao; compute
    capability 8.9 or higher). fp8 is not exact: compare losses. MFU is of the rate of `precision`."""
    grad_accum: AtLeast1 = 1
    """Micro-batches per optimizer step."""
    grad_accum_dtype: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Number format in which ZeRO accumulates gradients in native half precision. `auto` is fp32 in bf16 with several
    micro-batches at ZeRO 1 to 3, otherwise that of the weights. With FSDP and `mixed_precision: none`, `fp32` reduces
    gradients in fp32, and accumulates in it those that are reduced once a step."""
    overlap_comm: AutoOnOff = "auto"
    """Whether ZeRO 1 to 3 reduce gradients in the backward pass; `auto` is DeepSpeed's default: only ZeRO 3 does."""
    reduce_gradients: Literal["micro-batch", "step"] = "micro-batch"
    """How often FSDP reduces gradients if it accumulates them: in every micro-batch, so that each rank keeps its share,
    or once a `step`, which sends less and keeps whole fp32 gradients on every rank meanwhile."""
    gathered_weights: Literal["pass", "micro-batch"] = "pass"
    """How long FSDP keeps a block's gathered weights: for one pass, or from the forward to the backward pass of a
    `micro-batch`, which gathers them half as often and holds those of all blocks on every rank meanwhile."""
    shard_size: Count = 0
    """Number of data-parallel ranks that share FSDP's shards, such as the GPUs of a node. Other groups of as many ranks
    hold copies, and groups average their gradients (hybrid sharding, HSDP). 0 is all ranks."""
    bucket_elements: Count = 0
    """Gradients per reduction of DDP and ZeRO, parameters per all-gather of ZeRO; 0 for 25 MiB (DDP) and 5e8 (ZeRO)."""
    gradient_checks: OnOff = "on"
    """Whether ZeRO 1 and 2 compute the gradient norm and look for overflows in every step."""
    leaf_modules: Literal["auto", "none", "blocks"] = "auto"
    """What ZeRO 3 gathers at once: single layers, or blocks; `auto` is blocks if these are compiled one by one."""
    zeropp: Literal["none", "weights", "gradients", "partition", "all"] = "none"
    """ZeRO++ at ZeRO 3: weights quantized to 8 bits when gathered, gradients to 4 when reduced, a second partition of
    the weights within each node, or all of these. Quantized training is not exact."""
    activation_checkpointing: Flag = False
    """Recompute the activations of transformer blocks in the backward pass instead of keeping them."""
    checkpoint_every: AtLeast1 = 1
    """With activation checkpointing: recompute every k-th block; 1 for all of them."""
    checkpoint_ops: Literal["all", "cheap"] = "all"
    """With activation checkpointing: recompute all of a block, or only `cheap` operations, such as norms and activation
    functions, and keep results of linear layers and fused attention (selective checkpointing)."""
    checkpoint_offload: Flag = False
    """With activation checkpointing: keep the blocks' inputs in host memory."""
    micro_batch_size: AtLeast1 = 8
    """Sequences per rank and forward pass."""
    memory_limit_gib: Annotated[float, Field(ge=0, lt=2**30)] = 0.0
    """Memory limit per GPU in GiB (on a CPU: per rank), to simulate a smaller one; 0 for no limit."""
    allocator: Literal["expandable", "default"] = "expandable"
    """How torch reserves GPU memory: in segments that grow (less fragmentation), or as it does by default. If you set
    `PYTORCH_ALLOC_CONF` yourself, your value is used."""
    seq_len: Annotated[int, Field(strict=True, ge=2, lt=LIMIT)] = 128
    """Tokens per sequence."""
    data: str = "synthetic"
    """`synthetic` (random tokens), `stdlib` (the source text of Python's standard library) or a text file."""
    tokenizer: str = "bytes"
    """Tokenizer of text: `bytes` (one token per byte, no download), a folder, or a hub id."""
    seed: Count = 0
    """Seed of weights, data and dropout."""
    warmup_steps: Count = 5
    """Optimizer steps before the timed ones; they are in no figure of speed."""
    steps: AtLeast1 = 20
    """Timed optimizer steps."""
    deepspeed: dict[str, Any] = {}
    """Further keys of DeepSpeed's configuration, each an axis: `zero_optimization: {reduce_scatter: false}`."""
    command: str = ""
    """Your own program instead of dsnb's training, filled by the settings of the run: `torchrun --nproc-per-node {gpus}
    train.py {trainer_args}`. Settings that neither you state nor the script shows are unknown then."""
    script: dict[str, Any] = {}
    """Free axes of a `command`, whose placeholders are `{script.NAME}`: `attn: sdpa`."""
    profile: Flag = False
    """After the timed steps: the times of a step's parts, and a torch profiler trace."""
