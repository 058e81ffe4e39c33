"""Compare ways to compute output layer and loss: `python -m benchmarks.chunked_losses TOKENS WIDTH VOCABULARY`.

Prints the time and the additional peak memory of a forward and a backward pass in bf16, with the
relative errors (in the 2-norm) of loss and gradients against fp32: of whole logits, of dsnb's
`loss: chunked`, of DeepSpeed's `chunked_cross_entropy`, and of Liger's fused linear cross-entropy
if `liger_kernel` is installed; and of whole logits whose columns are padded, and then left out by a
slice, by a mask, or by the layer's bias, as `pad_vocab` does. `--compiled` compiles what dsnb
compiles, for whole logits and in chunks.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from functools import partial

import torch
from deepspeed.runtime.chunked_cross_entropy import chunked_cross_entropy
from torch.nn import functional as F

from dsnb.base.system import hardware
from dsnb.measure.record.clock import Clock
from dsnb.models.loss import differentiate, sum_of_losses

PADDED = 64
"""The multiple that `pad_vocab` is usually set to."""
Loss = Callable[[torch.nn.Linear, torch.Tensor, torch.Tensor], torch.Tensor]


def whole(layer: torch.nn.Linear, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of whole logits."""
    return F.cross_entropy(layer(hidden).float(), targets)


def sliced(
    layer: torch.nn.Linear, hidden: torch.Tensor, targets: torch.Tensor, vocab: int
) -> torch.Tensor:
    """Return the mean loss of the first columns of padded logits."""
    return F.cross_entropy(layer(hidden)[:, :vocab].float(), targets)


def masked(
    layer: torch.nn.Linear, hidden: torch.Tensor, targets: torch.Tensor, vocab: int
) -> torch.Tensor:
    """Return the same, of all columns, the added ones at minus infinity."""
    is_column = torch.arange(len(layer.weight), device=hidden.device) < vocab
    return F.cross_entropy(torch.where(is_column, layer(hidden).float(), -torch.inf), targets)


def biased(
    layer: torch.nn.Linear, hidden: torch.Tensor, targets: torch.Tensor, vocab: int
) -> torch.Tensor:
    """Return the same, with a bias that is minus infinity for the added columns."""
    bias = torch.zeros(len(layer.weight), device=hidden.device, dtype=hidden.dtype)
    bias[vocab:] = -torch.inf
    return F.cross_entropy(F.linear(hidden, layer.weight, bias).float(), targets)


def ways(compiled: bool) -> Iterator[tuple[str, Loss]]:
    """Yield names and functions that return the mean loss of an output layer, its inputs and targets."""
    yield "whole", torch.compile(whole) if compiled else whole
    loss = torch.compile(differentiate) if compiled else differentiate
    yield (
        "dsnb, chunked",
        lambda layer, hidden, targets: sum_of_losses(layer, hidden, targets, loss) / len(targets),
    )
    yield "DeepSpeed", lambda layer, hidden, targets: chunked_cross_entropy(layer(hidden), targets)
    try:
        from liger_kernel.transformers.fused_linear_cross_entropy import (
            LigerFusedLinearCrossEntropyLoss,
        )
    except ImportError:
        return
    in_fp32 = LigerFusedLinearCrossEntropyLoss(accum_dtype=torch.float32)
    yield "Liger", lambda layer, hidden, targets: in_fp32(layer.weight, hidden, targets)


def padded_ways(compiled: bool, vocab: int) -> Iterator[tuple[str, Loss]]:
    """Yield the same for an output layer with padded rows."""
    for how in (sliced, masked, biased):
        yield (
            f"padded, {how.__name__}",
            partial(torch.compile(how) if compiled else how, vocab=vocab),
        )


def passes(
    loss: Loss, layer: torch.nn.Linear, hidden: torch.Tensor, targets: torch.Tensor
) -> list[torch.Tensor]:
    """Return the loss and both gradients."""
    value = loss(layer, hidden, targets)
    return [value.detach(), *torch.autograd.grad(value, (hidden, layer.weight))]


def measure(
    loss: Loss, *given: torch.Tensor | torch.nn.Linear, repeats: int
) -> tuple[float, float]:
    """Return the median milliseconds of both passes, and the GiB of their peak beyond what is given (0 on a CPU)."""
    device = given[1].device
    clock, times_s, has_gpu = Clock(device), [], device.type == "cuda"
    held = torch.cuda.memory_allocated() if has_gpu else 0
    for _ in range(repeats):
        if has_gpu:
            torch.cuda.reset_peak_memory_stats()
        began = clock.mark()
        passes(loss, *given)
        ended = clock.mark()
        clock.synchronize()
        times_s.append(clock.seconds(began, ended))
    peak = torch.cuda.max_memory_allocated() - held if has_gpu else 0
    return 1e3 * statistics.median(times_s), peak / 2**30


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("tokens", "width", "vocabulary"):
        parser.add_argument(name, type=int)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--repeats", type=int, default=20)
    given = parser.parse_args()
    device, half = torch.device(hardware.default_device()), torch.bfloat16
    torch.manual_seed(0)
    layer = torch.nn.Linear(given.width, given.vocabulary, bias=False, device=device, dtype=half)
    torch.nn.init.normal_(layer.weight, std=0.02)
    hidden = torch.randn(given.tokens, given.width, device=device, dtype=half, requires_grad=True)
    targets = torch.randint(given.vocabulary, (given.tokens,), device=device)
    exact = torch.nn.Linear(given.width, given.vocabulary, bias=False, device=device)
    exact.weight.data.copy_(layer.weight)
    wanted = [
        result.cpu()
        for result in passes(whole, exact, hidden.detach().float().requires_grad_(), targets)
    ]
    del exact
    padded = torch.nn.Linear(
        given.width, given.vocabulary + -given.vocabulary % PADDED, False, device, half
    )
    padded.weight.data = F.pad(
        layer.weight.detach(), (0, 0, 0, len(padded.weight) - given.vocabulary)
    )
    for name, loss in [*ways(given.compiled), *padded_ways(given.compiled, given.vocabulary)]:
        used = padded if name.startswith("padded") else layer
        computed = passes(loss, used, hidden, targets)
        computed[2] = computed[2][: given.vocabulary]
        errors = [
            float((got.float().cpu() - exactly).norm() / exactly.norm())
            for got, exactly in zip(computed, wanted, strict=True)
        ]
        del computed
        time_ms, peak_gib = measure(loss, used, hidden, targets, repeats=given.repeats)
        of_loss, by_input, by_weight = (f"{error:.1e}" for error in errors)
        print(
            f"{name:14} {time_ms:8.2f} ms {peak_gib:6.2f} GiB  "
            f"errors: loss {of_loss}, by input {by_input}, by weight {by_weight}",
            flush=True,
        )


if __name__ == "__main__":
    main()
