"""Models of fake tensors (shapes without memory) that compute as on a GPU, and the bytes of their live tensors.

Only the processes that trace models import this module; the rest of `dsnb.prediction` needs no torch.
"""

import importlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from dsnb.models import build as model_builder
from dsnb.models.loss import CausalLoss
from dsnb.settings.experiment import Experiment

FULL_PRECISION = {
    torch.pow,
    torch.Tensor.pow,
    F.layer_norm,
    F.softmax,
    torch.softmax,
    torch.Tensor.softmax,
}
"""Functions that CUDA's autocast computes in fp32 and a CPU's does not (PyTorch, "Autocast Op Reference")."""
BLOCK_BYTES = 512
"""torch's caching allocator rounds each allocation up to a multiple of this."""
MANY = 1_000_003
"""A prime micro-batch: only tensors whose bytes it divides grow with the micro-batch."""


class CudaOperators(TorchFunctionMode):
    """Make a CPU compute as CUDA does: which functions autocast runs in fp32, and the mask that dropout keeps."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.dropout:
            return _fused_dropout(*args, **(kwargs or {}))
        if (
            func is F.scaled_dot_product_attention
        ):  # the fused kernel draws its mask again in the backward pass
            kwargs = {**(kwargs or {}), "dropout_p": 0.0}
        if func in FULL_PRECISION and torch.is_autocast_enabled("cpu"):
            args = [
                arg.float() if isinstance(arg, torch.Tensor) and arg.is_floating_point() else arg
                for arg in args
            ]
        return func(*args, **(kwargs or {}))


def _fused_dropout(
    values: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    """Apply dropout as CUDA's kernel does, which saves a byte for each value; a CPU saves factors of the values' width.

    GPT-1.3B, eager attention, 1 x 2048, dropout of 0.1: 27.4 GiB on H200, 29.1 with a CPU's factors.
    """
    return torch.native_dropout(values, p, training)[0] if training and p else values


def compute_recomputed_as_cuda(block: Any, offloaded: bool) -> None:
    """Make a checkpointed block recompute as on a GPU: the caller's modes are not active in the backward pass.

    Offloaded tensors keep only their shape and return as new tensors, because fake tensors have one device.
    """
    recompute = block._gradient_checkpointing_func

    def run(function: Callable[..., Any], *inputs: Any) -> Any:
        def compute(*args: Any) -> Any:
            with CudaOperators():
                return function(*args)

        if not offloaded:
            return recompute(compute, *inputs)
        with saved_tensors_hooks(
            lambda t: (t.shape, t.dtype), lambda kept: torch.empty(kept[0], dtype=kept[1])
        ):
            return checkpoint(compute, *inputs, use_reentrant=True)

    block._gradient_checkpointing_func = run


def build(experiment: Experiment, layers: int = 0) -> tuple[CausalLoss, FakeTensorMode]:
    """Build the model and its loss from fake tensors, with `layers` blocks (0: all); return their mode too."""
    dtype = model_builder.weights_dtype(experiment)
    if experiment.strategy == "fsdp" and experiment.mixed_precision == "native":
        dtype = model_builder.DTYPES[experiment.precision]  # of gathered weights
    model = model_builder.build_on_meta(experiment, layers, dtype)
    if experiment.lora_rank and model_builder.has_masters(experiment):
        model.to(dtype)  # peft makes adapters in fp32 on the meta device
    with_loss, fake = (
        CausalLoss(model, experiment.loss == "chunked"),
        FakeTensorMode(allow_non_fake_inputs=True),
    )
    with fake:
        model_builder.allocate([with_loss])
    return with_loss, fake


@contextmanager
def patched(module: Any, **substitutes: Any) -> Iterator[None]:
    """Replace functions of a module temporarily; a substitute that is not callable is the value to return."""
    owner: Any = importlib.import_module(module) if isinstance(module, str) else module
    usual = {name: getattr(owner, name) for name in substitutes}
    try:
        for name, substitute in substitutes.items():
            setattr(
                owner,
                name,
                substitute if callable(substitute) else lambda *_, value=substitute: value,
            )
        yield
    finally:
        for name, original in usual.items():
            setattr(owner, name, original)


def grouped_products() -> AbstractContextManager[None]:
    """Compute experts in any precision: grouped products take fp32 on a GPU, but only bf16 with fake tensors."""
    return patched(
        "transformers.integrations.moe",
        _can_use_grouped_mm=lambda _, weight, __: weight.dtype is torch.bfloat16,
    )


def masks_of(compiled: bool) -> AbstractContextManager[None]:
    """Make transformers create the masks it creates on a GPU: all if a compiler traces, else only those of windows."""
    substitute: dict[str, Any] = (
        {"is_tracing": True} if compiled else {"find_packed_sequence_indices": None}
    )
    return patched("transformers.masking_utils", **substitute)


def autocast(experiment: Experiment) -> AbstractContextManager[Any]:
    """Return the context of the forward pass: autocast if the settings use it."""
    half = model_builder.DTYPES[experiment.precision]
    native = experiment.mixed_precision == "native" and experiment.strategy in {"deepspeed", "fsdp"}
    on = half is not torch.float32 and not native
    return torch.autocast("cpu", dtype=half) if on else nullcontext()


def period(config: Any) -> int:
    """Return the period with which kinds of blocks repeat, from the per-block lists of a configuration."""
    layers = config.num_hidden_layers
    lists = [
        value
        for value in vars(config).values()
        if isinstance(value, list | tuple) and len(value) == layers
    ]
    repeats = (
        number
        for number in range(1, layers)
        if all(kind == kinds[place % number] for kinds in lists for place, kind in enumerate(kinds))
    )
    return next(repeats, layers)


def as_autocast(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Cast the inputs of attention as autocast does, if it is on."""
    if not torch.is_autocast_enabled("cpu"):
        return list(tensors)
    return [tensor.to(torch.get_autocast_dtype("cpu")) for tensor in tensors]


class Size(NamedTuple):
    """Bytes as a linear function of the micro-batch."""

    constant: float = 0
    per_sequence: float = 0

    def plus(self, other: "Size", times: float = 1) -> "Size":
        """Return this size plus `times` another one."""
        return Size(
            self.constant + times * other.constant, self.per_sequence + times * other.per_sequence
        )


def size(number_of_bytes: int, micro_batch: int) -> Size:
    """Return the size of an allocation; it is constant unless `micro_batch` is `MANY`."""
    if micro_batch == MANY and number_of_bytes % MANY == 0:
        return Size(0, number_of_bytes // MANY)
    return Size(-(-number_of_bytes // BLOCK_BYTES) * BLOCK_BYTES, 0)


def largest(sizes: Iterable[Size]) -> list[Size]:
    """Return the sizes that can be the largest for some micro-batch."""
    kept: list[Size] = []
    for candidate in sorted(set(sizes), reverse=True):
        if not kept or candidate.per_sequence > kept[-1].per_sequence:
            kept.append(candidate)
    return kept


class LiveBytes(TorchDispatchMode):
    """Track the bytes of live storages, without those of existing tensors."""

    def __init__(self, existing: Iterable[torch.Tensor], micro_batch: int) -> None:
        super().__init__()
        self.now = Size()
        self._known = {tensor.untyped_storage()._cdata for tensor in existing}
        self._micro_batch = micro_batch
        self._sizes: dict[int, Size] = {}
        self._peaks: list[Size] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._add(tensor.untyped_storage())
        return result

    def take_peaks(self) -> list[Size]:
        """Return the sizes that may have been the peak since the last call."""
        peaks, self._peaks = largest(self._peaks), [self.now]
        return peaks

    def _add(self, storage: Any) -> None:
        key = storage._cdata
        if key in self._known or key in self._sizes:
            return
        self._sizes[key] = size(storage.nbytes(), self._micro_batch)
        weakref.finalize(storage, self._remove, key)
        self.now = self.now.plus(self._sizes[key])
        if not self._peaks or any(
            now > peak for now, peak in zip(self.now, self._peaks[-1], strict=True)
        ):
            self._peaks.append(self.now)

    def _remove(self, key: int) -> None:
        self.now = self.now.plus(self._sizes.pop(key), -1)
