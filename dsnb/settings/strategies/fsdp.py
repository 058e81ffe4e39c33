"""torch's FSDP2: every rank has a share of everything, blocks are gathered when they compute."""

from collections.abc import Iterator
from typing import Any

from dsnb.settings.strategies.base import ModelSize, Strategy, Traffic


class Fsdp(Strategy):
    """fp32 shards by block, gathered in half precision for each pass, unless autocast is chosen."""

    name = "fsdp"
    label = kind = "FSDP"
    simplicity = 3
    settings = frozenset({"reduce_gradients", "gathered_weights"})
    why_no_zero = "FSDP shards everything by itself"
    wraps_blocks = True
    gathers_per_micro_batch = 2
    """Passes for which weights are gathered, unless they are kept."""
    trainer_class = "dsnb.measure.train.trainer:FsdpTrainer"
    memory_rule = "dsnb.prediction.memory:fsdp"

    def refusals(self, s: Any) -> Iterator[str]:
        """Refuse what needs whole weights, gradients or graphs."""
        if s.precision == "fp16":
            yield (
                f"precision is 'fp16', but strategy is '{self.name}': FSDP2 does not scale the "
                "loss; use 'bf16'"
            )
        if s.reduce_gradients != "micro-batch" and s.grad_accum == 1:
            yield (
                f"reduce_gradients is '{s.reduce_gradients}', but grad_accum is 1: a step has one "
                "micro-batch; drop it, or set grad_accum to 2 or more"
            )
        if s.optimizer == "adafactor":
            yield (
                f"optimizer is 'adafactor', but strategy is '{self.name}': its factors would be "
                "those of shards; use 'ddp'"
            )
        if s.compile_unit == "model" and s.compile != "off":
            yield (
                f"compile_unit is 'model', but strategy is '{self.name}': its hooks gather weights "
                "block by block; use 'block'"
            )

    def shared_stage(self, s: Any) -> int:
        """Share everything, as ZeRO 3 does."""
        return 3

    def reductions(self, s: Any) -> int:
        """Reduce gradients in every micro-batch, unless once a step is chosen."""
        if s.reduce_gradients == "step":
            return 1
        return int(s.grad_accum)

    def traffic_of(self, s: Any, model: ModelSize, part: ModelSize, once: float) -> Traffic:
        """Return gathers for the passes of each micro-batch, and the reductions."""
        gathers = self.gathers_per_micro_batch * s.grad_accum
        if s.gathered_weights == "micro-batch":
            gathers = s.grad_accum
        reductions = self.reductions(s)
        return Traffic(
            all_gather=gathers * part.parameters * self.gathered_bytes(s) * once,
            reduce_scatter=reductions * part.trained * self.reduced_bytes(s, model) * once,
            data_messages=(gathers + reductions) * model.layers,
            reduction_overlaps=1.0,
            gather_overlaps=1.0,
        )

    def gathered_bytes(self, s: Any) -> float:
        """Return the bytes of a gathered weight: FSDP2 is given half precision in bf16 only."""
        if s.precision == "bf16" and not self.numbers(s).casts_weights:
            return 2.0
        return 4.0

    def reduced_bytes(self, s: Any, model: ModelSize) -> float:
        """Return the bytes of a gradient, which is reduced in the format of the shards."""
        return float(self.numbers(s).trained_bytes)

    def former_defaults(self, s: Any) -> dict[str, Any]:
        """Return that gradients were reduced once a step before `reduce_gradients` chose."""
        if s.grad_accum > 1:
            return {"reduce_gradients": "step"}
        return {}
