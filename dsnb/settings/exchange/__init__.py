"""The same training in the words of other programs: DeepSpeed, Trainer, accelerate, axolotl, LLaMA-Factory.

`keys.toml` says which setting each of their keys carries, `table` reads it, `facts` has what
follows from several settings at once, and `programs` has the functions to call.
"""

from dsnb.settings.exchange.programs import (
    accelerate_config,
    deepspeed_accelerate,
    deepspeed_auto,
    deepspeed_config,
    deepspeed_plain,
    flags,
    lora_arguments,
    model_arguments,
    training_arguments,
)

__all__ = [
    "accelerate_config",
    "deepspeed_accelerate",
    "deepspeed_auto",
    "deepspeed_config",
    "deepspeed_plain",
    "flags",
    "lora_arguments",
    "model_arguments",
    "training_arguments",
]
