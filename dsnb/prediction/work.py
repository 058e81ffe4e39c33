"""The work of one optimizer step on the busiest rank: FLOPs, bytes, kernels and what the host does for them.

Pure counts that no measurement enters. `dsnb.prediction.step_time` divides them by rates.
"""

from dataclasses import dataclass

from dsnb.formulas.memory import recomputed_blocks
from dsnb.formulas.model_shapes import Shape
from dsnb.prediction import kernels
from dsnb.prediction.shapes import shape
from dsnb.settings.compile_rules import CUDA_GRAPHS
from dsnb.settings.experiment import Experiment

HALF = ("fp16", "bf16")
MEGATRON = "megatron-deepspeed"
TILE = 128
"""Rows of a tile of fused attention: a causal kernel computes whole tiles of the square."""
# Python that DeepSpeed and torch run beside the model's own, in launches or gathers of about the same duration. From
# differences in docs/LOG.md: ZeRO 1 with CUDA graphs takes 13.8 ms more than ZeRO 0 for GPT-2's 148 tensors but 6.8 ms
# for OPT-350M's 388, because its hooks run while the GPU is busy; DDP is split at each bucket; FSDP on one GPU.
HOOK_LAUNCHES = 3.5
CAST_LAUNCHES = 0.4  # autocast's are started in C++
SPLIT_LAUNCHES = 50.0
FSDP_GATHER = 9.0


@dataclass(frozen=True)
class Work:
    """Counts of one step on the busiest rank; every field is a number, or an array over many settings.

    Attributes
    ----------
    matmul_flops, matmul_bytes
        Matrix products, and their operands read and written.
    unaligned_flops
        Products whose width is no multiple of 8 in half precision and that no compiler pads (GPT-2's 50,257).
    attention_flops
        Fused attention.
    elementwise_bytes
        Everything else of the forward and backward passes: norms, sums, activations, scores, casts, the loss.
    optimizer_bytes
        Of the optimizer's step on the GPU.
    kernels
        Kernels on the GPU in the forward and backward passes.
    host_launches
        Operations that Python and autograd start one by one in the forward and backward passes.
    host_parameters
        Parameter tensors that the optimizer's step handles one by one while the GPU waits, by stage of ZeRO.
    host_gathers
        Parameters or blocks that ZeRO 3 or FSDP gathers and frees in Python.
    offloaded_activation_bytes
        Inputs of blocks to host memory and back.
    pipeline_fill
        Steps of one micro-batch for which a stage waits, as a share of its own work: (p - 1) / m.
    micro_batches
        Forward and backward passes.
    """

    matmul_flops: float
    matmul_bytes: float
    unaligned_flops: float
    attention_flops: float
    elementwise_bytes: float
    optimizer_bytes: float
    kernels: float
    host_launches: float
    host_parameters: float
    host_gathers: float
    offloaded_activation_bytes: float
    pipeline_fill: float
    micro_batches: float


@dataclass(frozen=True)
class Mode:
    """How an experiment computes: what follows from its precision, strategy and compilation."""

    width: int
    stream_width: int
    autocast: bool
    kind: str
    fused_attention: bool

    @classmethod
    def of(cls, experiment: Experiment) -> "Mode":
        """Return the mode of an experiment."""
        half = experiment.precision in HALF
        cast = experiment.mixed_precision == "autocast" or experiment.strategy in {"ddp", "plain"}
        autocast = half and cast and not experiment.lora_rank
        kind = "compiled" if experiment.compile != "off" else "eager"
        if experiment.strategy == MEGATRON:
            kind = "megatron"
        width = 2 if half else 4
        return cls(width, 4 if autocast else width, autocast, kind, experiment.attention != "eager")


def work(experiment: Experiment) -> Work:
    """Return the work of one optimizer step of an experiment on its busiest rank, the last stage of a pipeline.

    The last stage has its share of the blocks and the output layer; the other stages wait for it.
    """
    model, mode = shape(experiment.model), Mode.of(experiment)
    tokens = int(experiment.micro_batch_size) * experiment.seq_len
    stages, split, count = experiment.pipeline_parallel, experiment.tensor_parallel, experiment.grad_accum
    layers = model.layers / stages
    every = experiment.checkpoint_every if experiment.activation_checkpointing else 0
    again = recomputed_blocks(model.layers, every) / model.layers
    forward, backward = kernels.passes(model.family, mode.kind, mode.autocast, experiment.dropout > 0)
    flops, operand_bytes = _block_products(experiment, model, tokens, again, mode.width)
    head_flops, head_bytes = _output_layer(experiment, model, tokens, mode)
    attention = _attention(experiment, model, mode, again)
    unaligned = mode.kind == "eager" and mode.width == 2 and model.vocab % 8 != 0

    def moved(one: kernels.Pass) -> float:
        stream = one.residual * mode.stream_width + one.inner / split * _inner_width(model, mode) + one.casts * 6
        return stream * model.hidden * tokens

    elementwise = layers * ((1 + again) * moved(forward) + moved(backward) + attention.bytes) + head_bytes
    elementwise += 6 * model.hidden * tokens * (mode.width + mode.stream_width)
    elementwise += _weight_traffic(experiment, model, mode) / (stages * split)
    adapters = kernels.LINEAR_LAYERS.get(model.family, 4) if experiment.lora_rank else 0
    launched = forward.kernels * (1 + again) + backward.kernels + 14 * adapters + attention.kernels
    launched = layers * launched + 25
    casts = layers * (forward.cast_kernels * (1 + again) + backward.cast_kernels)
    inputs = layers * again * tokens * model.hidden * mode.width if experiment.checkpoint_offload else 0.0
    return Work(
        matmul_flops=count * (layers * (flops + attention.product_flops) + (0 if unaligned else head_flops)),
        matmul_bytes=count * layers * operand_bytes,
        unaligned_flops=count * head_flops if unaligned else 0.0,
        attention_flops=count * layers * attention.fused_flops,
        elementwise_bytes=count * elementwise,
        optimizer_bytes=_optimizer_bytes(experiment, model, mode),
        kernels=count * (launched + casts),
        host_launches=count * _host_launches(experiment, model, mode, launched + CAST_LAUNCHES * casts, layers),
        host_parameters=_host_parameters(experiment, model, mode, layers),
        host_gathers=count * _host_gathers(experiment, model, mode, layers, again),
        offloaded_activation_bytes=count * 2 * inputs,
        pipeline_fill=(stages - 1) / count * _average_stage(layers * flops, head_flops, stages),
        micro_batches=count,
    )


def trained_parameters(experiment: Experiment) -> float:
    """Return the parameters that are trained: all, or those of LoRA's adapters."""
    model = shape(experiment.model)
    if not experiment.lora_rank:
        return model.parameters
    return model.layers * experiment.lora_rank * model.hidden * (18 if model.family == "opt" else 16)


def parameter_tensors(experiment: Experiment) -> int:
    """Return the number of trained parameter tensors."""
    model = shape(experiment.model)
    if experiment.lora_rank:
        return 2 * model.layers * kernels.LINEAR_LAYERS.get(model.family, 4)
    return model.layers * kernels.TENSORS.get(model.family, 12) + 4


def _inner_width(model: Shape, mode: Mode) -> int:
    """Return the width of what is between two products; autocast computes GPT-2's power in fp32."""
    return 4 if mode.autocast and mode.kind == "eager" and model.family == "gpt2" else mode.width


def _block_products(
    experiment: Experiment, model: Shape, tokens: int, again: float, width: int
) -> tuple[float, float]:
    """Return FLOPs and bytes of a block's linear layers: forward, recomputed, and both gradients.

    12 h^2 weights a block; 7 h numbers go in and 9 h come out a token (2 h more go in where OPT reads its input
    thrice). A frozen weight has no gradient of its own, its adapters have both (Hu et al. 2021).
    """
    h, split = model.hidden, experiment.tensor_parallel
    times = 2.0 + again + (0 if experiment.lora_rank else 1)
    forward = 24.0 * tokens * h * h / split
    numbers = tokens * h * ((18 if model.family == "opt" else 16) + 4) / 2 * (1 + 1 / split) - 2 * tokens * h
    operands = (numbers + 12 * h * h / split) * width
    flops, moved = times * forward, times * operands
    if experiment.lora_rank:
        adapters = trained_parameters(experiment) / model.layers
        flops += (3 + again) * 2 * tokens * adapters / split
        moved += (3 + again) * tokens * h * 24 * width
    return flops, moved


def _output_layer(experiment: Experiment, model: Shape, tokens: int, mode: Mode) -> tuple[float, float]:
    """Return FLOPs of the output layer and bytes of it and the loss; only Megatron splits it over ranks."""
    times = 2 if experiment.lora_rank else 3
    chunked = experiment.loss == "chunked"
    numbers = model.vocab * (model.embedding or model.hidden)
    if model.embedding:
        numbers += 2 * model.embedding * model.hidden
    split = experiment.tensor_parallel if mode.kind == "megatron" else 1
    each = kernels.LOGIT_BYTES[mode.kind] * mode.width / 2 + (6 if chunked else 0)
    return (times + chunked) * 2.0 * tokens * numbers / split, each * tokens * model.vocab / split


@dataclass(frozen=True)
class _Attention:
    fused_flops: float
    product_flops: float
    bytes: float
    kernels: float


def _attention(experiment: Experiment, model: Shape, mode: Mode, again: float) -> _Attention:
    """Return the attention of a block: 2 products forward, 5 backward where fused (Dao 2023), 4 where not."""
    batch, length = int(experiment.micro_batch_size), experiment.seq_len
    square = batch * length * model.hidden / experiment.tensor_parallel
    product = 2.0 * square * length
    alibi = model.family == "bloom"
    if mode.fused_attention:
        seen = (length + TILE) / 2 if length > TILE else length
        if alibi and mode.kind == "eager":  # ALiBi as a mask: the whole square, and the mask is read
            seen = 2.0 * length
        elif alibi:  # FlexAttention, whose scores are modified one by one
            seen *= 2
        return _Attention((2 * (1 + again) + 5) * 2.0 * square * seen, 0.0, 0.0, 2.0)
    forward, backward = kernels.SCORE_BYTES[mode.kind]
    scores = batch * length * length * model.heads / experiment.tensor_parallel
    wide = mode.width / 2
    return _Attention(0.0, (2 * (1 + again) + 4) * product, scores * wide * ((1 + again) * forward + backward), 24.0)


def _weight_traffic(experiment: Experiment, model: Shape, mode: Mode) -> float:
    """Return the bytes moved for each micro-batch by weights and gradients as such: casts and accumulation."""
    if experiment.lora_rank:
        return 0.0
    moved = 12.0 if mode.autocast else 0.0  # weights fp32 -> half, gradients half -> fp32
    if experiment.strategy == "fsdp" and experiment.gpus > 1:
        moved += 14  # gathered weights into place in both passes, gradients cast and laid out to be scattered
    if experiment.grad_accum > 1:
        moved += 12 if mode.autocast or mode.width == 4 or experiment.strategy == "fsdp" else 8
    return moved * model.parameters


def _optimizer_bytes(experiment: Experiment, model: Shape, mode: Mode) -> float:
    """Return the bytes that the optimizer's step moves on one GPU.

    AdamW reads weight, gradient and two moments in fp32 and writes three of them: 28. Half-precision weights have their
    gradients cast and scaled, their norm taken, and are written back: 24 more.
    """
    if experiment.offload != "none":
        return 0.0
    trained = trained_parameters(experiment) / (experiment.tensor_parallel * experiment.pipeline_parallel)
    sharded = experiment.strategy == "fsdp" or experiment.zero_stage >= 1
    native = mode.width == 2 and not mode.autocast and experiment.strategy in {"deepspeed", MEGATRON}
    each = 28.0 + (24 if native else 0) + (8 if experiment.gradient_clipping and not native else 0)
    if experiment.optimizer == "adafactor":
        each += 60
    if experiment.strategy == "deepspeed" and experiment.gpus > 1 and experiment.zero_stage <= 2:
        each += 8 * mode.stream_width / 2 / (experiment.data_parallel if experiment.zero_stage >= 1 else 1)
    return trained * each / (experiment.data_parallel if sharded else 1)


def _host_launches(experiment: Experiment, model: Shape, mode: Mode, launched: float, layers: float) -> float:
    """Return what the host starts in a micro-batch: each kernel, or what a compiler leaves of them."""
    share = layers / model.layers
    hooks = HOOK_LAUNCHES * parameter_tensors(experiment) * share if _has_hooks(experiment) else 0.0
    if experiment.compile in CUDA_GRAPHS:
        return 5.0 + hooks
    if mode.kind == "eager":
        return launched + hooks
    parts = launched * 0.2
    if experiment.strategy == "fsdp" or experiment.zero_stage == 3:
        parts += 12 * layers
    if experiment.strategy == "ddp" and experiment.compile != "off" and experiment.gpus > 1:
        bucket = experiment.bucket_elements or 25 * 2**20 / 4
        parts += SPLIT_LAUNCHES * trained_parameters(experiment) / bucket
    return parts + hooks


def _has_hooks(experiment: Experiment) -> bool:
    return experiment.strategy == "deepspeed" and experiment.zero_stage >= 1


def _host_parameters(experiment: Experiment, model: Shape, mode: Mode, layers: float) -> float:
    """Return the parameter tensors that DeepSpeed's step goes through in Python, weighted by what it does to each.

    ZeRO 0 asks the GPU for overflows of each tensor in native half precision. ZeRO 1 and 2 handle flat buffers, but take
    norms of each tensor unless `gradient_checks` is off. ZeRO 3 partitions, takes norms and copies tensor by tensor.
    """
    if experiment.strategy != "deepspeed":
        return 0.0
    native = mode.width == 2 and not mode.autocast
    flat = 0.25 if experiment.gradient_checks == "on" else 0.13
    weight = {0: 1.0 if native else 0.0, 1: flat, 2: flat, 3: 2.1}[experiment.zero_stage]
    return weight * parameter_tensors(experiment) * layers / model.layers


def _host_gathers(experiment: Experiment, model: Shape, mode: Mode, layers: float, again: float) -> float:
    """Return what ZeRO 3 fetches in Python in a micro-batch: parameters, or blocks where these are its leaves."""
    gathered = experiment.strategy == "deepspeed" and experiment.zero_stage == 3
    if not gathered:
        return FSDP_GATHER * layers * (2 + again) if experiment.strategy == "fsdp" else 0.0
    whole = experiment.leaf_modules == "blocks" or (experiment.leaf_modules == "auto" and mode.kind == "compiled")
    each = 2.0 if whole else kernels.TENSORS.get(model.family, 12)
    return layers * each * (2 + again)


def _average_stage(blocks_flops: float, head_flops: float, stages: int) -> float:
    """Return the work of an average stage over that of the last, which has the output layer too."""
    return (blocks_flops + head_flops / stages) / (blocks_flops + head_flops)
