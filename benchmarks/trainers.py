"""Other ways to train beside dsnb's recommendation: `python -m benchmarks.trainers OUTPUT SECONDS [--only NAME ...]`.

Model, micro-batch, accumulation, sequence, precision, optimizer, clipping, initial weights and tokens
are the same for all ways of a task. Each run has processes of its own (`benchmarks.trainer_run` and
`benchmarks.trainer_dsnb`); when it ends, a line is added to OUTPUT/trainers.jsonl. A run that is in
there, or in benchmarks/trainers.jsonl for the same kind of GPU, is not made again, so a further call
goes on where the last one ended. If a way runs out of memory, the micro-batch is halved and
accumulation doubled.

The most important ways come first, then the others, then repeats. `--only` chooses runs whose name,
such as `gpt2/trainer/1`, contains one of the words; `--gpus 4` makes the tasks of four GPUs.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

import dsnb
from dsnb.base.files import json_files
from dsnb.base.system import hardware
from dsnb.measure.sweep.params import load_sweep
from dsnb.results.runs.labels import count
from dsnb.settings.experiment import Experiment

HERE = Path(__file__).parent
RESULTS = HERE / "trainers.jsonl"
"""Results that are kept: the tables of texts are made of them."""
RECOMMENDED = HERE / "params" / "h100" / "trainers.yaml"
CLIPPING = 1.0
RATE = 1e-4
WARMUP = 5
"""Steps before the timed ones."""
LIMIT_S = 200.0
"""Maximum duration of a run, its start and compilation included."""
LEAST_S = 45.0
"""No run is started with less time left."""
REPEATS = 3

WAYS = {
    "dsnb": "dsnb's recommendation",
    "adapt": "Trainer, `dsnb.adapt`",
    "written": "Trainer, dsnb's arguments alone",
    "gpt2_loop": "a loop of plain torch, compiled",
    "trainer": "Trainer",
    "compile": "Trainer, `torch_compile`",
    "liger": "Trainer, `use_liger_kernel`",
    "liger_compile": "Trainer, both",
    "zero1": "Trainer, DeepSpeed ZeRO 1, `auto`",
    "zero2": "Trainer, DeepSpeed ZeRO 2, `auto`",
    "zero3": "Trainer, DeepSpeed ZeRO 3, `auto`",
}
"""Ways in the order of the tables."""
FIRST = ("trainer", "compile", "liger", "zero2", "gpt2_loop", "dsnb", "adapt", "written")
LATER = ("liger_compile", "zero1", "zero3")
ADAPTED = ("adapt", "written")
FOR_ANY = ("trainer", "compile", "liger", "zero2", "dsnb", *ADAPTED, *LATER)
FOR_GPT2 = ("trainer", "compile", "zero2", "gpt2_loop", "dsnb", *ADAPTED, "zero1", "zero3")
"""Liger has no kernels for GPT-2."""
SHARDED = ("zero2", "zero3", "dsnb")
"""Ways that fit 8 billion parameters on four GPUs of 80 GB."""
PACKAGES = ("torch", "transformers", "accelerate", "deepspeed", "liger-kernel")
Record = dict[str, Any]
NOT_MEASURED = ["Not measured yet."]


@dataclass(frozen=True)
class Task:
    """What is trained."""

    title: str
    model: str
    micro_batch_size: int
    grad_accum: int
    seq_len: int
    steps: int
    """Timed steps, about 8 s of the fastest way."""
    ways: tuple[str, ...] = FOR_ANY
    gpus: int = 1


TASKS = {
    "olmo2-1b": Task("OLMo-2 1B", "benchmarks/params/h100/olmo2-1b.json", 8, 2, 2048, 16),
    "llama-3.2-1b": Task("Llama 3.2 1B", "llama-3.2-1b", 8, 2, 2048, 16),
    "gpt2": Task("GPT-2 124M", "gpt2", 16, 4, 1024, 50, FOR_GPT2),
    "qwen3-0.6b": Task("Qwen3 0.6B", "qwen3-0.6b", 8, 2, 2048, 24),
    "llama-3.1-8b": Task("Llama 3.1 8B", "llama-3.1-8b", 2, 4, 2048, 12, SHARDED, gpus=4),
    "gpt2-tiny": Task("GPT-2 tiny", "gpt2-tiny", 4, 2, 64, 3, FOR_GPT2),
    "llama-tiny": Task("Llama tiny", "llama-tiny", 4, 2, 64, 3),
}
TINY = ("gpt2-tiny", "llama-tiny")
"""Tasks for a CPU."""


@dataclass(frozen=True)
class Run:
    """One training of a task."""

    name: str
    """The task's name."""
    way: str
    repeat: int
    micro_batch_size: int
    grad_accum: int
    device: str

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Return the run of a record."""
        return cls(**{key: record[key] for key in cls.__dataclass_fields__})

    @property
    def task(self) -> Task:
        """What is trained."""
        return TASKS[self.name]

    @property
    def label(self) -> str:
        """Name for people."""
        return f"{self.name}/{self.way}/{self.repeat}"

    def fields(self) -> Record:
        """Return the fields that identify the run."""
        return {key: getattr(self, key) for key in self.__dataclass_fields__}

    @property
    def module(self) -> str:
        """The module that makes the run."""
        return "benchmarks.trainer_dsnb" if self.way == "dsnb" else "benchmarks.trainer_run"

    def halved(self) -> "Run":
        """Return the run with half the micro-batch and the same tokens per step."""
        return replace(
            self, micro_batch_size=self.micro_batch_size // 2, grad_accum=2 * self.grad_accum
        )


@dataclass
class Records:
    """The results of runs that are made, in a file that is written line by line."""

    path: Path
    gpu: str
    known: list[Record] = field(default_factory=list)

    def read(self, *paths: Path) -> None:
        """Read the results of this kind of GPU."""
        for path in paths:
            self.known += [record for record in read(path) if record["gpu"] == self.gpu]

    def find(self, run: Run) -> Record | None:
        """Return the result of a run; one that runs out of memory does so in every repeat."""
        for record in self.known:
            other = Run.of(record)
            if record["status"] == "oom":
                other = replace(other, repeat=run.repeat)
            if other == run:
                return record
        return None

    def add(self, record: Record) -> None:
        """Keep a result."""
        self.known.append(record)
        json_files.append_line(self.path, record)


def read(path: Path) -> list[Record]:
    """Return the results in a file, none if there is no such file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def recommended(model: str) -> Record:
    """Return the settings that dsnb recommends for a model; the plain loop for one that is not listed."""
    for run in load_sweep(str(RECOMMENDED)).runs:
        if run.experiment.model == model:
            return run.experiment.model_dump(exclude_unset=True)
    return {"strategy": "plain"}


def planned(names: Iterable[str], device: str) -> Iterator[Run]:
    """Yield all runs in their order."""
    for repeat in range(1, REPEATS + 1):
        for ways in (FIRST, LATER):
            for name in names:
                task = TASKS[name]
                for way in ways:
                    if way in task.ways:
                        batch = task.micro_batch_size
                        yield Run(name, way, repeat, batch, task.grad_accum, device)


def training_of(run: Run) -> Experiment:
    """Return dsnb's settings of the same model, batch and tokens."""
    is_cuda = run.device == "cuda"
    return Experiment(
        model=run.task.model,
        gpus=run.task.gpus,
        device=run.device,
        precision="bf16" if is_cuda else "fp32",
        micro_batch_size=run.micro_batch_size,
        grad_accum=run.grad_accum,
        seq_len=run.task.seq_len,
        gradient_clipping=CLIPPING,
        learning_rate=RATE,
        warmup_steps=WARMUP,
        steps=run.task.steps,
    )


def recommendation(run: Run) -> Experiment:
    """Return the settings that dsnb recommends, with the batch, tokens and steps of a run."""
    same = training_of(run).model_dump(exclude_unset=True)
    return Experiment(**{**recommended(run.task.model), **same})


def make_rank(measure: Callable[[Run], Record]) -> None:
    """Make one rank of a run, in a process whose arguments are its specification and rank 0's file for the figures."""
    specification, result = sys.argv[1:]
    try:
        figures = {"status": "ok", **measure(Run.of(json.loads(specification)))}
    except Exception as error:
        traceback.print_exc()
        is_oom = "out of memory" in str(error).lower()
        cause = f"{type(error).__name__}: {error}"[:300]
        figures = {"status": "oom" if is_oom else "failed", "cause": cause}
    if int(os.environ.get("RANK", "0")) == 0:
        Path(result).write_text(json.dumps({**figures, "versions": versions()}))
    sys.stdout.flush()
    os._exit(0)  # process groups and compile workers may wait for each other at the end


def versions() -> dict[str, str]:
    """Return the versions of the packages that matter, of those installed."""
    found = {"dsnb": dsnb.__version__}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def first_and_mean(losses: list[float]) -> Record:
    """Return the first loss and the mean of all others, the figures that transformers' Trainer logs."""
    return {"loss_first": losses[0], "loss_mean": statistics.fmean(losses[1:])}


def environments(run: Run) -> list[dict[str, str]]:
    """Return the environment variables of each rank that is started; dsnb starts its ranks itself."""
    beside_python = str(Path(sys.executable).parent)  # where DeepSpeed's op builder finds ninja
    path = os.pathsep.join([beside_python, os.environ.get("PATH", os.defpath)])
    common = {"HF_HUB_OFFLINE": "1", "PATH": path}
    arches = os.environ.get("TORCH_CUDA_ARCH_LIST")
    if arches:  # DeepSpeed's op builder fails on the suffix
        common["TORCH_CUDA_ARCH_LIST"] = arches.replace("9.0a", "9.0")
    if run.device == "cpu":
        common["DS_ACCELERATOR"] = "cpu"
    ranks = run.task.gpus
    is_single = ranks == 1 and not run.way.startswith("zero")
    if is_single or run.way == "dsnb":
        return [common]
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    common |= {"WORLD_SIZE": str(ranks), "LOCAL_SIZE": str(ranks)}
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make(run: Run, limit_s: float, log: Path) -> Record:
    """Make a run in processes of its own and return its figures; `status` is missing if it exceeded its limit."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, log.open("a") as text:
        text.write(f"\n=== {run.label}, micro-batch {run.micro_batch_size}\n")
        text.flush()
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", run.module, json.dumps(run.fields()), str(result)]
        ranks = [
            subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdout=text,
                stderr=text,
                start_new_session=True,
            )
            for environment in environments(run)
        ]
        try:
            for rank in ranks:
                rank.wait(max(0.1, began_s + limit_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            return {"wall_s": time.monotonic() - began_s}
        finally:
            for rank in ranks:
                end(rank)
        codes = [rank.returncode for rank in ranks]
        failure = {"status": "failed", "cause": f"exit codes {codes}"}
        figures = json.loads(result.read_text()) if result.exists() else failure
    return {**figures, "wall_s": round(time.monotonic() - began_s, 1)}


def end(rank: subprocess.Popen[bytes]) -> None:
    """End a rank and all processes that it started in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(rank.pid, signal.SIGKILL)
    rank.wait()


def make_until_it_fits(run: Run, records: Records, deadline_s: float) -> bool:
    """Make a run, with ever smaller micro-batches if memory runs out; return whether there was time for it."""
    while True:
        record = records.find(run)
        if record is None:
            left_s = deadline_s - time.monotonic()
            if left_s < LEAST_S:
                return False
            figures = make(run, min(LIMIT_S, left_s), records.path.with_suffix(".log"))
            if "status" not in figures:
                if left_s < LIMIT_S:
                    return False
                figures["status"] = "timeout"
            where = {"gpu": records.gpu, "date": date.today().isoformat()}
            record = {**run.fields(), **where, **figures}
            records.add(record)
            print(line(record), flush=True)
        if record["status"] != "oom" or run.micro_batch_size == 1:
            return True
        run = run.halved()


def line(record: Record) -> str:
    """Return what became of a run, for the console."""
    shape = f"{record['micro_batch_size']} x {record['grad_accum']}"
    text = f"{Run.of(record).label} ({shape}): {record['status']}"
    if record["status"] == "ok":
        text += f" {record['tokens_per_s']:,.0f} tokens/s, {_gib(record)}"
        text += f", losses {record['loss_first']:.4f} {record['loss_mean']:.4f}"
    return f"{text} ({record['wall_s']:.0f} s) {record.get('cause', '')}"


def _gib(record: Record) -> str:
    peak = record.get("peak_allocated_gib")
    return f"{peak:.1f} GiB" if peak else "no memory figure"


def of_way(records: Iterable[Record], name: str, way: str) -> list[Record]:
    """Return the results of a way with the largest micro-batch that fits; if none is ok, all of them."""
    of_it = [record for record in records if (record["name"], record["way"]) == (name, way)]
    ok = [record for record in of_it if record["status"] == "ok"]
    if not ok:
        return of_it
    largest = max(record["micro_batch_size"] for record in ok)
    return [record for record in ok if record["micro_batch_size"] == largest]


def cell(records: list[Record], task: Task) -> str:
    """Return the median speed and the largest peak of a way, and its micro-batch if it is not the task's."""
    if not records:
        return ""
    if records[0]["status"] != "ok":
        status = str(records[-1]["status"])
        return "out of memory" if status == "oom" else status
    speed = statistics.median(record["tokens_per_s"] for record in records)
    text = f"{speed:,.0f} ({max(map(_peak, records)):.1f} GiB)"
    batch = records[0]["micro_batch_size"]
    return text if batch == task.micro_batch_size else f"{text}, {batch} x {task.seq_len}"


def _peak(record: Record) -> float:
    return float(record.get("peak_allocated_gib") or 0.0)


def loss_cell(records: list[Record]) -> str:
    """Return the first loss of a way and the mean of the others."""
    if not records or records[0]["status"] != "ok":
        return ""
    first = statistics.median(record["loss_first"] for record in records)
    mean = statistics.median(record["loss_mean"] for record in records)
    return f"{first:.3f}, {mean:.3f}"


def speed_table(records: list[Record]) -> list[str]:
    """Return tokens/s and peak memory of each way as Markdown, for each kind of GPU, and how they were measured."""
    if not records:
        return NOT_MEASURED
    lines: list[str] = []
    for gpu in sorted({record["gpu"] for record in records}):
        of_gpu = [record for record in records if record["gpu"] == gpu]
        lines += [*_table(of_gpu, cell), "", *notes(of_gpu), ""]
    return lines[:-1]


def loss_table(records: list[Record]) -> list[str]:
    """Return the losses of each way as Markdown."""
    if not records:
        return NOT_MEASURED
    return _table(records, lambda some, _: loss_cell(some))


def _table(records: list[Record], text_of: Callable[[list[Record], Task], str]) -> list[str]:
    names = [name for name in TASKS if any(record["name"] == name for record in records)]
    titles = [_title(TASKS[name]) for name in names]
    rows = [f"| way | {' | '.join(titles)} |", "|---" * (len(names) + 1) + "|"]
    for way, label in WAYS.items():
        cells = [text_of(of_way(records, name, way), TASKS[name]) for name in names]
        if any(cells):
            rows.append(f"| {label} | {' | '.join(cells)} |")
    return rows


def _title(task: Task) -> str:
    shape = f"{task.micro_batch_size} x {task.seq_len}, {task.grad_accum} accumulated"
    return f"{task.title}, {shape}" + (f", {task.gpus} GPUs" if task.gpus > 1 else "")


def notes(records: list[Record]) -> Iterator[str]:
    """Yield GPUs, dates, versions, numbers of runs and the settings of dsnb, each as a sentence."""
    found: dict[str, set[str]] = defaultdict(set)
    counts: dict[tuple[str, ...], int] = defaultdict(int)
    settings: dict[str, str] = {}
    for record in records:
        found["gpu"].add(record["gpu"])
        found["date"].add(record["date"])
        for package, number in record.get("versions", {}).items():
            found[package].add(f"{package} {number}")
        if record["status"] == "ok":
            counts[record["name"], record["way"]] += 1
        if record.get("settings"):
            settings[TASKS[record["name"]].title] = record["settings"]
    gpus, dates = (" and ".join(sorted(found.pop(key))) for key in ("gpu", "date"))
    versions = ", ".join(" and ".join(sorted(found[package])) for package in found)
    fewest, most = min(counts.values(), default=0), max(counts.values(), default=0)
    runs = f"{fewest} to {most} runs" if most > fewest else count(most, "run")
    yield f"{gpus}, {dates}; {versions}. Medians of {runs} each; peaks of allocated memory."
    named = "; ".join(f"{title}: `{name}`" for title, name in settings.items())
    yield f"Recommended settings: {named}."


def main() -> None:
    """Make the runs that are left, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--only", nargs="+", default=[""])
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    given = parser.parse_args()
    deadline_s = time.monotonic() + given.seconds
    is_cpu = given.device == "cpu"
    names = [
        name for name, task in TASKS.items() if task.gpus == given.gpus and (name in TINY) == is_cpu
    ]
    given.output.mkdir(parents=True, exist_ok=True)
    gpu = "CPU" if is_cpu else hardware.gpus()[0].name
    records = Records(given.output / RESULTS.name, gpu)
    records.read(records.path, RESULTS)
    for run in planned(names, given.device):
        is_chosen = any(word in run.label for word in given.only)
        if is_chosen and not make_until_it_fits(run, records, deadline_s):
            break
    print("\n".join([*speed_table(records.known), "", *loss_table(records.known)]))


if __name__ == "__main__":
    main()
