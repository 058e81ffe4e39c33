"""Rules for tensor and pipeline parallelism: how they divide ranks and model, and what they exclude."""

from dsnb.formulas.model_shapes import SPLIT, facts, not_split
from dsnb.settings.rules import HALF, SHARED, Rule, Settings, is_default


def _ranks(s: Settings) -> str | None:
    model_ranks = s["tensor_parallel"] * s["pipeline_parallel"]
    if not isinstance(s["gpus"], int) or s["gpus"] % model_ranks == 0:
        return None
    return (
        f"gpus is {s['gpus']}: it must be a multiple of tensor_parallel x pipeline_parallel "
        f"({s['tensor_parallel']} x {s['pipeline_parallel']})"
    )


def _heads(s: Settings) -> str | None:
    heads = facts(s["model"]).get("heads")
    if not heads or heads % s["tensor_parallel"] == 0:
        return None
    return f"tensor_parallel is {s['tensor_parallel']}: {s['model']} has {heads} heads, which it must divide"


def _layers(s: Settings) -> str | None:
    layers = facts(s["model"]).get("layers")
    if not layers or layers % s["pipeline_parallel"] == 0:
        return None
    return f"pipeline_parallel is {s['pipeline_parallel']}: {s['model']} has {layers} layers, which it must divide"


def _family(s: Settings) -> str | None:
    family = facts(s["model"]).get("family")
    shared = next((name for name in SHARED if s[name] > 1), None)
    if not shared or not family or family in SPLIT:
        return None
    return not_split(shared, s[shared], family)


def _tensor_parallel_zero_3(s: Settings) -> str | None:
    if s["tensor_parallel"] == 1 or s["zero_stage"] < 3:
        return None
    return "zero_stage is 3, but tensor_parallel is set: AutoTP needs whole layers to split; use ZeRO 0 to 2"


def _pipeline_zero(s: Settings) -> str | None:
    if s["pipeline_parallel"] == 1 or s["zero_stage"] < 2:
        return None
    return (
        f"zero_stage is {s['zero_stage']}, but pipeline_parallel is set: DeepSpeed's pipeline engine keeps gradients "
        "whole until its last micro-batch; use ZeRO 0 or 1"
    )


def _clipping(s: Settings) -> str | None:
    if not s["gradient_clipping"] or s["zero_stage"] != 0:
        return None
    if s["pipeline_parallel"] > 1 and (s["precision"] != "bf16" or s["mixed_precision"] == "autocast"):
        return (
            "gradient_clipping is set: at ZeRO 0 a pipeline clips by the norm of all its stages in native bf16 alone; "
            "use zero_stage 1"
        )
    if s["tensor_parallel"] > 1 and s["precision"] in HALF and s["mixed_precision"] == "native":
        return (
            "gradient_clipping is set: at ZeRO 0 in half precision DeepSpeed counts tensor-parallel gradients "
            "wrongly; use zero_stage 1"
        )
    return None


def _one_of(first: str, second: str, why: str) -> Rule:
    """Return a rule against two settings that both differ from their defaults."""

    def rule(s: Settings) -> str | None:
        if is_default(first, s) or is_default(second, s):
            return None
        return f"{first} is {s[first]!r}, but {second} is {s[second]!r}: {why}"

    return rule


RULES: list[tuple[set[str], Rule]] = [
    ({"gpus", "tensor_parallel", "pipeline_parallel"}, _ranks),
    ({"model", "tensor_parallel"}, _heads),
    ({"model", "pipeline_parallel"}, _layers),
    ({"model", "tensor_parallel", "pipeline_parallel"}, _family),
    ({"zero_stage", "tensor_parallel"}, _tensor_parallel_zero_3),
    ({"zero_stage", "pipeline_parallel"}, _pipeline_zero),
    ({"gradient_clipping", "zero_stage", "precision", "mixed_precision", *SHARED}, _clipping),
    ({"lora_rank", "pipeline_parallel"}, _one_of("lora_rank", "pipeline_parallel", "adapters cannot be pipelined")),
    ({"lora_rank", "tensor_parallel"}, _one_of("lora_rank", "tensor_parallel", "AutoTP cannot split adapters")),
    ({"offload", "pipeline_parallel"}, _one_of("offload", "pipeline_parallel", "stages keep their states on the GPU")),
    ({"compile", "pipeline_parallel"}, _one_of("compile", "pipeline_parallel", "the pipeline engine cannot compile")),
]
