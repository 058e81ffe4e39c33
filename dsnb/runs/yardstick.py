"""How near each run comes to the plain loop: the same work by one process, without an engine."""

import pandas as pd

from dsnb.runs import labels
from dsnb.runs.columns import numbers

COLUMN = "of_plain"
RATE, RATE_OF_ALL = "tokens_per_s_per_gpu", "tokens_per_s"
WORK = [
    "model",
    "seq_len",
    "data",
    "lora_rank",
    "micro_batch_size",
    "grad_accum",
    "precision",
    "optimizer",
    "gradient_clipping",
    "dropout",
    "loss",
    "activation_checkpointing",
    "checkpoint_every",
]
"""Runs that are equal in these, in attention (fused or not) and in hardware compute the same on each GPU.

How the work is shared, moved and compiled is what the ratio compares: strategy, ZeRO stage, offload, overlap,
compilation, number of GPUs.
"""


def with_plain_ratio(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs with the column `of_plain`.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` returns it; columns may be missing.

    Returns
    -------
    pandas.DataFrame
        `of_plain` is tokens/s/GPU divided by the median of the fastest plain setting (`strategy` `plain`) that does the
        same work (`WORK`, fused attention or not) on the same GPU; NaN where there is none. On a CPU it is tokens/s of
        all ranks, which share the cores that a plain process has to itself. A table without a plain run is
        returned as it is.
    """
    plain = (runs.get("strategy") == "plain") & (runs.get("status") == "ok")
    if not isinstance(plain, pd.Series) or not plain.any():
        return runs
    keys, rates = _work(runs), numbers(runs, RATE).mask(_on_cpu(runs), numbers(runs, RATE_OF_ALL))
    names = [keys[plain], runs["experiment"][plain]]
    fastest = rates[plain].groupby(names, sort=False).median().groupby(level=0, sort=False).max()
    return runs.copy().assign(**{COLUMN: rates / keys.map(dict(fastest))})  # a copy is in one piece


def _work(runs: pd.DataFrame) -> pd.Series:
    """Return what each run computes, and on what, as one hashable value; a missing value is equal to another."""
    work = runs.reindex(columns=WORK).assign(attention=_attention(runs)).astype(object)
    places = runs.reindex(columns=["gpu_name", "cpu", "cores"]).astype(object)
    places[["cpu", "cores"]] = places[["cpu", "cores"]].where(_on_cpu(runs), None)
    every = pd.concat([work, places], axis="columns")
    return pd.Series(list(map(tuple, every.where(every.notna(), None).to_numpy())), index=runs.index, dtype=object)


def _attention(runs: pd.DataFrame) -> list[str | None]:
    """Return whether the attention of each run was `fused` or `eager`; None where nothing tells.

    Which fused kernel torch takes follows from compilation, which is no part of the work.
    """
    told = runs.reindex(columns=["attention_kernel", "attention_used", "attention"]).astype(object)
    rows = [[text for text in map(labels.text, row) if text != "-"] for row in told.to_numpy()]
    return [None if not row else "eager" if {"eager", "math"} & set(row) else "fused" for row in rows]


def _on_cpu(runs: pd.DataFrame) -> pd.Series:
    return runs.get("device", pd.Series(index=runs.index, dtype=object)) == "cpu"
