"""What torchao does for a training, imported only where a setting asks for it: states of 8 bits, weights of 4.

Packages that train hide torchao from transformers (`dsnb.measure.train`), so it is looked for anew.

QLoRA (Dettmers et al. 2023, arXiv:2305.14314) keeps the frozen weights that LoRA adapts in NF4: 4
bits index a table of 16 numbers, each block of 64 has a scale of 8 bits, and each 256 scales share
a factor ("double quantisation"). torchao quantizes. Its tensors are not used otherwise: their
weights are made again by some fifteen kernels, through indices of 64 bits. Here a layer holds the
same numbers in tensors of the usual format, so that FSDP shards and gathers bits, and makes the
weight again in one compiled kernel, for the forward and for the backward pass.
"""

import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dsnb.models.parts import blocks, use_linear_layers
from dsnb.settings import checks
from dsnb.settings.experiment import Experiment
from dsnb.settings.training import ADAMW

BLOCK = 64
"""Weights with one scale."""
SCALES = 256
"""Scales with one factor."""


def reveal_torchao(experiment: Experiment) -> None:
    """Make torchao importable again; raise ValueError if it is not installed."""
    if sys.modules.get("torchao") is None:
        sys.modules.pop("torchao", None)
    with suppress(ModuleNotFoundError):
        import torchao  # noqa: F401

        return
    raise ValueError("; ".join(map(checks.no_torchao, checks.needs_torchao(experiment))))


def eight_bit_adamw(
    experiment: Experiment, parameters: Iterable[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    """Return AdamW whose moments have 8 bits, with an fp32 scale for each 256 (Dettmers et al. 2021, arXiv:2110.02861).

    Tensors of fewer than 4,096 numbers, and those that 256 does not divide, have moments in their
    own format.
    """
    reveal_torchao(experiment)
    from torchao.optim import AdamW8bit
    from torchao.optim.subclass_8bit import OptimState8bit

    class AdamW(AdamW8bit):  # type: ignore[misc]
        """Moments that claim to be fp32: torchao 0.18 loses another claim where FSDP2 shards them."""

        @staticmethod
        def _subclass_zeros(weight: Any, signed: bool, block_size: int) -> Any:
            return OptimState8bit.zeros(weight.shape, signed, block_size, weight.device)

    AdamW.__name__ = AdamW8bit.__name__
    options: dict[str, Any] = {**ADAMW, "lr": experiment.learning_rate}
    optimizer: torch.optim.Optimizer = AdamW(parameters, **options)
    return optimizer


def fits_nf4(layer: Any) -> bool:
    """Return whether a module is a linear layer whose weights are whole blocks of whole groups of scales."""
    if not isinstance(layer, nn.Linear):
        return False
    return layer.in_features % 8 == 0 and layer.weight.numel() % (BLOCK * SCALES) == 0


def quantize_blocks(experiment: Experiment, model: Any) -> None:
    """Freeze the linear layers of blocks in NF4; raise ValueError if they hold few of the blocks' weights."""
    use_linear_layers(model)
    check_nf4(experiment, model)
    reveal_torchao(experiment)
    for block in blocks(model):
        for parent in list(block.modules()):
            for name, child in parent.named_children():
                if fits_nf4(child):
                    setattr(parent, name, Nf4Linear(child))


def check_nf4(experiment: Experiment, model: Any) -> None:
    """Raise ValueError if most weights of blocks are in no linear layers of a size that NF4 takes."""
    use_linear_layers(model)
    weights = fitting = 0
    for block in blocks(model):
        weights += sum(weight.numel() for weight in block.parameters())
        fitting += sum(module.weight.numel() for module in block.modules() if fits_nf4(module))
    if fitting < weights / 2:
        share = f"{fitting / weights:.0%} of the weights of {experiment.model}'s blocks"
        raise ValueError(
            f"frozen_weights is 'nf4': it takes linear layers with a multiple of {BLOCK * SCALES:,} weights, which "
            f"have {share}; use 'auto'"
        )


class Nf4Linear(nn.Linear):
    """A linear layer with a frozen weight of 4 bits; its tensors hold bits in the format of the weight."""

    factors: Tensor
    mean: Tensor
    table: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        from torchao.quantization import to_nf4

        nn.Module.__init__(self)
        self.in_features = layer.in_features
        self.out_features = layer.out_features
        self.bias = layer.bias
        weight = layer.weight.detach()
        quantized = to_nf4(weight, BLOCK, SCALES)
        dtype = weight.dtype
        rows = quantized.quantized_data.view(self.out_features, -1)
        self.weight = frozen(rows.view(dtype), stands_for=weight.numel())
        self.scales = frozen(quantized.quantized_scalers.view(dtype), stands_for=0)
        self.register_buffer("factors", quantized.quantization_factor, persistent=False)
        self.register_buffer("mean", quantized.scaler_mean, persistent=False)
        self.register_buffer("table", quantized.nf4, persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Multiply with the weight, which is made again now and in the backward pass."""
        kind = inputs.device.type
        if torch.is_autocast_enabled(kind):
            inputs = inputs.to(torch.get_autocast_dtype(kind))
        result: Tensor = _Product.apply(inputs, self.bias, *self.bits())  # type: ignore[no-untyped-call]
        return result

    def bits(self) -> tuple[Tensor, ...]:
        """Return the tensors that `dequantized` takes."""
        return self.weight, self.scales, self.factors, self.mean, self.table


def frozen(bits: Tensor, stands_for: int) -> nn.Parameter:
    """Return a parameter that is not trained, and counts as so many weights."""
    parameter = nn.Parameter(bits, requires_grad=False)
    vars(parameter)["stands_for"] = stands_for
    return parameter


class _Product(torch.autograd.Function):
    """The product with a weight that is made again for each pass: neither it nor the input is kept."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, bias: Tensor | None, *bits: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(*bits)
        weight = made_again(*bits)
        return F.linear(inputs, weight, None if bias is None else bias.to(weight.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        weight = made_again(*ctx.saved_tensors)
        return (gradient @ weight, *[None] * 6)


def made_again(*bits: Tensor) -> Tensor:
    """Return a weight of shape (outputs, inputs): on a GPU in one kernel, which is compiled at first."""
    if not bits[0].is_cuda or torch.compiler.is_compiling():
        return dequantized(*bits)
    return compiled(*bits)


def compiled(*bits: Tensor) -> Tensor:
    """Return the same weight from one kernel for all shapes, which torch would compile for each parameter's own.

    It would also compile it again under autocast, and gives up after a few times without a word.
    """
    with torch.autocast(bits[0].device.type, enabled=False):
        made: Tensor = _kernel()(*(one.detach() for one in bits))
    return made


@cache
def _kernel() -> Any:
    exact: dict[str, Any] = {"emulate_precision_casts": True}  # otherwise it rounds less often
    return torch.compile(dequantized, dynamic=True, options=exact)


def dequantized(
    packed: Tensor, scales: Tensor, factors: Tensor, mean: Tensor, table: Tensor
) -> Tensor:
    """Return the weight of shape (outputs, inputs) from its bits, as torchao's `get_original_weight` does."""
    dtype = table.dtype
    pairs = packed.view(torch.uint8)
    indices = torch.stack((pairs >> 4, pairs & 15), dim=-1).reshape(-1, BLOCK)
    groups = scales.view(torch.int8).view(-1, SCALES) / factors[:, None]
    of_blocks = groups.to(dtype).flatten() + mean
    return (table[indices.int()] * of_blocks[:, None]).view(len(packed), -1)
