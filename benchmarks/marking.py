"""Measure what marking every step costs: the timed region with the meter's marks, and with none between its ends.

    python -m benchmarks.marking [repeats]

The plain loop of GPT-2 124M, 32 x 128, with CUDA graphs on a GPU: steps of 10 ms, the shortest that
dsnb knows.
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

MARKED, UNMARKED = "dsnb.measure.train.worker", "benchmarks.marking"


def main(run_dir: str) -> int:
    """Run the ordinary worker, but mark the last timed step only; it then lasts as long as all of them."""
    original_step = Meter.step

    def step(self: Meter, loss: torch.Tensor, skipped: bool, grad_norm: Any = None) -> None:
        if self._phase == "timed" and self._step < len(self.losses) - 1:
            self._step, self._forward = self._step + 1, None
        else:
            original_step(self, loss, skipped, grad_norm)

    Meter.step = step  # type: ignore[method-assign]
    return worker.main(run_dir)


def compare(repeats: int) -> None:
    """Run both in turn and print how long their timed regions took."""
    on_gpu = torch.cuda.is_available()
    shape: dict[str, Any] = {
        "model": "gpt2",
        "micro_batch_size": 32,
        "compile": "reduce-overhead",
        "steps": 400,
    }
    if not on_gpu:
        shape = {"model": "gpt2-tiny", "micro_batch_size": 2, "steps": 100}
    experiment = Experiment(strategy="plain", precision="bf16", warmup_steps=20, **shape)
    timed_s: dict[str, list[float]] = {MARKED: [], UNMARKED: []}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats):
            for name, times_s in timed_s.items():
                result = launch(
                    experiment, Path(folder) / name / f"run{repeat}", progress=False, worker=name
                )
                times_s.append(result.phases_s["timed"])
    for name, times_s in timed_s.items():
        print(
            f"{name}: median {median(times_s):.4f} s ({', '.join(f'{time_s:.4f}' for time_s in times_s)})"
        )
    print(f"marking costs {median(timed_s[MARKED]) / median(timed_s[UNMARKED]) - 1:.2%}")


if __name__ == "__main__":
    compare(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
