"""What recording does to a script on a GPU: `python -m benchmarks.recording [rounds]`.

A loop of torch and transformers' Trainer train GPT-2 of eight blocks, in turn with and without dsnb. Three figures of
each: how far the recorded times are from those of CUDA events alone, how much longer a step takes while it is recorded,
and how often the host waits for the GPU in the timed steps with dsnb and without.
"""

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from torch.profiler import ProfilerActivity, profile

import dsnb
from dsnb.base.files import json_files

WARMUP_STEPS = 10
STEPS = 60
PROFILED = 5
"""Steps of a run under torch's profiler, which slows the host down."""
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
SHAPE = {"n_layer": 8, "n_head": 16, "n_embd": 1024, "vocab_size": 8192, "n_positions": 1024}
BATCH = (8, 1024)
"""Sequences and tokens of one: a step of about 10 ms on an H100."""


@dataclass
class Timed:
    """The steps of a run as this file times them, in seconds."""

    events_s: list[float]
    """By CUDA events, one at the end of each step."""
    mean_s: float
    """By the host, which waits for the GPU before the first and after the last one."""


class Times(transformers.TrainerCallback):  # type: ignore[misc]
    """Marks the ends of steps by CUDA events alone, in a loop or in the Trainer."""

    def __init__(self) -> None:
        self._events: list[Any] = []
        self._began_s = 0.0

    def on_step_end(self, *given: Any, **named: Any) -> None:
        """Mark the end of a step."""
        if len(self._events) == WARMUP_STEPS - 1:
            torch.cuda.synchronize()
            self._began_s = time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)

    def timed(self) -> Timed:
        """Wait for the GPU, and return the times of the steps after the warm-up."""
        torch.cuda.synchronize()
        wall_s = time.perf_counter() - self._began_s
        marks = self._events[WARMUP_STEPS - 1 :]
        events_s = [first.elapsed_time(second) / 1e3 for first, second in pairwise(marks)]
        return Timed(events_s, wall_s / len(events_s))


def build() -> Any:
    """Return the model in bf16 on the GPU."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(**SHAPE, bos_token_id=None, eos_token_id=None)
    return transformers.GPT2LMHeadModel(config).to("cuda", torch.bfloat16)


def loop(run_dir: Path | None, steps: int = STEPS) -> Timed:
    """Train in a loop of torch, recorded if there is a run folder."""
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ids = torch.randint(SHAPE["vocab_size"], BATCH, device="cuda")
    times = Times()
    with contextlib.ExitStack() as recording:
        step: Callable[..., object] = bool
        if run_dir:
            run = dsnb.record(run_dir, model=model, warmup_steps=WARMUP_STEPS, optimizer="adamw")
            step = recording.enter_context(run).step
        for _ in range(WARMUP_STEPS + steps):
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if run_dir:
                step(loss=loss)
            times.on_step_end()
        return times.timed()


def trainer(run_dir: Path | None, steps: int = STEPS) -> Timed:
    """Train with transformers' Trainer, recorded if there is a run folder."""
    count = BATCH[0] * (WARMUP_STEPS + steps)
    ids = torch.randint(SHAPE["vocab_size"], (count, BATCH[1]))
    with tempfile.TemporaryDirectory() as output:
        arguments = transformers.TrainingArguments(
            output, max_steps=WARMUP_STEPS + steps, per_device_train_batch_size=BATCH[0], bf16=True,
            optim="adamw_torch_fused", logging_steps=1000, save_strategy="no", report_to="none", disable_tqdm=True,
        )  # fmt: skip
        rows = [{"input_ids": row, "labels": row} for row in ids]
        training = transformers.Trainer(build(), arguments, train_dataset=rows)
        times = Times()
        if run_dir:
            training.add_callback(dsnb.TrainerCallback(run_dir, warmup_steps=WARMUP_STEPS))
        training.add_callback(times)
        training.train()
        return times.timed()


def waits(train: Callable[..., Timed], run_dir: Path | None) -> int:
    """Return how often the host waits for the GPU in some steps after the warm-up."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        train(run_dir, PROFILED)
    marks = sorted(event.time_range.start for event in profiler.events() if event.name in WAITS)
    ends = sorted(
        event.time_range.start
        for event in profiler.events()
        if event.name.startswith("Optimizer.step")
    )
    first = ends[WARMUP_STEPS]
    last = ends[WARMUP_STEPS + PROFILED - 1]
    return sum(first < mark < last for mark in marks)


def figures(train: Callable[..., Timed], rounds: int, folder: Path) -> dict[str, float]:
    """Return the three figures of a kind of training, and the time of its step."""
    bare: list[Timed] = []
    recorded: list[Timed] = []
    off: list[float] = []
    for number in range(rounds):
        bare.append(train(None))
        run_dir = folder / f"run{number}"
        recorded.append(train(run_dir))
        rows = json_files.read_lines(run_dir / "steps.jsonl")
        times_s = [row["step_time_s"] for row in rows if row["phase"] == "timed"]
        off.append(median(times_s) / median(recorded[-1].events_s) - 1)
    without_s = min(each.mean_s for each in bare)
    with_s = min(each.mean_s for each in recorded)
    return {
        "step_ms": 1e3 * without_s,
        "times_off_pct": 100 * max(off, key=abs),
        "longer_pct": 100 * (with_s / without_s - 1),
        "waits_with": waits(train, folder / "profiled"),
        "waits_without": waits(train, None),
    }


def main(rounds: int) -> None:
    """Print the figures of both kinds of training."""
    for name, train in (("loop", loop), ("Trainer", trainer)):
        with tempfile.TemporaryDirectory() as folder:
            found = figures(train, rounds, Path(folder))
        print(
            f"{name}: step {found['step_ms']:.2f} ms, recorded times off by {found['times_off_pct']:+.2f} %, "
            f"step longer by {found['longer_pct']:+.2f} %, waits in {PROFILED} steps "
            f"{found['waits_with']:.0f} with dsnb, {found['waits_without']:.0f} without"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
