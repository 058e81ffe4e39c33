"""torch's DistributedDataParallel: every rank has the whole model, gradients are averaged."""

from collections.abc import Iterator
from typing import Any

from dsnb.settings import framework_defaults
from dsnb.settings.strategies.base import ModelSize, Strategy, Traffic

FIRST_BUCKET = framework_defaults.DDP_FIRST_BUCKET_BYTES // 4
"""Gradients in torch's first bucket (1 MiB); a compiled model is not split into smaller parts."""
POWERSGD_SHARE = 1.4
"""Numbers in PowerSGD's factors of rank 1 over hidden size, for each number of hidden size squared."""


class Ddp(Strategy):
    """Whole models, an all-reduce of gradients in buckets; half precision is autocast, or pure."""

    name = "ddp"
    label = kind = "DDP"
    simplicity = 1
    settings = frozenset({"gradient_compression", "bucket_elements"})
    why_no_zero = "DDP shards nothing"
    may_split_layers = False
    has_native_half = False
    splits_graphs = True
    bucket = framework_defaults.DDP_BUCKET_BYTES / 4
    trainer_class = "dsnb.measure.train.trainer:DdpTrainer"
    memory_rule = "dsnb.prediction.memory:ddp"

    def refusals(self, s: Any) -> Iterator[str]:
        """Refuse compression without messages, and graphs smaller than the first bucket."""
        how = s.gradient_compression
        if how != "none" and s.gpus == 1:
            yield f"gradient_compression is '{how}', but gpus is 1: nothing is sent; use at least 2"
        elif how == "bf16" and s.device == "cpu":
            yield (
                "gradient_compression is 'bf16', but device is 'cpu': torch rounds gradients for "
                "NCCL only; use 'none'"
            )
        if how == "bf16" and s.mixed_precision == "none":
            yield (
                "gradient_compression is 'bf16', but mixed_precision is 'none': gradients are in bf16 "
                "anyway; use 'none'"
            )
        if s.compile != "off" and 0 < s.bucket_elements < FIRST_BUCKET:
            yield (
                f"bucket_elements is {s.bucket_elements}: compiled DDP needs at least "
                f"{FIRST_BUCKET}"
            )

    def traffic_of(self, s: Any, model: ModelSize, part: ModelSize, once: float) -> Traffic:
        """Return one all-reduce of all gradients beside the last backward pass."""
        return Traffic(
            all_reduce=part.trained * self.reduced_bytes(s, model) * 2 * once,
            data_messages=part.trained / self.bucket_elements(s) + 1,
            reduction_overlaps=1.0,
        )

    def bucket_elements(self, s: Any) -> float:
        """Return the gradients in a message; the default is a size in bytes."""
        return s.bucket_elements or self.bucket * 4 / self.numbers(s).trained_bytes

    def reduced_bytes(self, s: Any, model: ModelSize) -> float:
        """Return the bytes of a gradient after compression."""
        if s.gradient_compression == "bf16":
            return 2.0
        if s.gradient_compression == "powersgd":
            return 4 * POWERSGD_SHARE * s.powersgd_rank / model.hidden
        numbers = self.numbers(s)
        return float(numbers.computed_bytes if s.lora_rank else numbers.trained_bytes)
