"""Compare linear layers in fp8 with those in bf16: `python -m benchmarks.fp8 MODEL BATCH LENGTH [LAYERS]`.

Trains a plain compiled loop on one batch, from the same weights: in bf16, and with torchao's fp8 products in the
blocks, scaled by tensor and by row. Prints tokens/s, the peak memory and the first and the last loss. With
LAYERS the model has only so many blocks.
"""

import gc
import statistics
import sys
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import torch

from benchmarks.compiled_gradients import asked
from dsnb.settings.experiment import Experiment
from dsnb.train.causal_loss import CausalLoss
from dsnb.train.meter import Clock
from dsnb.train.model import build

RECIPES = ("bf16", "tensorwise", "rowwise")
STEPS, WARMUP = 25, 5


def trainer(experiment: Experiment, recipe: str, device: torch.device) -> tuple[Any, Any]:
    """Return a compiled model in bf16, whose blocks multiply in fp8 if the recipe says so, and its optimizer."""
    torch.manual_seed(0)
    model = CausalLoss(build(experiment, {}, device).bfloat16())
    if recipe != "bf16":
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        convert_to_float8_training(
            model,
            config=Float8LinearConfig.from_recipe_name(recipe),
            module_filter_fn=lambda module, name: isinstance(module, torch.nn.Linear) and "lm_head" not in name,
        )
    torch._dynamo.reset()
    model.compile_inside()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)


def train(experiment: Experiment, recipe: str, ids: torch.Tensor) -> str:
    """Train, and return a line of results."""
    model, optimizer = trainer(experiment, recipe, ids.device)
    clock, losses, marks = Clock(ids.device), [], []
    for _ in range(STEPS):
        marks.append(clock.mark())
        loss = model(ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    marks.append(clock.mark())
    clock.synchronize()
    timed = pairwise(marks[WARMUP:])
    times_s = [clock.seconds(first, second) for first, second in timed]
    peak = torch.cuda.max_memory_allocated() if ids.is_cuda else 0
    rate = ids.numel() / statistics.median(times_s)
    return f"{recipe:12} {rate:10,.0f} tokens/s {peak / 2**30:7.2f} GiB  loss {losses[0]:.4f} to {losses[-1]:.4f}"


def main() -> None:
    """Print a line for each recipe."""
    if not find_spec("torchao"):
        sys.exit("torchao is missing: pip install torchao")
    with asked() as (experiment, ids):
        for recipe in RECIPES:
            if ids.is_cuda:
                torch.cuda.reset_peak_memory_stats()
            print(train(experiment, recipe, ids), flush=True)
            gc.collect()
            torch.compiler.reset()
            if ids.is_cuda:
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
