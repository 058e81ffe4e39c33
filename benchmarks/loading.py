"""Time the loading of 10,000 runs of 200 steps, and compare with other ways to read the same data.

    python -m benchmarks.loading [runs] [steps] [folder]
    python -m benchmarks.loading logs [megabytes] [folder]

The second form reads logs of other programs of that size, each in its own process, and prints the
peak memory: lines of iterations, irrelevant lines, and random bytes.

dsnb's loading is compared with pyarrow parsing the same JSON (each kind of file in one call, from
memory, which is its best case) and with a common pattern in benchmark notebooks: steps as CSV,
parsed row by row with `csv.DictReader`, then medians and standard deviations by experiment. All
files are in the page cache.
"""

import csv
import io
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow
from pyarrow import json as arrow

REPEATS = 3
SETTINGS = {
    "model": "gpt2-tiny", "weights": "random", "zero_stage": 0, "precision": "fp32", "micro_batch_size": 8,
    "grad_accum": 1, "seq_len": 128, "activation_checkpointing": False, "attention": "auto", "dropout": 0.0,
    "data": "stdlib", "tokenizer": "bytes", "learning_rate": 0.0001, "gradient_clipping": 0.0, "seed": 0,
    "warmup_steps": 5, "steps": 200, "device": "cpu", "gpus": 2, "time_limit_s": 1800.0, "launcher": "fork",
}  # fmt: skip
ENVIRONMENT = {
    "host": "host", "os": "Linux", "cpu": "CPU", "cores": 2, "memory_gib": 23.5, "gpus": [], "driver": None,
    "python": "3.11", "torch": "2.13", "deepspeed": "0.19", "git_commit": "0", "date_utc": "2026-11-21T10:00:00+00:00",
}  # fmt: skip


def write(folder: Path, runs: int, steps: int) -> None:
    """Write run folders as dsnb does, three repeats per experiment, with random figures."""
    chance = random.Random(0)
    notebook = {
        "cells": [{"source": "x" * 40_000}],
        "metadata": {"papermill": {"default_parameters": {}, "duration": 9.5}},
    }
    for number in range(runs):
        run = folder / f"zs0_fp32_gpus2_bs8_sl128_seed{number // 3}" / f"run{number % 3 + 1}"
        run.mkdir(parents=True)
        times = [chance.gauss(0.2, 0.01) for _ in range(steps)]
        rate = 2048 * steps / sum(times)
        summary = {
            "tokens_per_s": rate,
            "tokens_per_s_per_gpu": rate / 2,
            "step_time_mean_s": sum(times) / steps,
        }
        summary |= {
            "peak_allocated_gib": None,
            "host_memory_gib": 0.48,
            "loss_last": 4.6,
            "timed_steps": steps,
        }
        result = {
            "status": "ok",
            "cause": None,
            "exit_codes": {"0": 0},
            "phases_s": {"timed": 40.0},
            "summary": summary,
        }
        lines = "".join(_line(step, time_s, chance) for step, time_s in enumerate(times, 1))
        (run / "steps.jsonl").write_text(lines)
        for name, record in (
            (
                "experiment",
                SETTINGS | {"seed": number // 3, "steps": steps, "run_id": f"{number:016x}"},
            ),
            ("environment", ENVIRONMENT),
            ("result", result | {"steps_bytes": len(lines)}),
        ):
            (run / f"{name}.json").write_text(json.dumps(record, indent=1))
        (run / "run.ipynb").write_text(json.dumps(notebook))


def _line(step: int, time_s: float, chance: random.Random) -> str:
    record = {
        "step": step,
        "phase": "timed",
        "t_s": step * time_s,
        "step_time_s": time_s,
        "loss": chance.gauss(4, 0.1),
    }
    return (
        json.dumps(
            record
            | {"tokens": 2048, "allocated_gib": 7.123456, "reserved_gib": 8.5, "skipped": False}
        )
        + "\n"
    )


ITERATION = (
    " iteration {0:8d}/ 9999999 | consumed samples: {0:12d} | elapsed time per iteration (ms): {1:.1f} | "
    "learning rate: 1.500E-04 | global batch size:    32 | lm loss: {2:.6E} | loss scale: 1.0 | grad norm: 1.234 | "
    "number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)
NOISE = (
    "node3:{0}:{0} [0] NCCL INFO Channel 11 : 0[1a000] -> 2[88000] via P2P/IPC\n",
    "[2024-07-08 05:14:51,770] [INFO] [utils.py:11:loading] shard {0} of the data set is read\n",
    "loading the shard {0} of a dataset from the cache with one worker process, 0.{0} of it so far\n",
)
READ = """
import resource, sys, time
import dsnb
dsnb.load_runs(sys.argv[2])  # imports
began, busy = time.perf_counter(), time.process_time()
dsnb.load_runs(sys.argv[1])
peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(time.perf_counter() - began, time.process_time() - busy, peak_mib)
"""


def write_log(path: Path, kind: str, size: int) -> None:
    """Write a log of about `size` bytes: `iterations`, `noise` (an iteration a megabyte), or `random` bytes."""
    chance = random.Random(0)
    with open(path, "wb") as file:
        file.write(ITERATION.format(1, 2000.0, 9.0).encode())
        step = 1
        while file.tell() < size:
            if kind == "random":
                file.write(chance.randbytes(2**20))
                continue
            many = 3000 if kind == "iterations" else 1
            for step in range(step + 1, step + many + 1):  # noqa: B020
                file.write(
                    ITERATION.format(step, chance.gauss(2000, 20), chance.gauss(4, 0.1)).encode()
                )
            if kind == "noise":
                file.write(
                    "".join(
                        chance.choice(NOISE).format(chance.randrange(10**6)) for _ in range(12_000)
                    ).encode()
                )


def read_logs(megabytes: int, folder: Path) -> None:
    """Read a large log of each kind, and print time in s and peak memory in MiB."""
    small = folder / "small.log"
    write_log(small, "noise", 2**20)
    for kind in ("iterations", "noise", "random"):
        path = folder / f"{kind}.log"
        write_log(path, kind, megabytes * 10**6)
        words = [sys.executable, "-c", READ, str(path), str(small)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        time_s, busy_s, peak_mib = map(float, done.stdout.split())
        print(
            f"{kind:12} {megabytes} MB {time_s:8.2f} s, {busy_s:8.2f} s busy, {peak_mib:6.0f} MiB at most",
            flush=True,
        )
        path.unlink()


def seconds(what: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Return the shortest of several times in s."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        what()
        times.append(time.perf_counter() - began)
    return min(times)


def with_pyarrow(folder: Path) -> float:
    """Time pyarrow's parsing of the same JSON: all runs' steps in one call, then each of the three small files."""
    total = 0.0
    for name in ("experiment.json", "environment.json", "result.json", "steps.jsonl"):
        files = [path.read_bytes() for path in sorted(folder.rglob(name))]
        raw = b"".join(
            content if name.endswith("l") else json.dumps(json.loads(content)).encode() + b"\n"
            for content in files
        )
        how = arrow.ReadOptions(block_size=16 * 2**20)
        total += seconds(lambda raw=raw, how=how: arrow.read_json(pyarrow.BufferReader(raw), how))
    return total


def with_dictreader(folder: Path) -> float:
    """Time parsing the same steps row by row, as CSV in memory."""
    texts = []
    for path in sorted(folder.rglob("steps.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        text = io.StringIO()
        writer = csv.DictWriter(text, rows[0])
        writer.writeheader()
        writer.writerows(rows)
        texts.append((path.parent.parent.name, text.getvalue()))

    def read() -> pd.DataFrame:
        rows = []
        for experiment, text in texts:
            for row in csv.DictReader(io.StringIO(text)):
                numbers = {
                    name: float(row[name]) for name in row if name not in {"phase", "skipped"}
                }
                rows.append(
                    {
                        "experiment": experiment,
                        "phase": row["phase"],
                        "skipped": row["skipped"],
                        **numbers,
                    }
                )
        return pd.DataFrame(rows).groupby("experiment")["step_time_s"].agg(["median", "std"])

    return seconds(read, 1)


def main() -> None:
    """Measure and print all times."""
    import dsnb

    if sys.argv[1:2] == ["logs"]:
        with tempfile.TemporaryDirectory(
            dir=sys.argv[3] if len(sys.argv) > 3 else None
        ) as temporary:
            read_logs(int(sys.argv[2]) if len(sys.argv) > 2 else 1000, Path(temporary))
        return
    runs, steps = (int(word) for word in (*sys.argv[1:3], *("10000", "200")[len(sys.argv) - 1 :]))
    with tempfile.TemporaryDirectory(dir=sys.argv[3] if len(sys.argv) > 3 else None) as temporary:
        folder = Path(temporary, "outputs", "sweep")
        write(folder, runs, steps)
        dsnb.summarize(dsnb.load_runs(next(folder.iterdir())))  # imports
        times_s = {
            "load_runs": seconds(lambda: dsnb.load_runs(folder)),
            "load_runs and summarize": seconds(lambda: dsnb.summarize(dsnb.load_runs(folder))),
            "load_steps": seconds(lambda: dsnb.load_steps(folder)),
            "pyarrow, the same JSON": with_pyarrow(folder),
            "csv.DictReader, a row at a time": with_dictreader(folder),
        }
    for name, value in times_s.items():
        print(f"{name:38} {value:8.3f} s")
    print(json.dumps({"runs": runs, "steps": steps, "seconds": times_s}))


if __name__ == "__main__":
    main()
