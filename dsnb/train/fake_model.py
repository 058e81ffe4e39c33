"""Models of fake tensors, which have shapes but no memory, and a count of the bytes that they would take."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM

from dsnb.settings.experiment import Experiment
from dsnb.train import model as model_builder
from dsnb.train.causal_loss import CausalLoss, with_loss

BLOCK_BYTES = 512
"""torch's caching allocator rounds every allocation up to a multiple of this."""
FULL_PRECISION = {torch.pow, torch.Tensor.pow, F.layer_norm, F.softmax, torch.softmax, torch.Tensor.softmax}
"""Functions that CUDA's autocast computes in fp32 and a CPU's does not (PyTorch, "Autocast Op Reference")."""


class LiveBytes(TorchDispatchMode):
    """Follows the bytes of the storages that are alive, apart from those that exist already.

    Attributes
    ----------
    now, peak
        Bytes; `peak` is the most since it was last set.
    """

    def __init__(self, existing: list[torch.Tensor]) -> None:
        super().__init__()
        self._known = {tensor.untyped_storage()._cdata for tensor in existing}
        self._sizes: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._add(tensor.untyped_storage())
        return result

    def _add(self, storage: Any) -> None:
        key = storage._cdata
        if key in self._known or key in self._sizes:
            return
        self._sizes[key] = -(-storage.nbytes() // BLOCK_BYTES) * BLOCK_BYTES
        weakref.finalize(storage, self._remove, key)
        self.now += self._sizes[key]
        self.peak = max(self.peak, self.now)

    def _remove(self, key: int) -> None:
        self.now -= self._sizes.pop(key)


class CudaAutocast(TorchFunctionMode):
    """Makes a CPU's autocast compute in fp32 what CUDA's does."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in FULL_PRECISION:
            args = [one.float() if isinstance(one, torch.Tensor) and one.is_floating_point() else one for one in args]
        return func(*args, **(kwargs or {}))


def fake_mode() -> FakeTensorMode:
    """Return a mode whose tensors have no memory."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def build(experiment: Experiment, fake: FakeTensorMode, layers: int = 0) -> CausalLoss:
    """Build the model with its loss as it is trained, of fake tensors; `layers` replaces its number of blocks."""
    dtype = model_builder.weights_dtype(experiment)
    if experiment.strategy == "fsdp" and experiment.mixed_precision == "native":
        dtype = model_builder.DTYPES[experiment.precision]  # what is gathered

    def make(config: Any, attention: str) -> Any:
        config.num_hidden_layers = layers or config.num_hidden_layers
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)

    with torch.device("meta"):
        model = model_builder.adapt(experiment, model_builder._with_attention(experiment, make))
    if experiment.lora_rank:
        model.to(dtype)  # peft makes adapters in fp32 on the meta device
    whole = with_loss(experiment, model)
    with fake:
        _allocate(whole)
    return whole


def _allocate(model: nn.Module) -> None:
    """Give the weights of a model on the meta device a device; tied ones stay tied."""
    made: dict[int, torch.Tensor] = {}
    for module in model.modules():
        own = [*module.named_parameters(recurse=False, remove_duplicate=False), *module.named_buffers(recurse=False)]
        for name, tensor in own:
            if id(tensor) not in made:
                empty = torch.empty_like(tensor, device="cpu")
                is_weight = isinstance(tensor, nn.Parameter)
                made[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_weight else empty
            setattr(module, name, made[id(tensor)])


@contextmanager
def autocast(experiment: Experiment) -> Iterator[None]:
    """Compute as CUDA's autocast does, if the settings ask for it."""
    half = model_builder.DTYPES[experiment.precision]
    native = experiment.mixed_precision == "native" and experiment.strategy in {"deepspeed", "fsdp"}
    on = half is not torch.float32 and not native
    with torch.autocast("cpu", dtype=half) if on else nullcontext(), CudaAutocast() if on else nullcontext():
        yield
