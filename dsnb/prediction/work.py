"""The work of one optimizer step on the busiest rank: FLOPs, bytes, kernels and what the host does for them.

Pure counts that no measurement enters. `dsnb.prediction.step_time` divides them by rates.
"""

import math
from dataclasses import dataclass

from dsnb.formulas.model_shapes import Shape
from dsnb.prediction import host_work, kernels
from dsnb.prediction.mode import MEGATRON, Mode, recomputed_share, trained_parameters
from dsnb.prediction.shapes import shape
from dsnb.settings.derived import CHUNK_TOKENS, accumulates_in_fp32
from dsnb.settings.experiment import Experiment

TILE = 128
"""Rows of a tile of fused attention: a causal kernel computes whole tiles of the square."""


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


def work(experiment: Experiment) -> Work:
    """Return the work of one optimizer step of an experiment on its busiest rank, the last stage of a pipeline.

    The last stage has its share of the blocks and the output layer; the other stages wait for it.
    """
    model, mode, again = shape(experiment.model), Mode.of(experiment), recomputed_share(experiment)
    tokens = int(experiment.micro_batch_size) * experiment.seq_len
    stages, count = experiment.pipeline_parallel, experiment.grad_accum
    layers = model.layers / stages
    forward, backward = kernels.passes(model.family, mode.kind, mode.autocast, experiment.dropout > 0)
    flops, operand_bytes = _block_products(experiment, model, tokens, again, mode.width)
    head_flops, head_bytes = _output_layer(experiment, model, tokens, mode)
    attention = _attention(experiment, model, mode, again)
    pads = mode.kind != "eager" or experiment.loss == "chunked"
    unaligned = not pads and mode.width == 2 and model.vocab % 8 != 0
    adapters = 14 * kernels.LINEAR_LAYERS.get(model.family, 4) if experiment.lora_rank else 0
    launched = layers * (forward.kernels * (1 + again) + backward.kernels + adapters + attention.kernels) + 25
    casts = layers * (forward.cast_kernels * (1 + again) + backward.cast_kernels)
    moved = layers * (_block_bytes(experiment, model, mode, (forward, backward), again) * tokens + attention.bytes)
    embedded = 6 * model.hidden * tokens * (mode.width + mode.stream_width)
    inputs = layers * again * tokens * model.hidden * mode.width if experiment.checkpoint_offload else 0.0
    return Work(
        matmul_flops=count * (layers * (flops + attention.product_flops) + (0 if unaligned else head_flops)),
        matmul_bytes=count * layers * operand_bytes,
        unaligned_flops=count * head_flops if unaligned else 0.0,
        attention_flops=count * layers * attention.fused_flops,
        elementwise_bytes=count * (moved + embedded + head_bytes + _weight_traffic(experiment, model, mode)),
        optimizer_bytes=_optimizer_bytes(experiment, mode),
        kernels=count * (launched + casts),
        host_launches=count * host_work.launches(experiment, mode, launched, casts)
        + host_work.hook_launches(experiment),
        host_parameters=host_work.parameters(experiment, mode),
        host_gathers=count * host_work.gathers(experiment, mode, layers, again),
        offloaded_activation_bytes=count * 2 * inputs,
        pipeline_fill=(stages - 1) / count * _average_stage(layers * flops, head_flops, stages),
    )


def _block_bytes(
    experiment: Experiment, model: Shape, mode: Mode, passes: tuple[kernels.Pass, kernels.Pass], again: float
) -> float:
    """Return the bytes a token that a block moves besides products and attention."""
    inner = _inner_width(model, mode) / experiment.tensor_parallel
    forward, backward = (one.residual * mode.stream_width + one.inner * inner + one.casts * 6 for one in passes)
    return model.hidden * ((1 + again) * forward + backward)


def _inner_width(model: Shape, mode: Mode) -> int:
    """Return the width of what is between two products; autocast computes GPT-2's power in fp32."""
    return 4 if mode.autocast and mode.kind == "eager" and model.family == "gpt2" else mode.width


def _block_products(experiment: Experiment, model: Shape, tokens: int, again: float, width: int) -> tuple[float, float]:
    """Return FLOPs and bytes of a block's linear layers: forward, recomputed, and both gradients.

    12 h^2 weights a block; 7 h numbers go in and 9 h come out a token, of which tensor parallelism divides 12 h; OPT's
    three layers for queries, keys and values read 2 h more. A frozen weight has no gradient of its own, its adapters
    have both (Hu et al. 2021).
    """
    h, split = model.hidden, experiment.tensor_parallel
    times = 2.0 + again + (0 if experiment.lora_rank else 1)
    forward = 24.0 * tokens * h * h / split
    numbers = tokens * h * ((6 if model.family == "opt" else 4) + 12 / split)
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
    weights = numbers = model.vocab * (model.embedding or model.hidden)
    if model.embedding:
        numbers += 2 * model.embedding * model.hidden
    split = experiment.tensor_parallel if mode.kind == "megatron" else 1
    chunked = experiment.loss == "chunked"
    each = (kernels.CHUNKED_LOGIT_BYTES if chunked else kernels.LOGIT_BYTES)[mode.kind]
    moved = each * mode.width / 2 * tokens * model.vocab
    if chunked and not experiment.lora_rank:  # each chunk reads and writes the weight's gradient in fp32
        moved += 8 * weights * math.ceil(tokens / CHUNK_TOKENS)
    return times * 2.0 * tokens * numbers / split, moved / split


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
    moved += _accumulation(experiment, mode)
    return moved * model.parameters / (experiment.tensor_parallel * experiment.pipeline_parallel)


def _accumulation(experiment: Experiment, mode: Mode) -> float:
    """Return the bytes a parameter that a micro-batch's gradients move to be added to those of the earlier ones.

    DeepSpeed casts a gradient in half precision to fp32 before it adds it, and what has been added back to be reduced
    (0.19.8, `fill_grad_accum_attribute`).
    """
    earlier = 1 - 1 / experiment.grad_accum
    if mode.width == 4 or mode.autocast or experiment.strategy == "fsdp":
        return 12 * earlier
    return 6 + 12 * earlier if earlier and accumulates_in_fp32(vars(experiment)) else 6 * earlier


def _optimizer_bytes(experiment: Experiment, mode: Mode) -> float:
    """Return the bytes that the optimizer's step moves on one GPU.

    AdamW reads weight, gradient and two moments in fp32 and writes three of them: 28. In native half precision ZeRO 1
    to 3 make the gradients flat (4) and fp32 (6), and write the weights back (6); ZeRO 0 casts them (6), takes their
    norm (4), copies them into a flat buffer (8), scales them (8) and writes the weights back (6).
    """
    if experiment.offload != "none":
        return 0.0
    trained = trained_parameters(experiment) / (experiment.tensor_parallel * experiment.pipeline_parallel)
    sharded = experiment.strategy == "fsdp" or experiment.zero_stage >= 1
    native = mode.width == 2 and not mode.autocast and experiment.strategy in {"deepspeed", MEGATRON}
    each = 28.0
    if native:
        each += 16 if sharded else 32
    elif experiment.gradient_clipping:
        each += 8
    if experiment.optimizer == "adafactor":
        each += 60
    each = (each + _checked(experiment, mode)) / (experiment.data_parallel if sharded else 1)
    return trained * (each + _bucketed(experiment, mode))


def _checked(experiment: Experiment, mode: Mode) -> float:
    """Return the bytes a parameter that ZeRO 1 to 3 move to find overflows and norms, which are taken in fp64.

    DeepSpeed 0.19.8: `has_inf_or_nan` reads a gradient twice, `get_grad_norm_direct` casts it and reads the cast.
    """
    if experiment.strategy != "deepspeed" or not experiment.zero_stage or experiment.gradient_checks == "off":
        return 0.0
    return 3 * mode.stream_width + 16


def _bucketed(experiment: Experiment, mode: Mode) -> float:
    """Return the bytes a parameter that gradients move on every rank, into a bucket of DeepSpeed's and out of it.

    ZeRO 1 and 2 use buckets on one GPU, too.
    """
    stages = (0, 1, 2) if experiment.data_parallel > 1 else (1, 2)
    through = experiment.strategy == "deepspeed" and experiment.zero_stage in stages
    return 4.0 * mode.stream_width if through else 0.0


def _average_stage(blocks_flops: float, head_flops: float, stages: int) -> float:
    """Return the work of an average stage over that of the last, which has the output layer too."""
    return (blocks_flops + head_flops / stages) / (blocks_flops + head_flops)
