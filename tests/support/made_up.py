"""Made-up runs in any number, for tests and the benchmark of views that must handle ten thousand.

The figures follow no measurement; they are only consistent (more memory where less is shared, slower where more is
recomputed), with noise between repeats, and some runs that did not end well.
"""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd

from dsnb.base.files import json_files
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.paths import SweepPaths

GRID = {
    "model": ["gpt2"],
    "zero_stage": [0, 1, 2, 3],
    "precision": ["fp32", "fp16", "bf16"],
    "grad_accum": [1, 4, 16],
    "activation_checkpointing": [False, True],
    "micro_batch_size": [2, 8, 32, 64],
    "seq_len": [512],
    "gpus": [1, 2, 4, 8],
}
SIZE = {"gpt2": 0.12, "opt-350m": 0.33, "bloom-560m": 0.56}


def runs(count: int, seed: int = 0, repeats: int = 3, **other: list[object]) -> pd.DataFrame:
    """Return `count` runs, some repeats of each setting, of one task, drawn from the grid or another one."""
    random = np.random.default_rng(seed)
    settings = list(itertools.product(*{**GRID, **other}.values()))
    random.shuffle(settings)
    rows = [
        one_run(dict(zip(GRID, setting, strict=True)), repeat, random)
        for setting in settings[: -(-count // repeats)]
        for repeat in range(1, repeats + 1)
    ]
    return pd.DataFrame(rows[:count])


def on_hosts(**chosen):
    """Return repeated runs, some of them missing; those of ZeRO 3 are on two hosts."""
    table = runs(240, seed=2, **{"seq_len": [1024], "grad_accum": [1], **chosen})
    table = table.sample(frac=0.8, random_state=3).sort_index()
    return table.assign(
        host=np.where(table["zero_stage"] == 3, "h" + (table["repeat"] % 2).astype(str), "h0")
    )


def one_run(setting, repeat, random):
    size, half = SIZE[setting["model"]], setting["precision"] != "fp32"
    shared = setting["gpus"] if setting["zero_stage"] else 1
    tokens = setting["micro_batch_size"] * setting["seq_len"] / 1024
    activations = tokens * (0.4 if setting["activation_checkpointing"] else 2.2) * size * 10
    memory = (
        size * (18 - 3 * setting["zero_stage"] / shared) * (0.8 if half else 1)
        + activations
        + random.normal(0, 0.002)
    )
    rate = (
        60_000
        / (0.3 + size)
        * (1.9 if half else 1)
        * (0.75 if setting["activation_checkpointing"] else 1)
    )
    rate *= (1 - 0.09 * setting["zero_stage"]) * min(1, 0.5 + tokens / 20) * random.normal(1, 0.02)
    status = "oom" if memory > 140 else "failed" if random.random() < 0.01 else "ok"
    name = "zs{zero_stage}_{precision}_gpus{gpus}_bs{micro_batch_size}_sl{seq_len}_ga{grad_accum}".format(
        **setting
    )
    name = f"{setting['model']}_{name}" + ("_ac" if setting["activation_checkpointing"] else "")
    figures = {
        "tokens_per_s": rate * setting["gpus"],
        "tokens_per_s_per_gpu": rate,
        "step_time_mean_s": tokens * 1024 * setting["grad_accum"] / rate,
        "tflops_per_gpu": 6 * size * rate / 1000,
        "mfu": 6 * size * rate / 989_000,
        "peak_allocated_gib": memory,
        "device_memory_gib": memory + 2.5,
        "gpu_util_pct": min(100, 40 + 3 * tokens + random.normal(0, 1)),
        "power_w": 250 + 4 * tokens + random.normal(0, 5),
        "loss_last": 3 + size + random.normal(0, 0.05),
    }  # fmt: skip
    figures["tokens_per_joule"] = figures["tokens_per_s_per_gpu"] / figures["power_w"]
    measured = figures if status == "ok" else dict.fromkeys(figures)
    lacking = {
        "oom_allocated_gib": 138.0,
        "oom_requested_gib": min(memory - 138.0, 40.0),
        "oom_phase": "backward",
    }
    cause = (
        None
        if status == "ok"
        else "rank 0: CUDA out of memory"
        if status == "oom"
        else "rank 1: it fell over"
    )
    return {
        "sweep": "made_up",
        "experiment": name,
        "repeat": repeat,
        "status": status,
        "cause": cause,
        **setting,
        **measured,
        **(lacking if status == "oom" else dict.fromkeys(lacking)),
        "gpu_memory_gib": 140.0,
    }


def write_folders(table: pd.DataFrame, folder: Path, steps: int = 60) -> None:
    """Write runs as the folder of a sweep."""
    for row in table.to_dict("records"):
        run = SweepPaths(folder).run(row["experiment"], row["repeat"])
        run.dir.mkdir(parents=True)
        others = {*GRID, "sweep", "experiment", "repeat", "gpu_memory_gib"}
        summary = {name: value for name, value in row.items() if name not in others}
        setting = {**{name: row[name] for name in GRID}, "grad_accum_dtype": "auto"}
        run.experiment.write_text(json_files.line(setting))
        run.environment.write_text(
            json_files.line({"host": "h", "gpus": [{"name": "NVIDIA H200", "memory_gib": 140}]})
        )
        run.result.write_text(
            json_files.line({"status": row["status"], "cause": row["cause"], "summary": summary})
        )
        run.notebook.write_text("{}\n")
        if row["status"] == "ok":
            tokens = row["gpus"] * row["micro_batch_size"] * row["grad_accum"] * row["seq_len"]
            lines = (
                step(number, row["step_time_mean_s"], row, tokens) for number in range(1, steps + 1)
            )
            run.steps.write_text("".join(map(json_files.line, lines)))
            run.gpu.write_text(
                "".join(json_files.line(sample(number, row)) for number in range(steps // 2))
            )


def write_groups(folder, hosts, slow=(), failing=(), gpus=8, sizes=(1, 2, 4, 8, 16, 32, 64)):
    """Write a sweep over disjoint groups of each size: 100 samples/s a node, noise of 0.4 %, 1 % lost a doubling.

    `slow` is host -> the share of speed that it and every group with it loses; groups with a `failing` host fail.
    """
    random = np.random.default_rng(0)
    shape = Experiment(
        model="opt-350m", device="cuda", seq_len=512, steps=3, warmup_steps=1
    ).model_dump()
    for nodes in (size for size in sizes if size <= len(hosts)):
        name = f"zs0_bf16_gpus{gpus * nodes}_bs8_sl512" + (f"_nodes{nodes}" if nodes > 1 else "")
        for number in range(len(hosts) // nodes):
            group = hosts[number * nodes : (number + 1) * nodes]
            lost = max((dict(slow).get(host, 0.0) for host in group), default=0.0)
            rate = 100 * nodes * 0.99 ** np.log2(nodes) * (1 - lost) * random.normal(1, 0.004)
            bad = next((host for host in group if host in failing), None)
            here = {**shape, "gpus": gpus * nodes, "nodes": nodes, "hostfile": "/home/me/hosts.txt"}
            write_group(SweepPaths(folder).run(name, number + 1), here, group, gpus, rate, bad)


def write_group(run, settings, group, gpus, rate, bad):
    run.dir.mkdir(parents=True)
    run.experiment.write_text(json_files.line(settings))
    environment = {
        "gpus": [{"name": "NVIDIA H200", "memory_gib": 140}] * gpus,
        "driver": "570.1",
        "torch": "2.13.0",
    }
    nodes = [
        {"host": host, "address": "10.0.0.1", "ranks": list(range(gpus * place, gpus * (place + 1))),
         "devices": list(range(gpus)), "exit_codes": {}, "lost": "no answer for 30 s" if host == bad else None,
         "clock_offset_s": 0.001, "environment": {**environment, "host": host}}
        for place, host in enumerate(group)
    ]  # fmt: skip
    run.nodes.write_text(
        json_files.line({"shared_storage": True, "nodes": nodes, "differences": []})
    )
    run.environment.write_text(json_files.line({**environment, "host": group[0]}))
    tokens = rate * 512
    summary = {
        "tokens_per_s": tokens,
        "tokens_per_s_per_gpu": tokens / (gpus * len(group)),
        "step_skew": 0.002,
    }
    cause = f"{bad}: no answer for 30 s" if bad else None
    outcome = {
        "status": "failed" if bad else "ok",
        "cause": cause,
        "summary": {} if bad else summary,
    }
    run.result.write_text(json_files.line(outcome))
    run.notebook.write_text("{}\n")
    if not bad:
        figures = {"peak_allocated_gib": 40.0, "device_memory_gib": 42.0, "power_w": 600.0}
        step_tokens = settings["gpus"] * settings["micro_batch_size"] * settings["seq_len"]
        lines = (
            step(number, step_tokens / tokens, figures, step_tokens, warmup=1)
            for number in range(1, 5)
        )
        run.steps.write_text("".join(map(json_files.line, lines)))
        samples = [
            {**sample(0, figures), "host": host, "gpu": gpu}
            for host in group
            for gpu in range(gpus)
        ]
        run.gpu.write_text("".join(map(json_files.line, samples)))


def step(number, seconds, row, tokens, warmup=5):
    wobble = 1 + 0.01 * (-1) ** number  # so little that steps and summary agree
    return {
        "step": number, "phase": "warmup" if number <= warmup else "timed", "t_s": number * seconds,
        "loss": 3 + 8 / number, "step_time_s": seconds * wobble, "tokens": tokens,
        "allocated_gib": row["peak_allocated_gib"], "skipped": False,
    }  # fmt: skip


def sample(number, row):
    return {
        "t_s": number * 0.25, "gpu": 0, "util_pct": 90 + number % 7, "memory_used_gib": row["device_memory_gib"],
        "power_w": row["power_w"] + number % 11, "sm_clock_mhz": 1980,
    }  # fmt: skip
