"""Reader of `results/EXP/runN/step_log.csv` of a GPT-2 benchmark, with its step times corrected.

The benchmark resets its step timer only after every tenth step: inside a block of ten, step times are cumulative and
tokens/s are a fraction of the true ones. The time stamps are right. The benchmark drops the first 20 steps of an epoch
and reports the median of the rest, so the corrected figure is the same median over the differences of time stamps.
"""

import math
import re
from pathlib import Path

import pandas as pd

from dsnb.base.errors import LogError
from dsnb.results.logs.reading import DERIVED, LOGGED, LoggedRun
from dsnb.results.logs.text import number, open_text

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
    is_whole = (rows[[name for name in HEADER if name != "loss"]] > 0).all(axis="columns")
    if not is_whole.any():
        raise LogError(
            path, "holds no complete row: every row needs numbers for " + ", ".join(HEADER), 2
        )
    run = LoggedRun(program="GPT-2 step CSV", configured=True, ended=True)
    run.set_used(
        model="gpt2", strategy="deepspeed", tensor_parallel=1, pipeline_parallel=1
    )  # it has nothing else
    if match := NAME.fullmatch(path.parent.parent.name) or NAME.fullmatch(path.parent.name):
        sizes = {name: int(text) for name, text in match.groupdict().items() if name != "precision"}
        run.set_used(**sizes, precision=match["precision"], grad_accum=1)
    if "gpu_max_mem_mb" in rows and (peak_mib := rows["gpu_max_mem_mb"][is_whole].max()) > 0:
        run.record(peak_reserved_gib=peak_mib / 1024)  # torch reserves segments of 2 MiB
    stamps_s = rows["timestamp"].where(
        is_whole
    )  # rows on both sides of a damaged one are more than one step apart
    is_timed = is_whole & (rows["global_step"] > WARMUP_STEPS)
    timed = rows[is_timed]
    if timed.empty:
        run.notes.append(
            f"no step after the {WARMUP_STEPS}th of an epoch: nothing is left after warm-up"
        )
    else:  # the medians as the benchmark reports them, and the corrected ones from the time stamps
        rates, times_s = timed["tokens_per_sec"], timed["step_time_s"]
        logged = {"tokens_per_s_logged": rates.median(), "step_time_logged_s": times_s.median()}
        run.record(LOGGED, **logged, timed_steps=len(timed))
        between_s, tokens = stamps_s.diff()[is_timed], rates.iloc[-1] * times_s.iloc[-1]
        between_s = between_s[between_s > 0]
        if len(between_s) and math.isfinite(tokens):
            times = {"step_time_mean_s": between_s.mean(), "step_time_median_s": between_s.median()}
            run.record(DERIVED, tokens_per_s=round(tokens) / times["step_time_median_s"], **times)
    table = rows.assign(step_time_logged_s=rows["step_time_s"], step_time_s=stamps_s.diff())[
        is_whole
    ]
    table["t_s"] = table["timestamp"] - table["timestamp"].iloc[0]
    table["tokens"] = (table["tokens_per_sec"] * table["step_time_logged_s"]).round()
    for number_of_step, row in enumerate(table.to_dict("records"), 1):
        step_time_s, t_s = row["step_time_s"], row["t_s"]
        run.add_step(
            number_of_step,
            t_s=t_s if t_s >= 0 else None,
            step_time_s=step_time_s if step_time_s > 0 else None,
            **{
                name: row[name]
                for name in ("step_time_logged_s", "loss", "tokens")
                if math.isfinite(row[name])
            },
        )
    for number_of_step, loss in enumerate(cells["loss"][is_whole], 1):
        run.health.read(loss, step=number_of_step)
    run.notes.append(
        "step times and tokens/s as logged are cumulative in blocks of ten: corrected by the time stamps"
    )
    return [run]


def _cells(path: Path) -> pd.DataFrame:
    """Return the texts of all rows, empty for damaged rows."""
    with open_text(path) as file:
        names = file.readline().strip().split(",")
        lines = file.read().split("\n")[:-1]  # without one that is cut off
    rows = [line.split(",") for line in lines]
    return pd.DataFrame(
        [row if len(row) == len(names) else [""] * len(names) for row in rows], columns=names
    )
