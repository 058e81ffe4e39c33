"""The name of an experiment: what it trains with, in an order that makes names of one sweep line up."""

from collections.abc import Mapping
from typing import Any

from dsnb.settings.setting import Setting, text

FIRST = (
    "grad_accum", "activation_checkpointing", "tensor_parallel", "pipeline_parallel", "offload", "mixed_precision",
    "attention", "compile", "compile_unit", "loss", "lora_rank", "optimizer", "gradient_compression",
    "memory_limit_gib", "weights", "dropout", "data", "tokenizer", "nodes", "learning_rate", "gradient_clipping",
    "seed",
)  # fmt: skip
"""Order of the parts that names have had longest; the others follow as they are declared."""


def name(experiment: Any, settings: Mapping[str, Setting], defaults: Mapping[str, Any]) -> str:
    """Return the name without the model, such as `zs2_bf16_gpus8_bs32_sl128`; further parts only for what is unusual.

    Parameters
    ----------
    experiment
        An `Experiment`.
    settings, defaults
        What is declared about each setting, and its default.
    """
    s = experiment
    sharing = f"zs{s.zero_stage}" if s.strategy == "deepspeed" else s.strategy
    parts = [f"{sharing}_{s.precision}_gpus{s.gpus}_bs{s.micro_batch_size}_sl{s.seq_len}"]
    for key in dict.fromkeys((*FIRST, *settings)):
        short, value = settings[key].short, getattr(s, key)
        if short and value != defaults[key]:
            parts.append(short(s) if callable(short) else short.replace("{}", text(value)))
    return "_".join(parts)
