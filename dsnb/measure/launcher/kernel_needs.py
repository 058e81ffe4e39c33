"""The time that a rank's attention and loss need in a step, by their FLOPs and bytes and the GPU's data sheet."""

from collections.abc import Mapping
from typing import Any

from dsnb.base.formulas import metrics
from dsnb.base.formulas.memory import recomputed_blocks
from dsnb.base.system import hardware
from dsnb.settings.experiment import Experiment


def needed_s(experiment: Experiment, worker: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the seconds that attention and the loss need; None for an unknown GPU or model."""
    return {
        "attention": _attention_s(experiment, worker),
        "loss": _loss_s(experiment, worker),
    }


def _attention_s(experiment: Experiment, worker: Mapping[str, Any]) -> float | None:
    """Return the time of attention that computes no masked score.

    Masked scores are those of the causal half, or outside of a window. A recomputed block repeats
    its forward pass, a third of the FLOPs.
    """
    forward = worker.get("forward_flops_per_token")
    active = worker.get("active_parameters")
    masked = worker.get("masked_flops_per_token")
    layers = worker.get("layers")
    if not forward or active is None or masked is None or not layers:
        return None
    attention = 3 * (forward - metrics.forward_flops_per_token(active, 0))
    passes = 1 + recomputed_blocks(layers, experiment.whole_every) / layers / 3
    moved = metrics.attention_bytes_per_token(
        attention, experiment.seq_len, experiment.numbers.computed_bytes
    )
    # Tensor and pipeline parallelism split attention as data parallelism does.
    tokens = experiment.tokens_per_step / experiment.gpus
    return _seconds(
        experiment, worker, passes * tokens * (attention - masked), passes * tokens * moved
    )


def _loss_s(experiment: Experiment, worker: Mapping[str, Any]) -> float | None:
    """Return the time of the loss between its products; each rank of a tensor-parallel group computes it."""
    vocab = worker.get("vocab")
    if not vocab:
        return None
    moved = metrics.loss_bytes_per_token(vocab, experiment.numbers.computed_bytes)
    tokens = experiment.tokens_per_step / experiment.data_parallel
    return _seconds(experiment, worker, 0.0, tokens * moved)


def _seconds(
    experiment: Experiment, worker: Mapping[str, Any], flops: float, moved_bytes: float
) -> float | None:
    gpu = worker.get("gpu_name")
    precision = experiment.precision
    if precision == "tf32":  # attention has no kernel for it
        precision = "fp32"
    peak_tflops = hardware.peak_tflops(gpu, precision)
    return metrics.kernels_need_s(flops, moved_bytes, peak_tflops, hardware.memory_gb_per_s(gpu))
