"""Models of fake tensors, which have shapes but no memory, computed as a GPU would."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM

from dsnb.settings.experiment import Experiment
from dsnb.train import model as model_builder
from dsnb.train.causal_loss import CausalLoss, with_loss

FULL_PRECISION = {torch.pow, torch.Tensor.pow, F.layer_norm, F.softmax, torch.softmax, torch.Tensor.softmax}
"""Functions that CUDA's autocast computes in fp32 and a CPU's does not (PyTorch, "Autocast Op Reference")."""


class CudaOperators(TorchFunctionMode):
    """Makes a CPU compute as CUDA does: autocast in fp32 what CUDA's does, and dropout with a mask of bytes or none."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.dropout:
            return _fused_dropout(*args, **(kwargs or {}))
        if func is F.scaled_dot_product_attention:  # fused, it draws its mask again in the backward pass
            kwargs = {**(kwargs or {}), "dropout_p": 0.0}
        if func in FULL_PRECISION and torch.is_autocast_enabled("cpu"):
            args = [one.float() if isinstance(one, torch.Tensor) and one.is_floating_point() else one for one in args]
        return func(*args, **(kwargs or {}))


def _fused_dropout(values: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """Drop values as CUDA's kernel does, which keeps a byte of each; a CPU's keeps the factors, as wide as the values.

    GPT-1.3B, eager attention, 1 x 2048, dropout of 0.1: 27.4 GiB on H200, 29.1 with the factors of a CPU.
    """
    return torch.native_dropout(values, p, training)[0] if training and p else values


def compute_recomputed_as_cuda(block: Any, offloaded: bool) -> None:
    """Let a checkpointed block compute as on a GPU in the backward pass too, where modes of the caller are not active.

    What goes to host memory keeps its shape alone and comes back as new tensors: fake ones have one device.
    """
    recompute = block._gradient_checkpointing_func

    def run(function: Callable[..., Any], *inputs: Any) -> Any:
        def compute(*args: Any) -> Any:
            with CudaOperators():
                return function(*args)

        if not offloaded:
            return recompute(compute, *inputs)
        with saved_tensors_hooks(lambda one: (one.shape, one.dtype), lambda kept: torch.empty(kept[0], dtype=kept[1])):
            return checkpoint(compute, *inputs, use_reentrant=True)

    block._gradient_checkpointing_func = run


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
    """Move the weights of a model from the meta device to a device; tied ones stay tied."""
    made: dict[int, torch.Tensor] = {}
    for module in model.modules():
        own = [*module.named_parameters(recurse=False, remove_duplicate=False), *module.named_buffers(recurse=False)]
        for name, tensor in own:
            if id(tensor) not in made:
                empty = torch.empty_like(tensor, device="cpu")
                is_weight = isinstance(tensor, nn.Parameter)
                made[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_weight else empty
            setattr(module, name, made[id(tensor)])


def autocast(experiment: Experiment) -> AbstractContextManager[Any]:
    """Return the context of the forward pass: autocast, if the settings ask for it."""
    half = model_builder.DTYPES[experiment.precision]
    native = experiment.mixed_precision == "native" and experiment.strategy in {"deepspeed", "fsdp"}
    on = half is not torch.float32 and not native
    return torch.autocast("cpu", dtype=half) if on else nullcontext()
