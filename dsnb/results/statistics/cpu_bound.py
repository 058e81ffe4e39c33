"""Name the runs that were CPU-bound, and how much faster the same setting is with CUDA graphs."""

import pandas as pd

from dsnb.results.runs.table import numbers
from dsnb.settings.records.columns import SETTINGS, key_columns
from dsnb.settings.training import CUDA_GRAPHS

CPU_BOUND = 0.2
"""Idle share of the steps from which a run is called CPU-bound."""
FASTER = 1.05
"""Speed-up by CUDA graphs from which the sentence names it."""


def cpu_bound_words(runs: pd.DataFrame) -> dict[int, str]:
    """Return a sentence for each CPU-bound run by position, with the speed of the same setting with CUDA graphs."""
    share = numbers(runs, "cpu_bound")
    if not (share >= CPU_BOUND).any():
        return {}
    same = [
        name
        for name in (*SETTINGS, *key_columns(runs), "gpu_name")
        if name in runs and name != "compile"
    ]
    groups = runs.groupby(same, dropna=False, sort=False).ngroup()
    compiled = runs["compile"] if "compile" in runs else pd.Series("off", index=runs.index)
    rate = numbers(runs, "tokens_per_s").where(runs["status"] == "ok")
    with_graphs = rate.where(compiled.isin(CUDA_GRAPHS)).groupby(groups).transform("median")
    times = with_graphs / rate.groupby([groups, compiled]).transform("median")
    strategies = runs.reindex(columns=["strategy", "zero_stage"])
    no_graphs = (
        (strategies["strategy"] == "fsdp")
        | (strategies["zero_stage"] == 3)
        | compiled.isin(CUDA_GRAPHS)
    )
    no_graphs |= compiled.isna()  # it may have them
    words = {}
    for place, (part, faster, is_out) in enumerate(zip(share, times, no_graphs, strict=True)):
        what = f"a larger micro-batch{'' if is_out else ', or compile: reduce-overhead (CUDA graphs),'} may be faster"
        if faster >= FASTER:
            what = f"compiled with CUDA graphs, the same setting is {faster:.1f} times as fast"
        if part >= CPU_BOUND:
            words[place] = f"CPU-bound: up to {100 * part:.0f} % of the step; {what}"
    return words
