"""What is trained and measured: every axis with its meaning, unit and default; where it runs is in `experiment`."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

ADAMW: dict[str, Any] = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
"""Fixed options of the optimizer: torch's defaults. Adafactor uses the weight decay alone."""

MOST = 2**63
"""Integers are smaller than this: torch's have 64 bits."""


def compile_mode(value: object) -> object:
    """Return the mode of `compile` for the values that it had before there were modes."""
    return {True: "default", False: "off"}[value] if isinstance(value, bool) else value


def on_or_off(value: object) -> object:
    """Return `on` or `off` for a truth value: YAML reads the bare words so."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


CompileMode = Annotated[
    Literal["off", "default", "reduce-overhead", "max-autotune", "deepcompile"], BeforeValidator(compile_mode)
]
OnOff = Annotated[Literal["auto", "on", "off"], BeforeValidator(on_or_off)]


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
    strategy: Literal["deepspeed", "ddp", "fsdp", "plain"] = "deepspeed"
    """Data-parallel strategy: DeepSpeed, torch's DDP, or torch's FSDP2 (sharded by transformer block). `plain` is one
    process without any: the yardstick for the others."""
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
    allocator: Literal["expandable", "default"] = "expandable"
    """How torch reserves the memory of a GPU: in segments that grow (`expandable_segments:True`), which avoids
    fragmentation, or as it does by default. If you set `PYTORCH_ALLOC_CONF` yourself, your value holds."""
    grad_accum: int = Field(default=1, strict=True, ge=1, lt=MOST)
    """Micro-batches per optimizer step."""
    grad_accum_dtype: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Number format in which ZeRO accumulates gradients in native half precision. `auto` is fp32 in bf16 with several
    micro-batches at ZeRO 1 to 3, otherwise that of the weights."""
    overlap_comm: OnOff = "auto"
    """Whether ZeRO 1 to 3 reduce gradients while the backward pass goes on; `auto` is DeepSpeed's
    default: on at ZeRO 3, off at ZeRO 1 and 2."""
    bucket_elements: int = Field(default=0, strict=True, ge=0, lt=MOST)
    """Gradients per reduction of DDP and ZeRO 1 to 3, and parameters per all-gather of the latter; 0 for their
    defaults, 25 MiB and 5e8."""
    gradient_checks: Annotated[Literal["on", "off"], BeforeValidator(on_or_off)] = "on"
    """Whether ZeRO 1 and 2 compute the gradient norm and look for overflows in every step."""
    leaf_modules: Literal["auto", "none", "blocks"] = "auto"
    """What ZeRO 3 gathers at once: single layers, or whole transformer blocks. `auto` is blocks if these are compiled
    one by one, otherwise layers."""
    zeropp: Literal["none", "weights", "gradients", "partition", "all"] = "none"
    """ZeRO++ at ZeRO 3: weights quantized to 8 bits when gathered, gradients to 4 when reduced, a second partition of
    the weights within each node, or all of these. Quantized training is not exact."""
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
    compile: CompileMode = "off"
    """Mode of torch.compile for the model and its loss. `reduce-overhead` and `max-autotune` use CUDA graphs,
    `deepcompile` is DeepSpeed's compiler of ZeRO's communication. `true` is `default`, `false` is `off`."""
    compile_unit: Literal["auto", "model", "block"] = "auto"
    """What torch.compile sees at once: the whole model, or each transformer block and the output layer, so that
    communication can begin between them. `auto` is `block` for ZeRO 3, FSDP, and activation checkpointing without CUDA
    graphs, otherwise `model`."""
    loss: Literal["whole", "chunked"] = "whole"
    """`chunked` computes the logits of 2,048 tokens at a time, and never holds all of them: less memory for a large
    vocabulary."""
    lora_rank: int = Field(default=0, strict=True, ge=0, lt=MOST)
    """Train only LoRA adapters of this rank (peft), with frozen base weights in half precision; 0 trains everything."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Probability of every dropout in the model (0.1 in the configurations of 2019; 0 is usual today)."""
    data: str = "synthetic"
    """`synthetic` (random tokens), `stdlib` (the source text of Python's standard library) or a text file."""
    tokenizer: str = "bytes"
    """Tokenizer of text: `bytes` (one token per byte, no download), a folder, or a hub id."""
    optimizer: Literal["adamw", "adafactor", "muon"] = "adamw"
    """AdamW (fused on a GPU), Adafactor, whose second moments are factored, or DeepSpeed's Muon, which orthogonalizes
    the updates of matrices."""
    learning_rate: float = Field(default=1e-4, gt=0)
    """The optimizer's constant learning rate."""
    gradient_clipping: float = Field(default=0.0, ge=0)
    """Largest gradient norm; 0 for no clipping."""
    gradient_compression: Literal["none", "bf16", "powersgd"] = "none"
    """Compression of the gradients that DDP sends: none, rounded to bf16, or low-rank factors (PowerSGD)."""
    powersgd_rank: int = Field(default=1, strict=True, ge=1, lt=MOST)
    """Rank of PowerSGD's factors."""
    seed: int = Field(default=0, strict=True, ge=0, lt=MOST)
    """Seed of weights, data and dropout."""
    warmup_steps: int = Field(default=5, strict=True, ge=0, lt=MOST)
    """Optimizer steps before the timed ones; they are in no figure of speed."""
    steps: int = Field(default=20, strict=True, ge=1, lt=MOST)
    """Timed optimizer steps."""
    deepspeed: dict[str, Any] = {}
    """Further keys of DeepSpeed's configuration, each an axis: `zero_optimization: {reduce_scatter: false}`."""
    profile: bool = Field(default=False, strict=True)
    """After the timed steps: DeepSpeed's flops profiler, a torch profiler trace, and the times of a step's parts."""
