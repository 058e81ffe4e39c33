"""Measures how fast this host launches GPU work, with eager operations as in training but too small to keep a GPU busy.

Steps of small models are CPU-bound, and hosts with one kind of GPU differ by a factor of two.
"""

import statistics
import time

import torch
from torch import nn

from dsnb.measure.record.clock import Clock

LAYERS, WIDTH = 8, 64
OPERATIONS = 15 * LAYERS
"""Operations of one pass: five of each layer forward, ten backward."""
PASSES = 5
"""Passes that are queued at once; the result is the median over such batches."""


class Linear(nn.Linear):
    """A linear layer that calls torch's function: DeepSpeed replaces `nn.Linear.forward` by a slower one at ZeRO 3."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the layer's output."""
        return torch._C._nn.linear(inputs, self.weight, self.bias)


class Layer(nn.Module):
    """A transformer's feed-forward layer: the modules, hooks and autograd of training, with little arithmetic."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, device=device)
        self.up = Linear(WIDTH, WIDTH, device=device)
        self.down = Linear(WIDTH, WIDTH, device=device)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the layer's output, of the shape of its input."""
        added: torch.Tensor = self.down(nn.functional.gelu(self.up(self.norm(hidden))))
        return hidden + added


def launch_us(device: torch.device, span_s: float = 1.0) -> float:
    """Return the microseconds that this process needs to launch one operation, measured for about `span_s`."""
    clock = Clock(device)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        model = nn.Sequential(*(Layer(device) for _ in range(LAYERS)))
        inputs = torch.randn(16, WIDTH, device=device)
    times_s: list[float] = []
    with torch.enable_grad():
        while sum(times_s) < span_s or len(times_s) < 2:
            clock.synchronize()
            began = time.perf_counter()
            for _ in range(PASSES):
                model(inputs).sum().backward()
            clock.synchronize()
            times_s.append(time.perf_counter() - began)
    return 1e6 * statistics.median(times_s[1:]) / (PASSES * OPERATIONS)  # the first batch warms up
