"""Rules for settings that exclude each other, each with the reason in one sentence.

Combinations that DeepSpeed or torch rejects only after minutes, or silently treats differently, are rejected here
(docs/TRAPS.md). A rule returns None or what is wrong: a sentence that names a setting and its value, and says what is
allowed and what to do.
"""

from collections.abc import Callable

from dsnb.formulas.model_shapes import facts
from dsnb.settings.derived import CUDA_GRAPHS, Settings, accumulates_in_fp32, compiles_blocks
from dsnb.settings.training import Training

Rule = Callable[[Settings], str | None]
HALF = ("fp16", "bf16")
SHARED = ("tensor_parallel", "pipeline_parallel")
CHUNKABLE = ("gpt2", "opt", "bloom")
"""Families whose logits are one matrix product of the last hidden state."""
FIRST_BUCKET = 2**18
"""Gradients in torch's first bucket of DDP (1 MiB); a compiled model is not split into smaller parts."""
_DEFAULTS = {name: field.default for name, field in Training.model_fields.items()}


def only_deepspeed(name: str, what: str) -> Rule:
    """Return a rule against a setting that other strategies than DeepSpeed do not have."""

    def rule(s: Settings) -> str | None:
        if s["strategy"] == "deepspeed" or is_default(name, s):
            return None
        return f"{name} is {s[name]!r}, but strategy is '{s['strategy']}': {what}; use strategy 'deepspeed'"

    return rule


def excludes(first: str, second: str, why: str) -> Rule:
    """Return a rule against two settings that both differ from their defaults."""

    def rule(s: Settings) -> str | None:
        if is_default(first, s) or is_default(second, s):
            return None
        return f"{first} is {s[first]!r}, but {second} is {s[second]!r}: {why}"

    return rule


def only_zero(name: str, stages: tuple[int, ...], why: str) -> Rule:
    """Return a rule against a setting at ZeRO stages that it does not apply to."""

    def rule(s: Settings) -> str | None:
        if is_default(name, s) or s["zero_stage"] in stages or s["strategy"] != "deepspeed":
            return None
        allowed = " or ".join(map(str, stages))
        return f"{name} is {s[name]!r}, but zero_stage is {s['zero_stage']}: {why}; use zero_stage {allowed}"

    return rule


def needs_checkpointing(name: str) -> Rule:
    """Return a rule against a setting of activation checkpointing where that is off."""

    def rule(s: Settings) -> str | None:
        if s["activation_checkpointing"] or is_default(name, s):
            return None
        return f"{name} is {s[name]!r}, but activation_checkpointing is off: turn it on, or drop {name}"

    return rule


def is_default(name: str, s: Settings) -> bool:
    """Return whether a setting has its default value."""
    return bool(s[name] == _DEFAULTS[name])


def _zero_is_deepspeeds(s: Settings) -> str | None:
    if s["strategy"] == "deepspeed" or s["zero_stage"] == 0:
        return None
    own = {"fsdp": "FSDP shards everything by itself", "ddp": "DDP shards nothing", "plain": "it is a single process"}
    return (
        f"zero_stage is {s['zero_stage']}, but strategy is '{s['strategy']}': {own[s['strategy']]}; "
        "leave zero_stage at 0, or use strategy 'deepspeed'"
    )


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
    return None


def _nvme_path(s: Settings) -> str | None:
    is_used = s["offload"].endswith("nvme")
    if s["nvme_path"] and not is_used:
        return f"nvme_path is set, but offload is '{s['offload']}': drop it, or offload to NVMe"
    if is_used and s["zero_stage"] == 3 and s["strategy"] == "deepspeed" and not s["nvme_path"]:
        return f"offload is '{s['offload']}': nvme_path is empty; name a folder on the NVMe disk"
    return None


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


def _muon(s: Settings) -> str | None:
    if s["optimizer"] != "muon":
        return None
    if s["strategy"] != "deepspeed" or s["zero_stage"] == 0:
        return "optimizer is 'muon': it is ZeRO's, which sees whole matrices; use zero_stage 1, 2 or 3"
    if s["pipeline_parallel"] > 1 or s["tensor_parallel"] > 1:
        return "optimizer is 'muon', but the model is split: it needs whole matrices; use data parallelism alone"
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


def _plain(s: Settings) -> str | None:
    if s["strategy"] != "plain" or s["gpus"] == 1:
        return None
    return f"gpus is {s['gpus']}, but strategy is 'plain': it is a single process; use gpus 1, or strategy 'ddp'"


def _buckets(s: Settings) -> str | None:
    if not s["bucket_elements"] or s["strategy"] == "deepspeed":
        return None
    if s["strategy"] == "ddp":
        fits = s["compile"] == "off" or s["bucket_elements"] >= FIRST_BUCKET
        return (
            None if fits else f"bucket_elements is {s['bucket_elements']}: compiled DDP needs at least {FIRST_BUCKET}"
        )
    return (
        f"bucket_elements is {s['bucket_elements']}, but strategy is '{s['strategy']}', which has no buckets; "
        "use strategy 'deepspeed' or 'ddp'"
    )


def _grad_accum_dtype(s: Settings) -> str | None:
    dtype = s["grad_accum_dtype"]
    if dtype == "auto":
        return None
    if s["precision"] not in HALF or s["mixed_precision"] != "native":
        return f"grad_accum_dtype is '{dtype}': gradients are in fp32 anyway unless half precision is native; drop it"
    if dtype not in {"fp32", s["precision"]}:
        return f"grad_accum_dtype is '{dtype}', but precision is '{s['precision']}': use 'fp32' or '{s['precision']}'"
    if dtype == "fp32" and s["zero_stage"] == 0:
        return "grad_accum_dtype is 'fp32', but zero_stage is 0: DeepSpeed accumulates in the weights' format there"
    return None


def _gradient_checks(s: Settings) -> str | None:
    if s["gradient_checks"] == "on":
        return None
    why = ""
    if s["gradient_clipping"]:
        why = "gradient_clipping is set: clipping needs the norm; set it to 0"
    elif s["offload"] != "none":
        why = "offload is set: DeepSpeed needs the norm there; leave the checks on"
    elif s["precision"] == "fp16":
        why = "precision is 'fp16': its loss scaler needs them; use 'bf16'"
    elif s["zero_stage"] == 1 and accumulates_in_fp32(s):
        why = "ZeRO 1 accumulates in fp32, which computes the norm; use ZeRO 2"
    return f"gradient_checks is 'off', but {why}" if why else None


def _zeropp(s: Settings) -> str | None:
    if s["zeropp"] in {"weights", "all"} and s["mixed_precision"] == "autocast":
        return f"zeropp is '{s['zeropp']}', but mixed_precision is 'autocast': DeepSpeed cannot do both; use 'native'"
    if s["zeropp"] in {"gradients", "all"} and s["nodes"] == 1:
        return f"zeropp is '{s['zeropp']}', but nodes is 1: gradients are quantized between nodes only; use 'weights'"
    if s["zeropp"] == "none" or s["device"] != "cpu" or s["zeropp"] == "partition":
        return None
    return f"zeropp is '{s['zeropp']}', but device is 'cpu': DeepSpeed quantizes on GPUs only; use 'partition'"


def _cuda_graphs(s: Settings) -> str | None:
    """Refuse CUDA graphs where memory that a graph owns would be used after its next replay, or at another address."""
    if s["compile"] not in CUDA_GRAPHS:
        return None
    mode = f"compile is '{s['compile']}', which uses CUDA graphs"
    if s["grad_accum"] > 1:
        return (
            f"{mode}, but grad_accum is {s['grad_accum']}: a graph owns its gradients and overwrites those of the "
            "micro-batch before; use compile 'default'"
        )
    if s["strategy"] == "fsdp" or s["zero_stage"] == 3:
        who = "FSDP" if s["strategy"] == "fsdp" else "ZeRO 3"
        return f"{mode}: {who} gathers weights at changing addresses, which a graph cannot; use compile 'default'"
    if s["tensor_parallel"] > 1:
        return f"{mode}, but tensor_parallel is set: its collectives cannot be in a graph; use compile 'default'"
    if s["checkpoint_offload"]:
        return f"{mode}, but checkpoint_offload is on: copies to host memory cannot be in a graph; use 'default'"
    return None


def _deepcompile(s: Settings) -> str | None:
    if s["compile"] != "deepcompile":
        return None
    if s["strategy"] != "deepspeed" or s["zero_stage"] not in {1, 3}:
        return "compile is 'deepcompile': it compiles the communication of ZeRO 1 and 3; use zero_stage 1 or 3"
    if s["device"] == "cpu":
        return "compile is 'deepcompile', but device is 'cpu': its kernels need a GPU; use 'default'"
    return None


def _unit(s: Settings) -> str | None:
    unit = s["compile_unit"]
    if unit == "auto":
        return None
    why = ""
    if s["compile"] == "off":
        why = "compile is 'off': nothing is compiled; set it to 'default'"
    elif unit == "block" and s["compile"] == "deepcompile":
        why = "compile is 'deepcompile', which orders communication over the whole model; use 'default'"
    elif unit == "block" and s["compile"] in CUDA_GRAPHS:
        why = f"compile is '{s['compile']}': a CUDA graph is of a whole step; use 'default'"
    elif unit == "model" and s["strategy"] == "fsdp":
        why = "strategy is 'fsdp': its hooks gather weights block by block; use 'block'"
    return f"compile_unit is '{unit}', but {why}" if why else None


def _leaf_modules(s: Settings) -> str | None:
    if s["leaf_modules"] != "none" or s["zero_stage"] != 3 or not compiles_blocks(s):
        return None
    return (
        "leaf_modules is 'none', but blocks are compiled one by one: gathering single layers would break their graphs; "
        "use 'blocks'"
    )


def _loss_chunks(s: Settings) -> str | None:
    if s["loss"] == "whole":
        return None
    if s["pipeline_parallel"] > 1:
        return "loss is 'chunked', but pipeline_parallel is set: the last stage computes the loss whole; use 'whole'"
    whole = s["compile"] != "off" and s["strategy"] == "deepspeed" and not compiles_blocks(s)
    if whole and (s["compile"] == "deepcompile" or s["zero_stage"] == 3):
        return (
            "loss is 'chunked', but the engine compiles the whole model, and a chunked loss computes its gradients "
            "outside of that graph; use 'whole'"
        )
    family = facts(s["model"]).get("family")
    if family and family not in CHUNKABLE:
        return f"loss is 'chunked': it is tested for {', '.join(CHUNKABLE)} models, not for {family}; use 'whole'"
    return None


def _ranks(s: Settings) -> str | None:
    model_ranks = s["tensor_parallel"] * s["pipeline_parallel"]
    if not isinstance(s["gpus"], int) or s["gpus"] % model_ranks == 0:
        return None
    return (
        f"gpus is {s['gpus']}: it must be a multiple of tensor_parallel x pipeline_parallel "
        f"({s['tensor_parallel']} x {s['pipeline_parallel']})"
    )


def _split_zero(s: Settings) -> str | None:
    if s["tensor_parallel"] > 1 and s["zero_stage"] == 3:
        return "zero_stage is 3, but tensor_parallel is set: AutoTP needs whole layers to split; use ZeRO 0 to 2"
    if s["pipeline_parallel"] > 1 and s["zero_stage"] >= 2:
        return (
            f"zero_stage is {s['zero_stage']}, but pipeline_parallel is set: DeepSpeed's pipeline engine keeps "
            "gradients whole until its last micro-batch; use ZeRO 0 or 1"
        )
    return None


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


RULES: list[Rule] = [
    _zero_is_deepspeeds,
    only_deepspeed("offload", "offload is ZeRO's"),
    only_deepspeed("tensor_parallel", "tensor parallel is AutoTP's"),
    only_deepspeed("pipeline_parallel", "pipelines are DeepSpeed's"),
    only_deepspeed("deepspeed", "these are keys of DeepSpeed's configuration"),
    _offload,
    _nvme_path,
    _optimizer,
    _compression,
    _powersgd_rank_unused,
    _mixed_precision,
    _autocast_fp16,
    _fsdp_fp16,
    needs_checkpointing("checkpoint_every"),
    needs_checkpointing("checkpoint_offload"),
    _plain,
    _ranks,
    _split_zero,
    _clipping,
    excludes("lora_rank", "pipeline_parallel", "adapters cannot be pipelined"),
    excludes("lora_rank", "tensor_parallel", "AutoTP cannot split adapters"),
    excludes("offload", "pipeline_parallel", "stages keep their states on the GPU"),
    excludes("compile", "pipeline_parallel", "the pipeline engine cannot compile"),
    only_deepspeed("grad_accum_dtype", "torch accumulates in the weights' format"),
    _grad_accum_dtype,
    only_deepspeed("overlap_comm", "it is ZeRO's"),
    only_zero("overlap_comm", (1, 2, 3), "there are no buckets"),
    _buckets,
    only_deepspeed("gradient_checks", "the checks are ZeRO's"),
    only_zero("bucket_elements", (1, 2, 3), "there are no buckets"),
    only_zero("gradient_checks", (1, 2), "they cannot be left out"),
    _gradient_checks,
    only_deepspeed("leaf_modules", "they are ZeRO 3's"),
    only_zero("leaf_modules", (3,), "nothing is gathered"),
    only_deepspeed("zeropp", "it is DeepSpeed's"),
    only_zero("zeropp", (3,), "ZeRO++ extends ZeRO 3"),
    _zeropp,
    _muon,
    _cuda_graphs,
    _deepcompile,
    _unit,
    _leaf_modules,
    _loss_chunks,
]
