"""Entry point for tables of runs, also of earlier versions: functions that take one call `as_runs` or `named_runs`."""

import math
from collections.abc import Iterable
from typing import Any

import pandas as pd

from dsnb.base.formulas.metrics import UTILIZATION_S
from dsnb.results.runs import labels
from dsnb.settings import programs
from dsnb.settings.experiment import CURRENT_NAMES
from dsnb.settings.parallelism import parallelism
from dsnb.settings.records.columns import FORMER_FIGURES
from dsnb.settings.strategies import without_zero
from dsnb.settings.strategies.plain import Plain
from dsnb.settings.training import compile_mode

ALIASES = {
    "gpu": "gpu_name",
    "origins": "provenance",
    "not_ok": "n_failed",
    "timed_wall_s": "timed_s",
    **FORMER_FIGURES,
    **CURRENT_NAMES,
}
"""Former name of a column of runs or of a summary -> current name. (In GPU samples, `gpu` is an
index and stays.)"""
WORK = [
    "model", "seq_len", "data", "lora_rank", "lora_targets", "frozen_weights", "micro_batch_size", "grad_accum",
    "precision", "optimizer", "gradient_clipping", "dropout", "loss", "pad_vocab", "matmul", "activation_checkpointing",
    "checkpoint_every",
]  # fmt: skip
"""Runs of one program that are equal in these, in attention (fused or not) and in hardware compute the
same on each GPU.

How the work is shared, moved and compiled is what the ratio compares: strategy, ZeRO stage,
offload, overlap, compilation, number of GPUs.
"""


def current_name(column: Any) -> Any:
    """Return the current name of a column that a user named; other values are returned as they are."""
    if isinstance(column, str):
        return ALIASES.get(column, column)
    return column


def as_runs(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table of runs under the current column names, with `parallelism` and what is derived from other runs.

    `zero_stage` is missing where the strategy has no ZeRO: its default, 0, would be that of ZeRO 0.
    An old column whose current name is also there is left alone. Calling it again changes nothing.

    >>> table = pd.DataFrame({"gpu": "H100", "strategy": ["deepspeed", "ddp"], "zero_stage": [3, 0]})
    >>> print(as_runs(table).to_string())
      gpu_name   strategy  zero_stage parallelism
    0     H100  deepspeed         3.0      ZeRO 3
    1     H100        ddp         NaN         DDP
    """
    current = {old: new for old, new in ALIASES.items() if new not in table}
    table = table.rename(columns=current)
    if "compile" in table and table["compile"].isin([True, False]).any():  # in earlier versions
        modes = [compile_mode(mode) for mode in table["compile"].tolist()]
        table = table.assign(compile=modes)
    return with_plain_ratio(with_parallelism(with_program(table)))


def named_runs(table: pd.DataFrame) -> pd.DataFrame:
    """Return `as_runs`, with the experiments of several sweeps named `sweep/experiment`.

    Sweeps may use one name for different models. A name that begins with its sweep is left alone.
    """
    runs = as_runs(table)
    if "sweep" not in runs or runs["sweep"].nunique() <= 1:
        return runs
    names = []
    for run in labels.texts(runs[["sweep", "experiment"]]).itertuples():
        inside = run.experiment.removeprefix(f"{run.sweep}/")
        names.append(f"{run.sweep}/{inside}")
    return runs.assign(experiment=names)


def with_parallelism(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs with `parallelism`, and without the `zero_stage` of strategies that have none."""
    names = [name for name in labels.SHARING if name in runs]
    if not names:
        return runs
    if "strategy" in runs and "zero_stage" in runs:
        has_none = runs["strategy"].isin(without_zero())
        if has_none.any():
            runs = runs.assign(zero_stage=runs["zero_stage"].mask(has_none))
    settings = runs[names].astype(object)
    rows = [*settings.where(settings.notna(), None).itertuples(index=False, name=None)]
    found = {row: parallelism(dict(zip(names, row, strict=True))) or None for row in {*rows}}
    return runs.assign(parallelism=[found[row] for row in rows])


def with_program(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs with the column `program`, which tables of earlier versions lack, by their `source`."""
    if "program" in runs or "source" not in runs:
        return runs
    source = runs["source"].astype(object)
    return runs.assign(program=source.map(programs.of_source, na_action="ignore"))


def loops(runs: pd.DataFrame) -> pd.Series:
    """Return the program of each run without its version; dsnb's where there is none."""
    names = with_program(runs).get("program", pd.Series(index=runs.index, dtype=object))
    return names.astype(object).fillna(programs.DSNB).map(programs.loop)


def numbers(runs: pd.DataFrame, name: str) -> pd.Series:
    """Return a column as floats; NaN where it is missing or no number."""
    column = runs.get(name, pd.Series(index=runs.index, dtype=float))
    return pd.to_numeric(column, errors="coerce").astype(float)


def factor(runs: pd.DataFrame, name: str) -> pd.Series:
    """Return a column such as `tensor_parallel` as floats: 1 in a table that does not have it, NaN where unknown."""
    if name in runs:
        return numbers(runs, name)
    return pd.Series(1.0, runs.index)


def json_numbers(values: Iterable[float], digits: int = 17) -> list[float | int | None]:
    """Round numbers for JSON: NaN and infinity become None, whole numbers integers, which take less space."""
    rounded: list[float | int | None] = []
    for value in values:
        if not math.isfinite(value):
            rounded.append(None)
            continue
        short = float(f"{value:.{digits}g}")
        if short.is_integer():
            rounded.append(int(short))
        else:
            rounded.append(short)
    return rounded


def timed_steps(runs: pd.DataFrame) -> pd.Series:
    """Return the number of timed steps of each run; NaN if unknown."""
    return numbers(runs, "timed_steps").fillna(numbers(runs, "steps"))


def timed_seconds(runs: pd.DataFrame) -> pd.Series:
    """Return the seconds that the timed steps of each run took; NaN if unknown."""
    return numbers(runs, "timed_s").fillna(timed_steps(runs) * numbers(runs, "step_time_mean_s"))


def without_noise(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs without the utilization of those whose timed steps are known to have taken less than 5 s."""
    is_short = timed_seconds(runs) < UTILIZATION_S
    if not is_short.any():
        return runs
    return runs.assign(gpu_util_pct=runs["gpu_util_pct"].mask(is_short))


def with_plain_ratio(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs with `of_plain`, NaN where no plain setting does the same work; unchanged without plain runs."""
    if "strategy" not in runs or "status" not in runs:
        return runs
    plain = (runs["strategy"] == Plain.name) & (runs["status"] == "ok")
    if not plain.any():
        return runs
    work = _work(runs)
    rates = numbers(runs, "tokens_per_s_per_gpu").mask(_on_cpu(runs), numbers(runs, "tokens_per_s"))
    names = [work[plain], runs["experiment"][plain]]  # tables put together have labels twice
    medians = rates[plain].groupby(names, sort=False).median()
    fastest = medians.groupby(level=0, sort=False).max()
    return runs.copy().assign(of_plain=rates / work.map(fastest))  # a copy is in one piece


def _work(runs: pd.DataFrame) -> pd.Series:
    """Return a number for the work and hardware of each run, in which missing values are equal."""
    host = ["cpu", "cores"]
    work = runs.reindex(columns=[*WORK, "gpu_name", *host]).astype(object)
    work[host] = work[host].where(_on_cpu(runs), None)
    work["attention"] = _attention(runs)
    work["program"] = loops(runs)
    return work.groupby([*work], sort=False, dropna=False).ngroup()


def _attention(runs: pd.DataFrame) -> pd.Series:
    """Return whether the attention of each run was `fused` or `eager`; missing where it is unknown.

    Which fused kernel torch takes follows from compilation, which is no part of the work.
    """
    names = ["attention_kernel", "attention_used", "attention"]
    recorded = runs.reindex(columns=names).astype(object)
    is_eager = recorded.isin(["eager", "math"]).any(axis=1)
    kinds = pd.Series("fused", runs.index, dtype=object).mask(is_eager, "eager")
    return kinds.where(recorded.notna().any(axis=1))


def _on_cpu(runs: pd.DataFrame) -> pd.Series:
    return runs.get("device", pd.Series(index=runs.index, dtype=object)) == "cpu"
