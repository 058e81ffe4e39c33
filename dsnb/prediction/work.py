"""The work of one optimizer step on the busiest rank: FLOPs, bytes, kernels and what the host does for them.

Pure counts that no measurement enters; `dsnb.prediction.step_time` divides them by rates. Bytes of a block are counted
as numbers of hidden size that are read or written per token: a kernel that reads two tensors and writes one counts 3.
Eager counts follow transformers 5.17's forward functions line by line, and autograd's formulas for the backward pass;
compiled counts assume that neighbouring elementwise operations are fused into one kernel.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from dsnb.formulas.model_shapes import Shape
from dsnb.prediction import host_work
from dsnb.prediction.mode import LINEAR_LAYERS, MEGATRON, Mode, recomputed_share, shape, trained_parameters
from dsnb.settings.derived import CHUNK_TOKENS, accumulates_in_fp32
from dsnb.settings.experiment import Experiment

TILE = 128
"""Rows of a tile of fused attention: a causal kernel computes whole tiles of the square."""
# Forward and backward pass of a block. Activation functions on 4 x hidden numbers: ReLU reads 1 and writes 1, its
# backward pass reads 2 and writes 1; GPT-2's and BLOOM's GELU by tanh is eight kernels, and about twelve backward,
# unless something fuses them.
ACTIVATION = {"relu": (8, 12), "gelu": (72, 100)}
# Layer norms read 1 and write 1, backward 2 and 1, sums of residuals 2 and 1. Fused with each other they read the
# stream and the branch, and write the stream and its norm.
RESIDUAL = {"eager": (10, 12), "fused": (8, 10)}
KERNELS = {"relu": (14, 32), "gelu": (21, 48), "fused": (11, 24)}
# Bytes a score of attention that is not fused: products, scaling, mask, casts to fp32 and back, softmax.
SCORE_BYTES = {"eager": (32, 36), "compiled": (10, 12), "megatron": (8, 12)}
# Bytes a logit: written, cast to fp32, log-softmax, its gradient, cast back, read by two products (half precision);
# compiled, the casts and sums are fused into the passes that read them.
LOGIT_BYTES = {"eager": 42.0, "compiled": 14.0, "megatron": 24.0}
CHUNKED_LOGIT_BYTES = {"eager": 36.0, "compiled": 14.0}
"""In chunks, where the gradient overwrites the log-softmax; output layer and loss alone took about 22 bytes more in
eager mode than compiled (OPT-1.3B and GPT-2, 8 x 1024, one H200)."""


@dataclass(frozen=True)
class Work:
    """Counts of one step on the busiest rank; every field is a number, or an array over many settings."""

    matmul_flops: float
    matmul_bytes: float  # the operands of matrix products, read and written
    unaligned_flops: float  # products whose width is no multiple of 8 in half precision and that no compiler pads
    attention_flops: float  # fused attention
    elementwise_bytes: float  # the rest of both passes: norms, sums, activations, scores, casts, the loss
    optimizer_bytes: float  # the optimizer's step on the GPU
    kernels: float  # kernels on the GPU in both passes
    host_launches: float  # operations that Python and autograd start one by one in both passes
    host_parameters: float  # tensors that the optimizer's step handles one by one while the GPU waits, by ZeRO's stage
    host_gathers: float  # parameters or blocks that ZeRO 3 or FSDP gathers and frees in Python
    offloaded_activation_bytes: float  # inputs of blocks to host memory and back
    pipeline_fill: float  # micro-batches' steps for which a stage waits, as a share of its own work: (p - 1) / m


def work(experiment: Experiment) -> Work:
    """Return the work of one optimizer step of an experiment on its busiest rank, the last stage of a pipeline.

    The last stage has its share of the blocks and the output layer; the other stages wait for it.
    """
    model, mode, again = shape(experiment.model), Mode.of(experiment), recomputed_share(experiment)
    tokens = int(experiment.micro_batch_size) * experiment.seq_len
    stages, count = experiment.pipeline_parallel, experiment.grad_accum
    layers = model.layers / stages
    forward, backward = _passes(model.family, mode, experiment.dropout > 0)
    flops, operand_bytes = _block_products(experiment, model, tokens, again, mode.width)
    head_flops, head_bytes = _output_layer(experiment, model, tokens, mode)
    attention = _attention(experiment, model, mode, again)
    unaligned = mode.kind == "eager" and experiment.loss != "chunked" and mode.width == 2 and model.vocab % 8 != 0
    adapters = 14 * LINEAR_LAYERS.get(model.family, 4) if experiment.lora_rank else 0
    launched = layers * (forward.kernels * (1 + again) + backward.kernels + adapters + attention.kernels) + 25
    casts = layers * (forward.cast_kernels * (1 + again) + backward.cast_kernels)
    # Autocast computes GPT-2's power in fp32.
    inner = 4 if mode.autocast and mode.kind == "eager" and model.family == "gpt2" else mode.width
    widths = mode.stream_width, inner / experiment.tensor_parallel
    block = model.hidden * ((1 + again) * forward.bytes(*widths) + backward.bytes(*widths))
    moved = layers * (block * tokens + attention.bytes)
    embedded = 6 * model.hidden * tokens * (mode.width + mode.stream_width)
    inputs = layers * again * tokens * model.hidden * mode.width if experiment.checkpoint_offload else 0.0
    average_stage = (layers * flops + head_flops / stages) / (layers * flops + head_flops)  # over the last one
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
        pipeline_fill=(stages - 1) / count * average_stage,
    )


class _Pass(NamedTuple):
    """One pass through one block: numbers of hidden size a token, and kernels on the GPU."""

    residual: float  # in the width of the residual stream: layer norms, residual sums, dropout
    inner: float  # divided by tensor parallelism: activation function, biases, heads moved about
    casts: float  # inputs cast between fp32 and half precision, under autocast
    kernels: float
    cast_kernels: float  # further ones for casts under autocast

    def bytes(self, stream_width: float, inner_width: float) -> float:
        """Return the bytes for each number of hidden size, besides products and attention."""
        return self.residual * stream_width + self.inner * inner_width + self.casts * 6


def _passes(family: str, mode: Mode, dropout: bool) -> tuple[_Pass, _Pass]:
    """Return the forward and the backward pass of a block, attention's own kernels counted, but not its bytes."""
    fused, linear = mode.kind != "eager", LINEAR_LAYERS.get(family, 4)
    kind = "relu" if family == "opt" else "gelu"
    residual = RESIDUAL["fused" if fused else "eager"]
    activation, kernels = ACTIVATION["relu" if fused else kind], KERNELS["fused" if fused else kind]
    # Each linear layer casts its weight, its bias and, behind a norm, its input; the backward pass casts them back.
    casts = linear - 2 if mode.autocast and not fused else 0
    cast_kernels = 2 * linear + casts if mode.autocast and not fused else 0
    drops = 6 if dropout and not fused else 0
    heads, biases = ((2, 4), 4) if fused else ((4, 8), 9)
    forward = _Pass(residual[0] + drops, activation[0] + heads[0], casts, kernels[0] + drops / 2, cast_kernels)
    inner = activation[1] + heads[1] + biases
    return forward, _Pass(residual[1] + drops, inner, casts, kernels[1] + drops / 2, cast_kernels)


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
    each = (CHUNKED_LOGIT_BYTES if chunked else LOGIT_BYTES)[mode.kind]
    moved = each * mode.width / 2 * tokens * model.vocab
    if chunked and not experiment.lora_rank:  # each chunk reads and writes the weight's gradient in fp32
        moved += 8 * weights * math.ceil(tokens / CHUNK_TOKENS)
    return times * 2.0 * tokens * numbers / split, moved / split


class _Attention(NamedTuple):
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
    forward, backward = SCORE_BYTES[mode.kind]
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
