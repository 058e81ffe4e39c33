"""Builds the DeepSpeed engine, and makes sure that it is the one that was asked for."""

from typing import Any

import deepspeed
import torch
from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer

from dsnb.experiment import Experiment


def make_engine(experiment: Experiment, model: torch.nn.Module, ds_config: dict[str, Any]) -> Any:
    """Give the engine around `model`.

    Raises
    ------
    RuntimeError
        If DeepSpeed built something else than the settings name.
    """
    engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=ds_config)
    undo_first_step(engine.optimizer)
    asked = (experiment.zero_stage, experiment.grad_accum, experiment.micro_batch_size, experiment.gpus)
    built = (
        engine.zero_optimization_stage(),
        engine.gradient_accumulation_steps(),
        engine.train_micro_batch_size_per_gpu(),
        engine.dp_world_size,
    )
    if asked != built:
        names = "(ZeRO stage, accumulation, micro-batch, data-parallel ranks)"
        raise RuntimeError(f"DeepSpeed built {built} where {asked} was asked for {names}")
    return engine


@torch.no_grad()
def undo_first_step(optimizer: Any) -> None:
    """Take back the step that DeepSpeed's ZeRO-0 optimizers for fp16 and bf16 make while they are built.

    FP16_Optimizer and FP16_UnfusedOptimizer (DeepSpeed 0.19.8) step once with zero gradients to allocate their
    states. Adam then counts the first real step as its second, whose bias correction is another, so ZeRO 0 and ZeRO 1
    part after one step; and weight decay has already shrunk the master weights. Both are put back.
    """
    if isinstance(optimizer, FP16_Optimizer):
        pairs = list(zip(optimizer.fp32_groups_flat, optimizer.fp16_groups_flat, strict=True))
    elif isinstance(optimizer, FP16_UnfusedOptimizer):
        groups = zip(optimizer.fp32_groups, optimizer.fp16_groups, strict=True)
        pairs = [pair for masters, halves in groups for pair in zip(masters, halves, strict=True)]
    else:
        return
    optimizer.optimizer.state.clear()
    for master, half in pairs:
        master.data.copy_(half.data)


def backward(engine: Any, loss: torch.Tensor) -> None:
    """Run the backward pass, with the loss scaled wherever the optimizer will unscale the gradients.

    DeepSpeed 0.19.8's `engine.backward` scales the loss only for its ZeRO optimizers, but the ZeRO-0 optimizers for
    fp16 divide by the scale all the same (deepspeedai/DeepSpeed pull request 8393): gradients come out 65,536 times
    too small. The hook sets the factor that belongs there, whether or not DeepSpeed has put it there itself.
    """
    if isinstance(engine.optimizer, FP16_Optimizer | FP16_UnfusedOptimizer) and engine.fp16_enabled():
        factor = engine.optimizer.loss_scale / engine.gradient_accumulation_steps()
        loss.register_hook(lambda gradient: torch.full_like(gradient, factor))
    engine.backward(loss)


def describe(engine: Any) -> dict[str, Any]:
    """Name what the engine is made of, for the record."""
    optimizer = engine.optimizer
    inner = getattr(optimizer, "optimizer", None)
    names = [type(part).__name__ for part in (optimizer, inner) if part is not None]
    return {
        "zero_stage": engine.zero_optimization_stage(),
        "optimizer": " over ".join(names),
        "parameter_dtype": str(next(engine.module.parameters()).dtype).removeprefix("torch."),
        "communication": deepspeed.comm.get_world_size() > 1 and torch.distributed.get_backend(),
    }
