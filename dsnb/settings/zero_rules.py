"""Rules for the settings that tune ZeRO: buckets, overlap, number formats, checks, ZeRO++, Muon."""

from dsnb.settings.rules import HALF, SHARED, Rule, Settings, is_default, only_deepspeed

FIRST_BUCKET = 2**18
"""Gradients in torch's first bucket of DDP (1 MiB); a compiled model is not split into smaller parts."""


def _only_zero(name: str, stages: tuple[int, ...], why: str) -> Rule:
    """Return a rule against a setting at ZeRO stages that it does not apply to."""

    def rule(s: Settings) -> str | None:
        if is_default(name, s) or s["zero_stage"] in stages or s["strategy"] != "deepspeed":
            return None
        allowed = " or ".join(map(str, stages))
        return f"{name} is {s[name]!r}, but zero_stage is {s['zero_stage']}: {why}; use zero_stage {allowed}"

    return rule


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
    reasons = {
        "gradient_clipping is set: clipping needs the norm; set it to 0": bool(s["gradient_clipping"]),
        "offload is set: DeepSpeed needs the norm there; leave the checks on": s["offload"] != "none",
        "precision is 'fp16': its loss scaler needs them; use 'bf16'": s["precision"] == "fp16",
        "ZeRO 1 accumulates in fp32, which computes the norm; use ZeRO 2": s["zero_stage"] == 1
        and accumulates_in_fp32(s),
    }
    why = next((why for why, holds in reasons.items() if holds), None)
    return why and f"gradient_checks is 'off', but {why}"


def accumulates_in_fp32(s: Settings) -> bool:
    """Return whether ZeRO accumulates the gradients of native bf16 in fp32: asked for, or where it matters."""
    native_bf16 = s["precision"] == "bf16" and s["mixed_precision"] == "native" and s["strategy"] == "deepspeed"
    if s["grad_accum_dtype"] != "auto" or not native_bf16:
        return bool(s["grad_accum_dtype"] == "fp32")
    return bool(s["grad_accum"] > 1 and s["zero_stage"] > 0 and s["pipeline_parallel"] == 1)


def _zeropp(s: Settings) -> str | None:
    if s["zeropp"] in {"weights", "all"} and s["mixed_precision"] == "autocast":
        return f"zeropp is '{s['zeropp']}', but mixed_precision is 'autocast': DeepSpeed cannot do both; use 'native'"
    if s["zeropp"] in {"gradients", "all"} and s["nodes"] == 1:
        return f"zeropp is '{s['zeropp']}', but nodes is 1: gradients are quantized between nodes only; use 'weights'"
    if s["zeropp"] == "none" or s["device"] != "cpu" or s["zeropp"] == "partition":
        return None
    return f"zeropp is '{s['zeropp']}', but device is 'cpu': DeepSpeed quantizes on GPUs only; use 'partition'"


def _muon(s: Settings) -> str | None:
    if s["optimizer"] != "muon":
        return None
    if s["strategy"] != "deepspeed" or s["zero_stage"] == 0:
        return "optimizer is 'muon': it is ZeRO's, which sees whole matrices; use zero_stage 1, 2 or 3"
    if s["pipeline_parallel"] > 1 or s["tensor_parallel"] > 1:
        return "optimizer is 'muon', but the model is split: it needs whole matrices; use data parallelism alone"
    return None


RULES: list[tuple[set[str], Rule]] = [
    ({"strategy", "grad_accum_dtype"}, only_deepspeed("grad_accum_dtype", "torch accumulates in the weights' format")),
    ({"grad_accum_dtype", "precision", "mixed_precision", "zero_stage"}, _grad_accum_dtype),
    ({"strategy", "overlap_comm"}, only_deepspeed("overlap_comm", "it is ZeRO's")),
    ({"overlap_comm", "zero_stage", "strategy"}, _only_zero("overlap_comm", (1, 2, 3), "there are no buckets")),
    ({"strategy", "bucket_elements", "compile"}, _buckets),
    ({"bucket_elements", "zero_stage", "strategy"}, _only_zero("bucket_elements", (1, 2, 3), "there are no buckets")),
    ({"strategy", "gradient_checks"}, only_deepspeed("gradient_checks", "the checks are ZeRO's")),
    ({"gradient_checks", "zero_stage", "strategy"}, _only_zero("gradient_checks", (1, 2), "they cannot be left out")),
    (
        {"gradient_checks", "gradient_clipping", "offload", "precision", "grad_accum_dtype", "grad_accum"},
        _gradient_checks,
    ),
    ({"strategy", "leaf_modules"}, only_deepspeed("leaf_modules", "they are ZeRO 3's")),
    ({"leaf_modules", "zero_stage", "strategy"}, _only_zero("leaf_modules", (3,), "nothing is gathered")),
    ({"strategy", "zeropp"}, only_deepspeed("zeropp", "it is DeepSpeed's")),
    ({"zeropp", "zero_stage", "strategy"}, _only_zero("zeropp", (3,), "ZeRO++ extends ZeRO 3")),
    ({"zeropp", "device", "mixed_precision", "nodes"}, _zeropp),
    ({"optimizer", "strategy", "zero_stage", *SHARED}, _muon),
]
