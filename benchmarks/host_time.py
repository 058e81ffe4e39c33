"""Measure the host's time for a step in launches: `python -m benchmarks.host_time OUTPUT.csv SECONDS`.

Without arguments, print how far the counts are from what was measured on one H100 on 2026-11-25
(`host_time.csv`).

Models of 12 blocks are made so narrow that their kernels take no time: a step takes as long as the
host needs to launch it. Each part of a step is timed apart, and divided by the time of a launch
(`dsnb.measure.train.launches`), which is measured before and after. The counts of
`dsnb.prediction.work` follow from the differences between settings.
"""

import csv
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import torch

from dsnb.base.formulas.model_shapes import PRESETS
from dsnb.measure.record.clock import Clock
from dsnb.measure.train.launches import launch_us
from dsnb.measure.train.worker import make_trainer, set_up
from dsnb.prediction.step_time import DEFAULT, HOST_CONSTANTS, HOST_COUNTS
from dsnb.prediction.work import work
from dsnb.settings.exchange import deepspeed_config
from dsnb.settings.experiment import Experiment

MODELS = (
    "gpt2-medium",
    "opt-1.3b",
    "bloom-560m",
    "pythia-410m",
    "qwen2.5-0.5b",
    "qwen3-0.6b",
    "llama-3.2-1b",
)
FEWER, FEWEST = ("gpt2-medium", "opt-1.3b", "qwen2.5-0.5b"), ("gpt2-medium",)
"""Models of settings with DeepSpeed, and of compiled ones."""
WIDTH, HEADS, LAYERS, VOCAB = 64, 4, 12, 512
NARROW = {"n_embd": WIDTH, "hidden_size": WIDTH, "n_head": HEADS, "num_attention_heads": HEADS,
          "head_dim": WIDTH // HEADS, "num_key_value_heads": HEADS // 2, "intermediate_size": 4 * WIDTH,
          "ffn_dim": 4 * WIDTH, "n_layer": LAYERS, "num_hidden_layers": LAYERS, "vocab_size": VOCAB,
          "word_embed_proj_dim": WIDTH}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"strategy": "plain"},
    "plain recomputed": {"strategy": "plain", "activation_checkpointing": True},
    "plain fp32": {"strategy": "plain", "precision": "fp32"},
    "plain chunked": {"strategy": "plain", "loss": "chunked"},
    "plain LoRA": {"strategy": "plain", "lora_rank": 16},
    "plain compiled": {"strategy": "plain", "compile": "default"},
    "plain compiled recomputed": {
        "strategy": "plain",
        "compile": "default",
        "activation_checkpointing": True,
    },
    "plain compiled LoRA": {"strategy": "plain", "compile": "default", "lora_rank": 16},
    "plain adafactor": {"strategy": "plain", "optimizer": "adafactor"},
    **{f"ZeRO {stage}": {"zero_stage": stage} for stage in range(4)},
    **{f"ZeRO {stage} accumulated": {"zero_stage": stage, "grad_accum": 4} for stage in range(4)},
    **{
        f"ZeRO {stage} recomputed": {"zero_stage": stage, "activation_checkpointing": True}
        for stage in (0, 3)
    },
    **{
        f"ZeRO {stage} autocast": {"zero_stage": stage, "mixed_precision": "autocast"}
        for stage in (0, 1)
    },
    **{f"ZeRO {stage} fp32": {"zero_stage": stage, "precision": "fp32"} for stage in (0, 2)},
    **{
        f"ZeRO {stage} compiled": {"zero_stage": stage, "compile": "default"}
        for stage in (0, 1, 2, 3)
    },
    "ZeRO 3 compiled recomputed": {
        "zero_stage": 3,
        "compile": "default",
        "activation_checkpointing": True,
    },
    "ZeRO 3 LoRA": {"zero_stage": 3, "lora_rank": 16},
}
WARM_UP, STEPS, LAUNCHES_S = 3, 10, 0.15
PARTS = ("forward", "backward", "optimizer")


def measure(experiment: Experiment, device: torch.device) -> dict[str, float]:
    """Return the seconds of each part of an optimizer step: medians over steps, waiting for the GPU after each part."""
    trainer = make_trainer(experiment, deepspeed_config(experiment), device)
    clock = Clock(device)
    times: dict[str, list[float]] = defaultdict(list)
    spent: dict[str, float] = {}

    @contextmanager
    def section(name: str) -> Iterator[None]:
        clock.synchronize()
        began = time.perf_counter()
        yield
        clock.synchronize()
        spent[name] = spent.get(name, 0.0) + time.perf_counter() - began

    trainer.section = section
    ids = [
        torch.randint(VOCAB, (1, experiment.seq_len), device=device)
        for _ in range(experiment.grad_accum)
    ]
    for step in range(WARM_UP + STEPS):
        spent.clear()
        trainer.step(ids)
        if step >= WARM_UP:
            for name, seconds in spent.items():
                times[name].append(seconds)
    return {name: median(values) for name, values in times.items()}


def narrow(model: str, folder: Path) -> str:
    """Write the configuration of a narrow model of a preset's family and return its path."""
    config = {key: NARROW.get(key, value) for key, value in PRESETS[model].config().items()}
    path = folder / model / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(config))
    return str(path)


def counted() -> pd.DataFrame:
    """Return the measured table with the launches of a step: `measured` and, as `work` counts them, `counted`."""
    table = pd.read_csv(Path(__file__).with_suffix(".csv"))
    counts = []
    with tempfile.TemporaryDirectory() as folder:
        for name, model in zip(table["setting"], table["model"], strict=True):
            counts.append(work(setting(name, narrow(model, Path(folder)), "cuda")))
    us = dict(zip(HOST_COUNTS, (getattr(DEFAULT, name) for name in HOST_CONSTANTS), strict=True))
    total = [
        sum(each[name] * us[name] for name in HOST_COUNTS) / DEFAULT.host_launch_us
        for each in counts
    ]
    return table.assign(measured=table[[*PARTS]].sum(axis=1), counted=total)


def setting(name: str, model: str, device: str) -> Experiment:
    """Return a setting of a narrow model."""
    return Experiment(model=model, device=device, micro_batch_size=1, seq_len=64, **SETTINGS[name])


def row(experiment: Experiment, device: torch.device) -> list[Any]:
    """Return a setting's row: the parts of a step in launches, and the time of a launch."""
    before = launch_us(device, LAUNCHES_S)
    parts = measure(experiment, device)
    us = (before + launch_us(device, LAUNCHES_S)) / 2
    measured = [parts.get(part, 0.0) * 1e6 / us for part in PARTS]
    return [*(round(value, 1) for value in measured), round(us, 2)]


def main() -> None:
    """Write a row for each model and setting, eager ones first, until the time is over."""
    if not sys.argv[1:]:
        table = counted()
        ratios = (table["counted"] / table["measured"]).groupby(table["setting"], sort=False)
        print(ratios.agg(["min", "median", "max"]).round(2))
        return
    output, until = Path(sys.argv[1]), time.monotonic() + float(sys.argv[2])
    os.environ |= {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
    on = "cuda" if torch.cuda.is_available() else "cpu"
    if on == "cpu":
        torch.set_num_threads(1)
    device = set_up(Experiment(device=on))
    jobs = [
        (name, model)
        for name in SETTINGS
        for model in (MODELS if name.startswith("plain") else FEWER)
    ]
    jobs = [(name, model) for name, model in jobs if "compiled" not in name or model in FEWEST]
    with (
        output.open("w", encoding="utf-8", newline="") as file,
        tempfile.TemporaryDirectory() as folder,
    ):
        writer = csv.writer(file)
        writer.writerow(["setting", "model", *PARTS, "launch_us"])
        for name, model in sorted(jobs, key=lambda job: "compiled" in job[0]):
            if time.monotonic() > until:
                break
            writer.writerow(
                [name, model, *row(setting(name, narrow(model, Path(folder)), on), device)]
            )
            file.flush()


if __name__ == "__main__":
    main()
