"""Count the work of one optimizer step on the busiest rank: FLOPs, bytes, kernels and host operations.

They follow from settings and shapes. The weights of host operations, of compiled bytes, and of
heads and masks in attention are tuned (`tuned.toml`). `dsnb.prediction.step_time` divides the
counts by rates.
"""

import math
from typing import NamedTuple

from dsnb.base.formulas.memory import recomputed_blocks
from dsnb.prediction import tuned
from dsnb.prediction.shapes import Counts, Mode, shape
from dsnb.settings.experiment import Experiment
from dsnb.settings.training import CHUNK_TOKENS, CUDA_GRAPHS

WORK = tuned.numbers("work")
LAUNCHES = tuned.numbers("launches")
GATHERS = tuned.numbers("gathers")
TENSORS = tuned.numbers("tensors")
HEAD_TIMES = tuned.rows(tuned.TUNED["head_times"])
MASKED_TIMES = tuned.rows(tuned.TUNED["masked_times"])
SCORE_BYTES = tuned.rows(tuned.TUNED["score_bytes"])
LOGIT_BYTES = tuned.rows(tuned.TUNED["logit_bytes"])


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
    """Return the work of one optimizer step of an experiment on its busiest rank, as `step_time.StepCounts` names it.

    That is the last stage of a pipeline: it has its share of the blocks and the output layer, and
    the others wait.
    """
    model = shape(experiment.model)
    mode = Mode.of(experiment)
    again = recomputed_share(experiment)
    tokens = experiment.micro_batch_tokens
    stages = experiment.pipeline_parallel
    count = experiment.grad_accum
    layers = model.layers / stages

    forward, backward = model.passes(mode, experiment.dropout > 0, experiment.tensor_parallel)
    attention = _attention(experiment, model, mode, again)
    kernels = forward.kernels * (1 + again) + backward.kernels + attention.kernels
    if experiment.lora_rank:
        kernels += WORK.adapter_kernels * model.linear
    casts = forward.cast_kernels * (1 + again) + backward.cast_kernels

    flops, operand_bytes = _block_products(experiment, model, tokens, again, mode.width)
    in_fp32 = 0.0
    if mode.autocast:  # nothing casts the weights of experts: they are multiplied in fp32
        in_fp32 = flops * model.grouped / model.weights
    block_flops = layers * (flops - in_fp32 + attention.product_flops)
    head_flops, head_bytes = _output_layer(experiment, model, tokens, mode)
    is_unaligned = _has_unaligned_head(experiment, model, mode)
    aligned_flops = 0.0 if is_unaligned else head_flops

    adapters = _adapter_bytes(experiment, model, mode, again)
    block_bytes = (1 + again) * forward.bytes + backward.bytes + adapters
    moved = layers * (block_bytes * tokens + attention.bytes) + head_bytes
    moved += _weight_traffic(experiment, model, mode)
    if mode.kind == "compiled":
        moved *= WORK.compiled_traffic
    embedded = 6 * model.hidden * tokens * (mode.width + mode.stream_width)
    inputs = 0.0
    if experiment.checkpoint_offload:
        inputs = layers * again * tokens * model.hidden * mode.width

    last_stage = layers * flops + head_flops
    average_stage = layers * flops + head_flops / stages
    launches = _launches(experiment, model, mode, kernels_of_attention=attention.kernels)
    return {
        "matmul_flops": count * (block_flops + aligned_flops),
        "fp32_flops": count * layers * in_fp32 * WORK.grouped_in_fp32,
        "matmul_bytes": count * layers * operand_bytes,
        "unaligned_flops": count * (head_flops - aligned_flops),
        "attention_flops": count * layers * attention.fused_flops,
        "elementwise_bytes": count * (moved + embedded),
        "optimizer_bytes": _optimizer_bytes(experiment, mode),
        "kernels": count * (layers * (kernels + casts) + WORK.outside_kernels),
        "host_launches": count * launches + _step_launches(experiment),
        "host_parameters": _host_parameters(experiment),
        "host_gathers": count * _host_gathers(experiment, mode, layers, again),
        "offloaded_activation_bytes": count * 2 * inputs,
        "pipeline_fill": (stages - 1) / count * average_stage / last_stage,
    }


def _has_unaligned_head(experiment: Experiment, model: Counts, mode: Mode) -> bool:
    """Return whether the width of the output layer's product slows it: compilers pad it, chunks are padded."""
    if mode.kind != "eager" or experiment.loss == "chunked" or mode.width != 2:
        return False
    padding = -model.vocab % max(1, experiment.pad_vocab)
    return (model.vocab + padding) % 8 != 0


def _block_products(
    experiment: Experiment, model: Counts, tokens: int, again: float, width: int
) -> tuple[float, float]:
    """Return FLOPs and bytes of a block's linear layers: forward, recomputed, and both gradients.

    A frozen weight has no weight gradient, its adapters have both (Hu et al. 2021).
    """
    split = experiment.tensor_parallel
    per_token = model.numbers - model.divided + model.divided / split
    operand_bytes = (tokens * per_token + model.held / split) * width
    forward_flops = 2.0 * tokens * model.weights / split
    if not experiment.lora_rank:
        return (3 + again) * forward_flops, (3 + again) * operand_bytes
    adapter_flops = 2 * tokens * trained_parameters(experiment) / model.layers / split
    adapter_numbers = WORK.adapter_bytes * model.adapted if model.traffic else 24 * model.hidden
    adapter_bytes = tokens * adapter_numbers * width
    return (
        (2 + again) * forward_flops + (3 + again) * adapter_flops,
        (2 + again) * operand_bytes + (3 + again) * adapter_bytes,
    )


def _adapter_bytes(experiment: Experiment, model: Counts, mode: Mode, again: float) -> float:
    """Return the bytes per token that LoRA moves in a block, apart from its products: none if compiled.

    peft scales each result and adds it. It casts inputs for adapters in fp32, and autocast casts
    them back; gradients likewise.
    """
    if not experiment.lora_rank or mode.kind != "eager":
        return 0.0
    return (2 + again) * model.adapted * (2.5 * mode.width + 6 * mode.casts_adapters)


def _output_layer(
    experiment: Experiment, model: Counts, tokens: int, mode: Mode
) -> tuple[float, float]:
    """Return FLOPs of the output layer and bytes of it and the loss; only Megatron splits it over ranks."""
    products = 2 if experiment.lora_rank else 3
    split = experiment.tensor_parallel if mode.kind == "megatron" else 1
    whole_bytes, chunked_bytes = LOGIT_BYTES[mode.kind]
    is_chunked = experiment.loss == "chunked"
    logit_bytes = chunked_bytes if is_chunked else whole_bytes
    if model.logits_capped and mode.kind == "eager":
        logit_bytes += WORK.cap_bytes
    moved = logit_bytes * mode.width / 2 * tokens * model.vocab
    if is_chunked and not experiment.lora_rank:
        # Each chunk reads and writes the weight's gradient in fp32.
        moved += 8 * model.head * math.ceil(tokens / CHUNK_TOKENS)
    flops = products * 2.0 * tokens * (model.head + model.projections)
    return flops / split, moved / split


class _Attention(NamedTuple):
    """The attention of a block, averaged over all blocks."""

    kernels: float
    fused_flops: float = 0.0
    product_flops: float = 0.0
    bytes: float = 0.0


def _attention(experiment: Experiment, model: Counts, mode: Mode, again: float) -> _Attention:
    """Return the attention of a block: 2 products forward, 5 backward where fused (Dao 2023), 4 where not."""
    length = experiment.seq_len
    queries = experiment.micro_batch_tokens / experiment.tensor_parallel
    if mode.fused_attention and not model.capped:
        width = 0.0  # times keys that are seen
        for block_width, window, heads in model.attention:
            (times,) = HEAD_TIMES.get(str(round(block_width / heads)), [1.0])
            width += block_width * times * _seen(model, mode, length, window)
        flops = (2 * (1 + again) + 5) * 2.0 * queries * width / model.layers
        return _Attention(kernels=2, fused_flops=flops)
    forward, backward = SCORE_BYTES[mode.kind]
    if model.capped and mode.kind == "eager":
        forward += WORK.cap_bytes / 2
        backward += WORK.cap_bytes / 2
    width = sum(block_width for block_width, _, _ in model.attention) / model.layers
    all_heads = sum(heads for _, _, heads in model.attention) / model.layers
    scores = queries * length * all_heads
    return _Attention(
        kernels=WORK.unfused_kernels,
        product_flops=(2 * (1 + again) + 4) * 2.0 * queries * length * width,
        bytes=scores * mode.width / 2 * ((1 + again) * forward + backward),
    )


def _seen(model: Counts, mode: Mode, length: int, window: int | None) -> float:
    """Return the keys that a query is multiplied with in fused attention."""
    tile = min(length, WORK.attention_tile)
    causal = (length + tile) / 2
    is_alibi = model.family == "bloom"
    if is_alibi and mode.kind != "eager":  # FlexAttention, whose scores are modified one by one
        return 2 * causal
    # ALiBi, windows, and what transformers makes for a compiler are a mask: the whole square, and
    # it is read.
    has_window = bool(window and window < length)
    if is_alibi or has_window or not (model.maskless or mode.kind == "eager"):
        (times,) = MASKED_TIMES[str(mode.width)]
        return float(times * length)
    return float(causal)


def _weight_traffic(experiment: Experiment, model: Counts, mode: Mode) -> float:
    """Return the bytes moved for each micro-batch by weights and gradients as such: casts and accumulation.

    DeepSpeed casts a gradient in half precision to fp32 before it adds it, and what has been added
    back to be reduced (0.19.8, `fill_grad_accum_attribute`).
    """
    if experiment.lora_rank:
        return 0.0
    strategy = experiment.parallel_strategy
    numbers = experiment.numbers
    moved = 0.0
    if mode.autocast:  # weights fp32 -> half, gradients half -> fp32, but for those of experts
        moved += 12.0 * (1 - model.layers * model.experts / model.parameters)
    if strategy.wraps_blocks and experiment.gpus > 1:
        # Gathered weights into place in both passes, gradients cast and laid out to be scattered.
        moved += 14
    added = 1 - 1 / experiment.grad_accum  # share of micro-batches whose gradients are added
    if strategy.wraps_blocks and strategy.reductions(experiment) == experiment.grad_accum:
        moved += 12 * added / experiment.data_parallel  # to the rank's share
    elif strategy.wraps_blocks or not numbers.natively_half:
        moved += 12 * added
    elif added and numbers.accumulates_in_fp32:
        moved += 6 + 12 * added
    else:
        moved += 6 * added
    return moved * model.parameters / experiment.model_parallel


def _optimizer_bytes(experiment: Experiment, mode: Mode) -> float:
    """Return the bytes that the optimizer's step moves on one GPU.

    AdamW reads weight, gradient and two moments in fp32 and writes three of them: 28. In native
    half precision ZeRO 1 to 3 make the gradients flat (4) and fp32 (6), and write the weights back
    (6); ZeRO 0 casts them (6), takes their norm (4), copies them into a flat buffer (8), scales
    them (8) and writes the weights back (6). To find overflows and norms, which are taken in fp64,
    ZeRO 1 to 3 read a gradient twice, cast it and read the cast (DeepSpeed 0.19.8,
    `has_inf_or_nan`, `get_grad_norm_direct`). ZeRO 1 and 2 use buckets on one GPU, too.
    """
    if experiment.offload != "none":
        return 0.0
    strategy = experiment.parallel_strategy
    stage = experiment.zero_stage
    is_sharded = strategy.shards_optimizer(experiment)
    each = 28.0
    if experiment.numbers.masters:
        each += 16 if is_sharded else 32
    elif experiment.gradient_clipping:
        each += 8
    if experiment.optimizer == "adafactor":
        each += WORK.adafactor_bytes
    if strategy.is_deepspeed and stage and experiment.gradient_checks != "off":
        each += 3 * mode.stream_width + 16
    if is_sharded:
        each /= experiment.data_parallel
    has_buckets = stage in {1, 2} or (stage == 0 and experiment.data_parallel > 1)
    if strategy.is_deepspeed and has_buckets:
        each += 4.0 * mode.stream_width  # into a bucket and out of it, on every rank
    return each * trained_parameters(experiment) / experiment.model_parallel


def _launches(
    experiment: Experiment, model: Counts, mode: Mode, kernels_of_attention: float
) -> float:
    """Return the host's launches in a micro-batch: CUDA graphs need a few."""
    if experiment.compile in CUDA_GRAPHS:
        return float(LAUNCHES.cuda_graphs)
    strategy = experiment.parallel_strategy
    again = recomputed_share(experiment)
    forward, backward = model.passes(mode, experiment.dropout > 0, experiment.tensor_parallel)
    kernels = forward.kernels + backward.kernels + kernels_of_attention
    casts = LAUNCHES.cast * (forward.cast_kernels * (1 + again) + backward.cast_kernels)
    is_compiled = mode.kind == "compiled"
    of_block = 0.0
    if experiment.lora_rank:
        adapter = LAUNCHES.compiled_adapter if is_compiled else LAUNCHES.adapter
        of_block += adapter * model.linear
    if experiment.tensor_parallel > 1:  # two reductions of a block and pass
        of_block += LAUNCHES.tensor_reduction * 2 * (2 + again)
    if strategy.wraps_blocks:
        of_block += LAUNCHES.fsdp_block * (2 + again)
    if is_compiled:  # started in Python, each kernel costs a launch (docs/LOG.md)
        of_block += kernels + forward.kernels * again + casts
        if experiment.compiles_blocks:
            of_block += LAUNCHES.compiled_block + LAUNCHES.recomputed_compiled_block * again
    else:
        of_block += LAUNCHES.modules + LAUNCHES.kernel * (kernels + casts)
        recomputed_kernels = LAUNCHES.recomputed_kernel * forward.kernels
        of_block += again * (LAUNCHES.recomputed_block + recomputed_kernels)
    launches = model.layers / experiment.pipeline_parallel * of_block + WORK.outside_kernels
    if is_compiled and strategy.splits_graphs and experiment.gpus > 1:
        buckets = trained_parameters(experiment) / strategy.bucket_elements(experiment)
        launches += LAUNCHES.split * buckets
    return float(launches)


def _step_launches(experiment: Experiment) -> float:
    """Return the Python work of ZeRO's gradient hooks in an optimizer step, in launches.

    ZeRO 2 and 3 move every micro-batch's gradients into buckets, ZeRO 1 only the last one's
    (DeepSpeed 0.19.8, `reduce_ready_partitions_and_remove_grads`); a hook runs for each gradient
    all the same.
    """
    strategy = experiment.parallel_strategy
    if not strategy.is_deepspeed or not experiment.zero_stage:
        return 0.0
    moved = strategy.reductions(experiment)
    idle = experiment.grad_accum - moved
    return (LAUNCHES.hook * moved + LAUNCHES.idle_hook * idle) * _trained_tensors(experiment)


def _trained_tensors(experiment: Experiment) -> float:
    """Return the trained parameter tensors of a pipeline stage."""
    model = shape(experiment.model)
    tensors = model.layers * model.tensors + model.root_tensors
    if experiment.lora_rank:
        tensors = 2 * model.layers * model.linear
    return tensors / experiment.pipeline_parallel


def _host_parameters(experiment: Experiment) -> float:
    """Return the parameter tensors that DeepSpeed's step iterates over in Python, weighted by the work for each.

    ZeRO 0 asks the GPU for overflows of each tensor in native half precision. ZeRO 1 and 2 handle
    flat buffers, but take norms of each tensor of the rank's partition, and search it in half
    precision, unless `gradient_checks` is off. ZeRO 3 partitions, takes norms and copies each.
    Adafactor waits for the norms of each tensor, unless ZeRO 1 or 2 has made them flat; at ZeRO 0
    DeepSpeed's `FP16_UnfusedOptimizer` asks for the overflows of each as well.
    """
    is_deepspeed = experiment.parallel_strategy.is_deepspeed
    has_masters = experiment.numbers.masters
    stage = experiment.zero_stage
    weight = 0.0
    if is_deepspeed and stage == 0:
        weight = float(has_masters)
    elif is_deepspeed and stage == 3:
        weight = TENSORS.zero_3
    elif is_deepspeed:
        checked = TENSORS.flat_with_norms + TENSORS.overflow_search * has_masters
        flat = checked if experiment.gradient_checks == "on" else TENSORS.flat
        weight = flat / experiment.data_parallel
    if experiment.optimizer == "adafactor" and not (is_deepspeed and stage):
        weight += TENSORS.adafactor
    return weight * _trained_tensors(experiment)


def _host_gathers(experiment: Experiment, mode: Mode, layers: float, again: float) -> float:
    """Return the parameters, or blocks if they are leaf modules, that ZeRO 3 visits in Python in a micro-batch.

    Its hooks run in every pass, also where the weights are kept.
    """
    strategy = experiment.parallel_strategy
    if not (strategy.is_deepspeed and strategy.shards_weights(experiment)):
        return 0.0
    is_compiled = mode.kind == "compiled"
    if experiment.leaf_modules == "blocks" or (experiment.leaf_modules == "auto" and is_compiled):
        each = GATHERS.block
    else:
        model = shape(experiment.model)
        each = model.tensors + 2 * model.linear * (experiment.lora_rank > 0)
        if experiment.data_parallel > 1:
            each *= GATHERS.among_ranks
    return float(layers * each * (2 + again))
