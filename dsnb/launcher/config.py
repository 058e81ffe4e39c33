"""Settings -> the configuration handed to DeepSpeed. What is not named here is DeepSpeed's default."""

from typing import Any

from dsnb.experiment import ADAMW, Experiment

DTYPES = {"fp16": "float16", "bf16": "bfloat16"}


def deepspeed_config(experiment: Experiment) -> dict[str, Any]:
    """Give the content of `deepspeed.json`; empty for a strategy that is not DeepSpeed's."""
    if experiment.strategy != "deepspeed":
        return {}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": experiment.micro_batch_size,
        "gradient_accumulation_steps": experiment.grad_accum,
        "train_batch_size": "auto" if experiment.micro_batch_size == "auto" else experiment.global_batch_size,
        **_optimizer(experiment),
        "zero_optimization": {"stage": experiment.zero_stage, **_offload(experiment)},
        "gradient_clipping": experiment.gradient_clipping,
        # DeepSpeed's own progress lines would read the clock, and on GPUs synchronize, inside the timed region.
        "steps_per_print": 2**31 - 1,
        "wall_clock_breakdown": False,
    }
    if experiment.precision in DTYPES:
        if experiment.mixed_precision == "autocast":
            config["torch_autocast"] = {"enabled": True, "dtype": DTYPES[experiment.precision]}
        else:
            config[experiment.precision] = {"enabled": True}
    return config


def _optimizer(experiment: Experiment) -> dict[str, Any]:
    """Name DeepSpeed's AdamW; Adafactor is torch's and made in the worker.

    On a CPU torch's AdamW takes the place of DeepSpeed's FusedAdam, which would be compiled for about a minute
    and is no faster there.
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
        place["nvme_path"] = experiment.nvme_path
    return {"offload_optimizer": place, **({"offload_param": place} if what == "all" else {})}
