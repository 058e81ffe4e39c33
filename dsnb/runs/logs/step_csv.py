"""Reader of `results/EXP/runN/step_log.csv` and `gpu_log.csv` of a GPT-2 benchmark, with its step times corrected.

The benchmark resets its step timer only after every tenth step: inside a block of ten, step times are cumulative and
tokens/s are a fraction of the true ones. The time stamps are right. The benchmark drops the first 20 steps of an epoch
and reports the median of the rest, so the corrected figure is the same median over the differences of time stamps.
"""

import csv
import re
import warnings
from array import array
from collections.abc import Iterator
from itertools import pairwise
from math import isfinite
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pandas as pd

from dsnb.errors import DsnbWarning, LogError
from dsnb.runs.logs.lines import LONGEST_LINE, open_text
from dsnb.runs.logs.logged_run import DERIVED, LOGGED, MISSING, LoggedRun
from dsnb.runs.logs.text import number, positive

HEADER = ("timestamp", "global_step", "step_time_s", "loss", "tokens_per_sec")
WARMUP_STEPS = 20
NAME = re.compile(r"zs([0-3])_(fp32|tf32|fp16|bf16)_gpus(\d{1,5})_bs(\d{1,7})_sl(\d{1,8})")
_CELL = re.compile(r"([-+]?[\d.,eE+-]{1,40})\s{0,9}(%|[kMG]i?B|W|MHz|C)?")


def read(path: Path) -> list[LoggedRun]:
    """Read the steps of one run.

    Raises
    ------
    LogError
        If it holds no complete row.
    """
    run = LoggedRun(program="GPT-2 step CSV", configured=True, ended=True)
    run.set_used(model="gpt2", strategy="deepspeed", **settings(path))
    kept = {name: array("d") for name in ("tokens_per_sec", "step_time_s", "timestamp")}
    began_s = before_s = None
    index = 0
    for row in _rows(path):
        if row is None:  # the rows on both sides are more than one step apart
            before_s = None
            kept["timestamp"].append(MISSING)
            continue
        index += 1
        stamp_s = row["timestamp"]
        began_s = stamp_s if began_s is None else began_s
        run.steps.add(
            index,
            t_s=stamp_s - began_s if stamp_s >= began_s else None,
            step_time_s=stamp_s - before_s if before_s is not None and stamp_s > before_s else None,
            step_time_logged_s=row["step_time_s"],
            loss=row["loss"],
            tokens=_whole(row["tokens_per_sec"] * row["step_time_s"]),
        )
        run.record_max(peak_reserved_gib=_gib(row.get("gpu_max_mem_mb")))
        run.scratch["loss_is_nan"] = row["loss_is_nan"]
        before_s = stamp_s
        if row["global_step"] > WARMUP_STEPS:
            for name, column in kept.items():
                column.append(row[name])
    if not index:
        raise LogError(path, "holds no complete row: every row needs numbers for " + ", ".join(HEADER), 2)
    _summarize(run, kept)
    _gpus(run, path.with_name("gpu_log.csv"))
    run.notes.append("step_time_s and tokens/s as logged are cumulative in blocks of ten: corrected by the time stamps")
    return [run]


def _summarize(run: LoggedRun, kept: "dict[str, array[float]]") -> None:
    """Record the medians as the benchmark reports them, and the corrected ones from the time stamps."""
    rates, times_s, stamps_s = kept["tokens_per_sec"], kept["step_time_s"], kept["timestamp"]
    if not rates:
        run.notes.append(f"no step after the {WARMUP_STEPS}th of an epoch: nothing is left after warm-up")
        return
    run.record(LOGGED, tokens_per_s_logged=median(rates), step_time_logged_s=median(times_s), timed_steps=len(rates))
    between_s = [after - before for before, after in pairwise(stamps_s) if after > before]
    tokens = _whole(rates[-1] * times_s[-1])
    if between_s and tokens:
        run.record(DERIVED, tokens_per_s=tokens / median(between_s), step_time_s=median(between_s))


def _whole(tokens: float) -> int | None:
    return round(tokens) if isfinite(tokens) else None


def _gib(mib: float | None) -> float | None:
    """Convert MiB to GiB. The log has even numbers of MiB because torch reserves segments of 2 MiB."""
    return mib / 1024 if mib is not None and mib > 0 else None


def settings(path: Path) -> dict[str, object]:
    """Return the settings in the folder's name, `zs0_fp16_gpus1_bs32_sl128`: the log itself has none."""
    found = NAME.fullmatch(path.parent.parent.name) or NAME.fullmatch(path.parent.name)
    if not found:
        return {}
    stage, precision, gpus, micro_batch_size, seq_len = found.groups()
    return {
        "zero_stage": int(stage), "precision": precision, "gpus": int(gpus),
        "micro_batch_size": int(micro_batch_size), "seq_len": int(seq_len), "grad_accum": 1,
    }  # fmt: skip


def _rows(path: Path) -> Iterator[dict[str, Any] | None]:
    """Yield the rows whose numbers are all complete, and None for each other row; a NaN loss is missing.

    The last row may be cut off.
    """
    with open_text(path) as file:
        names = file.readline(LONGEST_LINE).strip().split(",")
        while line := file.readline(LONGEST_LINE):
            cells = line.rstrip("\r\n").split(",")
            if not line.endswith("\n") or len(cells) != len(names):
                yield None
                continue
            row: dict[str, Any] = {name: number(cell) for name, cell in zip(names, cells, strict=True)}
            row["loss_is_nan"] = row["loss"] is None and cells[names.index("loss")].strip().lower() == "nan"
            needed = [positive(cells[names.index(name)]) for name in HEADER if name != "loss"]
            yield row if None not in needed else None


def _gpus(run: LoggedRun, path: Path) -> None:
    samples = load_gpu(path)
    for column, figure in (("util_pct", "gpu_util_pct"), ("power_w", "power_w"), ("sm_clock_mhz", "sm_clock_mhz")):
        if column in samples and (values := samples[column].dropna()).size:
            run.record(DERIVED, **{figure: fmean(values)})
    if "memory_used_gib" in samples and (values := samples["memory_used_gib"].dropna()).size:
        run.record(DERIVED, device_memory_gib=float(values.max()))


def load_gpu(path: Path) -> pd.DataFrame:
    """Load `gpu_log.csv`; what a column holds, and its unit, is detected from its title.

    Returns
    -------
    pandas.DataFrame
        `t_s`, `gpu`, `util_pct`, `memory_used_gib`, `power_w`, `sm_clock_mhz`, those that the file has.
    """
    try:
        table = _samples(path) if path.is_file() else pd.DataFrame()
    except MemoryError:
        raise
    except Exception as error:  # the run is complete without it
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        warnings.warn(f"{path} is left out: it cannot be read ({what})", DsnbWarning, stacklevel=2)
        return pd.DataFrame()
    if "t_s" in table and len(table):
        table["t_s"] -= table["t_s"].min()
    return table


def _samples(path: Path) -> pd.DataFrame:
    with open_text(path) as file:
        reader = csv.reader(line for line in file if "\0" not in line and len(line) < LONGEST_LINE)
        header = next(reader, [])
        places = {name: index for index, title in enumerate(header) if (name := _column(title))}
        rows = [
            {name: _cell(row[index], header[index]) for name, index in places.items()}
            for row in reader
            if len(row) == len(header)
        ]
    return pd.DataFrame(rows, columns=list(places), dtype=float)


def _column(title: str) -> str | None:
    """Return the column for a title such as `utilization.gpu [%]` or `gpu_mem_used_mb`; None for an unknown one."""
    words = title.strip().lower()
    if "util" in words and "mem" not in words:
        return "util_pct"
    if "mem" in words and "used" in words:
        return "memory_used_gib"
    if "power" in words and "limit" not in words:
        return "power_w"
    if "clock" in words and "mem" not in words:
        return "sm_clock_mhz"
    return {"timestamp": "t_s", "t_s": "t_s", "gpu": "gpu", "index": "gpu", "gpu_index": "gpu", "gpu_id": "gpu"}.get(
        words
    )


def _cell(text: str, title: str) -> float | None:
    found = _CELL.fullmatch(text.strip())
    value = number(found[1]) if found else None
    if value is None or "mem" not in title.lower() or "util" in title.lower():
        return value
    unit = ((found[2] if found else None) or title.lower()).lower()
    if "gb" in unit or "gib" in unit:
        return value
    return value / 1024 if "mb" in unit or "mib" in unit else None
