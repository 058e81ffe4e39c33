"""What each adaptation of a model does to its kernels: `python -m benchmarks.family_kernels OUTPUT SECONDS [KIND ...]`.

Every kind of `benchmarks.families`, at the width of a model of a billion parameters and with two
blocks, is compiled as transformers has it, and with each adaptation: attention without a mask, then
the loss in chunks or a padded vocabulary as well. The GPU's kernels of a forward and a backward pass
in bf16 are timed by torch's profiler: those of attention, and those of the loss. Each kind is a line
of OUTPUT/family_kernels.jsonl; no kind is begun after SECONDS. An adaptation whose kernels take
longer than transformers' is a fault. `python -m benchmarks.family_kernels --keep FILE` adds the
lines of a file to `family_kernels.csv`, of which the table in docs/reference/models.md is made.

A process compiles a kind while others compile theirs, since that takes most of the time; passes are
timed one process at a time, and the fastest counts, since warm-up passes of another process may
interrupt a kernel.
"""

import json
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.families import KINDS, SIZES
from dsnb.base.files import json_files
from dsnb.settings.experiment import Experiment

COLUMNS = ("kind", "way", "kernel", "attention_ms", "loss_ms")
TABLE = Path(__file__).with_name("family_kernels.csv")
HEADS_TIMES = 4
WIDTH_TIMES = 16
"""Factors by which heads and their sizes, and widths, are those of `families`."""
OF_WIDTH = ("hidden_size", "intermediate", "ffn_dim", "word_embed", "dim_model_base")
OF_HEADS = ("heads", "head_dim", "rotary_dim", "rank")
"""Parts of the names of such fields."""
VOCAB = 50_257
"""As GPT-2's: no multiple of 8, so that products with it are padded."""
POSITIONS = 2048
PROCESSES = 6
BASE = "transformers"
HEADER = [
    "| kind | transformers' kernel | attention, ms | dsnb's attention | loss | in chunks | padded |",
    "|---" * 7 + "|",
]
WAYS: dict[str, dict[str, Any]] = {
    BASE: {},
    "attention": {},
    "chunked": {"loss": "chunked"},
    "pad_vocab": {"pad_vocab": 64},
}
"""Adaptations in addition to attention without a mask -> their settings."""


@dataclass(frozen=True)
class Job:
    """A kind to be measured."""

    kind: str
    output: Path
    device: str
    last_start_s: float


def configuration(kind: str, device: str) -> dict[str, Any]:
    """Return the configuration of a kind; on a CPU it is the tiny one."""
    fields = {"model_type": kind, **SIZES, **KINDS[kind]}
    if device == "cpu":
        return fields
    for name, value in fields.items():
        if not isinstance(value, int) or name.endswith("_id"):
            continue
        if any(part in name for part in OF_HEADS):
            fields[name] = HEADS_TIMES * value
        elif any(part in name for part in OF_WIDTH):
            fields[name] = WIDTH_TIMES * value
    return {**fields, "vocab_size": VOCAB, "max_position_embeddings": POSITIONS}


def experiment_of(model: Path, device: str, way: str) -> Experiment:
    """Return the settings of a way."""
    is_cuda = device == "cuda"
    return Experiment(
        model=str(model),
        strategy="plain",
        device=device,
        precision="bf16",
        compile="default",
        compile_unit="model",
        micro_batch_size=4 if is_cuda else 1,
        seq_len=POSITIONS if is_cuda else 16,
        **WAYS[way],
    )


def measure(job: Job, lock: Any) -> None:
    """Measure a kind in every way and append its line."""
    from benchmarks import kernel_times  # it imports torch, which reading the table does not need

    if time.time() > job.last_start_s:
        return
    folder = job.output / "configurations"
    folder.mkdir(exist_ok=True)
    model = folder / f"{job.kind}.json"
    model.write_text(json.dumps(configuration(job.kind, job.device)), encoding="utf-8")
    row: dict[str, Any] = {"kind": job.kind}
    for way in WAYS:
        experiment = experiment_of(model, job.device, way)
        try:
            if way == BASE:
                with kernel_times.as_transformers_has_it():
                    row[way] = kernel_times.kernels_of(experiment, lock)
            else:
                with kernel_times.whole_sequences():
                    row[way] = kernel_times.kernels_of(experiment, lock)
        except Exception as error:  # of any model or kernel: it is the result of this way
            traceback.print_exc()
            row[way] = {"error": f"{type(error).__name__}: {error}"[:200]}
        print(job.kind, way, row[way], flush=True)
    with lock:
        json_files.append_line(job.output / "family_kernels.jsonl", row)


def work(queue: Any, lock: Any) -> None:
    """Measure the kinds of a queue until None."""
    while True:
        job = queue.get()
        if job is None:
            break
        measure(job, lock)
    sys.stdout.flush()
    os._exit(0)  # compile workers may wait for each other at the end


def keep(lines: Path) -> None:
    """Add measured kinds to the table, in place of what it says of them."""
    rows = {(row["kind"], row["way"]): row for row in known()}
    for line in json_files.read_lines(lines):
        for way in WAYS:
            found = line[way]
            row = {"kind": line["kind"], "way": way, "kernel": found.get("kernel") or ""}
            for name in ("attention", "loss"):
                seconds = found.get(f"{name}_kernels_s")
                row[f"{name}_ms"] = "" if seconds is None else f"{1e3 * seconds:.2f}"
            rows[row["kind"], way] = row
    table = pd.DataFrame(list(rows.values()), columns=list(COLUMNS))
    table.sort_values("kind", kind="stable").to_csv(TABLE, index=False)


def known() -> list[dict[str, str]]:
    """Return the rows that have been measured."""
    if not TABLE.exists():
        return []
    table = pd.read_csv(TABLE, dtype=str, keep_default_na=False)
    return table.to_dict("records")


def counts() -> dict[str, float]:
    """Return how many kinds are measured, how many transformers gives a mask, and how many still have one."""
    of_way = {way: [row for row in known() if row["way"] == way] for way in (BASE, "attention")}
    masked = {}
    for way, rows in of_way.items():
        masked[way] = [row for row in rows if row["kernel"].endswith("masked")]
    return {"n": len(of_way[BASE]), "before": len(masked[BASE]), "after": len(masked["attention"])}


def rows() -> Iterator[str]:
    """Yield a row of the documentation's table for each kind: times as transformers has it, and with adaptations."""
    found = {(row["kind"], row["way"]): row for row in known()}
    for kind in dict.fromkeys(kind for kind, _ in found):
        base = found[kind, BASE]
        ours = found[kind, "attention"]
        cells = [f"`{kind}`", base["kernel"], base["attention_ms"], ours["attention_ms"]]
        cells += [found[kind, way]["loss_ms"] for way in ("attention", "chunked", "pad_vocab")]
        yield f"| {' | '.join(cell or '-' for cell in cells)} |"


def main(output: Path, seconds: float, kinds: list[str]) -> None:
    """Measure kinds, several processes at once."""
    import torch

    output.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    lock = context.Lock()
    last_start_s = time.time() + seconds
    for kind in kinds:
        queue.put(Job(kind, output, device, last_start_s))
    processes = []
    for _ in range(min(PROCESSES, len(kinds))):
        queue.put(None)
        process = context.Process(target=work, args=(queue, lock))
        process.start()
        processes.append(process)
    for process in processes:
        process.join()


if __name__ == "__main__":
    if sys.argv[1] == "--keep":
        keep(Path(sys.argv[2]))
        sys.exit()
    main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:] or list(KINDS))
