"""The settings of one run: every axis with its meaning, unit and default; its name; the numbers that follow from it.

What contradicts what, and what a machine cannot do, is in `dsnb.checks`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from dsnb import checks, hardware, models, records
from dsnb.errors import SettingsError

ADAMW: dict[str, Any] = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
"""What no experiment varies of its optimizer: torch's defaults. Adafactor takes the weight decay alone."""

MOST = 2**63
"""Whole numbers stay below: torch's integers have 64 bits."""


class Experiment(BaseModel):
    """The complete settings of one training run.

    Raises
    ------
    SettingsError
        Listing every unknown, invalid and contradictory setting at once.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, protected_namespaces=()
    )

    model: str = "gpt2"
    """A preset (gpt2-tiny, gpt2, opt-350m, bloom-7b1, ...), a folder or JSON file with a model's configuration,
    or a hub id."""
    weights: Literal["random", "pretrained"] = "random"
    """`random` draws them from the configuration; speed does not depend on them. `pretrained` loads them."""
    strategy: Literal["deepspeed", "ddp", "fsdp"] = "deepspeed"
    """What keeps the ranks together: DeepSpeed, torch's DDP, or torch's FSDP2 (by transformer block)."""
    zero_stage: Literal[0, 1, 2, 3] = 0
    """What DeepSpeed's ZeRO shares among ranks: 0 nothing, 1 optimizer states, 2 gradients as well, 3 parameters as
    well."""
    offload: Literal["none", "optimizer-cpu", "all-cpu", "optimizer-nvme", "all-nvme"] = "none"
    """Where ZeRO keeps optimizer states, or these and the parameters (`all`): host memory, or files in `nvme_path`."""
    nvme_path: str = ""
    """The folder for `offload` to NVMe."""
    tensor_parallel: int = Field(default=1, strict=True, ge=1, lt=MOST)
    """Ranks that share every layer (DeepSpeed's AutoTP)."""
    pipeline_parallel: int = Field(default=1, strict=True, ge=1, lt=MOST)
    """Stages that share the layers (DeepSpeed's pipeline engine); micro-batches are `grad_accum`."""
    precision: Literal["fp32", "tf32", "fp16", "bf16"] = "bf16"
    """Number format of the training; fp16 and bf16 keep fp32 master weights."""
    mixed_precision: Literal["native", "autocast"] = "native"
    """For fp16 and bf16. `native` is the strategy's own way: DeepSpeed keeps weights in half precision and fp32 master
    copies, FSDP gathers fp32 shards in half precision, DDP computes under autocast. `autocast` keeps fp32 weights."""
    micro_batch_size: Annotated[int, Field(strict=True, ge=1, lt=MOST)] | Literal["auto"] = 8
    """Sequences per rank and forward pass; `auto` is the largest that fits, found by short runs that are kept."""
    memory_limit_gib: float = Field(default=0.0, ge=0, lt=2**30)
    """What torch may allocate on each GPU (on a CPU: what each rank may), to try out a smaller one; 0 for no limit."""
    grad_accum: int = Field(default=1, strict=True, ge=1, lt=MOST)
    """Micro-batches per optimizer step."""
    seq_len: int = Field(default=128, strict=True, ge=2, lt=MOST)
    """Tokens per sequence."""
    activation_checkpointing: bool = Field(default=False, strict=True)
    """Recompute the activations of transformer blocks in the backward pass instead of keeping them."""
    checkpoint_every: int = Field(default=1, strict=True, ge=1, lt=MOST)
    """With activation checkpointing: of so many blocks, one is recomputed; 1 is all of them."""
    checkpoint_offload: bool = Field(default=False, strict=True)
    """With activation checkpointing: keep the blocks' inputs in host memory."""
    attention: Literal["auto", "eager", "sdpa"] = "auto"
    """Attention code: `sdpa` is torch's fused one (for BLOOM with ALiBi as its mask); `auto` takes it where it can."""
    compile: bool = Field(default=False, strict=True)
    """Compile the model with torch.compile (DeepSpeed: `engine.compile()`)."""
    lora_rank: int = Field(default=0, strict=True, ge=0, lt=MOST)
    """Train LoRA adapters of this rank alone (peft), base weights frozen and in half precision; 0 trains everything."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Probability of every dropout in the model. (The configurations of 2019 say 0.1; none is usual today.)"""
    data: str = "synthetic"
    """`synthetic` (random tokens), `stdlib` (the source text of Python's standard library) or a text file."""
    tokenizer: str = "bytes"
    """For text: `bytes` (one token a byte, needs no download), a tokenizer's folder, or a hub id."""
    optimizer: Literal["adamw", "adafactor", "onebit-adam", "onebit-lamb"] = "adamw"
    """AdamW (fused on a GPU), or Adafactor, whose second moments are factored."""
    learning_rate: float = Field(default=1e-4, gt=0)
    """The optimizer's constant learning rate."""
    gradient_clipping: float = Field(default=0.0, ge=0)
    """Largest gradient norm; 0 leaves gradients as they are."""
    gradient_compression: Literal["none", "powersgd"] = "none"
    """How DDP sends gradients: as they are, or as low-rank factors (PowerSGD)."""
    powersgd_rank: int = Field(default=1, strict=True, ge=1, lt=MOST)
    """Rank of PowerSGD's factors."""
    seed: int = Field(default=0, strict=True, ge=0, lt=MOST)
    """Seed of weights, data and dropout."""
    warmup_steps: int = Field(default=5, strict=True, ge=0, lt=MOST)
    """Optimizer steps before the timed ones; counted, but in no figure of speed."""
    steps: int = Field(default=20, strict=True, ge=1, lt=MOST)
    """Timed optimizer steps."""
    device: Literal["auto", "cuda", "cpu"] = Field(default="auto", validate_default=True)
    """`auto` is cuda on a machine with a usable GPU, cpu elsewhere."""
    gpus: int = Field(default=1, strict=True, ge=1, lt=MOST)
    """Ranks, one a GPU (on a CPU: processes); `auto` is every GPU, or two ranks on a CPU."""
    time_limit_s: float = Field(default=1800.0, gt=0)
    """Seconds after which the whole run is ended as `timeout`."""
    launcher: Literal["fork", "deepspeed"] = "fork"
    """`fork` starts ranks from a process that has already imported everything; `deepspeed` is DeepSpeed's own."""
    profile: bool = Field(default=False, strict=True)
    """After the timed steps: DeepSpeed's flops profiler, a torch profiler trace, and where a step's time goes."""

    def __init__(self, **settings: Any) -> None:
        unknown = [key for key in settings if key not in type(self).model_fields]
        known = {key: value for key, value in settings.items() if key not in unknown}
        problems = [checks.unknown_key(key, type(self).model_fields) for key in unknown]
        invalid: set[str] = set()
        try:
            super().__init__(**known)
        except ValidationError as error:
            details = {str(detail["loc"][0]): detail for detail in reversed(error.errors(include_url=False))}
            invalid = set(details)
            problems += [checks.invalid_value(detail) for detail in reversed(details.values())]
        defaults = {name: field.default for name, field in type(self).model_fields.items()}
        chosen = known if invalid else self.model_dump()  # with every `auto` resolved
        problems += checks.contradictions({**defaults, **chosen}, given=set(known), ignore=invalid)
        if problems:
            raise SettingsError(problems)

    @field_validator("device", mode="after")
    @classmethod
    def _resolve_device(cls, device: str) -> str:
        return hardware.default_device() if device == "auto" else device

    @field_validator("gpus", mode="before")
    @classmethod
    def _resolve_gpus(cls, gpus: object, info: ValidationInfo) -> object:
        return hardware.default_world_size(info.data.get("device", "cpu")) if gpus == "auto" else gpus

    @classmethod
    def from_namespace(cls, names: Mapping[str, Any]) -> Self:
        """Take the settings out of a notebook's `globals()`.

        A plain value whose name is nearly that of a setting is refused: papermill would only warn about it.
        """
        settings = {key: value for key, value in names.items() if key in cls.model_fields}
        misspelled = {
            key: value
            for key, value in names.items()
            if key not in settings
            and isinstance(value, str | int | float)
            and not key.startswith("_")
            and checks.nearest(key, cls.model_fields, 0.8)
        }
        return cls(**settings, **misspelled)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what was written before a launch, as it was: another machine's settings are not judged anew."""
        record = records.read_json(path)
        if record is None:
            raise SettingsError(f"{path} holds no settings: start the run again")
        return cls.model_construct(**record)

    @property
    def name(self) -> str:
        """The published form of an experiment's name, `zs2_bf16_gpus8_bs32_sl128`, without the model.

        Further parts appear only where a setting differs from its default. Steps, warm-up, time limit and device
        say how a setting is measured, not what it is, and are left out.
        """
        return "_".join(filter(None, self._parts()))

    def _parts(self) -> list[str]:
        sharing = f"zs{self.zero_stage}" if self.strategy == "deepspeed" else self.strategy
        checkpointing = [f"ac{self.checkpoint_every}" if self.checkpoint_every > 1 else "ac"]
        checkpointing += ["cpu"] if self.checkpoint_offload else []
        return [
            f"{sharing}_{self.precision}_gpus{self.gpus}_bs{self.micro_batch_size}_sl{self.seq_len}",
            f"ga{self.grad_accum}" if self.grad_accum > 1 else "",
            "-".join(checkpointing) if self.activation_checkpointing else "",
            f"tp{self.tensor_parallel}" if self.tensor_parallel > 1 else "",
            f"pp{self.pipeline_parallel}" if self.pipeline_parallel > 1 else "",
            f"offload-{self.offload}" if self.offload != "none" else "",
            self.mixed_precision if self.mixed_precision != "native" else "",
            self.attention if self.attention != "auto" else "",
            "compile" if self.compile else "",
            f"lora{self.lora_rank}" if self.lora_rank else "",
            self.optimizer if self.optimizer != "adamw" else "",
            f"powersgd{self.powersgd_rank}" if self.gradient_compression == "powersgd" else "",
            f"limit{self.memory_limit_gib:g}gib" if self.memory_limit_gib else "",
            "pretrained" if self.weights == "pretrained" else "",
            f"dropout{self.dropout:g}" if self.dropout else "",
            models.slug(self.data) if self.data != "synthetic" else "",
            f"tok-{models.slug(self.tokenizer)}" if self.tokenizer != "bytes" else "",
            f"lr{self.learning_rate:g}" if self.learning_rate != _default("learning_rate") else "",
            f"clip{self.gradient_clipping:g}" if self.gradient_clipping else "",
            f"seed{self.seed}" if self.seed else "",
            "deepspeed-launcher" if self.launcher == "deepspeed" else "",
        ]

    @property
    def name_with_model(self) -> str:
        """The name for a sweep over several models."""
        return f"{models.slug(self.model)}_{self.name}"

    @property
    def data_parallel(self) -> int:
        """Ranks, or groups of ranks, that each train on sequences of their own."""
        return self.gpus // (self.tensor_parallel * self.pipeline_parallel)

    @property
    def global_batch_size(self) -> int:
        """Sequences per optimizer step over all ranks; of a `micro_batch_size` that is found already."""
        return int(self.micro_batch_size) * self.grad_accum * self.data_parallel

    @property
    def tokens_per_step(self) -> int:
        """Tokens per optimizer step over all ranks."""
        return self.global_batch_size * self.seq_len


def _default(name: str) -> Any:
    return Experiment.model_fields[name].default
