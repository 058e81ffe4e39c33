"""How near DeepSpeed comes to the plain loop on this GPU: `python -m benchmarks.bars OUTPUT [WORK ...]`.

First all works are compiled at once, which takes longest and fills torch's caches; then each run has the GPU to
itself. The settings of a work are interleaved and repeated, so that a drift of the machine affects all of them alike.
Finished runs are kept: a second call goes on where the first one stopped. At the end a table is printed and written to
`OUTPUT/bars.csv`.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd

from dsnb.analysis.summary import summarize
from dsnb.launcher.run import launch
from dsnb.run_folder.paths import RunPaths
from dsnb.runs.load import load_runs
from dsnb.settings.experiment import Experiment

REPEATS = 3
COMPILE = "--compile"
AUTOCAST: dict[str, Any] = {"mixed_precision": "autocast"}
GRAPHS = "reduce-overhead"
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "graphs": [
        {"strategy": "plain", "compile": GRAPHS},
        {"zero_stage": 0, "compile": GRAPHS, **AUTOCAST},
    ],
    "compiled": [
        {"strategy": "plain", "compile": "default"},
        {"zero_stage": 0, "compile": "default", **AUTOCAST},
    ],
}
WORKS: dict[str, tuple[str, int, int, str]] = {
    "gpt2-short": ("gpt2", 32, 128, "graphs"),
    "gpt2-long": ("gpt2", 32, 1024, "graphs"),
    "opt-350m": ("opt-350m", 24, 512, "graphs"),
    "opt-1.3b": ("opt-1.3b", 8, 2048, "compiled"),
    "bloom-560m": ("bloom-560m", 8, 512, "graphs"),
    "gpt2-medium": ("gpt2-medium", 8, 512, "graphs"),
}
"""Model, micro-batch, sequence length and kind of settings."""


def experiments(work: str) -> list[Experiment]:
    """Return the settings of a work, the plain loop first."""
    model, micro_batch_size, seq_len, kind = WORKS[work]
    common = {"model": model, "micro_batch_size": micro_batch_size, "seq_len": seq_len, "warmup_steps": 10, "steps": 40}
    return [Experiment(**common, **settings) for settings in SETTINGS[kind]]


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
            launch(experiment.model_copy(update={"warmup_steps": 3, "steps": 1}), Path(folder) / "run1", progress=False)


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
                rate, note = result.summary.get("tokens_per_s") or 0, result.cause or result.summary.get("note") or ""
                took = f"({time.monotonic() - began:.0f} s)"
                print(work, experiment.name, result.status, f"{rate:,.0f} tokens/s", took, note, flush=True)


def table(output: Path) -> pd.DataFrame:
    """Return one row per setting: medians over its repeats."""
    runs = load_runs(output)
    figures = ["tokens_per_s", "of_plain", "tflops_per_gpu", "mfu_of_matmul", "peak_allocated_gib", "step_time_s"]
    found = summarize(runs)
    return found[["n", "n_failed", *(f"{name}_{what}" for name in figures for what in ("median", "std"))]]


def main() -> None:
    """Measure the works named on the command line, or all of them."""
    output, *works = sys.argv[1:]
    if output == COMPILE:
        compile_one(works[0])
        return
    compile_all(works or list(WORKS))
    measure(Path(output), works or list(WORKS))
    found = table(Path(output))
    found.to_csv(Path(output) / "bars.csv")
    print(found.to_string())


if __name__ == "__main__":
    main()
