"""Measure the cost of reading the loss after every step, as many training scripts do.

    python -m benchmarks.synchronization [repeats]

GPT-2 124M, ZeRO 0, fp16, micro-batch 32, sequence 128: the first row of the published GPT-2
benchmark.
"""

import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch

from dsnb.measure.launcher.run import launch
from dsnb.measure.train import worker
from dsnb.measure.train.meter import Meter
from dsnb.settings.experiment import Experiment


def main(run_dir: str) -> int:
    """Run the ordinary worker, but wait for the device and read the loss after every step."""
    original_step = Meter.step

    def step(self: Meter, loss: torch.Tensor, skipped: bool, grad_norm: Any = None) -> None:
        original_step(self, loss, skipped, grad_norm)
        loss.item()

    Meter.step = step  # type: ignore[method-assign]
    return worker.main(run_dir)


def compare(repeats: int) -> None:
    """Run both kinds in turn and print their throughputs."""
    experiment = Experiment(
        model="gpt2",
        precision="fp16",
        micro_batch_size=32,
        data="stdlib",
        warmup_steps=20,
        steps=100,
    )
    rates: dict[str, list[float]] = {
        "dsnb.measure.train.worker": [],
        "benchmarks.synchronization": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats):
            for name, speeds in rates.items():
                result = launch(
                    experiment, Path(folder) / name / f"run{repeat}", progress=False, worker=name
                )
                result.raise_for_status()
                speeds.append(result.summary["tokens_per_s"])
    for name, speeds in rates.items():
        runs = ", ".join(f"{rate:,.0f}" for rate in speeds)
        print(f"{name}: median {median(speeds):,.0f} tokens/s ({runs})")


if __name__ == "__main__":
    compare(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
