"""Measure params files as fast as a host with several GPUs allows: `python -m benchmarks.h200 OUTPUT SECONDS FILE ...`.

Runs that need one GPU are made on all GPUs at once, then those that need two, then four: each set
of GPUs makes one run after the other, with its own share of the host's cores. `--gpus 2` makes only
those on two. All settings are measured once before any is repeated, so that a drift of the machine
favours none. Runs that are finished in OUTPUT, or listed in OUTPUT/finished.txt, are kept: a
further call goes on where the last one ended. After SECONDS no run is started any more.
"""

import argparse
import os
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from dsnb.base.system import hardware
from dsnb.measure.launcher.run import launch
from dsnb.measure.sweep.params import Run, load_sweep

FINISHED = "finished.txt"
"""Run folders, relative to OUTPUT, whose results are elsewhere already: one a line."""


def runs_left(output: Path, files: Iterable[str]) -> list[Run]:
    """Return the runs that are not finished, first repeats first, each file's in its own random order."""
    listed = output / FINISHED
    finished = set(listed.read_text().split()) if listed.exists() else set()
    runs = [run for file in files for run in load_sweep(file, output=output / Path(file).stem).runs]
    left = [
        run
        for run in runs
        if not run.paths.result.exists() and str(run.paths.dir.relative_to(output)) not in finished
    ]
    return sorted(left, key=lambda run: run.repeat)


def make(run: Run, last_start: float) -> str:
    """Make one run, unless it is too late; return what became of it in a line."""
    if time.time() > last_start:
        return "not started"
    began = time.monotonic()
    result = launch(run.experiment, run.paths.dir, progress=False)
    rate, note = (
        result.summary.get("tokens_per_s") or 0,
        result.cause or result.summary.get("note") or "",
    )
    return f"{result.status} {rate:,.0f} tokens/s ({time.monotonic() - began:.0f} s) {note}"


def measure(runs: list[Run], gpus: list[str], last_start: float) -> None:
    """Make runs that need equally many GPUs, side by side on all of them."""
    each = runs[0].experiment.gpus
    sets = [gpus[first : first + each] for first in range(0, len(gpus) - each + 1, each)]
    if not sets:
        print(f"{len(runs)} runs need {each} GPUs; this host has {len(gpus)}", flush=True)
        return
    context = get_context("spawn")
    free: Any = context.Queue()
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // len(sets)
    for number, some in enumerate(sets):
        free.put((",".join(some), cores[number * share : (number + 1) * share]))
    with ProcessPoolExecutor(len(sets), context, _take_share, (free,)) as pool:
        pending = {pool.submit(make, run, last_start): run for run in runs}
        for done in as_completed(pending):
            run = pending[done]
            print(
                run.experiment.name_with_model,
                run.repeat,
                done.exception() or done.result(),
                flush=True,
            )


def _take_share(free: Any) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"], cores = free.get()
    os.sched_setaffinity(0, cores)


def main() -> None:
    """Make the runs that are left, those on few GPUs first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("seconds", type=float)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--gpus", type=int)
    given = parser.parse_args()
    last_start = time.time() + given.seconds
    left = runs_left(given.output, given.files)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(gpu) for gpu in range(len(hardware.gpus()) or 1)]
    for each in [given.gpus] if given.gpus else sorted({run.experiment.gpus for run in left}):
        measure([run for run in left if run.experiment.gpus == each], gpus, last_start)


if __name__ == "__main__":
    main()
