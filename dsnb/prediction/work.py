"""Count the work of one optimizer step on the busiest rank: FLOPs, bytes, kernels and host operations.

They follow from settings and shapes. The weights of host operations, of compiled bytes, and of
heads and masks in attention are tuned (`tuned.toml`). `dsnb.prediction.step_time` divides the
counts by rates.
"""

import math
from typing import NamedTuple

from dsnb.base.formulas.memory import MOMENTS_8_BIT, NF4, recomputed_blocks
from dsnb.prediction import tuned
from dsnb.prediction.shapes import shape
from dsnb.settings.experiment import Experiment
from dsnb.settings.strategies.logged import MEGATRON
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
    _, adapted = model.adapters(experiment.lora_targets)
    return experiment.lora_rank * model.layers * adapted


def quantized_parameters(experiment: Experiment) -> float:
    """Return the frozen weights of 4 bits: those of the blocks' linear layers."""
    if experiment.frozen_weights != "nf4":
        return 0.0
    model = shape(experiment.model)
    return model.layers * (model.held - model.experts)


def recomputed_share(experiment: Experiment) -> float:
    """Return the share of blocks whose forward pass runs again in the backward pass."""
    if not experiment.activation_checkpointing:
        return 0.0
    layers = shape(experiment.model).layers
    return recomputed_blocks(layers, experiment.checkpoint_every) / layers


class _Step:
    """What the counts of a step depend on."""

    def __init__(self, experiment: Experiment, masked: bool = False) -> None:
        model = shape(experiment.model)
        stages = experiment.pipeline_parallel
        kind = "compiled" if experiment.compile != "off" else "eager"
        if experiment.strategy == MEGATRON:
            kind = "megatron"
        tensors = model.layers * model.tensors + model.root_tensors
        adapters, adapted = model.adapters(experiment.lora_targets)
        if experiment.lora_rank:
            tensors = 2 * model.layers * adapters
        self.experiment = experiment
        self.strategy = experiment.parallel_strategy
        self.numbers = experiment.numbers
        self.model = model
        self.adapters = adapters  # layers of a block that LoRA adapts
        self.adapted = adapted  # their inputs and outputs
        self.kind = kind  # `eager`, `compiled`, or `megatron`, whose fused kernels are its own
        self.trained = trained_parameters(experiment)
        self.tensors = tensors / stages  # trained parameter tensors of a pipeline stage
        self.layers = model.layers / stages
        self.again = recomputed_share(experiment)
        self.multiplied_again = self.again if experiment.whole_every else 0.0
        self.forward, self.backward = model.passes(experiment, kind)
        self.masked = masked or (kind != "eager" and not model.maskless)


def work(experiment: Experiment, masked: bool = False) -> dict[str, float]:
    """Return the work of one optimizer step of an experiment on its busiest rank, as `step_time.StepCounts` names it.

    That is the last stage of a pipeline: it has its share of the blocks and the output layer, and
    the others wait. `masked` says that all attention had a mask in a run that was measured, more
    than the experiment has today.
    """
    step = _Step(experiment, masked)
    model = step.model
    numbers = step.numbers
    again = step.again
    layers = step.layers
    tokens = experiment.micro_batch_tokens
    stages = experiment.pipeline_parallel
    count = experiment.grad_accum

    attention = _attention(step)
    kernels = step.forward.kernels * (1 + again) + step.backward.kernels + attention.kernels
    if experiment.lora_rank:
        kernels += WORK.adapter_kernels * step.adapters
    if experiment.frozen_weights == "nf4":
        kernels += model.linear * (2 + again)
    kernels += step.forward.cast_kernels * (1 + again) + step.backward.cast_kernels

    flops, operand_bytes = _block_products(step)
    in_fp8 = 0.0
    casts = 0.0
    if experiment.matmul == "fp8":
        in_fp8 = flops
        casts = _fp8_casts(step)
        operand_bytes *= WORK.fp8_operands
        kernels += _fp8_kernels(step)
    in_fp32 = 0.0
    if numbers.casts_weights:  # nothing casts the weights of experts: they are multiplied in fp32
        in_fp32 = flops * model.grouped / model.weights
    block_flops = layers * (flops - in_fp32 - in_fp8 + attention.product_flops)
    head_flops, unaligned_flops, head_bytes = _output_layer(step)

    block_bytes = (1 + again) * step.forward.bytes + step.backward.bytes + _adapter_bytes(step)
    moved = layers * (block_bytes * tokens + attention.bytes) + head_bytes + _weight_traffic(step)
    if step.kind == "compiled":
        moved *= WORK.compiled_traffic
    if experiment.frozen_weights == "nf4":  # made again for each pass
        moved += (2 + again) * quantized_parameters(experiment) * (NF4 + numbers.computed_bytes)
    moved += layers * casts
    embedded = 6 * model.hidden * tokens * (numbers.computed_bytes + numbers.stream_bytes)
    inputs = 0.0
    if experiment.checkpoint_offload:
        inputs = layers * again * tokens * model.hidden * numbers.computed_bytes

    last_stage = layers * flops + head_flops
    average_stage = layers * flops + head_flops / stages
    return {
        "matmul_flops": count * (block_flops + head_flops - unaligned_flops),
        "fp8_flops": count * layers * in_fp8,
        "fp32_flops": count * layers * in_fp32 * WORK.grouped_in_fp32,
        "matmul_bytes": count * layers * operand_bytes,
        "unaligned_flops": count * unaligned_flops,
        "attention_flops": count * layers * attention.fused_flops,
        "elementwise_bytes": count * (moved + embedded),
        "optimizer_bytes": _optimizer_bytes(step),
        "kernels": count * (layers * kernels + WORK.outside_kernels),
        "host_launches": count * _launches(step, attention.kernels) + _step_launches(step),
        "host_parameters": _host_parameters(step),
        "host_gathers": count * _host_gathers(step),
        "offloaded_activation_bytes": count * 2 * inputs,
        "pipeline_fill": (stages - 1) / count * average_stage / last_stage,
    }


def _block_products(step: _Step) -> tuple[float, float]:
    """Return FLOPs and bytes of a block's linear layers: forward, recomputed, and both gradients.

    A frozen weight has no weight gradient, its adapters have both (Hu et al. 2021).
    """
    model = step.model
    again = step.multiplied_again
    tokens = step.experiment.micro_batch_tokens
    split = step.experiment.tensor_parallel
    width = step.numbers.computed_bytes
    per_token = model.numbers - model.divided + model.divided / split
    operand_bytes = (tokens * per_token + model.held / split) * width
    forward_flops = 2.0 * tokens * model.weights / split
    if not step.experiment.lora_rank:
        return (3 + again) * forward_flops, (3 + again) * operand_bytes
    adapter_flops = 2 * tokens * step.trained / model.layers / split
    adapter_numbers = WORK.adapter_bytes * step.adapted if model.traffic else 24 * model.hidden
    adapter_bytes = tokens * adapter_numbers * width
    return (
        (2 + again) * forward_flops + (3 + again) * adapter_flops,
        (2 + again) * operand_bytes + (3 + again) * adapter_bytes,
    )


def _fp8_kernels(step: _Step) -> float:
    """Return the kernels of a block that scale and cast operands of products in fp8: three tensors, and some twice."""
    each = WORK.fp8_kernels if step.kind == "compiled" else WORK.fp8_eager_kernels
    return float(each * step.model.linear * (3 + step.again) / 3)


def _fp8_casts(step: _Step) -> float:
    """Return the bytes of a block that scaling and casting move in a micro-batch.

    An operand is read twice, for its largest number and to be cast, and written; the products of
    the weight's gradient need both of theirs transposed, byte by byte. Weights are cast for each
    pass. What norms make is read in the format of the residual stream. Not compiled, each operation
    is a kernel.
    """
    model = step.model
    inputs = 2 * step.numbers.stream_bytes + 1
    results = 2 * step.numbers.computed_bytes + 1
    transposed = 2 * WORK.fp8_transposes
    each = (inputs * (1 + step.again) + results) / 2 + transposed
    weight = 2 * step.numbers.stream_bytes + 1
    tokens = step.experiment.micro_batch_tokens
    moved = each * model.numbers * tokens + weight * (2 + step.again) * model.held
    if step.kind != "compiled":
        moved *= WORK.fp8_eager_bytes
    return float(moved)


def _adapter_bytes(step: _Step) -> float:
    """Return the bytes per token that LoRA moves in a block, apart from its products: none if compiled.

    peft scales each result and adds it. It casts inputs for adapters in fp32, and autocast casts
    them back; gradients likewise.
    """
    if not step.experiment.lora_rank or step.kind != "eager":
        return 0.0
    casts = 6 * step.numbers.autocast
    return (2 + step.again) * step.adapted * (2.5 * step.numbers.computed_bytes + casts)


def _output_layer(step: _Step) -> tuple[float, float, float]:
    """Return FLOPs of the output layer, the unaligned of them, and bytes of it and the loss.

    Only Megatron splits it over ranks. The width of an unaligned product slows it: compilers pad
    it, and chunks are padded.
    """
    experiment = step.experiment
    model = step.model
    width = step.numbers.computed_bytes
    is_eager = step.kind == "eager"
    is_chunked = experiment.loss == "chunked"
    tokens = experiment.micro_batch_tokens
    products = 2 if experiment.lora_rank else 3
    split = experiment.tensor_parallel if step.kind == "megatron" else 1
    whole_bytes, chunked_bytes = LOGIT_BYTES[step.kind]
    logit_bytes = chunked_bytes if is_chunked else whole_bytes
    if model.logits_capped and is_eager:
        logit_bytes += WORK.cap_bytes
    moved = logit_bytes * width / 2 * tokens * model.vocab
    if is_chunked and not experiment.lora_rank:
        # Each chunk reads and writes the weight's gradient in fp32.
        moved += 8 * model.head * math.ceil(tokens / CHUNK_TOKENS)
    flops = products * 2.0 * tokens * (model.head + model.projections) / split
    padding = -model.vocab % max(1, experiment.pad_vocab)
    is_unaligned = (model.vocab + padding) % 8 != 0
    if is_unaligned and is_eager and not is_chunked and width == 2:
        return flops, flops, moved / split
    return flops, 0.0, moved / split


class _Attention(NamedTuple):
    """The attention of a block, averaged over all blocks."""

    kernels: float
    fused_flops: float = 0.0
    product_flops: float = 0.0
    bytes: float = 0.0


def _attention(step: _Step) -> _Attention:
    """Return the attention of a block: 2 products forward, 5 backward where fused (Dao 2023), 4 where not."""
    model = step.model
    again = step.again
    length = step.experiment.seq_len
    queries = step.experiment.micro_batch_tokens / step.experiment.tensor_parallel
    if step.experiment.attention != "eager" and not model.capped:
        width = 0.0  # times keys that are seen
        for block_width, window, heads in model.attention:
            (times,) = HEAD_TIMES.get(str(round(block_width / heads)), [1.0])
            width += block_width * times * _seen(step, window)
        passes = 1 + step.multiplied_again
        flops = (2 * passes + 5) * 2.0 * queries * width / model.layers
        return _Attention(kernels=2, fused_flops=flops)
    forward, backward = SCORE_BYTES[step.kind]
    if model.capped and step.kind == "eager":
        forward += WORK.cap_bytes / 2
        backward += WORK.cap_bytes / 2
    width = sum(block_width for block_width, _, _ in model.attention) / model.layers
    all_heads = sum(heads for _, _, heads in model.attention) / model.layers
    scores = queries * length * all_heads
    score_bytes = step.numbers.computed_bytes / 2 * ((1 + again) * forward + backward)
    return _Attention(
        kernels=WORK.unfused_kernels,
        product_flops=(2 * (1 + again) + 4) * 2.0 * queries * length * width,
        bytes=scores * score_bytes,
    )


def _seen(step: _Step, window: int | None) -> float:
    """Return the keys that a query is multiplied with in fused attention."""
    length = step.experiment.seq_len
    is_eager = step.kind == "eager"
    causal = (length + min(length, WORK.attention_tile)) / 2
    is_alibi = step.model.family == "bloom"
    if is_alibi and not is_eager:  # FlexAttention, whose scores are modified one by one
        return 2 * causal
    # With a mask the whole square is computed, and the mask is read: ALiBi's is one for each head.
    of_alibi, shared = MASKED_TIMES[str(step.numbers.computed_bytes)]
    if is_alibi:
        return float(of_alibi * length)
    has_window = bool(window and window < length)
    if has_window or step.masked:
        return float(shared * length)
    return float(causal)


def _weight_traffic(step: _Step) -> float:
    """Return the bytes moved for each micro-batch by weights and gradients as such: casts and accumulation.

    DeepSpeed casts a gradient in half precision to fp32 before it adds it, and what has been added
    back to be reduced (0.19.8, `fill_grad_accum_attribute`). ZeRO 3 puts gathered weights in order
    for both passes (`AllGatherCoalescedHandle.wait`), copies gradients into a bucket, orders them
    by ranks and divides them (`reduce_scatter_coalesced`): five times it reads and writes each.
    """
    experiment = step.experiment
    if experiment.lora_rank:
        return 0.0
    strategy = step.strategy
    numbers = step.numbers
    model = step.model
    moved = 0.0
    if numbers.casts_weights:
        # Weights fp32 -> half, gradients half -> fp32, but for those of experts.
        moved += 12.0 * (1 - model.layers * model.experts / model.parameters)
    if strategy.wraps_blocks and experiment.data_parallel > 1:
        # Gathered weights into place in both passes, gradients cast and laid out to be scattered.
        moved += 10 + numbers.trained_bytes
    if strategy.is_deepspeed and strategy.shards_weights(experiment) and experiment.gpus > 1:
        moved += 5 * 2 * numbers.trained_bytes
    added = 1 - 1 / experiment.grad_accum  # share of micro-batches whose gradients are added
    if strategy.wraps_blocks and strategy.reductions(experiment) == experiment.grad_accum:
        # to the rank's share
        moved += 3 * numbers.trained_bytes * added / experiment.shard_ranks
    elif strategy.wraps_blocks or not numbers.natively_half:
        moved += 3 * numbers.trained_bytes * added
    elif added and numbers.accumulates_in_fp32:
        moved += 6 + 12 * added
    else:
        moved += 6 * added
    return moved * model.parameters / experiment.model_parallel


def _optimizer_bytes(step: _Step) -> float:
    """Return the bytes that the optimizer's step moves on one GPU.

    AdamW reads weight, gradient and two moments and writes three of them: 28 in fp32. In native
    half precision ZeRO 1 to 3 make the gradients flat (4) and fp32 (6), and write the weights back
    (6); ZeRO 0 casts them (6), takes their norm (4), copies them into a flat buffer (8), scales
    them (8) and writes the weights back (6). To find overflows and norms, which are taken in fp64,
    ZeRO 1 to 3 read a gradient twice, cast it and read the cast (DeepSpeed 0.19.8,
    `has_inf_or_nan`, `get_grad_norm_direct`). ZeRO 1 and 2 use buckets on one GPU, too.
    """
    experiment = step.experiment
    if experiment.offload != "none":
        return 0.0
    strategy = step.strategy
    stage = experiment.zero_stage
    is_sharded = strategy.shards_optimizer(experiment)
    width = step.numbers.state_bytes
    each = 7.0 * width
    if step.numbers.masters:
        each += 16 if is_sharded else 32
    elif strategy.is_deepspeed and width == 2:  # flat, and copied to the weights
        each += 8
    elif experiment.gradient_clipping:
        each += 2 * width
    if experiment.optimizer == "adafactor":
        each += WORK.adafactor_bytes * width / 4
    elif experiment.optimizer == "adamw-8bit":  # both moments are read and written
        each += 2 * MOMENTS_8_BIT - 4 * width
    if strategy.is_deepspeed and stage and experiment.gradient_checks != "off":
        each += 3 * step.numbers.stream_bytes + 16
    if is_sharded:
        each /= experiment.shard_ranks
    has_buckets = stage in {1, 2} or (stage == 0 and experiment.data_parallel > 1)
    if strategy.is_deepspeed and has_buckets:
        each += 4.0 * step.numbers.stream_bytes  # into a bucket and out of it, on every rank
    return each * step.trained / experiment.model_parallel


def _launches(step: _Step, kernels_of_attention: float) -> float:
    """Return the host's launches in a micro-batch: CUDA graphs need a few."""
    experiment = step.experiment
    if experiment.compile in CUDA_GRAPHS:
        return float(LAUNCHES.cuda_graphs)
    strategy = step.strategy
    again = step.again
    forward = step.forward
    backward = step.backward
    kernels = forward.kernels + backward.kernels + kernels_of_attention
    if experiment.matmul == "fp8":
        kernels += _fp8_kernels(step)
    casts = LAUNCHES.cast * (forward.cast_kernels * (1 + again) + backward.cast_kernels)
    is_compiled = step.kind == "compiled"
    of_block = 0.0
    if experiment.lora_rank:
        adapter = LAUNCHES.compiled_adapter if is_compiled else LAUNCHES.adapter
        of_block += adapter * step.adapters
    if experiment.frozen_weights == "nf4" and not is_compiled:
        of_block += LAUNCHES.quantized * step.model.linear * (2 + again)
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
        of_block += LAUNCHES.kept_kernel * (again - step.multiplied_again) * forward.kernels
    launches = step.layers * of_block + WORK.outside_kernels
    if is_compiled and strategy.splits_graphs and experiment.gpus > 1:
        buckets = step.trained / strategy.bucket_elements(experiment)
        launches += LAUNCHES.split * buckets
    return float(launches)


def _step_launches(step: _Step) -> float:
    """Return the Python work of ZeRO's gradient hooks in an optimizer step, in launches.

    ZeRO 2 and 3 move every micro-batch's gradients into buckets, ZeRO 1 only the last one's
    (DeepSpeed 0.19.8, `reduce_ready_partitions_and_remove_grads`); a hook runs for each gradient
    all the same. 8-bit AdamW calls a compiled function for each tensor, through FSDP's wrapper.
    """
    if step.experiment.optimizer == "adamw-8bit":
        each = LAUNCHES.adamw_8_bit
        if step.strategy.wraps_blocks:
            each += LAUNCHES.adamw_8_bit_sharded
        return float(each * step.tensors)
    if not step.strategy.is_deepspeed or not step.experiment.zero_stage:
        return 0.0
    moved = step.strategy.reductions(step.experiment)
    idle = step.experiment.grad_accum - moved
    return (LAUNCHES.hook * moved + LAUNCHES.idle_hook * idle) * step.tensors


def _host_parameters(step: _Step) -> float:
    """Return the parameter tensors that DeepSpeed's step iterates over in Python, weighted by the work for each.

    ZeRO 0 asks the GPU for overflows of each tensor in native half precision. ZeRO 1 and 2 handle
    flat buffers, but take norms of each tensor of the rank's partition, and search it in half
    precision, unless `gradient_checks` is off. ZeRO 3 partitions, takes norms and copies each.
    Adafactor waits for the norms of each tensor, unless ZeRO 1 or 2 has made them flat; at ZeRO 0
    DeepSpeed's `FP16_UnfusedOptimizer` asks for the overflows of each as well. Kernels of 8-bit AdamW
    are shorter than the compiled calls that start them (`_step_launches`).
    """
    experiment = step.experiment
    is_deepspeed = step.strategy.is_deepspeed
    has_masters = step.numbers.masters
    stage = experiment.zero_stage
    weight = 0.0
    if is_deepspeed and stage == 0:
        weight = float(has_masters)
    elif is_deepspeed and stage == 3:
        weight = TENSORS.zero_3
    elif is_deepspeed:
        checked = TENSORS.flat_with_norms + TENSORS.overflow_search * step.numbers.natively_half
        flat = checked if experiment.gradient_checks == "on" else TENSORS.flat
        weight = flat / experiment.data_parallel
    if experiment.optimizer == "adafactor" and not (is_deepspeed and stage):
        weight += TENSORS.adafactor
    elif experiment.optimizer == "adamw-8bit":
        weight += TENSORS.adamw_8_bit
    return weight * step.tensors


def _host_gathers(step: _Step) -> float:
    """Return the parameters, or blocks if they are leaf modules, that ZeRO 3 visits in Python in a micro-batch.

    Its hooks run in every pass, also where the weights are kept.
    """
    experiment = step.experiment
    strategy = step.strategy
    if not (strategy.is_deepspeed and strategy.shards_weights(experiment)):
        return 0.0
    is_compiled = step.kind == "compiled"
    if experiment.leaf_modules == "blocks" or (experiment.leaf_modules == "auto" and is_compiled):
        each = GATHERS.block
    else:
        model = step.model
        each = model.tensors + 2 * step.adapters * (experiment.lora_rank > 0)
        if experiment.data_parallel > 1:
            each *= GATHERS.among_ranks
    return float(step.layers * each * (2 + step.again))
