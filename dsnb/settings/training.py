"""What is trained and measured: every axis with its meaning, unit and default; where it runs is in `experiment`."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

ADAMW: dict[str, Any] = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
"""Fixed options of the optimizer: torch's defaults. Adafactor uses the weight decay alone."""

MOST = 2**63
"""Integers are smaller than this: torch's have 64 bits."""


class Training(BaseModel):
    """The settings of a training that are the same on every machine."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, protected_namespaces=()
    )

    model: str = "gpt2"
    """A preset (gpt2-tiny, gpt2, opt-350m, bloom-7b1, ...), a folder or JSON file with a model's configuration,
    or a hub id."""
    weights: Literal["random", "pretrained"] = "random"
    """`random` initializes them as configured, which does not affect speed; `pretrained` loads them."""
    strategy: Literal["deepspeed", "ddp", "fsdp"] = "deepspeed"
    """Data-parallel strategy: DeepSpeed, torch's DDP, or torch's FSDP2 (sharded by transformer block)."""
    zero_stage: Literal[0, 1, 2, 3] = 0
    """What ZeRO partitions across ranks: 0 nothing, 1 optimizer states, 2 gradients too, 3 parameters too."""
    offload: Literal["none", "optimizer-cpu", "all-cpu", "optimizer-nvme", "all-nvme"] = "none"
    """Where ZeRO keeps optimizer states, or these and parameters (`all`): host memory, or files in `nvme_path`."""
    nvme_path: str = ""
    """Folder for `offload` to NVMe."""
    tensor_parallel: int = Field(default=1, strict=True, ge=1, lt=MOST)
    """Tensor-parallel size: ranks that split every layer (DeepSpeed's AutoTP)."""
    pipeline_parallel: int = Field(default=1, strict=True, ge=1, lt=MOST)
    """Pipeline stages (DeepSpeed's pipeline engine); a step has `grad_accum` micro-batches."""
    precision: Literal["fp32", "tf32", "fp16", "bf16"] = "bf16"
    """Number format of the training; fp16 and bf16 keep fp32 master weights."""
    mixed_precision: Literal["native", "autocast"] = "native"
    """For fp16 and bf16. `native` is the strategy's own: DeepSpeed keeps weights in half precision and fp32 master
    copies, FSDP gathers fp32 shards in half precision, DDP computes under autocast. `autocast` keeps fp32 weights."""
    micro_batch_size: Annotated[int, Field(strict=True, ge=1, lt=MOST)] | Literal["auto"] = 8
    """Sequences per rank and forward pass; `auto` is the largest that fits, found by short runs."""
    memory_limit_gib: float = Field(default=0.0, ge=0, lt=2**30)
    """Memory limit per GPU in GiB (on a CPU: per rank), to simulate a smaller one; 0 for no limit."""
    grad_accum: int = Field(default=1, strict=True, ge=1, lt=MOST)
    """Micro-batches per optimizer step."""
    seq_len: int = Field(default=128, strict=True, ge=2, lt=MOST)
    """Tokens per sequence."""
    activation_checkpointing: bool = Field(default=False, strict=True)
    """Recompute the activations of transformer blocks in the backward pass instead of keeping them."""
    checkpoint_every: int = Field(default=1, strict=True, ge=1, lt=MOST)
    """With activation checkpointing: recompute every k-th block; 1 for all of them."""
    checkpoint_offload: bool = Field(default=False, strict=True)
    """With activation checkpointing: keep the blocks' inputs in host memory."""
    attention: Literal["auto", "eager", "sdpa"] = "auto"
    """Attention implementation: `sdpa` is torch's fused one (BLOOM's ALiBi is its mask); `auto` uses it if it can."""
    compile: bool = Field(default=False, strict=True)
    """Compile the model with torch.compile (DeepSpeed: `engine.compile()`)."""
    lora_rank: int = Field(default=0, strict=True, ge=0, lt=MOST)
    """Train only LoRA adapters of this rank (peft), with frozen base weights in half precision; 0 trains everything."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Probability of every dropout in the model (0.1 in the configurations of 2019; 0 is usual today)."""
    data: str = "synthetic"
    """`synthetic` (random tokens), `stdlib` (the source text of Python's standard library) or a text file."""
    tokenizer: str = "bytes"
    """Tokenizer of text: `bytes` (one token per byte, no download), a folder, or a hub id."""
    optimizer: Literal["adamw", "adafactor", "onebit-adam", "onebit-lamb"] = "adamw"
    """AdamW (fused on a GPU), or Adafactor, whose second moments are factored."""
    learning_rate: float = Field(default=1e-4, gt=0)
    """The optimizer's constant learning rate."""
    gradient_clipping: float = Field(default=0.0, ge=0)
    """Largest gradient norm; 0 for no clipping."""
    gradient_compression: Literal["none", "powersgd"] = "none"
    """Compression of the gradients that DDP sends: none, or low-rank factors (PowerSGD)."""
    powersgd_rank: int = Field(default=1, strict=True, ge=1, lt=MOST)
    """Rank of PowerSGD's factors."""
    seed: int = Field(default=0, strict=True, ge=0, lt=MOST)
    """Seed of weights, data and dropout."""
    warmup_steps: int = Field(default=5, strict=True, ge=0, lt=MOST)
    """Optimizer steps before the timed ones; they are in no figure of speed."""
    steps: int = Field(default=20, strict=True, ge=1, lt=MOST)
    """Timed optimizer steps."""
    profile: bool = Field(default=False, strict=True)
    """After the timed steps: DeepSpeed's flops profiler, a torch profiler trace, and the times of a step's parts."""
