"""Reader of `results/EXP/runN/step_log.csv` of a GPT-2 benchmark, with its step times corrected.

The benchmark resets its step timer only after every tenth step: inside a block of ten, step times
are cumulative and tokens/s are a fraction of the true ones. The time stamps are right. The
benchmark drops the first 20 steps of an epoch and reports the median of the rest, so the corrected
figure is the same median over the differences of time stamps.
"""

import math
import re
from pathlib import Path

import pandas as pd

from dsnb.base.errors import LogError
from dsnb.results.logs.reading import DERIVED, LoggedRun
from dsnb.results.logs.text import open_text
from dsnb.results.logs.values import count_from_0, number

HEADER = ("timestamp", "global_step", "step_time_s", "loss", "tokens_per_sec")
WARMUP_STEPS = 20
NAME = re.compile(
    r"zs(?P<zero_stage>[0-3])_(?P<precision>fp32|tf32|fp16|bf16)_gpus(?P<gpus>\d{1,5})_bs(?P<micro_batch_size>\d{1,7})"
    r"_sl(?P<seq_len>\d{1,8})"
)
"""Name of the folder, which alone contains the settings."""


def read(path: Path) -> list[LoggedRun]:
    """Read the steps of one run; raise LogError if there is no complete row."""
    cells = _cells(path)
    rows = cells.map(number).astype(float)
    figures = [name for name in HEADER if name != "loss"]
    is_whole = (rows[figures] > 0).all(axis="columns")
    if not is_whole.any():
        raise LogError(
            path, "holds no complete row: every row needs numbers for " + ", ".join(HEADER), 2
        )
    run = LoggedRun(program="GPT-2 step CSV", configured=True, ended=True)
    # The benchmark has nothing else.
    run.set_used(model="gpt2", strategy="deepspeed", tensor_parallel=1, pipeline_parallel=1)
    match = NAME.fullmatch(path.parent.parent.name) or NAME.fullmatch(path.parent.name)
    if match:
        sizes = {name: count_from_0(text) for name, text in match.groupdict().items()}
        run.set_used(**sizes | {"precision": match["precision"]}, grad_accum=1)
    whole = rows[is_whole]
    peak_mib = 0
    if "gpu_max_mem_mb" in rows:
        peak_mib = whole["gpu_max_mem_mb"].max()
    if peak_mib > 0:
        run.record(peak_reserved_gib=peak_mib / 1024)  # torch reserves segments of 2 MiB
    # Rows on both sides of a damaged one are more than one step apart.
    between_s = rows["timestamp"].where(is_whole).diff()[is_whole]
    _medians(run, whole.assign(between_s=between_s)[whole["global_step"] > WARMUP_STEPS])
    steps = pd.DataFrame(
        {
            "t_s": whole["timestamp"] - whole["timestamp"].iloc[0],
            "step_time_s": between_s.where(between_s > 0),
            "step_time_logged_s": whole["step_time_s"],
            "loss": whole["loss"],
            "tokens": (whole["tokens_per_sec"] * whole["step_time_s"]).round(),
        }
    )
    steps["t_s"] = steps["t_s"].where(steps["t_s"] >= 0)
    records = steps.replace(math.inf, math.nan).to_dict("records")
    for step, row in enumerate(records, 1):
        known = {str(name): value for name, value in row.items() if not math.isnan(value)}
        run.add_step(step, **known)
    for step, loss in enumerate(cells["loss"][is_whole], 1):
        run.health.read(loss, step=step)
    run.notes.append(
        "step times and tokens/s as logged are cumulative in blocks of ten: corrected by the time stamps"
    )
    return [run]


def _medians(run: LoggedRun, timed: pd.DataFrame) -> None:
    """Record the medians as the benchmark reports them, and the corrected ones from the time stamps."""
    if timed.empty:
        run.notes.append(
            f"no step after the {WARMUP_STEPS}th of an epoch: nothing is left after warm-up"
        )
        return
    run.record(
        tokens_per_s_logged=timed["tokens_per_sec"].median(),
        step_time_logged_s=timed["step_time_s"].median(),
        timed_steps=len(timed),
    )
    between_s = timed["between_s"][timed["between_s"] > 0]
    tokens = timed["tokens_per_sec"].iloc[-1] * timed["step_time_s"].iloc[-1]
    if len(between_s) and math.isfinite(tokens):
        run.record(
            DERIVED,
            tokens_per_s=round(tokens) / between_s.median(),
            step_time_mean_s=between_s.mean(),
            step_time_median_s=between_s.median(),
        )


def _cells(path: Path) -> pd.DataFrame:
    """Return the texts of all rows, empty for damaged rows."""
    with open_text(path) as file:
        names = file.readline().strip().split(",")
        lines = file.read().split("\n")[:-1]  # without one that is cut off
    damaged = [""] * len(names)
    rows = [line.split(",") for line in lines]
    for place, row in enumerate(rows):
        if len(row) != len(names):
            rows[place] = damaged
    return pd.DataFrame(rows, columns=names)
