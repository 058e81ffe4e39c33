"""How near DeepSpeed comes to the plain loop on these GPUs: `python -m benchmarks.bars OUTPUT [WORK ...]`.

First all works are compiled at once, which takes longest and fills torch's caches; then each run
has the GPUs to itself. The settings of a work are interleaved and repeated, so that a drift of the
machine affects all of them alike. Finished runs are kept: a second call goes on where the first one
stopped. At the end a table is printed and written to `OUTPUT/bars.csv`.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd

from dsnb.base.system import hardware
from dsnb.measure.launcher.run import launch
from dsnb.results.runs.load import load_runs
from dsnb.results.statistics.summary import summarize
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.paths import RunPaths

REPEATS = 3
COMPILE = "--compile"
AUTOCAST: dict[str, Any] = {"mixed_precision": "autocast"}
GRAPHS = "reduce-overhead"
TWO: dict[str, Any] = {"compile": "default", "gpus": 2}
KEPT = {"stage3_max_live_parameters": 10**10, "stage3_max_reuse_distance": 10**10}
KEPT["stage3_prefetch_bucket_size"] = 2 * 10**8
"""Weights gathered for the forward pass stay for the backward pass."""
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "graphs": [
        {"strategy": "plain", "compile": GRAPHS},
        {"zero_stage": 0, "compile": GRAPHS, **AUTOCAST},
    ],
    "compiled": [
        {"strategy": "plain", "compile": "default"},
        {"zero_stage": 0, "compile": "default", **AUTOCAST},
    ],
    "two-small": [
        {"strategy": "plain", "compile": GRAPHS},
        {"strategy": "ddp", "compile": GRAPHS, "bucket_elements": 100_000_000, "gpus": 2},
        {"zero_stage": 0, "compile": GRAPHS, **AUTOCAST, "gpus": 2},
    ],
    "two-shared": [
        {"zero_stage": 1, "gradient_checks": "off", **TWO},
        {"zero_stage": 3, **TWO},
        {"zero_stage": 3, "deepspeed": {"zero_optimization": KEPT}, **TWO},
        {"strategy": "fsdp", **TWO},
    ],
    "two-lora": [
        {
            "zero_stage": 1,
            "lora_rank": 128,
            "activation_checkpointing": True,
            "checkpoint_every": every,
            **TWO,
        }
        for every in (1, 2)
    ],
    "four": [{"zero_stage": 1, "grad_accum": 8, "compile": "default", "gpus": 4}],
}
WORKS: dict[str, tuple[str, int, int, str]] = {
    "gpt2-short": ("gpt2", 32, 128, "graphs"),
    "gpt2-long": ("gpt2", 32, 1024, "graphs"),
    "opt-350m": ("opt-350m", 24, 512, "graphs"),
    "opt-1.3b": ("opt-1.3b", 8, 2048, "compiled"),
    "bloom-560m": ("bloom-560m", 8, 512, "graphs"),
    "gpt2-medium": ("gpt2-medium", 8, 512, "graphs"),
    "two-opt-350m": ("opt-350m", 24, 512, "two-small"),
    "two-opt-1.3b": ("opt-1.3b", 8, 2048, "two-shared"),
    "two-gpt2-xl": ("gpt2-xl", 24, 1024, "two-shared"),
    "two-opt-13b": ("opt-13b", 16, 512, "two-lora"),
    "four-bloom-7b1": ("bloom-7b1", 4, 1024, "four"),
}
"""Model, micro-batch, sequence length and kind of settings."""
LONG = ("two-opt-1.3b", "two-gpt2-xl", "two-opt-13b", "four-bloom-7b1")
"""Works whose steps take so long that ten are enough."""


def experiments(work: str) -> list[Experiment]:
    """Return the settings of a work, the one first that the others are compared with."""
    model, micro_batch_size, seq_len, kind = WORKS[work]
    shape = {"model": model, "micro_batch_size": micro_batch_size, "seq_len": seq_len}
    common = (
        {**shape, "warmup_steps": 4, "steps": 10}
        if work in LONG
        else {**shape, "warmup_steps": 10, "steps": 40}
    )
    return [Experiment(**common, **settings) for settings in SETTINGS[kind]]


def fits(work: str) -> bool:
    """Return whether this machine has the GPUs that a work needs."""
    return max(experiment.gpus for experiment in experiments(work)) <= len(hardware.gpus())


def compile_all(works: list[str]) -> None:
    """Run a few steps of every setting, the works side by side; what fails here fails again when it is measured."""
    began = time.monotonic()
    processes = [subprocess.Popen([sys.executable, __file__, COMPILE, work]) for work in works]
    for process in processes:
        process.wait()
    print(f"compiled in {time.monotonic() - began:.0f} s", flush=True)


def compile_one(work: str) -> None:
    """Run a few steps of every setting of a work, and keep nothing but torch's caches."""
    for experiment in experiments(work):
        with tempfile.TemporaryDirectory() as folder:
            launch(
                experiment.model_copy(update={"warmup_steps": 3, "steps": 1}),
                Path(folder) / "run1",
                progress=False,
            )


def measure(output: Path, works: list[str]) -> None:
    """Make the runs that are not finished yet; one that fails does not stop the others."""
    for work in works:
        for repeat in range(1, REPEATS + 1):
            for experiment in experiments(work):
                folder = output / work / experiment.name / f"run{repeat}"
                if RunPaths(folder).result.exists():
                    continue
                began = time.monotonic()
                result = launch(experiment, folder, progress=False)
                rate, note = (
                    result.summary.get("tokens_per_s") or 0,
                    result.cause or result.summary.get("note") or "",
                )
                took = f"({time.monotonic() - began:.0f} s)"
                print(
                    work,
                    experiment.name,
                    result.status,
                    f"{rate:,.0f} tokens/s",
                    took,
                    note,
                    flush=True,
                )


def table(output: Path) -> pd.DataFrame:
    """Return one row per setting: medians over its repeats."""
    runs = load_runs(output)
    figures = [
        "tokens_per_s",
        "of_plain",
        "tflops_per_gpu",
        "mfu_of_matmul",
        "peak_allocated_gib",
        "step_time_mean_s",
    ]
    summary = summarize(runs, metrics="all")
    return summary[
        ["n", "n_failed", *(f"{name}_{what}" for name in figures for what in ("median", "std"))]
    ]


def main() -> None:
    """Measure the works named on the command line, or all of them."""
    output, *works = sys.argv[1:]
    if output == COMPILE:
        compile_one(works[0])
        return
    works = works or [work for work in WORKS if fits(work)]
    compile_all(works)
    measure(Path(output), works)
    medians = table(Path(output))
    medians.to_csv(Path(output) / "bars.csv")
    print(medians.to_string())


if __name__ == "__main__":
    main()
