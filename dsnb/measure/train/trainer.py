"""The interface of every strategy to the worker, and the baselines without DeepSpeed: DDP, FSDP2, one plain process.

They use the same model, data and meter.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from dsnb.models.build import DTYPES
from dsnb.models.compile import begin_graphs, compile_model
from dsnb.models.loss import CausalLoss
from dsnb.models.parts import blocks
from dsnb.settings.experiment import Experiment
from dsnb.settings.training import ADAMW

ONE_BUCKET_MIB = 1 << 20
"""With several buckets, gloo confuses PowerSGD's messages and aborts the process."""
Section = Callable[[str], AbstractContextManager[Any]]
"""Marks a part of a step: `forward`, `backward`, `communication` or `optimizer`."""


def no_section(name: str) -> AbstractContextManager[None]:
    """Mark nothing."""
    return nullcontext()


class Trainer:
    """A causal language model of transformers, or peft's wrapper of one, with its optimizer, ready to train.

    `parameters` counts those of all ranks that share the model, tied ones once; `module` is this rank's part.
    """

    module: torch.nn.Module
    optimizer: Any

    def __init__(self, experiment: Experiment, model: Any) -> None:
        self.experiment, self.config = experiment, model.config
        self.section: Section = no_section
        self.parameters = {
            "parameters": sum(map(_numel, model.parameters())),
            "trainable_parameters": sum(
                _numel(each) for each in model.parameters() if each.requires_grad
            ),
            "block_parameters": sum(
                _numel(each) for block in blocks(model) for each in block.parameters()
            ),
        }

    def step(self, micro_batches: Sequence[torch.Tensor]) -> tuple[torch.Tensor, bool]:
        """Train one optimizer step on micro-batches of token ids, each of shape (micro_batch_size, seq_len).

        Returns their mean loss, shape (), still on the device, and whether the update was skipped.
        """
        raise NotImplementedError

    def grad_norm(self) -> torch.Tensor | float | None:
        """Return the gradient norm of the last step if it was computed; a tensor may be on the device."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Return properties of the model as built, for the record."""
        raise NotImplementedError


def _numel(parameter: nn.Parameter) -> int:
    return int(
        getattr(parameter, "ds_numel", parameter.numel())
    )  # the full size if ZeRO 3 has partitioned it


class TorchTrainer(Trainer):
    """A plain torch training loop with DDP, FSDP2, or the bare model."""

    def __init__(self, experiment: Experiment, model: Any, device: torch.device) -> None:
        super().__init__(experiment, model)
        self.device = device
        self.module = with_loss = CausalLoss(model, experiment.loss == "chunked")
        compile_model(experiment, with_loss)
        wrap = {"plain": lambda model: model, "ddp": self._ddp, "fsdp": self._fsdp}[
            experiment.strategy
        ]
        self.wrapped: Any = wrap(with_loss)
        self.trainable = [
            parameter for parameter in self.wrapped.parameters() if parameter.requires_grad
        ]
        self.optimizer = make_optimizer(experiment, self.trainable)
        self._norm: torch.Tensor | None = None
        self.scaler = torch.amp.GradScaler(device.type, enabled=experiment.precision == "fp16")

    def _ddp(self, model: CausalLoss) -> nn.Module:
        devices = [self.device] if self.device.type == "cuda" else None
        wrapped = DistributedDataParallel(
            model,
            device_ids=devices,
            gradient_as_bucket_view=True,
            bucket_cap_mb=self._bucket_mib(),
        )
        if self.experiment.gradient_compression == "bf16":
            wrapped.register_comm_hook(None, default_hooks.bf16_compress_hook)
        if self.experiment.gradient_compression == "powersgd":
            state = powersgd.PowerSGDState(
                process_group=None,
                matrix_approximation_rank=self.experiment.powersgd_rank,
                start_powerSGD_iter=2,
                min_compression_rate=1,
            )
            wrapped.register_comm_hook(state, powersgd.powerSGD_hook)
        return wrapped

    def _bucket_mib(self) -> float | None:
        """Return the size of DDP's buckets of gradients, which are fp32; None for torch's default."""
        if self.experiment.gradient_compression == "powersgd" and self.device.type == "cpu":
            return ONE_BUCKET_MIB
        return self.experiment.bucket_elements * 4 / 2**20 or None

    def _fsdp(self, model: CausalLoss) -> Any:
        options: dict[str, Any] = {
            "mesh": init_device_mesh(self.device.type, (self.experiment.gpus,))
        }
        if self.experiment.precision == "bf16" and self.experiment.mixed_precision == "native":
            # Inputs keep their types, as in DeepSpeed's bf16: the hidden state is in bf16 already, and OLMo 2 hands
            # the cosines and sines of positions to its blocks in fp32. FSDP2 casts them in the forward pass, but not
            # where torch 2.11 and 2.12 recompute a block, which then fails.
            options["mp_policy"] = MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
            )
        for block in blocks(model):
            fully_shard(block, **options)
        return fully_shard(model, **options)

    def step(self, micro_batches: Sequence[torch.Tensor]) -> tuple[torch.Tensor, bool]:
        """Train one optimizer step."""
        total = torch.zeros((), device=self.device)
        begin_graphs(self.experiment)
        for number, ids in enumerate(micro_batches, start=1):
            last = number == len(micro_batches)  # gradients are synchronized in its backward pass
            if self.experiment.strategy == "ddp":
                self.wrapped.require_backward_grad_sync = last  # as DDP's `no_sync` does
            elif self.experiment.reduce_gradients == "step":
                self.wrapped.set_requires_gradient_sync(last)
            with self.section("forward"), self._autocast():
                loss = self.wrapped(ids)
            with self.section("backward"):
                self.scaler.scale(loss / len(micro_batches)).backward()
            total += loss.detach()
        with self.section("optimizer"):
            skipped = self._update()
        return total / len(micro_batches), skipped

    def _autocast(self) -> AbstractContextManager[Any]:
        half = DTYPES[self.experiment.precision]
        native_fsdp = (
            self.experiment.strategy == "fsdp" and self.experiment.mixed_precision == "native"
        )
        if half is torch.float32 or native_fsdp:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=half)

    def _update(self) -> bool:
        if self.experiment.gradient_clipping:
            self.scaler.unscale_(self.optimizer)
            norm = torch.nn.utils.clip_grad_norm_(self.trainable, self.experiment.gradient_clipping)
            if not isinstance(norm, DTensor):  # FSDP's: reading it would cost a reduction
                self._norm = norm
        self.scaler.step(self.optimizer)
        before = self.scaler.get_scale() if self.scaler.is_enabled() else 1.0
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return self.scaler.is_enabled() and self.scaler.get_scale() < before

    def grad_norm(self) -> torch.Tensor | None:
        """Return the gradient norm of the last step before clipping; None without clipping, and with FSDP."""
        return self._norm

    def describe(self) -> dict[str, Any]:
        """Return the wrapper of the model, if it has one, its dtypes, optimizer and attention."""
        dtypes = sorted(
            {str(parameter.dtype).removeprefix("torch.") for parameter in self.trainable}
        )
        return {
            "strategy": type(self.wrapped).__name__,
            "optimizer": type(self.optimizer).__name__,
            "parameter_dtype": " and ".join(dtypes),
            "attention": self.config._attn_implementation,
            "communication": torch.distributed.get_world_size() > 1
            and torch.distributed.get_backend(),
        }


def make_optimizer(
    experiment: Experiment, parameters: Iterable[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    """Return torch's optimizer for the settings."""
    if experiment.optimizer == "adafactor":
        return torch.optim.Adafactor(
            parameters, lr=experiment.learning_rate, weight_decay=ADAMW["weight_decay"]
        )
    fused = experiment.device == "cuda"
    return torch.optim.AdamW(parameters, lr=experiment.learning_rate, fused=fused, **ADAMW)
