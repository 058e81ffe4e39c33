"""torch's FSDP2: every rank has a share of everything, blocks are gathered when they compute.

With `shard_size`, groups of ranks share everything, and the groups hold copies of one another
(hybrid sharding; Zhao et al. 2023, arXiv:2304.11277, section 3.2.2). DeepSpeed's equivalent was MiCS
(Zhang et al. 2022, arXiv:2205.00119), which 0.19.8 no longer has. ZeRO++'s second partition of the
weights is none: optimizer states and gradients stay shared among all ranks.
"""

from collections.abc import Iterator
from typing import Any

from dsnb.settings.strategies.base import ModelSize, Strategy, Traffic


class Fsdp(Strategy):
    """fp32 shards by block, gathered in half precision for each pass, unless autocast is chosen."""

    name = "fsdp"
    label = kind = "FSDP"
    label_of_groups = "HSDP"
    simplicity = 3
    settings = frozenset(
        {
            "reduce_gradients",
            "gathered_weights",
            "shard_size",
            "tensor_parallel",
            "grad_accum_dtype",
        }
    )
    why_no_zero = "FSDP shards everything by itself"
    shares_split_inputs = True
    may_reduce_in_fp32 = True
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
        ranks = s.data_parallel
        if s.shard_size == 1:
            yield "shard_size is 1: nothing would be shared; use 2 or more, or strategy 'ddp'"
        elif s.shard_size and (s.shard_size >= ranks or ranks % s.shard_size):
            yield (
                f"shard_size is {s.shard_size}: it must divide the number of data-parallel ranks, "
                f"{ranks}, into several groups; leave it out to share among all"
            )

    def shared_stage(self, s: Any) -> int:
        """Share everything, as ZeRO 3 does."""
        return 3

    def shard_ranks(self, s: Any) -> int:
        """Return the ranks of a group: all of them without `shard_size`."""
        ranks: int = s.shard_size or s.data_parallel
        return ranks

    def reductions(self, s: Any) -> int:
        """Reduce gradients in every micro-batch, unless once a step is chosen."""
        if s.reduce_gradients == "step":
            return 1
        return int(s.grad_accum)

    def traffic_of(self, s: Any, model: ModelSize, part: ModelSize, once: float) -> Traffic:
        """Return gathers for the passes of each micro-batch, and the reductions.

        Groups that hold copies average their shares of the gradients once a step.
        """
        ranks = self.shard_ranks(s)
        groups = s.data_parallel / ranks
        once = (ranks - 1) / ranks
        again = model.undivided * (1 - 1 / s.tensor_parallel)  # whole on each tensor-parallel rank
        trained = part.trained + again
        shared = trained / ranks
        between = 2 * (groups - 1) / groups
        gathers = self.gathers_per_micro_batch * s.grad_accum
        if s.gathered_weights == "micro-batch":
            gathers = s.grad_accum
        reductions = self.reductions(s)
        return Traffic(
            all_gather=gathers * (part.parameters + again) * self.gathered_bytes(s) * once,
            reduce_scatter=reductions * trained * self.reduced_bytes(s, model) * once,
            data_messages=(gathers + reductions) * model.layers,
            replica_all_reduce=shared * self.reduced_bytes(s, model) * between,
            replica_messages=model.layers if groups > 1 else 0.0,
            reduction_overlaps=1.0,
            gather_overlaps=1.0,
        )

    def gathered_bytes(self, s: Any) -> float:
        """Return the bytes of a gathered weight: FSDP2 is given half precision in bf16 only."""
        if s.precision == "bf16" and not self.numbers(s).casts_weights:
            return 2.0
        return 4.0

    def reduced_bytes(self, s: Any, model: ModelSize) -> float:
        """Return the bytes of a gradient: those of the shards, unless bf16 is reduced in fp32."""
        return float(self.numbers(s).accumulated_bytes)

    def accumulates_in_fp32(self, s: Any) -> bool:
        """Return whether gradients of weights in bf16 are reduced in fp32, and whole ones added up in it."""
        return bool(s.grad_accum_dtype == "fp32")

    def former_defaults(self, s: Any) -> dict[str, Any]:
        """Return that gradients were reduced once a step before `reduce_gradients` chose."""
        if s.grad_accum > 1:
            return {"reduce_gradients": "step"}
        return {}
