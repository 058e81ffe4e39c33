"""DeepSpeed's engine with ZeRO 0 to 3, tensor parallelism (AutoTP) and pipelines."""

from collections.abc import Iterator
from typing import Any

from dsnb.settings import framework_defaults
from dsnb.settings.strategies.base import USED_BY, ModelSize, Strategy, Traffic

ZERO_STAGES = (0, 1, 2, 3)
ONLY_ZERO = {
    "overlap_comm": ((1, 2, 3), "there are no buckets"),
    "bucket_elements": ((1, 2, 3), "there are no buckets"),
    "gradient_checks": ((1, 2), "they cannot be left out"),
    "leaf_modules": ((3,), "nothing is gathered"),
    "zeropp": ((3,), "ZeRO++ extends ZeRO 3"),
}
"""Settings that apply at some of ZeRO's stages, and why they do not at others."""
NEED_MASTERS = {
    "optimizer": ("muon",),
    "compile": ("deepcompile",),
    "zeropp": ("weights", "gradients", "partition", "all"),
}
"""Values of settings that were not tested in pure bf16."""


class DeepSpeed(Strategy):
    """Weights in half precision with fp32 masters; ZeRO's stage says what ranks share.

    Stage 1 shares optimizer states, 2 gradients too, 3 weights too (Rajbhandari et al. 2020).
    """

    name = "deepspeed"
    label = "DeepSpeed"
    simplicity = 2
    min_ranks = 1  # its engine differs from a plain loop
    settings = frozenset(USED_BY) - {
        "reduce_gradients", "gathered_weights", "shard_size", "gradient_compression",
    }  # fmt: skip
    only_at_stages = ONLY_ZERO
    is_deepspeed = True
    has_zero_stages = True
    has_masters = True
    bucket = framework_defaults.ZERO["reduce_bucket_size"]
    memory_rule = "dsnb.prediction.memory:zero"

    def label_of(self, zero_stage: object = None) -> str:
        """Return "ZeRO 3"; empty if the stage is unknown."""
        if zero_stage is None:
            return ""
        return f"ZeRO {zero_stage}"

    def labels(self) -> tuple[str, ...]:
        """Return the labels of all stages."""
        return tuple(self.label_of(stage) for stage in ZERO_STAGES)

    def short(self, s: Any) -> str:
        """Return "zs2"; the engine's name if the stage is unknown."""
        if s.zero_stage is None:
            return self.name
        return f"zs{s.zero_stage}"

    def candidates(self) -> list[dict[str, Any]]:
        """Return all stages; `deepspeed` is the default strategy."""
        return [{"zero_stage": stage} for stage in ZERO_STAGES]

    def refusals(self, s: Any) -> Iterator[str]:
        """Refuse places for states that a stage does not share, and factors of shards."""
        what, _, where = s.offload.partition("-")
        if what != "none":
            offload = f"offload is '{s.offload}'"
            if where == "nvme" and s.zero_stage != 3:
                yield f"{offload}: lower stages silently use the CPU instead; use zero_stage 3"
            elif what == "all" and s.zero_stage != 3:
                yield (
                    f"{offload}: only ZeRO 3 can offload parameters; use 'optimizer-cpu' or "
                    "zero_stage 3"
                )
            elif s.zero_stage == 0:
                yield (
                    f"{offload}: ZeRO 0 has nothing that it could offload; use zero_stage 1, 2 or 3"
                )
            elif where == "nvme" and not s.nvme_path:
                yield f"{offload}: nvme_path is empty; name a folder on the NVMe disk"
        if s.mixed_precision == "none":
            yield from self._refused_in_pure(s)
        if s.optimizer == "adamw-8bit":
            yield (
                f"optimizer is 'adamw-8bit', but strategy is '{self.name}': its blocks of 256 would "
                "cross the tensors that ZeRO makes flat; use 'fsdp', 'ddp' or 'plain'"
            )
        if s.optimizer == "adafactor" and s.zero_stage > 0:
            yield (
                f"optimizer is 'adafactor', but zero_stage is {s.zero_stage}: it cannot factor "
                "shards; use zero_stage 0"
            )

    def _refused_in_pure(self, s: Any) -> Iterator[str]:
        """Refuse pure bf16 where DeepSpeed 0.19.8 keeps fp32 states, or where it was not tested."""
        pure = "mixed_precision is 'none'"
        if s.zero_stage == 0:
            yield (
                f"{pure}, but zero_stage is 0: DeepSpeed keeps fp32 masters there; use zero_stage "
                "1, 2 or 3"
            )
        if s.offload != "none":
            yield f"{pure}, but offload is '{s.offload}': states on the host are in fp32; use 'native'"
        for name, values in NEED_MASTERS.items():
            value = getattr(s, name)
            if value in values:
                yield (
                    f"{pure}, but {name} is '{value}': it is tested with fp32 masters only; use "
                    "'native'"
                )
        if s.pipeline_parallel > 1:
            yield f"{pure}, but pipeline_parallel is set: pipelines have fp32 masters; use 'native'"

    def accumulates_in_fp32(self, s: Any) -> bool:
        """Return whether gradients are added up in fp32: asked for, or where it matters in bf16."""
        is_native_bf16 = s.precision == "bf16" and s.mixed_precision == "native"
        if s.grad_accum_dtype != "auto" or not is_native_bf16:
            return bool(s.grad_accum_dtype == "fp32")
        return bool(s.grad_accum > 1 and s.zero_stage > 0 and s.pipeline_parallel == 1)

    def shared_stage(self, s: Any) -> int:
        """Return ZeRO's stage."""
        return s.zero_stage  # in a row without a value NaN, which shares nothing for certain

    def reductions(self, s: Any) -> int:
        """Reduce at the last micro-batch (ZeRO 0 and 1), or at each.

        DeepSpeed 0.19.8, `engine.allreduce_gradients` and `zero/stage_1_and_2.average_tensor`.
        """
        return int(s.grad_accum) if s.zero_stage >= 2 else 1

    def traffic_of(self, s: Any, model: ModelSize, part: ModelSize, once: float) -> Traffic:
        """Return the traffic of ZeRO's stage.

        ZeRO 1 and 2 all-reduce whole buckets (`use_multi_rank_bucket_allreduce`, on by default)
        where the paper has a reduce-scatter of half the bytes.
        """
        if s.zero_stage == 3:
            return self._traffic_of_3(s, model, part, once)
        reductions = self.reductions(s)
        gathers = 1 if s.zero_stage else 0
        messages = part.trained / self.bucket_elements(s) + 1
        overlaps = s.zero_stage in {1, 2} and s.overlap_comm == "on"
        return Traffic(
            all_reduce=reductions * part.trained * self.reduced_bytes(s, model) * 2 * once,
            all_gather=gathers * part.trained * self.gathered_bytes(s) * once,
            data_messages=(reductions + gathers) * messages,
            reduction_overlaps=float(overlaps),
        )

    def _traffic_of_3(self, s: Any, model: ModelSize, part: ModelSize, once: float) -> Traffic:
        """Return weights for both passes, and gradients for each micro-batch.

        ZeRO 3 keeps a share of the weights: `stage3_max_live_parameters` at most, and those used
        again within `stage3_max_reuse_distance`.
        """
        reduced = part.trained * once * self.reductions(s)
        gathered = part.parameters * once
        live = framework_defaults.zero_number(s, "stage3_max_live_parameters")
        near = framework_defaults.zero_number(s, "stage3_max_reuse_distance")
        passes = 2 - min(1.0, min(live, near) / model.parameters)
        sent = self.gathered_bytes(s)
        if s.zeropp in {"weights", "all"}:
            sent = 1.0
        scattered = reduced * self.reduced_bytes(s, model)
        exchanged = 0.0
        if s.zeropp in {"gradients", "all"}:
            scattered = 0.0
            exchanged = reduced * 0.5 * 2  # 4 bits, inside nodes and between (Wang et al. 2023)
        return Traffic(
            all_gather=passes * s.grad_accum * gathered * sent,
            reduce_scatter=scattered,
            all_to_all=exchanged,
            data_messages=(passes + 1) * s.grad_accum * model.layers * 2,
            reduction_overlaps=float(s.overlap_comm != "off"),
            gather_overlaps=1.0,
        )

    def reduced_bytes(self, s: Any, model: ModelSize) -> float:
        """Return the bytes of a gradient: under autocast, ZeRO sends linear layers' in half."""
        numbers = self.numbers(s)
        if numbers.casts_weights and s.zero_stage > 0 and model.family != "gpt2":
            return 2.0
        return float(numbers.stream_bytes)

    def trainer(self, s: Any) -> str:
        """Return the trainer of a pipeline, or of one model."""
        name = "DeepSpeedTrainer"
        if s.pipeline_parallel > 1:
            name = "PipelineTrainer"
        return f"dsnb.measure.train.engine:{name}"

    def former_defaults(self, s: Any) -> dict[str, Any]:
        """Return that native bf16 was accumulated in bf16 before `grad_accum_dtype` chose."""
        is_native_bf16 = s.precision == "bf16" and s.mixed_precision == "native"
        if s.grad_accum > 1 and is_native_bf16:
            return {"grad_accum_dtype": "bf16"}
        return {}
