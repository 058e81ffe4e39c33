"""Settings -> DeepSpeed's configuration. Whatever is set neither here nor by its own key keeps DeepSpeed's default."""

import os
from typing import Any

from dsnb.settings import deepspeed_keys
from dsnb.settings.experiment import Experiment
from dsnb.settings.training import ADAMW, accumulates_in_fp32, compiles_blocks

DTYPES = {"fp16": "float16", "bf16": "bfloat16"}
SPLIT_LAYERS: list[dict[str, Any]] = [
    # GPT-2's query, key and value are three stacked matrices; BLOOM's are interleaved by head.
    {"patterns": [r".*attn\.c_attn\.weight$"], "partition_type": "column", "shape": [3, -1], "partition_dim": 0},
    {
        "patterns": [
            r".*mlp\.c_fc\.weight$",
            r".*self_attn\.[qkv]_proj\.weight$",
            r".*fc1\.weight$",
            r".*self_attention\.query_key_value\.weight$",
            r".*mlp\.dense_h_to_4h\.weight$",
        ],
        "partition_type": "column",
    },
    {
        "patterns": [
            r".*(attn|mlp)\.c_proj\.weight$",
            r".*self_attn\.out_proj\.weight$",
            r".*fc2\.weight$",
            r".*self_attention\.dense\.weight$",
            r".*mlp\.dense_4h_to_h\.weight$",
        ],
        "partition_type": "row",
    },
]
"""How AutoTP splits the blocks of GPT-2 (with linear layers), OPT and BLOOM; every other layer is replicated."""


def deepspeed_config(experiment: Experiment) -> dict[str, Any]:
    """Return the content of `deepspeed.json`; empty for the strategies of torch."""
    if experiment.strategy != "deepspeed":
        return {}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": experiment.micro_batch_size,
        "gradient_accumulation_steps": experiment.grad_accum,
        **_optimizer(experiment),
        **_tensor_parallel(experiment),
        "zero_optimization": _zero(experiment),
        "gradient_clipping": experiment.gradient_clipping,
        # DeepSpeed's progress lines would read the clock, and on GPUs synchronize, inside the timed region.
        "steps_per_print": 2**31 - 1,
        "wall_clock_breakdown": False,
        "timers": {"throughput": {"enabled": False}},
    }
    if experiment.precision in DTYPES:
        if experiment.mixed_precision == "autocast":
            config["torch_autocast"] = {"enabled": True, "dtype": DTYPES[experiment.precision]}
        else:
            config[experiment.precision] = {"enabled": True}
    if experiment.gradient_checks == "off" and "bf16" in config:
        config["bf16"]["check_grad_overflow"] = False
    if accumulates_in_fp32(experiment.model_dump()):
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    if experiment.compile == "deepcompile":
        config["compile"] = {"deepcompile": True}
    return deepspeed_keys.merged(config, experiment.deepspeed)


def _optimizer(experiment: Experiment) -> dict[str, Any]:
    """Return the configuration of DeepSpeed's AdamW; Adafactor is torch's and built in the worker.

    On a CPU torch's AdamW replaces DeepSpeed's FusedAdam, which takes about a minute to compile and is no faster
    there.
    """
    if experiment.optimizer == "adafactor":
        return {"zero_allow_untested_optimizer": True}
    if experiment.optimizer == "muon":
        kind, params = "Muon", {"weight_decay": ADAMW["weight_decay"]}
    else:
        kind, params = "AdamW", {**ADAMW, "betas": list(ADAMW["betas"])}
    if experiment.device == "cpu":
        params["torch_adam"] = True
    return {"optimizer": {"type": kind, "params": {"lr": experiment.learning_rate, **params}}}


def _zero(experiment: Experiment) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": experiment.zero_stage, **_offload(experiment)}
    if experiment.overlap_comm != "auto":
        zero["overlap_comm"] = experiment.overlap_comm == "on"
    if experiment.bucket_elements:
        zero |= dict.fromkeys(("reduce_bucket_size", "allgather_bucket_size"), experiment.bucket_elements)
    if experiment.gradient_checks == "off":
        zero["compute_grad_norm"] = False
    if experiment.zero_stage == 3 and compiles_blocks(experiment.model_dump()):
        zero["memory_efficient_linear"] = False  # it is an autograd function of DeepSpeed's, opaque to the compiler
    if experiment.zeropp in {"weights", "all"}:
        zero["zero_quantized_weights"] = True
    if experiment.zeropp in {"gradients", "all"}:
        zero["zero_quantized_gradients"] = True
    if experiment.zeropp in {"partition", "all"}:
        zero["zero_hpz_partition_size"] = max(1, experiment.gpus // experiment.nodes)
    return zero


def _offload(experiment: Experiment) -> dict[str, Any]:
    what, _, device = experiment.offload.partition("-")
    if what == "none":
        return {}
    place: dict[str, Any] = {"device": device, "pin_memory": experiment.device == "cuda"}
    if device == "nvme":
        place["nvme_path"] = os.path.expanduser(experiment.nvme_path)
    return {"offload_optimizer": place, **({"offload_param": place} if what == "all" else {})}


def _tensor_parallel(experiment: Experiment) -> dict[str, Any]:
    """Return AutoTP's rules; its size stays 0 in a pipeline, whose stages are split in the worker."""
    if experiment.tensor_parallel == 1:
        return {}
    return {
        "tensor_parallel": {
            "autotp_size": experiment.tensor_parallel if experiment.pipeline_parallel == 1 else 0,
            "partition_config": {"use_default_specs": False, "layer_specs": SPLIT_LAYERS},
        }
    }
