"""Which runs waited for their host, in words, and how much faster the same setting is with CUDA graphs."""

import pandas as pd

from dsnb.run_folder.columns import SETTINGS, key_columns
from dsnb.runs.table import numbers
from dsnb.settings.training import CUDA_GRAPHS

CPU_BOUND = 0.2
"""Share of the steps from which a run is called CPU-bound."""
FASTER = 1.05
"""Times as fast from which CUDA graphs are worth a word."""


def cpu_bound_words(runs: pd.DataFrame) -> dict[int, str]:
    """Return by position a sentence about each run that is CPU-bound for a fifth of its steps or more.

    Runs with CUDA graphs of the same setting, on GPUs of the same kind, are named if they are faster.
    """
    share = numbers(runs, "cpu_bound")
    if not (share >= CPU_BOUND).any():
        return {}
    same = [name for name in (*SETTINGS, *key_columns(runs), "gpu_name") if name in runs and name != "compile"]
    groups = runs.groupby(same, dropna=False, sort=False).ngroup()
    compiled = runs["compile"] if "compile" in runs else pd.Series("off", index=runs.index)
    rate = numbers(runs, "tokens_per_s").where(runs["status"] == "ok")
    with_graphs = rate.where(compiled.isin(CUDA_GRAPHS)).groupby(groups).transform("median")
    times = with_graphs / rate.groupby([groups, compiled]).transform("median")
    strategies = runs.reindex(columns=["strategy", "zero_stage"])
    gathers = (strategies["strategy"] == "fsdp") | (strategies["zero_stage"] == 3)  # which a graph cannot
    words = {}
    for place, (part, faster, is_out) in enumerate(
        zip(share, times, gathers | compiled.isin(CUDA_GRAPHS), strict=True)
    ):
        what = f"a larger micro-batch{'' if is_out else ', or compile: reduce-overhead (CUDA graphs),'} may be faster"
        if faster >= FASTER:
            what = f"compiled with CUDA graphs, the same setting is {faster:.1f} times as fast"
        words[place] = f"CPU-bound: {100 * part:.0f} % of the step; {what}" if part >= CPU_BOUND else ""
    return {place: text for place, text in words.items() if text}
