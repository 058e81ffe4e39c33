"""Numbers derived from what was measured: pure functions, each formula with its source.

A missing input gives a missing output (None), never 0.
"""

from collections.abc import Sequence


def tokens_per_s(tokens_per_step: int, step_times_s: Sequence[float]) -> float | None:
    """Give the throughput: work over time, never a mean of rates.

    Parameters
    ----------
    tokens_per_step
        Tokens per optimizer step over all ranks.
    step_times_s
        Times of the timed steps, shape (steps,), in seconds.
    """
    total_s = sum(step_times_s)
    return tokens_per_step * len(step_times_s) / total_s if total_s > 0 else None


def tokens_per_joule(tokens_per_s_per_gpu: float | None, power_w: float | None) -> float | None:
    """Give the tokens trained per joule that a GPU drew: tokens/s per GPU over its mean watts, the host's left out."""
    if tokens_per_s_per_gpu is None or not power_w:
        return None
    return tokens_per_s_per_gpu / power_w


def days(tokens: float, tokens_per_s: float) -> float | None:
    """Give the days that `tokens` take at a throughput of all GPUs together; 86,400 s a day, no restart, no pause."""
    return tokens / tokens_per_s / 86_400 if tokens_per_s > 0 else None


def model_flops_per_token(parameters: int, layers: int, hidden: int, seq_len: int) -> float:
    """Give the FLOPs that the model itself needs per token, forward and backward.

    6 x parameters + 12 x layers x hidden x sequence: Narayanan et al. 2021 (arXiv:2104.04473), section 5.1, and
    Chowdhery et al. 2022 (arXiv:2204.02311), appendix B. Recomputation does not count: it is not the model's work.
    """
    return 6.0 * parameters + 12.0 * layers * hidden * seq_len


def recomputation_factor(activation_checkpointing: bool) -> float:
    """Give hardware FLOPs over model FLOPs: 4/3 where activations are recomputed.

    The forward pass is a third of the work and is done twice: factor 4 against 3 in the published 1.3B benchmark.
    """
    return 4 / 3 if activation_checkpointing else 1.0


def tflops(flops_per_token: float | None, tokens_per_s_per_gpu: float | None) -> float | None:
    """Give TFLOP/s per GPU."""
    if flops_per_token is None or tokens_per_s_per_gpu is None:
        return None
    return flops_per_token * tokens_per_s_per_gpu / 1e12


def mfu(model_tflops_per_gpu: float | None, peak_tflops: float | None) -> float | None:
    """Give the model FLOP utilization, between 0 and 1 (Chowdhery et al. 2022, appendix B)."""
    if model_tflops_per_gpu is None or not peak_tflops:
        return None
    return model_tflops_per_gpu / peak_tflops
