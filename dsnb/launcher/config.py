"""Settings -> DeepSpeed's configuration. Whatever is not set here keeps DeepSpeed's default."""

import os
from typing import Any

from dsnb.settings.experiment import Experiment
from dsnb.settings.training import ADAMW

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
        "zero_optimization": {"stage": experiment.zero_stage, **_offload(experiment)},
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
    return config


def _optimizer(experiment: Experiment) -> dict[str, Any]:
    """Return the configuration of DeepSpeed's AdamW; Adafactor is torch's and built in the worker.

    On a CPU torch's AdamW replaces DeepSpeed's FusedAdam, which takes about a minute to compile and is no faster
    there.
    """
    if experiment.optimizer == "adafactor":
        return {"zero_allow_untested_optimizer": True}
    params = {"lr": experiment.learning_rate, **ADAMW, "betas": list(ADAMW["betas"])}
    if experiment.device == "cpu":
        params["torch_adam"] = True
    return {"optimizer": {"type": "AdamW", "params": params}}


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
