"""Count the work of one optimizer step on the busiest rank: FLOPs, bytes, kernels and host operations.

They follow from settings and shapes. Measured are the weights of host operations, of compiled bytes, and of heads and
masks in attention.
`dsnb.prediction.step_time` divides them by rates.
"""

import math
from collections import Counter
from typing import NamedTuple

from dsnb.base.formulas.memory import HALF, recomputed_blocks
from dsnb.prediction.shapes import Counts, Mode, shape
from dsnb.settings.experiment import Experiment
from dsnb.settings.strategies.logged import MEGATRON
from dsnb.settings.training import CHUNK_TOKENS, CUDA_GRAPHS, accumulates_in_fp32, compiles_blocks

TILE = 128
"""Rows of a tile of fused attention: a causal kernel computes whole tiles of the square."""
HEAD_TIMES = {80: 1.3, 96: 1.05, 128: 0.87}
"""Time of fused attention by the width of a head, over that of heads of 64 (docs/LOG.md, 2026-11-27)."""
MASKED = {2: 2.0, 4: 1.1}
"""Time of a key that is seen through a mask over that of one without, by the bytes of a number; 1.1 was measured."""
GROUPED_IN_FP32 = 1.25
"""Time of the products of experts in fp32 over that of other products (five settings of a Mixtral; docs/LOG.md)."""
# Bytes a score of attention that is not fused: products, scaling, mask, casts to fp32 and back, softmax.
SCORE_BYTES = {"eager": (32, 36), "compiled": (10, 12), "megatron": (8, 12)}
# Bytes a logit: written, cast to fp32, log-softmax, its gradient, cast back, read by two products (half precision);
# compiled, the casts and sums are fused into the passes that read them.
LOGIT_BYTES = {"eager": 42.0, "compiled": 14.0, "megatron": 24.0}
CHUNKED_LOGIT_BYTES = {"eager": 36.0, "compiled": 14.0}
"""In chunks, where the gradient overwrites the log-softmax; output layer and loss alone took about 22 bytes more in
eager mode than compiled (OPT-1.3B and GPT-2, 8 x 1024, one H200)."""
COMPILED_TRAFFIC = 0.85
"""Time of a byte in kernels of torch's compiler over one in eager kernels, which reach less of the memory's rate."""
CAP_BYTES = 26
"""Bytes of a number that has a soft cap: a division, tanh and a product, and their gradients, in half precision."""
# The host's work in launches of `dsnb.measure.train.launches`. Those in eager mode were measured with narrow models of seven
# families (`python -m benchmarks.host_time`, docs/LOG.md); those of compiled graphs and parallel strategies follow from
# differences in docs/LOG.md.
KERNEL_LAUNCHES, MODULE_LAUNCHES = (
    0.62,
    27.0,
)  # of a kernel, and of the modules of a block in both passes
RECOMPUTED_KERNEL, RECOMPUTED_BLOCK = (
    2.4,
    20.0,
)  # a checkpoint packs and unpacks each tensor that the block saves
ADAPTER_LAUNCHES, COMPILED_ADAPTER = (
    12.0,
    6.0,
)  # of LoRA's in a linear layer, both passes; compiled: its products
HOOK_LAUNCHES, IDLE_HOOK_LAUNCHES = (
    3.0,
    0.8,
)  # of a gradient that ZeRO moves into a bucket, or leaves
CAST_LAUNCHES = 0.3  # autocast's are started in C++
SPLIT_LAUNCHES = 40.0
TENSOR_LAUNCHES = 8.0  # GPT-1.3B, 1 x 2048: 96 reductions take 34 ms more than one GPU's passes
BLOCK_LAUNCHES = 12.0  # where blocks are compiled one by one
RECOMPUTED_LAUNCHES = (
    30.0  # GPT-2 medium, 8 x 1024: 12 more recomputed blocks take 17 and 35 ms on two hosts
)
FSDP_LAUNCHES = 64.0  # of a block in each pass, to gather and free its weights
GATHER_AMONG_RANKS = (
    1.35  # times its gather on one GPU, of a parameter (11 settings on two GPUs; docs/LOG.md)
)
BLOCK_GATHER = 3.0  # parameters that a block gathered as one costs
FLAT, FLAT_WITH_NORMS = 0.13, 0.35  # in parameters of ZeRO 0, as the next two
OVERFLOW_SEARCH = (
    0.6  # of a gradient in half precision at ZeRO 1 and 2 (profiles of seven settings; docs/LOG.md)
)
ZERO3_PARAMETER = (
    1.4  # with what the GPU waits for in its step (compiled steps of five models; docs/LOG.md)
)
ADAFACTOR_TENSOR = 1.3  # torch 2.11 waits for two norms of each
KEPT_PARAMETERS = 1e9
"""DeepSpeed's default for the parameters that ZeRO 3 holds at once."""


def trained_parameters(experiment: Experiment) -> float:
    """Return the parameters that are trained: all, or those of LoRA's adapters."""
    model = shape(experiment.model)
    if not experiment.lora_rank:
        return model.parameters
    return experiment.lora_rank * model.layers * model.adapted


def recomputed_share(experiment: Experiment) -> float:
    """Return the share of blocks whose forward pass runs again in the backward pass."""
    if not experiment.activation_checkpointing:
        return 0.0
    layers = shape(experiment.model).layers
    return recomputed_blocks(layers, experiment.checkpoint_every) / layers


def work(experiment: Experiment) -> dict[str, float]:
    """Return the work of one optimizer step of an experiment on its busiest rank, as `step_time.Setting` names it.

    That is the last stage of a pipeline: it has its share of the blocks and the output layer, and the others wait.
    """
    model, mode, again = shape(experiment.model), Mode.of(experiment), recomputed_share(experiment)
    tokens = int(experiment.micro_batch_size) * experiment.seq_len
    stages, count = experiment.pipeline_parallel, experiment.grad_accum
    layers = model.layers / stages
    forward, backward = model.passes(mode, experiment.dropout > 0, experiment.tensor_parallel)
    flops, operand_bytes = _block_products(experiment, model, tokens, again, mode.width)
    # Nothing casts the weights of experts under autocast: they are multiplied in fp32.
    in_fp32 = flops * model.grouped / model.weights if mode.autocast else 0.0
    head_flops, head_bytes = _output_layer(experiment, model, tokens, mode)
    attention = _attention(experiment, model, mode, again)
    unaligned = mode.kind == "eager" and experiment.loss != "chunked" and mode.width == 2
    unaligned &= (model.vocab + -model.vocab % max(1, experiment.pad_vocab)) % 8 != 0
    adapters = 14 * model.linear if experiment.lora_rank else 0
    kernels = (
        layers * (forward.kernels * (1 + again) + backward.kernels + adapters + attention.kernels)
        + 25
    )
    casts = layers * (forward.cast_kernels * (1 + again) + backward.cast_kernels)
    block = (
        (1 + again) * forward.bytes
        + backward.bytes
        + _adapter_bytes(experiment, model, mode, again)
    )
    moved = (
        layers * (block * tokens + attention.bytes)
        + head_bytes
        + _weight_traffic(experiment, model, mode)
    )
    moved *= COMPILED_TRAFFIC if mode.kind == "compiled" else 1.0
    embedded = 6 * model.hidden * tokens * (mode.width + mode.stream_width)
    inputs = (
        layers * again * tokens * model.hidden * mode.width
        if experiment.checkpoint_offload
        else 0.0
    )
    average_stage = (layers * flops + head_flops / stages) / (
        layers * flops + head_flops
    )  # over the last one
    return {
        "matmul_flops": count
        * (layers * (flops - in_fp32 + attention.product_flops) + (0 if unaligned else head_flops)),
        "fp32_flops": count * layers * in_fp32 * GROUPED_IN_FP32,
        "matmul_bytes": count * layers * operand_bytes,
        "unaligned_flops": count * head_flops if unaligned else 0.0,
        "attention_flops": count * layers * attention.fused_flops,
        "elementwise_bytes": count * (moved + embedded),
        "optimizer_bytes": _optimizer_bytes(experiment, mode),
        "kernels": count * (kernels + casts),
        "host_launches": count * _launches(experiment, mode, attention.kernels)
        + _step_launches(experiment),
        "host_parameters": _host_parameters(experiment),
        "host_gathers": count * _host_gathers(experiment, mode, layers, again),
        "offloaded_activation_bytes": count * 2 * inputs,
        "pipeline_fill": (stages - 1) / count * average_stage,
    }


def _block_products(
    experiment: Experiment, model: Counts, tokens: int, again: float, width: int
) -> tuple[float, float]:
    """Return FLOPs and bytes of a block's linear layers: forward, recomputed, and both gradients.

    A frozen weight has no weight gradient, its adapters have both (Hu et al. 2021).
    """
    split = experiment.tensor_parallel
    times = 2.0 + again + (0 if experiment.lora_rank else 1)
    forward = 2.0 * tokens * model.weights / split
    operands = (
        tokens * (model.numbers - model.divided + model.divided / split) + model.held / split
    ) * width
    flops, moved = times * forward, times * operands
    if experiment.lora_rank:
        adapters = trained_parameters(experiment) / model.layers
        flops += (3 + again) * 2 * tokens * adapters / split
        moved += (
            (3 + again)
            * tokens
            * (1.5 * model.adapted if model.traffic else 24 * model.hidden)
            * width
        )
    return flops, moved


def _adapter_bytes(experiment: Experiment, model: Counts, mode: Mode, again: float) -> float:
    """Return the bytes per token that LoRA moves in a block, apart from its products: none if compiled.

    peft scales each result and adds it. It casts inputs for adapters in fp32, and autocast casts them back; gradients
    likewise.
    """
    if not experiment.lora_rank or mode.kind != "eager":
        return 0.0
    return (2 + again) * model.adapted * (2.5 * mode.width + 6 * mode.casts_adapters)


def _output_layer(
    experiment: Experiment, model: Counts, tokens: int, mode: Mode
) -> tuple[float, float]:
    """Return FLOPs of the output layer and bytes of it and the loss; only Megatron splits it over ranks."""
    times = 2 if experiment.lora_rank else 3
    split = experiment.tensor_parallel if mode.kind == "megatron" else 1
    chunked = experiment.loss == "chunked"
    each = (CHUNKED_LOGIT_BYTES if chunked else LOGIT_BYTES)[mode.kind]
    if model.logits_capped and mode.kind == "eager":
        each += CAP_BYTES
    moved = each * mode.width / 2 * tokens * model.vocab
    if (
        chunked and not experiment.lora_rank
    ):  # each chunk reads and writes the weight's gradient in fp32
        moved += 8 * model.head * math.ceil(tokens / CHUNK_TOKENS)
    return times * 2.0 * tokens * (model.head + model.projections) / split, moved / split


class _Attention(NamedTuple):
    fused_flops: float
    product_flops: float
    bytes: float
    kernels: float


def _attention(experiment: Experiment, model: Counts, mode: Mode, again: float) -> _Attention:
    """Return the attention of a block: 2 products forward, 5 backward where fused (Dao 2023), 4 where not."""
    batch, length, split = (
        int(experiment.micro_batch_size),
        experiment.seq_len,
        experiment.tensor_parallel,
    )
    kinds = {
        kind: times / model.layers for kind, times in Counter(model.attention).items()
    }  # of a block
    if mode.fused_attention and not model.capped:
        seen = sum(
            share
            * width
            * HEAD_TIMES.get(round(width / heads), 1.0)
            * _seen(model, mode, length, window)
            for (width, window, heads), share in kinds.items()
        )
        return _Attention(
            (2 * (1 + again) + 5) * 2.0 * batch * length / split * seen, 0.0, 0.0, 2.0
        )
    forward, backward = SCORE_BYTES[mode.kind]
    if model.capped and mode.kind == "eager":
        forward, backward = forward + CAP_BYTES // 2, backward + CAP_BYTES // 2
    width = sum(share * wide for (wide, _, _), share in kinds.items())
    heads = sum(share * number for (_, _, number), share in kinds.items())
    product = 2.0 * batch * length * width / split * length
    scores = batch * length * length * heads / split
    moved = scores * mode.width / 2 * ((1 + again) * forward + backward)
    return _Attention(0.0, (2 * (1 + again) + 4) * product, moved, 24.0)


def _seen(model: Counts, mode: Mode, length: int, window: int | None) -> float:
    """Return the keys that a query is multiplied with in fused attention."""
    causal = (length + TILE) / 2 if length > TILE else length
    if (
        model.family == "bloom" and mode.kind != "eager"
    ):  # FlexAttention, whose scores are modified one by one
        return 2 * causal
    # ALiBi, windows, and what transformers makes for a compiler are a mask: the whole square, and it is read.
    is_masked = model.family == "bloom" or (window and window < length)
    return (
        MASKED[mode.width] * length
        if is_masked or not (model.maskless or mode.kind == "eager")
        else causal
    )


def _weight_traffic(experiment: Experiment, model: Counts, mode: Mode) -> float:
    """Return the bytes moved for each micro-batch by weights and gradients as such: casts and accumulation.

    DeepSpeed casts a gradient in half precision to fp32 before it adds it, and what has been added back to be reduced
    (0.19.8, `fill_grad_accum_attribute`).
    """
    if experiment.lora_rank:
        return 0.0
    # Weights fp32 -> half, gradients half -> fp32, but for those of experts.
    moved = 12.0 * (1 - model.layers * model.experts / model.parameters) if mode.autocast else 0.0
    if experiment.strategy == "fsdp" and experiment.gpus > 1:
        moved += 14  # gathered weights into place in both passes, gradients cast and laid out to be scattered
    earlier = (
        1 - 1 / experiment.grad_accum
    )  # the share of micro-batches that add to the gradients of earlier ones
    if experiment.strategy == "fsdp" and experiment.reduce_gradients == "micro-batch":
        moved += 12 * earlier / experiment.data_parallel  # to the rank's share
    elif mode.width == 4 or mode.autocast or experiment.strategy == "fsdp":
        moved += 12 * earlier
    elif earlier:
        moved += 6 + 12 * earlier if accumulates_in_fp32(vars(experiment)) else 6 * earlier
    return moved * model.parameters / (experiment.tensor_parallel * experiment.pipeline_parallel)


def _optimizer_bytes(experiment: Experiment, mode: Mode) -> float:
    """Return the bytes that the optimizer's step moves on one GPU.

    AdamW reads weight, gradient and two moments in fp32 and writes three of them: 28. In native half precision ZeRO 1
    to 3 make the gradients flat (4) and fp32 (6), and write the weights back (6); ZeRO 0 casts them (6), takes their
    norm (4), copies them into a flat buffer (8), scales them (8) and writes the weights back (6). To find overflows and
    norms, which are taken in fp64, ZeRO 1 to 3 read a gradient twice, cast it and read the cast (DeepSpeed 0.19.8,
    `has_inf_or_nan`, `get_grad_norm_direct`). ZeRO 1 and 2 use buckets on one GPU, too.
    """
    if experiment.offload != "none":
        return 0.0
    trained = trained_parameters(experiment) / (
        experiment.tensor_parallel * experiment.pipeline_parallel
    )
    is_zero = experiment.strategy == "deepspeed"
    sharded = experiment.strategy == "fsdp" or experiment.zero_stage >= 1
    each = 28.0
    if _has_masters(experiment):
        each += 16 if sharded else 32
    elif experiment.gradient_clipping:
        each += 8
    if experiment.optimizer == "adafactor":
        each += 60
    if is_zero and experiment.zero_stage and experiment.gradient_checks != "off":
        each += 3 * mode.stream_width + 16
    if sharded:
        each /= experiment.data_parallel
    if is_zero and experiment.zero_stage in ((0, 1, 2) if experiment.data_parallel > 1 else (1, 2)):
        each += 4.0 * mode.stream_width  # into a bucket and out of it, on every rank
    return trained * each


def _launches(experiment: Experiment, mode: Mode, of_attention: float) -> float:
    """Return the host's launches in a micro-batch, given attention's kernels in a block: CUDA graphs need a few."""
    if experiment.compile in CUDA_GRAPHS:
        return 5.0
    model, again = shape(experiment.model), recomputed_share(experiment)
    layers = model.layers / experiment.pipeline_parallel
    forward, backward = model.passes(mode, experiment.dropout > 0, experiment.tensor_parallel)
    kernels = forward.kernels + backward.kernels + of_attention
    casts = CAST_LAUNCHES * (forward.cast_kernels * (1 + again) + backward.cast_kernels)
    adapter = COMPILED_ADAPTER if mode.kind == "compiled" else ADAPTER_LAUNCHES
    block = adapter * model.linear * (experiment.lora_rank > 0)
    if (
        experiment.tensor_parallel > 1
    ):  # Python of DeepSpeed for the two reductions of a block and pass
        block += TENSOR_LAUNCHES * 2 * (2 + again)
    if experiment.strategy == "fsdp":
        block += FSDP_LAUNCHES * (2 + again)
    if mode.kind != "compiled":
        block += MODULE_LAUNCHES + KERNEL_LAUNCHES * (kernels + casts)
        return (
            layers * (block + again * (RECOMPUTED_BLOCK + RECOMPUTED_KERNEL * forward.kernels)) + 25
        )
    block += (
        kernels + forward.kernels * again + casts
    )  # started in Python, each costs a launch (docs/LOG.md)
    if compiles_blocks(vars(experiment)):
        block += BLOCK_LAUNCHES + RECOMPUTED_LAUNCHES * again
    parts = layers * block + 25
    if experiment.strategy == "ddp" and experiment.gpus > 1:
        bucket = experiment.bucket_elements or 25 * 2**20 / 4
        parts += SPLIT_LAUNCHES * trained_parameters(experiment) / bucket
    return parts


def _step_launches(experiment: Experiment) -> float:
    """Return the Python work of ZeRO's gradient hooks in an optimizer step, in launches.

    ZeRO 2 and 3 move every micro-batch's gradients into buckets, ZeRO 1 only the last one's (DeepSpeed 0.19.8,
    `reduce_ready_partitions_and_remove_grads`); a hook runs for each gradient all the same.
    """
    if experiment.strategy != "deepspeed" or not experiment.zero_stage:
        return 0.0
    moved = 1 if experiment.zero_stage == 1 else experiment.grad_accum
    each = HOOK_LAUNCHES * moved + IDLE_HOOK_LAUNCHES * (experiment.grad_accum - moved)
    return each * _trained_tensors(experiment)


def _trained_tensors(experiment: Experiment) -> float:
    """Return the trained parameter tensors of a pipeline stage."""
    model = shape(experiment.model)
    tensors = model.layers * model.tensors + model.root_tensors
    if experiment.lora_rank:
        tensors = 2 * model.layers * model.linear
    return tensors / experiment.pipeline_parallel


def _has_masters(experiment: Experiment) -> bool:
    """Return whether weights in half precision are trained with copies in fp32; under autocast adapters are in fp32."""
    is_native = experiment.mixed_precision == "native" and experiment.strategy in {
        "deepspeed",
        MEGATRON,
    }
    return is_native and experiment.precision in HALF


def _host_parameters(experiment: Experiment) -> float:
    """Return the parameter tensors that DeepSpeed's step iterates over in Python, weighted by the work for each.

    ZeRO 0 asks the GPU for overflows of each tensor in native half precision. ZeRO 1 and 2 handle flat buffers, but
    take norms of each tensor of the rank's partition, and search it in half precision, unless `gradient_checks` is off.
    ZeRO 3 partitions, takes norms and copies each. Adafactor waits for the norms of each tensor, unless ZeRO 1 or 2 has
    made them flat; at ZeRO 0 DeepSpeed's `FP16_UnfusedOptimizer` asks for the overflows of each as well.
    """
    native, weight = _has_masters(experiment), 0.0
    if experiment.strategy == "deepspeed":
        checked = FLAT_WITH_NORMS + OVERFLOW_SEARCH * native
        flat = (checked if experiment.gradient_checks == "on" else FLAT) / experiment.data_parallel
        weight = {0: 1.0 if native else 0.0, 1: flat, 2: flat, 3: ZERO3_PARAMETER}[
            experiment.zero_stage
        ]
    if experiment.optimizer == "adafactor" and not (
        experiment.strategy == "deepspeed" and experiment.zero_stage
    ):
        weight += ADAFACTOR_TENSOR
    return weight * _trained_tensors(experiment)


def _host_gathers(experiment: Experiment, mode: Mode, layers: float, again: float) -> float:
    """Return the parameters, or blocks if they are leaf modules, that ZeRO 3 visits in Python in a micro-batch.

    Its hooks run in every pass, also where the weights are kept.
    """
    gathered = experiment.strategy == "deepspeed" and experiment.zero_stage == 3
    if not gathered:
        return 0.0
    by_block = experiment.leaf_modules == "blocks" or (
        experiment.leaf_modules == "auto" and mode.kind == "compiled"
    )
    model = shape(experiment.model)
    each = BLOCK_GATHER
    if not by_block:
        each = model.tensors + 2 * model.linear * (experiment.lora_rank > 0)
        each *= GATHER_AMONG_RANKS if experiment.data_parallel > 1 else 1
    return layers * each * (2 + again)


def gathering_passes(experiment: Experiment) -> float:
    """Return how often ZeRO 3 gathers a weight in a micro-batch: twice, less the share that it keeps in between.

    It keeps `stage3_max_live_parameters` at most, and those used again within `stage3_max_reuse_distance`.
    """
    most = (
        f"zero_optimization.stage3_max_{name}" for name in ("live_parameters", "reuse_distance")
    )
    kept = min(float(experiment.deepspeed.get(name, KEPT_PARAMETERS)) for name in most)
    return 2 - min(1.0, kept / shape(experiment.model).parameters)
