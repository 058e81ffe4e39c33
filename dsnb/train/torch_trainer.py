"""Baselines without DeepSpeed: torch's DDP and FSDP2, and one plain process, with the same model, data and meter."""

from collections.abc import Sequence
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

from dsnb.settings.experiment import Experiment
from dsnb.train.causal_loss import CausalLoss, with_loss
from dsnb.train.compiling import begin_graphs, compile_model
from dsnb.train.model import DTYPES
from dsnb.train.model_parts import blocks, count_parameters
from dsnb.train.trainer import Section, make_optimizer, no_section

ONE_BUCKET_MIB = 1 << 20
"""With several buckets, gloo confuses PowerSGD's messages and aborts the process."""


class TorchTrainer:
    """A training loop of torch alone: over DDP, over FSDP2, or over the model itself."""

    def __init__(self, experiment: Experiment, model: Any, device: torch.device) -> None:
        self.experiment, self.device = experiment, device
        self.config = model.config
        self.parameters, self.trainable_parameters, self.block_parameters = count_parameters(model)
        self.section: Section = no_section
        self.module: nn.Module = with_loss(experiment, model)
        wrap = {"plain": self._plain, "ddp": self._ddp, "fsdp": self._fsdp}[experiment.strategy]
        self.wrapped: Any = wrap(self.module)
        self.trainable = [parameter for parameter in self.wrapped.parameters() if parameter.requires_grad]
        self.optimizer = make_optimizer(experiment, self.trainable)
        self._norm: torch.Tensor | None = None
        self.scaler = torch.amp.GradScaler(device.type, enabled=experiment.precision == "fp16")

    def _plain(self, model: CausalLoss) -> CausalLoss:
        compile_model(self.experiment, model)
        return model

    def _ddp(self, model: CausalLoss) -> nn.Module:
        compile_model(self.experiment, model)
        devices = [self.device] if self.device.type == "cuda" else None
        wrapped = DistributedDataParallel(
            model, device_ids=devices, gradient_as_bucket_view=True, bucket_cap_mb=self._bucket_mib()
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
        mesh = init_device_mesh(self.device.type, (self.experiment.gpus,))
        how: dict[str, Any] = {"mesh": mesh}
        if self.experiment.precision == "bf16" and self.experiment.mixed_precision == "native":
            how["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        compile_model(self.experiment, model)
        for block in blocks(model):
            fully_shard(block, **how)
        return fully_shard(model, **how)

    def step(self, micro_batches: Sequence[torch.Tensor]) -> tuple[torch.Tensor, bool]:
        """Train one optimizer step."""
        total = torch.zeros((), device=self.device)
        begin_graphs(self.experiment)
        for number, ids in enumerate(micro_batches, start=1):
            with self._sending(number == len(micro_batches)):
                with self.section("forward"), self._autocast():
                    loss = self.wrapped(ids)
                with self.section("backward"):
                    self.scaler.scale(loss / len(micro_batches)).backward()
            total += loss.detach()
        with self.section("optimizer"):
            skipped = self._update()
        return total / len(micro_batches), skipped

    def _sending(self, last: bool) -> AbstractContextManager[Any]:
        """Return a context that synchronizes gradients with the last micro-batch only."""
        if self.experiment.strategy == "plain":
            return nullcontext()
        if isinstance(self.wrapped, DistributedDataParallel):
            return nullcontext() if last else self.wrapped.no_sync()
        self.wrapped.set_requires_gradient_sync(last)
        return nullcontext()

    def _autocast(self) -> AbstractContextManager[Any]:
        half = DTYPES[self.experiment.precision]
        native_fsdp = self.experiment.strategy == "fsdp" and self.experiment.mixed_precision == "native"
        if half is torch.float32 or native_fsdp:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=half)

    def _update(self) -> bool:
        if self.experiment.gradient_clipping:
            self.scaler.unscale_(self.optimizer)
            norm = torch.nn.utils.clip_grad_norm_(self.trainable, self.experiment.gradient_clipping)
            self._norm = (
                None if isinstance(norm, DTensor) else norm
            )  # FSDP's is a distributed tensor: reading it would cost a reduction
        self.scaler.step(self.optimizer)
        before = self.scaler.get_scale() if self.scaler.is_enabled() else 1.0
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return self.scaler.is_enabled() and self.scaler.get_scale() < before

    def grad_norm(self) -> torch.Tensor | None:
        """Return the gradient norm of the last step before clipping; None if DDP did not clip."""
        return self._norm

    def describe(self) -> dict[str, Any]:
        """Return the wrapper of the model, if it has one, and its actual dtypes."""
        dtypes = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in self.trainable})
        return {
            "strategy": type(self.wrapped).__name__,
            "optimizer": type(self.optimizer).__name__,
            "parameter_dtype": " and ".join(dtypes),
            "attention": self.config._attn_implementation,
            "communication": torch.distributed.get_world_size() > 1 and torch.distributed.get_backend(),
        }
