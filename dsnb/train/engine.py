"""A trainer on DeepSpeed's engine, which is verified against the settings."""

from collections.abc import Sequence
from typing import Any

import deepspeed
import torch
from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer

from dsnb.settings.experiment import Experiment
from dsnb.train import verify_engine
from dsnb.train.model_parts import count_parameters
from dsnb.train.optimizers import client_optimizer
from dsnb.train.trainer import Section, no_section


class DeepSpeedTrainer:
    """Trains with ZeRO, offload and tensor parallelism.

    Raises
    ------
    RuntimeError
        If DeepSpeed built an engine that differs from the settings.
    """

    def __init__(self, experiment: Experiment, model: Any, ds_config: dict[str, Any]) -> None:
        self.config = model.config
        self.parameters, self.trainable_parameters, self.block_parameters = count_parameters(model)
        self.section: Section = no_section
        self.engine = make_engine(experiment, model, ds_config)
        self.module, self.optimizer = self.engine.module, self.engine.optimizer
        if experiment.compile:
            self.engine.compile()
        verify_engine.check(experiment, self.engine)
        self._updates = 0
        self._scaler = self.engine.torch_autocast_z0_gradscaler
        if self._scaler:
            self.engine.optimizer.register_step_post_hook(self._count)

    def _count(self, *_: Any) -> None:
        self._updates += 1

    def _skipped_steps(self) -> int:
        """Return the number of skipped steps; DeepSpeed does not count those of torch's own loss scaler."""
        return self.engine.global_steps - self._updates if self._scaler else self.engine.skipped_steps

    def step(self, micro_batches: Sequence[torch.Tensor]) -> tuple[torch.Tensor, bool]:
        """Train one optimizer step."""
        skipped_before = self._skipped_steps()
        total = torch.zeros((), device=self.engine.device)
        for ids in micro_batches:
            with self.section("forward"):
                loss = self.engine(input_ids=ids, labels=ids).loss
            with self.section("backward"):
                backward(self.engine, loss)
            with self.section("optimizer"):
                self.engine.step()
            total += loss.detach()
        return total / len(micro_batches), self._skipped_steps() > skipped_before

    def grad_norm(self) -> torch.Tensor | float | None:
        """Return the gradient norm of the last step; ZeRO 0 with fp32 weights computes it only for clipping."""
        return engine_grad_norm(self.engine)

    def describe(self) -> dict[str, Any]:
        """Return what the engine is made of."""
        return {**verify_engine.describe(self.engine), "attention": self.config._attn_implementation}


def make_engine(experiment: Experiment, model: torch.nn.Module, ds_config: dict[str, Any]) -> Any:
    """Return DeepSpeed's engine for a model or a pipeline, before its first step."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=trainable,
        optimizer=client_optimizer(experiment, trainable),
        config=ds_config,
    )
    undo_first_step(engine.optimizer)
    return engine


def engine_grad_norm(engine: Any) -> torch.Tensor | float | None:
    """Return the norm that DeepSpeed's engine has computed already; None if it has not."""
    norm = engine.get_global_grad_norm()
    on_device = isinstance(norm, torch.Tensor) and norm.device.type != "cpu"  # a norm in host memory needs no wait
    return norm if norm is None or on_device else float(norm)


@torch.no_grad()
def undo_first_step(optimizer: Any) -> None:
    """Undo the step that DeepSpeed's ZeRO-0 optimizers for fp16 and bf16 take while they are built.

    FP16_Optimizer and FP16_UnfusedOptimizer (DeepSpeed 0.19.8) step once with zero gradients to allocate their
    states. Adam then counts the first real step as its second, with another bias correction, so that ZeRO 0 and ZeRO 1
    diverge after one step; and weight decay has already shrunk the master weights. Both are restored.
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
    """Run the backward pass, with the loss scaled if the optimizer unscales the gradients."""
    scale_loss(engine, loss)
    engine.backward(loss)


def scale_loss(engine: Any, loss: torch.Tensor) -> None:
    """Scale the loss gradient of one micro-batch if the optimizer unscales it.

    DeepSpeed 0.19.8's `engine.backward` scales the loss only for its ZeRO optimizers, but the ZeRO-0 optimizers for
    fp16 divide by the scale all the same (deepspeedai/DeepSpeed pull request 8393): gradients come out 65,536 times
    too small. The hook sets the correct factor, whether or not DeepSpeed has applied it.
    """
    if isinstance(engine.optimizer, FP16_Optimizer | FP16_UnfusedOptimizer) and engine.fp16_enabled():
        factor = engine.optimizer.loss_scale / engine.gradient_accumulation_steps()
        loss.register_hook(lambda gradient: torch.full_like(gradient, factor))
