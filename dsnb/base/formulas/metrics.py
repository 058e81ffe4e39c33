"""Figures derived from measurements: pure functions, each formula with its source.

A missing input gives a missing output (None), never 0.
"""

from collections.abc import Sequence

from dsnb.base.formulas.memory import recomputed_blocks

SECONDS_PER_DAY = 86_400
SLOW_STEP = 2.0
"""A timed step that took more than this many times the median is reported."""
SLOW_KERNELS = 4.0
"""Attention or loss that takes more than this many times what `kernels_need_s` returns is reported.
Attention of OLMo-2 1B (8 x 2048, one H100, cuDNN) takes 1.7 times as much as a causal kernel, and 5.4
times with a mask; a compiled loss reads and writes its logits at about three quarters of the rate."""
SLOWED_SHARE = 0.05
"""... if at least this share of the step is lost: the launch of a small kernel takes longer than its
work."""
UTILIZATION_S = 5.0
"""Shortest time that a GPU's utilization is a figure of. NVML reports the share of its last
sampling period, of 1/6 to 1 s, in which a kernel ran (nvidia-smi's manual, "Utilization"): repeats
of runs of 0.4 s read from 9 to 100 %."""


def _ratio(amount: float, base: float) -> float | None:
    return amount / base if base > 0 else None


def tokens_per_s(tokens_per_step: float | None, step_times_s: Sequence[float]) -> float | None:
    """Return the throughput: work over time, never a mean of rates.

    Parameters
    ----------
    tokens_per_step
        Tokens per optimizer step over all ranks.
    step_times_s
        Times of the timed steps, shape (steps,), in seconds.
    """
    if tokens_per_step is None:
        return None
    return _ratio(tokens_per_step * len(step_times_s), sum(step_times_s))


def samples_per_s(tokens_per_s: float, seq_len: float) -> float | None:
    """Return the sequences per second: every sample of these benchmarks is a full sequence."""
    return _ratio(tokens_per_s, seq_len)


def tokens_per_joule(tokens_per_s_per_gpu: float | None, power_w: float | None) -> float | None:
    """Return the tokens per joule that the GPUs drew: tokens/s per GPU over mean watts per GPU, hosts left out."""
    if tokens_per_s_per_gpu is None or not power_w:
        return None
    return tokens_per_s_per_gpu / power_w


def algbw_gb_per_s(message_bytes: float, time_s: float) -> float | None:
    """Return a collective's algorithm bandwidth in GB/s (GB is 1e9 bytes): bytes of the message over its time.

    NVIDIA's nccl-tests, doc/PERFORMANCE.md: the bandwidth that a program sees.
    """
    return _ratio(message_bytes / 1e9, time_s)


def busbw_gb_per_s(algbw_gb_per_s: float | None, ranks: int) -> float | None:
    """Return an all-reduce's bus bandwidth in GB/s: algbw x 2(n-1)/n; None for one rank, which sends nothing.

    NVIDIA's nccl-tests, doc/PERFORMANCE.md: every element leaves and enters each rank at least
    2(n-1)/n times, so this is the load of the slowest link, which is compared with its peak for any
    number of ranks.
    """
    if algbw_gb_per_s is None or ranks < 2:
        return None
    return algbw_gb_per_s * 2 * (ranks - 1) / ranks


def days(tokens: float, tokens_per_s: float) -> float | None:
    """Return the days of training on `tokens` at the throughput of all GPUs, without restarts or pauses."""
    return _ratio(tokens / SECONDS_PER_DAY, tokens_per_s)


def gpu_hours(tokens: float, tokens_per_s: float, gpus: int) -> float | None:
    """Return the GPU-hours of training on `tokens`."""
    return _ratio(tokens / 3600 * gpus, tokens_per_s)


def run_gpu_hours(wall_s: float, gpus: int) -> float:
    """Return the GPU-hours of a run from its launch to its end, model building and warm-up included."""
    return wall_s / 3600 * gpus


def cost(gpu_hours: float, price_per_gpu_hour: float | None) -> float | None:
    """Return the price of GPU-hours, in the currency of the price per hour."""
    if price_per_gpu_hour is None:
        return None
    return gpu_hours * price_per_gpu_hour


def speed_up(tokens_per_s: float, base_tokens_per_s: float) -> float | None:
    """Return the speed-up over the base."""
    return _ratio(tokens_per_s, base_tokens_per_s)


def scaling_efficiency(
    tokens_per_s: float, gpus: int, base_tokens_per_s: float, base_gpus: int
) -> float | None:
    """Return the throughput per GPU over that of the base: 1 is linear (weak scaling, as in Narayanan et al. 2021).

    Rates may be in tokens/s or samples/s, as long as both are the same.
    """
    if gpus <= 0 or base_gpus <= 0 or base_tokens_per_s <= 0:
        return None
    return (tokens_per_s / gpus) / (base_tokens_per_s / base_gpus)


def model_flops_per_token(
    parameters: int, layers: int, hidden: int, seq_len: int, trained: int | None = None
) -> float:
    """Return the FLOPs that a dense transformer itself needs per token, forward and backward.

    6 x parameters + 12 x layers x hidden x sequence: Narayanan et al. 2021 (arXiv:2104.04473),
    section 5.1, and Chowdhery et al. 2022 (arXiv:2204.02311), appendix B. Recomputation does not
    count: it is not the model's work. Attention is counted as if it were not causal, see
    `masked_flops_per_token`.

    Parameters
    ----------
    trained
        Parameters that are trained, by default all; see `flops_per_token`.
    """
    trained = parameters if trained is None else trained
    return flops_per_token(parameters, trained, attention_flops_per_token(layers, hidden, seq_len))


def flops_per_token(active: float, trained: float, attention: float) -> float:
    """Return the FLOPs that any model itself needs per token, forward and backward.

    Parameters
    ----------
    active
        Parameters that work on a token: of a mixture of experts, those of the chosen experts only.
    trained
        Those of them that are trained. A frozen weight takes 2 FLOPs forward and 2 to pass the
        gradient on, but not the 2 of a weight gradient: LoRA needs 4 x parameters + 2 x trained
        parameters.
    attention
        FLOPs of attention, see `attention_flops_per_token`.
    """
    return 4.0 * active + 2.0 * trained + attention


def attention_flops_per_token(
    layers: int, width: float, seq_len: int, window: int | None = None
) -> float:
    """Return the FLOPs of attention per token, forward and backward: 12 x layers x width x keys.

    Parameters
    ----------
    layers
        Layers with attention: those with a state of fixed size (Mamba, linear attention) have none.
    width
        Heads x head size, which is the hidden size in most models; where the head size of queries
        differs from that of values (DeepSeek's latent attention), that of their mean.
    window
        The most keys that a query sees in a sliding window or chunk; None for all, so that keys are
        the sequence.
    """
    return 12.0 * layers * width * min(window or seq_len, seq_len)


def masked_flops_per_token(
    layers: int, width: float, seq_len: int, window: int | None = None
) -> float:
    """Return the FLOPs of `attention_flops_per_token` that a causal mask makes unnecessary: half, without a window.

    The convention counts the whole square of scores, 12 x layers x width x sequence; a fused causal
    kernel computes half of it (Dao 2023, arXiv:2307.08691, section 4.1, counts that half). Of w
    keys that are counted for each query, the first w queries see half; the mask's share is w / (2 x
    sequence).
    """
    keys = min(window or seq_len, seq_len)
    return 6.0 * layers * width * keys * keys / seq_len


def forward_flops_per_token(parameters: float, attention: float) -> float:
    """Return the FLOPs of a forward pass: 2 x parameters and a third of those of attention, `attention`."""
    return 2.0 * parameters + attention / 3


def recomputed_flops_per_token(
    block_parameters: float, layers: int, hidden: int, seq_len: int, every: int
) -> float:
    """Return the FLOPs per token of a second forward pass through every k-th block of a dense transformer.

    A forward pass through all blocks is 2 x their parameters + 4 x layers x hidden x sequence.
    Embeddings and the output layer are in no block and are not recomputed, so hardware FLOPs stay
    below the 4/3 of model FLOPs that is often quoted.

    Parameters
    ----------
    block_parameters
        Parameters of all transformer blocks, without embeddings, output layer and final norm.
    every
        The k of "recompute every k-th block"; 0 for none.
    """
    share = recomputed_blocks(layers, every) / layers if every else 0.0
    return share * forward_flops_per_token(
        block_parameters, attention_flops_per_token(layers, hidden, seq_len)
    )


def attention_bytes_per_token(attention: float, seq_len: int, number_bytes: float) -> float:
    """Return the bytes of fused attention per token, forward and backward: each of its tensors is moved once.

    Forward moves queries, keys, values and outputs; backward moves these, and the gradient of each:
    12 x layers x width numbers, which is `attention`, the FLOPs of `attention_flops_per_token`, over
    the keys. Fewer heads of keys and values need less, a window more.
    """
    return attention / seq_len * number_bytes


def loss_bytes_per_token(vocab: int, number_bytes: float) -> float:
    """Return the bytes of a fused loss per token: it reads each logit twice and writes its gradient."""
    return 3.0 * vocab * number_bytes


def kernels_need_s(
    flops: float, moved_bytes: float, peak_tflops: float | None, memory_gb_per_s: float | None
) -> float | None:
    """Return the time of FLOPs and bytes at the vendor's rates, one after the other; None if a rate is unknown."""
    if not peak_tflops or not memory_gb_per_s:
        return None
    return flops / (peak_tflops * 1e12) + moved_bytes / (memory_gb_per_s * 1e9)


def are_slow_kernels(kernels_s: float, needed_s: float, step_s: float) -> bool:
    """Return whether kernels take much more than they need, and so much more that the step is slower."""
    lost_s = kernels_s - needed_s
    return kernels_s > SLOW_KERNELS * needed_s and lost_s > SLOWED_SHARE * step_s


def tflops(flops_per_token: float | None, tokens_per_s_per_gpu: float | None) -> float | None:
    """Return TFLOP/s per GPU."""
    if flops_per_token is None or tokens_per_s_per_gpu is None:
        return None
    return flops_per_token * tokens_per_s_per_gpu / 1e12


def mfu(model_tflops_per_gpu: float | None, peak_tflops: float | None) -> float | None:
    """Return the model FLOP utilization, between 0 and 1 (Chowdhery et al. 2022, appendix B).

    Parameters
    ----------
    peak_tflops
        The vendor's dense rate (`hardware.peak_tflops`), or the rate of a large matrix product
        measured on a GPU of the same kind (`hardware.matmul_tflops`). The latter is a measurement,
        not a bound: other matrices, data and GPUs reached a few per cent more.
    """
    if model_tflops_per_gpu is None or not peak_tflops:
        return None
    return model_tflops_per_gpu / peak_tflops
