"""How near each run comes to the plain loop: the same work by one process, without an engine."""

import pandas as pd

from dsnb.runs.columns import numbers

COLUMN = "of_plain"
RATE, RATE_OF_ALL = "tokens_per_s_per_gpu", "tokens_per_s"
WORK = ["model", "micro_batch_size", "seq_len", "precision", "lora_rank", "gpu_name"]
"""Runs that are equal in these do the same work per GPU and micro-batch."""


def with_plain_ratio(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs with the column `of_plain`.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` returns it; columns may be missing.

    Returns
    -------
    pandas.DataFrame
        `of_plain` is tokens/s/GPU divided by the median of the fastest plain setting (`strategy` `plain`) of the same
        model, micro-batch, sequence length, precision, LoRA rank and GPU; NaN where there is none. On a CPU it is
        tokens/s of all ranks, which share the cores that a plain process has to itself. A table without a plain run
        keeps the column that it has.
    """
    work = runs.reindex(columns=WORK).astype(object)
    keys = pd.Series(list(map(tuple, work.where(work.notna(), None).to_numpy())), index=runs.index, dtype=object)
    on_cpu = runs.get("device", pd.Series(index=runs.index, dtype=object)) == "cpu"
    rates = numbers(runs, RATE).mask(on_cpu, numbers(runs, RATE_OF_ALL))
    plain = (runs.get("strategy") == "plain") & (runs.get("status") == "ok")
    if not isinstance(plain, pd.Series) or not plain.any():
        return runs if COLUMN in runs else runs.assign(**{COLUMN: float("nan")})
    names = [keys[plain], runs["experiment"][plain]]
    fastest = rates[plain].groupby(names, sort=False).median().groupby(level=0, sort=False).max()
    return runs.assign(**{COLUMN: rates / keys.map(dict(fastest))})
