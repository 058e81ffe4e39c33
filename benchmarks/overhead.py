"""Measure what dsnb adds to a run: the wall time of the same worker, started in three ways.

    python -m benchmarks.overhead [repeats]

`bare` is the command a user would type, `deepspeed --num_gpus N`; the others are `dsnb.launch`
(with a warm fork server, as after the first run of a sweep) and the whole notebook, executed as in
a sweep. The worker, its 2 ranks and its steps are the same, so the differences are the cost of
starting.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from dsnb.base.files import json_files
from dsnb.measure.launcher import environment
from dsnb.measure.launcher.folder import prepare
from dsnb.measure.launcher.local import LOCALHOST, free_port, shared_servers
from dsnb.measure.launcher.run import WORKER, launch
from dsnb.measure.sweep.job import execute
from dsnb.measure.sweep.params import Run
from dsnb.settings.exchange import deepspeed_config
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.paths import RunPaths

EXPERIMENT = Experiment(
    model="gpt2-tiny",
    precision="fp32",
    data="stdlib",
    gpus=2,
    device="cpu",
    micro_batch_size=2,
    warmup_steps=0,
    steps=6,
)


def bare(run: RunPaths) -> None:
    """Start DeepSpeed's launcher by hand."""
    prepare(run, EXPERIMENT)
    json_files.write_json(run.deepspeed, deepspeed_config(EXPERIMENT))
    command = [
        sys.executable,
        "-m",
        "deepspeed.launcher.runner",
        "--num_gpus",
        str(EXPERIMENT.gpus),
    ]
    command += ["--master_port", str(free_port(LOCALHOST)), "--no_local_rank"]
    command += ["--module", "dsnb.measure.train.start", WORKER, str(run.dir)]
    env = environment.for_ranks(EXPERIMENT.device, EXPERIMENT.gpus, time.monotonic())
    subprocess.run(command, env=env, check=True, capture_output=True)


def forked(run: RunPaths) -> None:
    """Start a run through `dsnb.launch`."""
    launch(EXPERIMENT, run.dir, progress=False).raise_for_status()


def notebook(run: RunPaths) -> None:
    """Execute the run notebook as a sweep does."""
    execute(Run("overhead", EXPERIMENT, 1, run))


def main(repeats: int) -> None:
    """Time each way in turn and print medians."""
    ways: dict[str, Callable[[RunPaths], None]] = {
        "bare deepspeed": bare,
        "dsnb.launch": forked,
        "notebook": notebook,
    }
    walls: dict[str, list[float]] = {name: [] for name in ways}
    inside: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder, shared_servers({"cpu"}):
        forked(RunPaths(Path(folder) / "warm" / "run1"))
        forked(RunPaths(Path(folder) / "warm" / "run2"))
        for repeat in range(repeats):
            for number, (name, start) in enumerate(ways.items()):
                run = RunPaths(Path(folder) / f"way{number}" / f"run{repeat}")
                began = time.perf_counter()
                start(run)
                walls[name].append(time.perf_counter() - began)
                inside[name].append((json_files.read_json(run.worker) or {})["phases_s"]["timed"])
    for name, times_s in walls.items():
        print(f"{name:16} wall {median(times_s):5.2f} s, steps {median(inside[name]):4.2f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
