"""The name of an experiment: what it trains with, in an order that makes names of one sweep line up."""

from typing import Any

from dsnb.formulas import model_shapes
from dsnb.settings import deepspeed_keys

COMPILE = {"off": "", "default": "compile"}


def name(settings: Any, usual_learning_rate: float) -> str:
    """Return the name without the model, such as `zs2_bf16_gpus8_bs32_sl128`; further parts only for what is unusual.

    Parameters
    ----------
    settings
        An `Experiment`.
    usual_learning_rate
        The default, which is in no name.
    """
    return "_".join(filter(None, _parts(settings, usual_learning_rate)))


def _parts(s: Any, usual_learning_rate: float) -> list[str]:
    sharing = f"zs{s.zero_stage}" if s.strategy == "deepspeed" else s.strategy
    checkpointing = [f"ac{s.checkpoint_every}" if s.checkpoint_every > 1 else "ac"]
    checkpointing += ["cpu"] if s.checkpoint_offload else []
    return [
        f"{sharing}_{s.precision}_gpus{s.gpus}_bs{s.micro_batch_size}_sl{s.seq_len}",
        f"ga{s.grad_accum}" if s.grad_accum > 1 else "",
        "-".join(checkpointing) if s.activation_checkpointing else "",
        f"tp{s.tensor_parallel}" if s.tensor_parallel > 1 else "",
        f"pp{s.pipeline_parallel}" if s.pipeline_parallel > 1 else "",
        f"offload-{s.offload}" if s.offload != "none" else "",
        s.mixed_precision if s.mixed_precision != "native" else "",
        s.attention if s.attention != "auto" else "",
        COMPILE.get(s.compile, f"compile-{s.compile}"),
        f"unit-{s.compile_unit}" if s.compile_unit != "auto" else "",
        "chunked-loss" if s.loss == "chunked" else "",
        f"lora{s.lora_rank}" if s.lora_rank else "",
        s.optimizer if s.optimizer != "adamw" else "",
        f"powersgd{s.powersgd_rank}" if s.gradient_compression == "powersgd" else "",
        "send-bf16" if s.gradient_compression == "bf16" else "",
        f"limit{s.memory_limit_gib:g}gib" if s.memory_limit_gib else "",
        f"alloc-{s.allocator}" if s.allocator != "expandable" else "",
        "pretrained" if s.weights == "pretrained" else "",
        f"dropout{s.dropout:g}" if s.dropout else "",
        model_shapes.slug(s.data) if s.data != "synthetic" else "",
        f"tok-{model_shapes.slug(s.tokenizer)}" if s.tokenizer != "bytes" else "",
        f"nodes{s.nodes}" if s.nodes > 1 else "",
        f"lr{s.learning_rate:g}" if s.learning_rate != usual_learning_rate else "",
        f"clip{s.gradient_clipping:g}" if s.gradient_clipping else "",
        f"seed{s.seed}" if s.seed else "",
        f"accum-{s.grad_accum_dtype}" if s.grad_accum_dtype != "auto" else "",
        f"overlap-{s.overlap_comm}" if s.overlap_comm != "auto" else "",
        f"bucket{s.bucket_elements}" if s.bucket_elements else "",
        f"checks-{s.gradient_checks}" if s.gradient_checks != "on" else "",
        f"leaf-{s.leaf_modules}" if s.leaf_modules != "auto" else "",
        f"zeropp-{s.zeropp}" if s.zeropp != "none" else "",
        deepspeed_keys.name_part(s.deepspeed),
        "deepspeed-launcher" if s.launcher == "deepspeed" else "",
    ]
