"""Whether runs that compute the same start with the same loss, and train alike.

Speed and memory of a run say nothing if it computes something else, as a compiler's or a kernel's error makes it. Two
settings of one model, with equal seeds and global batches, see the same weights and tokens: their first losses differ
by rounding alone, however they share the work. Repeats of one setting do the same in the same order: their losses
differ by the order of sums alone, unless something reads what is not there yet.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from dsnb.analysis.tasks import TASK, with_trained
from dsnb.run_folder.columns import KEYS
from dsnb.runs.table import numbers

SAME_START = (*TASK, "weights", "tokenizer", "seed", "global_batch_size")
"""What decides the first loss."""
SAME_TRAINING = (
    *SAME_START, "lora_rank", "optimizer", "learning_rate", "gradient_clipping", "gradient_compression", "warmup_steps",
    "steps",
)  # fmt: skip
"""What decides the last loss, but for number formats."""
EARLY_STEPS = 20
"""Differences between repeats grow with each step, so only the first ones are compared."""


def loss_gaps_pct(runs: pd.DataFrame) -> pd.DataFrame:
    """Return how far the losses of each run are from those of other settings that should have the same.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` returns it; columns may be missing.

    Returns
    -------
    pandas.DataFrame
        With the index of `runs`: `first_loss_gap_pct` and `last_loss_gap_pct`, in per cent of the median of the other
        settings. NaN where there is none, with dropout, where seed or global batch are unknown, and, for the last
        loss, where a run did not end well or skipped steps.
    """
    known = _reproducible(runs)
    skipped = numbers(runs, "skipped_steps").fillna(0) + numbers(runs, "skipped_warmup_steps").fillna(0)
    whole = (runs["status"] == "ok") & (skipped == 0)
    gaps = {
        "first_loss_gap_pct": _gaps_pct(runs[known], "loss_first", SAME_START),
        "last_loss_gap_pct": _gaps_pct(runs[known & whole], "loss_last", SAME_TRAINING),
    }
    return pd.DataFrame(gaps, index=runs.index, dtype=float)


def repeat_gaps_pct(runs: pd.DataFrame, steps: pd.DataFrame | None) -> pd.Series:
    """Return, for each run, how far the losses of its setting's runs are apart in the first steps, in per cent.

    Parameters
    ----------
    runs
        One row per run.
    steps
        Their steps, as `dsnb.load_steps` returns them.

    Returns
    -------
    pandas.Series
        With the index of `runs`: the largest range of a step over the smallest loss, warm-up included. NaN for
        single runs, with dropout, and where the seed is unknown.
    """
    nothing = pd.Series(np.nan, index=runs.index)
    if steps is None or "loss" not in steps:
        return nothing
    setting = KEYS[:-1]
    early = steps[steps["step"].between(1, EARLY_STEPS) & steps["loss"].notna()]
    losses = early.groupby([*setting, "step"], sort=False)["loss"].agg(["min", "max", "count"])
    range_pct = (100 * (losses["max"] / losses["min"] - 1)).where(losses["count"] > 1)
    worst = range_pct.groupby(setting, sort=False).max().rename("range_pct")
    return runs[setting].join(worst, on=setting)["range_pct"].where(_reproducible(runs)) if len(worst) else nothing


def median_of_others(values: np.ndarray) -> np.ndarray:
    """Return, for each of n numbers, the median of the n - 1 others; shape (n,), NaN for a single number.

    Of two middle numbers it is the one that is nearer to the own, so that of three numbers one alone is far off.
    """
    count = len(values)
    if count < 2:
        return np.full(count, np.nan)
    order = np.argsort(values)
    ranks, ascending = np.argsort(order), values[order]
    low, high = (ascending[place + (ranks <= place)] for place in ((count - 2) // 2, (count - 1) // 2))
    return np.where(np.abs(values - low) <= np.abs(values - high), low, high)


def _reproducible(runs: pd.DataFrame) -> pd.Series:
    """Return which runs can be compared: without dropout, and with a known seed and batch."""
    return (numbers(runs, "dropout").fillna(0) == 0) & runs.reindex(columns=["seed", "global_batch_size"]).notna().all(
        axis=1
    )


def _gaps_pct(runs: pd.DataFrame, loss: str, same: Sequence[str]) -> pd.Series:
    """Compare medians of settings, so that a setting with many repeats counts once; a missing value equals another."""
    columns = with_trained(runs).reindex(columns=list(same))
    codes = pd.DataFrame({name: pd.factorize(columns[name])[0] for name in same}, index=runs.index)
    group = codes.groupby(list(same), sort=False).ngroup().rename("group")
    losses = numbers(runs, loss)
    medians = losses.dropna().groupby([group, runs["experiment"]], sort=False).median()
    if medians.empty:
        return losses
    others = medians.groupby("group", sort=False).transform(lambda part: median_of_others(part.to_numpy()))
    keys = pd.DataFrame({"group": group, "experiment": runs["experiment"]})
    others = keys.join(others.rename("others"), on=["group", "experiment"])["others"]
    return 100 * (losses / others - 1)
