"""Models of fake tensors (shapes without memory) that compute as on a GPU, and sizes that grow with the micro-batch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch  # replaces functions of libraries temporarily

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from dsnb.models.attention import whole_sequences
from dsnb.models.build import DTYPES, allocate, build_on_meta
from dsnb.models.loss import CausalLoss
from dsnb.models.split import keep_part
from dsnb.settings.experiment import Experiment

FULL_PRECISION = {
    torch.pow,
    Tensor.pow,
    F.layer_norm,
    F.softmax,
    torch.softmax,
    Tensor.softmax,
}
"""Functions that CUDA's autocast computes in fp32 and a CPU's does not (PyTorch, "Autocast Op
Reference")."""
BLOCK_BYTES = 512
"""torch's caching allocator rounds each allocation up to a multiple of this."""
MANY = 1_000_003
"""A prime micro-batch: only tensors whose bytes it divides grow with the micro-batch."""


class Size(NamedTuple):
    """Bytes as a linear function of the micro-batch."""

    constant: float = 0
    per_sequence: float = 0

    def __add__(self, other: "Size") -> "Size":  # type: ignore[override]
        return Size(self.constant + other.constant, self.per_sequence + other.per_sequence)

    def __sub__(self, other: "Size") -> "Size":
        return self + -1 * other

    def __rmul__(self, times: float) -> "Size":  # type: ignore[override]
        return Size(times * self.constant, times * self.per_sequence)


def allocated(number_of_bytes: int, micro_batch: int) -> Size:
    """Return the size of an allocation; it is constant unless `micro_batch` is `MANY`."""
    if micro_batch == MANY and number_of_bytes % MANY == 0:
        return Size(0, number_of_bytes // MANY)
    return Size(-(-number_of_bytes // BLOCK_BYTES) * BLOCK_BYTES)


def per_sequence(number_of_bytes: int) -> float:
    """Return the bytes per sequence of a tensor for `MANY` sequences; 0 if they do not depend on the micro-batch."""
    if number_of_bytes % MANY:
        return 0.0
    return number_of_bytes / MANY


def build(experiment: Experiment, layers: int = 0) -> tuple[CausalLoss, FakeTensorMode]:
    """Build a rank's model and its loss from fake tensors, with `layers` blocks (0: all); return their mode too."""
    dtype = DTYPES[experiment.numbers.forward]
    model = build_on_meta(experiment, layers, dtype)
    if experiment.tensor_parallel > 1:
        keep_part(model, experiment.tensor_parallel)
    if experiment.lora_rank and experiment.numbers.masters:
        model.to(dtype)  # peft makes adapters in fp32 on the meta device
    with_loss = CausalLoss(model, experiment.loss == "chunked")
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        allocate([with_loss])
    return with_loss, fake


@contextmanager
def as_cuda(experiment: Experiment) -> Iterator[None]:
    """Compute a forward pass as CUDA does, under autocast if the settings use it."""
    dtype = DTYPES[experiment.precision]
    with CudaOperators(), torch.autocast("cpu", dtype, experiment.numbers.autocast):
        yield


@contextmanager
def as_on_gpu() -> Iterator[None]:
    """Let transformers choose as on a GPU, in training.

    Grouped products of experts take fp32 there, but only bf16 with fake tensors.
    """
    products: dict[str, Any] = {
        "_can_use_grouped_mm": lambda _, weight, __: weight.dtype is torch.bfloat16
    }
    with patch.multiple("transformers.integrations.moe", **products), whole_sequences():
        yield


class CudaOperators(TorchFunctionMode):
    """Make a CPU compute as CUDA does: which functions autocast runs in fp32, and the mask that dropout keeps."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.dropout:
            return _fused_dropout(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            kwargs = {**kwargs, "dropout_p": 0.0}  # it draws its mask again in the backward pass
        if func in FULL_PRECISION and torch.is_autocast_enabled("cpu"):
            args = [_in_fp32(arg) for arg in args]
        return func(*args, **kwargs)


def _fused_dropout(
    values: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Apply dropout as CUDA's kernel does, which saves a byte for each value; a CPU saves factors of the values' width.

    GPT-1.3B, eager attention, 1 x 2048, dropout of 0.1: 27.4 GiB on H200, 29.1 with a CPU's
    factors.
    """
    if training and p:
        return torch.native_dropout(values, p, training)[0]
    return values


def _in_fp32(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.float()
    return value


def recompute_as_cuda(block: Any, offloaded: bool) -> None:
    """Make a checkpointed block recompute as on a GPU: the caller's modes are not active in the backward pass.

    Offloaded tensors keep only their shape and return as new tensors, because fake tensors have one
    device.
    """
    recompute = block._gradient_checkpointing_func

    def run(function: Callable[..., Any], *inputs: Any) -> Any:
        def compute(*args: Any) -> Any:
            with CudaOperators():
                return function(*args)

        if not offloaded:
            return recompute(compute, *inputs)
        with saved_tensors_hooks(
            lambda tensor: (tensor.shape, tensor.dtype),
            lambda kept: torch.empty(kept[0], dtype=kept[1]),
        ):
            return checkpoint(compute, *inputs, use_reentrant=True)

    block._gradient_checkpointing_func = run


def period(config: Any) -> int:
    """Return the period with which kinds of blocks repeat, from the per-block lists of a configuration."""
    layers = config.num_hidden_layers
    lists = [value for value in vars(config).values() if isinstance(value, list | tuple)]
    kinds = list(zip(*filter(lambda value: len(value) == layers, lists), strict=True))
    for number in range(1, layers):
        if kinds[number:] == kinds[:-number]:
            return number
    return layers


def as_autocast(*tensors: Tensor) -> list[Tensor]:
    """Cast the inputs of attention as autocast does, if it is on."""
    if not torch.is_autocast_enabled("cpu"):
        return list(tensors)
    return [tensor.to(torch.get_autocast_dtype("cpu")) for tensor in tensors]
