"""Name the runs that were CPU-bound, and how much faster the same setting is with CUDA graphs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from dsnb.results.runs.table import loops, numbers
from dsnb.settings import known
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.columns import SETTINGS, key_columns
from dsnb.settings.training import CUDA_GRAPHS, text

CPU_BOUND = 0.2
"""Idle share of the steps from which a run is called CPU-bound."""
FASTER = 1.05
"""Speed-up by CUDA graphs from which the sentence names it."""


def cpu_bound_words(runs: pd.DataFrame) -> dict[int, str]:
    """Return a sentence for each CPU-bound run by position, with the speed of the same setting with CUDA graphs."""
    share = numbers(runs, "cpu_bound")
    if not (share >= CPU_BOUND).any():
        return {}
    names = [*SETTINGS, *key_columns(runs), "gpu_name"]
    same = [name for name in names if name in runs and name != "compile"]
    alike = runs[same].assign(program=loops(runs))
    groups = alike.groupby([*alike], dropna=False, sort=False).ngroup()
    compiled = runs.get("compile", pd.Series("off", index=runs.index))
    rate = numbers(runs, "tokens_per_s").where(runs["status"] == "ok")
    with_graphs = rate.where(compiled.isin(CUDA_GRAPHS)).groupby(groups).transform("median")
    times = with_graphs / rate.groupby([groups, compiled]).transform("median")
    words = {}
    for place in np.flatnonzero(share >= CPU_BOUND):
        advice = "a larger micro-batch, or compile: reduce-overhead (CUDA graphs), may be faster"
        if times.iloc[place] >= FASTER:
            advice = f"compiled with CUDA graphs, the same setting is {times.iloc[place]:.1f} times as fast"
        elif not _could_use_graphs(runs.iloc[place].to_dict()):
            advice = "a larger micro-batch may be faster"
        part_pct = 100 * share.iloc[place]
        words[int(place)] = f"CPU-bound: up to {part_pct:.0f} % of the step; {advice}"
    return words


def _could_use_graphs(run: Mapping[str, Any]) -> bool:
    """Return whether the run had no CUDA graphs, and gathered no weights, which graphs cannot."""
    mode = text(run.get("compile", "off"))
    if mode in {"-", *CUDA_GRAPHS}:
        return False
    experiment = Experiment.of_row(run)
    if known.unknown(experiment):
        return False
    return not experiment.parallel_strategy.shards_weights(experiment)
