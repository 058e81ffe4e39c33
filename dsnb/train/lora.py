"""LoRA through peft: adapters on every linear layer of the blocks, everything else frozen."""

from typing import Any

import torch

from dsnb.settings.experiment import Experiment


def add_adapters(experiment: Experiment, model: Any) -> Any:
    """Freeze a model in half precision and give it adapters that train.

    Adapters are in half precision as well where DeepSpeed keeps fp32 master copies of them, in fp32 elsewhere.
    The scaling is 1 (alpha = rank), as DeepSpeed-Chat, whose OPT-13B rows these are, multiplies by its `lora_scaling`.
    """
    from peft import LoraConfig, get_peft_model  # a second that only these runs need

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
