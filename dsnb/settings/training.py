"""What is trained and measured, every axis with its meaning, unit and default; where it is run is not its matter."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

ADAMW: dict[str, Any] = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
"""What no experiment varies of its optimizer: torch's defaults. Adafactor takes the weight decay alone."""

MOST = 2**63
"""Whole numbers stay below: torch's integers have 64 bits."""


class Training(BaseModel):
    """The settings of a training that are the same on every machine."""

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
    profile: bool = Field(default=False, strict=True)
    """After the timed steps: DeepSpeed's flops profiler, a torch profiler trace, and where a step's time goes."""
