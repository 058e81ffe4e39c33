"""The interface of every strategy to the worker, and the baselines without DeepSpeed: DDP, FSDP2, one plain process.

They use the same model, data and meter.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from dsnb.measure.train.tensor_parallel import ShardedParts, share_inputs, split_blocks
from dsnb.models import layout
from dsnb.models.build import DTYPES, build
from dsnb.models.compile import begin_graphs, compile_model
from dsnb.models.loss import CausalLoss
from dsnb.models.parts import blocks
from dsnb.models.quantized import eight_bit_adamw
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

    `parameters` counts those of all ranks that share the model, tied ones once; `module` is this
    rank's part.
    """

    module: torch.nn.Module
    optimizer: Any

    def __init__(self, experiment: Experiment, model: Any) -> None:
        self.experiment = experiment
        self.config = model.config
        self.section: Section = no_section
        trainable = filter(_is_trainable, model.parameters())
        of_blocks = chain.from_iterable(block.parameters() for block in blocks(model))
        self.parameters = {
            "parameters": sum(map(_numel, model.parameters())),
            "trainable_parameters": sum(map(_numel, trainable)),
            "block_parameters": sum(map(_numel, of_blocks)),
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
    """Return the full size, also of a parameter that ZeRO 3 has partitioned, or that holds weights of 4 bits."""
    own = getattr(parameter, "ds_numel", parameter.numel())
    return int(getattr(parameter, "stands_for", own))


def _is_trainable(parameter: nn.Parameter) -> bool:
    return parameter.requires_grad


class TorchTrainer(Trainer):
    """A training loop of torch; by itself one process, or ranks that split layers; subclasses wrap the model."""

    parts: ShardedParts | None = None
    """The parameters of split layers."""
    _partial: Sequence[nn.Parameter] = ()

    def __init__(
        self, experiment: Experiment, ds_config: dict[str, Any], device: torch.device
    ) -> None:
        model = build(experiment, ds_config, device)
        super().__init__(experiment, model)
        self.device = device
        self.prepare(model)
        self.module = with_loss = CausalLoss(model, experiment.loss == "chunked")
        compile_model(experiment, with_loss)
        self.wrapped: Any = self.wrap(with_loss)
        self.trainable = list(filter(_is_trainable, self.wrapped.parameters()))
        self.optimizer = make_optimizer(experiment, self.trainable)
        self._norm: torch.Tensor | None = None
        self.scaler = torch.amp.GradScaler(device.type, enabled=experiment.precision == "fp16")

    def prepare(self, model: Any) -> None:
        """Split the layers of blocks among tensor-parallel ranks, before the model is compiled."""
        if self.experiment.tensor_parallel > 1:
            given = layout.block_arguments(model)
            self._partial = split_blocks(self.experiment, model, blocks(model), given)
            share_inputs(blocks(model), given, self.experiment.compile != "off")

    def wrap(self, model: CausalLoss) -> Any:
        """Return the model as the strategy shares it among ranks."""
        if self.experiment.tensor_parallel > 1:
            self.parts = ShardedParts(model, ())  # hooks add up what ranks compute of a gradient
            self.parts.find(model)
        return model

    def set_synchronization(self, is_last: bool) -> None:
        """Choose whether the next backward pass reduces gradients: that of the last micro-batch does."""

    def step(self, micro_batches: Sequence[torch.Tensor]) -> tuple[torch.Tensor, bool]:
        """Train one optimizer step."""
        total = torch.zeros((), device=self.device)
        begin_graphs(self.experiment)
        for number, ids in enumerate(micro_batches, start=1):
            self.set_synchronization(number == len(micro_batches))
            with self.section("forward"), self._autocast():
                loss = self.wrapped(ids)
            with self.section("backward"):
                self.scaler.scale(loss / len(micro_batches)).backward()
            total += loss.detach()
        with self.section("optimizer"):
            skipped = self._update()
        return total / len(micro_batches), skipped

    def _autocast(self) -> AbstractContextManager[Any]:
        numbers = self.experiment.numbers
        if numbers.autocast:
            return torch.autocast(self.device.type, dtype=DTYPES[numbers.computed])
        return nullcontext()

    def _update(self) -> bool:
        """Update the weights; return whether the loss scaler skipped the update."""
        if self.experiment.gradient_clipping:
            self.scaler.unscale_(self.optimizer)
            norm = self.clip(self.experiment.gradient_clipping)
            if not isinstance(norm, DTensor):  # FSDP's: reading it would cost a reduction
                self._norm = norm
        self.scaler.step(self.optimizer)
        before = self.scaler.get_scale()
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return self.scaler.get_scale() < before

    def clip(self, limit: float) -> torch.Tensor:
        """Scale the gradients down to a norm of at most `limit`; return the norm before.

        With split layers it is the norm over all ranks.
        """
        if self.parts:
            return self.parts.clip(limit)
        return torch.nn.utils.clip_grad_norm_(self.trainable, limit)

    def grad_norm(self) -> torch.Tensor | None:
        """Return the gradient norm of the last step before clipping; None without clipping.

        FSDP has one only if layers are split, too.
        """
        return self._norm

    def describe(self) -> dict[str, Any]:
        """Return the wrapper of the model, if it has one, its dtypes, optimizer and attention."""
        dtypes = {str(parameter.dtype).removeprefix("torch.") for parameter in self.trainable}
        return {
            "strategy": type(self.wrapped).__name__,
            "optimizer": type(self.optimizer).__name__,
            "parameter_dtype": " and ".join(sorted(dtypes)),
            "attention": self.config._attn_implementation,
            "communication": communication(),
        }


class DdpTrainer(TorchTrainer):
    """Averages gradients with torch's DistributedDataParallel."""

    def wrap(self, model: CausalLoss) -> DistributedDataParallel:
        """Return the model with hooks that reduce gradients, compressed if the settings ask for it."""
        wrapped = DistributedDataParallel(
            model,
            device_ids=[self.device] if self.device.type == "cuda" else None,
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
        """Return the size of DDP's buckets of gradients; None for torch's default."""
        if self.experiment.gradient_compression == "powersgd" and self.device.type == "cpu":
            return ONE_BUCKET_MIB
        each = self.experiment.numbers.trained_bytes
        return self.experiment.bucket_elements * each / 2**20 or None

    def set_synchronization(self, is_last: bool) -> None:
        """Reduce once a step, as with DDP's `no_sync`."""
        self.wrapped.require_backward_grad_sync = is_last


class FsdpTrainer(TorchTrainer):
    """Shards everything by block with torch's FSDP2; tensor-parallel ranks shard their parts of the layers."""

    def wrap(self, model: CausalLoss) -> Any:
        """Return the model with shards for weights, and hooks that gather them."""
        if self.experiment.tensor_parallel > 1:
            self.parts = ShardedParts(model, self._partial)
        options = self.sharding()
        for block in blocks(model):
            fully_shard(block, **options)
        wrapped: Any = fully_shard(model, **options)
        if self.parts:
            self.parts.find(wrapped)
        return wrapped

    def _update(self) -> bool:
        if self.parts:
            self.parts.add_up()
        return super()._update()

    def sharding(self) -> dict[str, Any]:
        """Return the arguments of `fully_shard`."""
        options: dict[str, Any] = {"mesh": self.mesh()}
        if self.experiment.gathered_weights == "micro-batch":
            options["reshard_after_forward"] = False
        numbers = self.experiment.numbers
        in_fp32 = numbers.trained != numbers.forward or numbers.accumulates_in_fp32
        if numbers.natively_half and in_fp32:
            # Inputs keep their types, as in DeepSpeed's bf16: the hidden state is in bf16 already,
            # and OLMo 2 hands the cosines and sines of positions to its blocks in fp32. FSDP2 casts
            # them in the forward pass, but not where torch 2.11 and 2.12 recompute a block, which
            # then fails.
            options["mp_policy"] = MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
            )
        return options

    def mesh(self) -> DeviceMesh:
        """Return the data-parallel ranks, in rows that share the shards.

        Tensor-parallel ranks are neighbours, then those that share the shards. Each further
        dimension has groups of its own, so there are none of one rank.
        """
        experiment = self.experiment
        shared = experiment.shard_ranks
        sizes = {"shards": shared}
        if experiment.shard_size:
            sizes = {"copies": experiment.data_parallel // shared, **sizes}
        names = tuple(sizes)
        if experiment.tensor_parallel > 1:
            sizes["tensor"] = experiment.tensor_parallel
        ranks = init_device_mesh(
            self.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes)
        )
        return ranks[names]

    def describe(self) -> dict[str, Any]:
        """Return also how many ranks share the shards, hold copies of them, and split layers."""
        sharded: Any = self.trainable[0]
        *copies, shards = sharded.device_mesh.shape
        return {
            **super().describe(),
            "shard_ranks": shards,
            "copies": math.prod(copies),
            "tensor_parallel_ranks": self.parts.ranks if self.parts else 1,
        }

    def set_synchronization(self, is_last: bool) -> None:
        """Reduce in every micro-batch, or once a step; average over copies of the shards once a step."""
        if self.experiment.reduce_gradients == "step":
            self.wrapped.set_requires_gradient_sync(is_last)
        elif self.experiment.shard_size:
            self.wrapped.set_requires_all_reduce(is_last)


def communication() -> Any:
    """Return the backend of collectives; False for a single rank."""
    return torch.distributed.get_world_size() > 1 and torch.distributed.get_backend()


def make_optimizer(
    experiment: Experiment, parameters: Iterable[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    """Return torch's optimizer for the settings."""
    if experiment.optimizer == "adafactor":
        return torch.optim.Adafactor(
            parameters, lr=experiment.learning_rate, weight_decay=ADAMW["weight_decay"]
        )
    if experiment.optimizer == "adamw-8bit":
        return eight_bit_adamw(experiment, parameters)
    fused = experiment.device == "cuda"
    return torch.optim.AdamW(parameters, lr=experiment.learning_rate, fused=fused, **ADAMW)
