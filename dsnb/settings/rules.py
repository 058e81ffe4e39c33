"""Rules for settings that exclude each other, each with the reason in one sentence.

Combinations that DeepSpeed or torch rejects only after minutes, or silently treats differently, are rejected here
(docs/TRAPS.md).
"""

from collections.abc import Callable, Mapping
from typing import Any

from dsnb.formulas.model_shapes import facts
from dsnb.settings.training import Training

Settings = Mapping[str, Any]
Rule = Callable[[Settings], str | None]
HALF = ("fp16", "bf16")
SHARED = ("tensor_parallel", "pipeline_parallel")
_FIELDS = Training.model_fields  # looked up once: pydantic's property takes longer than a rule


def _zero_is_deepspeeds(s: Settings) -> str | None:
    if s["strategy"] == "deepspeed" or s["zero_stage"] == 0:
        return None
    own = {"fsdp": "FSDP shards everything by itself", "ddp": "DDP shards nothing", "plain": "it is a single process"}
    return (
        f"zero_stage is {s['zero_stage']}, but strategy is '{s['strategy']}': {own[s['strategy']]}; "
        "leave zero_stage at 0, or use strategy 'deepspeed'"
    )


def only_deepspeed(name: str, what: str) -> Rule:
    """Return a rule against a setting that other strategies than DeepSpeed do not have."""

    def rule(s: Settings) -> str | None:
        if s["strategy"] == "deepspeed" or is_default(name, s):
            return None
        return f"{name} is {s[name]!r}, but strategy is '{s['strategy']}': {what}; use strategy 'deepspeed'"

    return rule


def is_default(name: str, s: Settings) -> bool:
    """Return whether a setting has its default value."""
    return bool(s[name] == _FIELDS[name].default)


def _offload(s: Settings) -> str | None:
    what, _, where = s["offload"].partition("-")
    if what == "none" or s["strategy"] != "deepspeed":
        return None
    if where == "nvme" and s["zero_stage"] != 3:
        return f"offload is '{s['offload']}': lower stages silently use the CPU instead; use zero_stage 3"
    if what == "all" and s["zero_stage"] != 3:
        return f"offload is '{s['offload']}': only ZeRO 3 can offload parameters; use 'optimizer-cpu' or zero_stage 3"
    if s["zero_stage"] == 0:
        return f"offload is '{s['offload']}': ZeRO 0 has nothing that it could offload; use zero_stage 1, 2 or 3"
    if where == "nvme" and not s["nvme_path"]:
        return f"offload is '{s['offload']}': nvme_path is empty; name a folder on the NVMe disk"
    return None


def _nvme_unused(s: Settings) -> str | None:
    if not s["nvme_path"] or s["offload"].endswith("nvme"):
        return None
    return f"nvme_path is set, but offload is '{s['offload']}': drop it, or offload to NVMe"


def _optimizer(s: Settings) -> str | None:
    if s["optimizer"] != "adafactor":
        return None
    if s["strategy"] == "deepspeed" and s["zero_stage"] > 0:
        why = "ZeRO passes it flat shards, which it cannot factor; use zero_stage 0 or strategy 'ddp'"
        return f"optimizer is 'adafactor', but zero_stage is {s['zero_stage']}: {why}"
    if s["tensor_parallel"] > 1:
        return "optimizer is 'adafactor', but tensor_parallel is set: its factors would be those of slices; use 'adamw'"
    if s["pipeline_parallel"] > 1 and s["precision"] == "bf16" and s["mixed_precision"] == "native":
        why = "in native bf16 a pipeline passes it flat shards, which it cannot factor; use mixed_precision 'autocast'"
        return f"optimizer is 'adafactor', but pipeline_parallel is set: {why}"
    if s["strategy"] == "fsdp":
        return "optimizer is 'adafactor', but strategy is 'fsdp': its factors would be those of shards; use 'ddp'"
    return None


def _compression(s: Settings) -> str | None:
    how = s["gradient_compression"]
    if how == "none":
        return None
    if s["strategy"] != "ddp":
        sender = {
            "deepspeed": "ZeRO sends gradients itself",
            "fsdp": "FSDP sends gradients itself",
            "plain": "a single process sends nothing",
        }[s["strategy"]]
        return f"gradient_compression is '{how}': it is DDP's, and {sender}; use 'ddp'"
    if s["gpus"] == 1:
        return f"gradient_compression is '{how}', but gpus is 1: nothing is sent; use at least 2"
    if how == "bf16" and s["device"] == "cpu":
        return "gradient_compression is 'bf16', but device is 'cpu': torch rounds gradients for NCCL only; use 'none'"
    return None


def _powersgd_rank_unused(s: Settings) -> str | None:
    if s["powersgd_rank"] == 1 or s["gradient_compression"] == "powersgd":
        return None
    how = s["gradient_compression"]
    return f"powersgd_rank is {s['powersgd_rank']}, but gradient_compression is '{how}': set it to 'powersgd'"


def _mixed_precision(s: Settings) -> str | None:
    if s["mixed_precision"] == "native":
        return None
    if s["precision"] not in HALF:
        return f"mixed_precision is 'autocast', but precision is '{s['precision']}': nothing is mixed; use 'native'"
    if s["strategy"] in {"ddp", "plain"}:
        return (
            f"mixed_precision is 'autocast', but strategy is '{s['strategy']}': it computes under autocast anyway; "
            "use 'native'"
        )
    return None


def _autocast_fp16(s: Settings) -> str | None:
    if s["precision"] != "fp16" or s["mixed_precision"] == "native":
        return None
    if s["pipeline_parallel"] > 1:
        return (
            "mixed_precision is 'autocast': in fp16 only a pipeline's last stage starts its loss scaler; use 'native'"
        )
    if s["tensor_parallel"] > 1 and s["zero_stage"] == 0:
        return "mixed_precision is 'autocast': in fp16 at ZeRO 0 each rank skips steps on its own; use zero_stage 1"
    return None


def _fsdp_fp16(s: Settings) -> str | None:
    if s["strategy"] != "fsdp" or s["precision"] != "fp16":
        return None
    return "precision is 'fp16', but strategy is 'fsdp': FSDP2 has no loss scaling of its own; use 'bf16'"


def _checkpointing_off(name: str) -> Rule:
    def rule(s: Settings) -> str | None:
        if s["activation_checkpointing"] or is_default(name, s):
            return None
        return f"{name} is {s[name]!r}, but activation_checkpointing is off: turn it on, or drop {name}"

    return rule


def _checkpoint_every(s: Settings) -> str | None:
    layers = facts(s["model"]).get("layers")
    if not layers or s["checkpoint_every"] <= layers:
        return None
    return f"checkpoint_every is {s['checkpoint_every']}: {s['model']} has {layers} blocks; use at most {layers}"


def _plain(s: Settings) -> str | None:
    if s["strategy"] != "plain" or s["gpus"] == 1:
        return None
    return f"gpus is {s['gpus']}, but strategy is 'plain': it is a single process; use gpus 1, or strategy 'ddp'"


def _auto_on_a_cpu(s: Settings) -> str | None:
    if s["micro_batch_size"] != "auto" or s["device"] != "cpu" or s["memory_limit_gib"]:
        return None
    return "micro_batch_size is 'auto', but device is 'cpu': set memory_limit_gib, or the whole machine fills up"


RULES: list[tuple[set[str], Rule]] = [
    ({"strategy", "zero_stage"}, _zero_is_deepspeeds),
    ({"strategy", "offload"}, only_deepspeed("offload", "offload is ZeRO's")),
    ({"strategy", "tensor_parallel"}, only_deepspeed("tensor_parallel", "tensor parallel is AutoTP's")),
    ({"strategy", "pipeline_parallel"}, only_deepspeed("pipeline_parallel", "pipelines are DeepSpeed's")),
    ({"strategy", "deepspeed"}, only_deepspeed("deepspeed", "these are keys of DeepSpeed's configuration")),
    ({"offload", "zero_stage", "nvme_path", "strategy"}, _offload),
    ({"offload", "nvme_path"}, _nvme_unused),
    ({"optimizer", "zero_stage", "strategy", "precision", "mixed_precision", *SHARED}, _optimizer),
    ({"gradient_compression", "strategy", "gpus", "device"}, _compression),
    ({"gradient_compression", "powersgd_rank"}, _powersgd_rank_unused),
    ({"mixed_precision", "precision", "strategy"}, _mixed_precision),
    ({"mixed_precision", "precision", *SHARED, "zero_stage"}, _autocast_fp16),
    ({"strategy", "precision"}, _fsdp_fp16),
    ({"activation_checkpointing", "checkpoint_every"}, _checkpointing_off("checkpoint_every")),
    ({"activation_checkpointing", "checkpoint_offload"}, _checkpointing_off("checkpoint_offload")),
    ({"model", "checkpoint_every"}, _checkpoint_every),
    ({"micro_batch_size", "device", "memory_limit_gib"}, _auto_on_a_cpu),
    ({"strategy", "gpus"}, _plain),
]
"""The settings that a rule is about, and the rule, which returns None or what is wrong."""
