"""LoRA through peft: adapters on every linear layer of the blocks, everything else frozen."""

from typing import Any

import torch

from dsnb.settings.experiment import Experiment


def add_adapters(experiment: Experiment, model: Any) -> Any:
    """Freeze a model in half precision and add trainable adapters.

    Adapters are in half precision if DeepSpeed keeps fp32 master copies of them, else in fp32. The scaling is 1
    (alpha = rank), like `lora_scaling` in DeepSpeed-Chat, whose OPT-13B results this reproduces.
    """
    from peft import LoraConfig, get_peft_model  # takes a second to import, needed by these runs only

    torch.manual_seed(experiment.seed)
    masters = experiment.strategy == "deepspeed" and experiment.mixed_precision == "native"
    config = LoraConfig(
        r=experiment.lora_rank,
        lora_alpha=experiment.lora_rank,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config, autocast_adapter_dtype=not masters)
