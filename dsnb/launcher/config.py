"""Settings -> the configuration handed to DeepSpeed. What is not named here is DeepSpeed's default."""

from typing import Any

from dsnb.experiment import Experiment


def deepspeed_config(experiment: Experiment) -> dict[str, Any]:
    """Give the content of `deepspeed.json`.

    On a CPU torch's AdamW takes the place of DeepSpeed's FusedAdam, which would be compiled for about a minute
    and is no faster there.
    """
    adamw: dict[str, Any] = {
        "lr": experiment.learning_rate,
        "betas": [0.9, 0.999],
        "eps": 1e-8,
        "weight_decay": 0.01,
    }
    if experiment.device == "cpu":
        adamw["torch_adam"] = True
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": experiment.micro_batch_size,
        "gradient_accumulation_steps": experiment.grad_accum,
        "train_batch_size": experiment.global_batch_size,
        "optimizer": {"type": "AdamW", "params": adamw},
        "zero_optimization": {"stage": experiment.zero_stage},
        "gradient_clipping": experiment.gradient_clipping,
        # DeepSpeed's own progress lines would read the clock, and on GPUs synchronize, inside the timed region.
        "steps_per_print": 2**31 - 1,
        "wall_clock_breakdown": False,
    }
    if experiment.precision in {"fp16", "bf16"}:
        config[experiment.precision] = {"enabled": True}
    return config
