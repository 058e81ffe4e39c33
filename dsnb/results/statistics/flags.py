"""Flag unusual runs: stalls, drift, throttling, diverging losses, different conditions. No run is excluded.

A flag does not mean that a figure is wrong: a stall may come from the machine, or from the setting,
as recompilations do.

Speed and memory are meaningless if a compiler or kernel bug makes a run compute something else.
Settings of one model with equal seeds and global batches see the same weights and tokens, so their
first losses differ only by rounding, however they share the work. Losses of repeats differ only by
the order of summation, unless there is a race.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dsnb.base.formulas import metrics
from dsnb.results.runs import labels
from dsnb.results.runs.load import load_gpu
from dsnb.results.runs.number_text import signed
from dsnb.results.runs.table import as_runs, loops, named_runs, numbers
from dsnb.results.statistics.summary import UNSTABLE, repeat_ratios
from dsnb.results.statistics.tasks import TASK, with_trained
from dsnb.settings.programs import DSNB
from dsnb.settings.records.columns import KEYS, MAX_FIGURE
from dsnb.settings.records.slow_kernels import FIGURES, slow_kernels

STALLED = 1.1
"""Mean over median step time."""
DRIFT_PCT = 2.0
DRIFT_P = 0.01
CLOCK_DROP_PCT = 5.0
BUSY_PCT = 50.0
"""Samples of less busy GPUs are ignored: an idle GPU lowers its clock."""
MIN_SAMPLES = 6
"""Samples of a busy GPU from which its clock is compared."""
MIN_STEPS = 10
"""Steps of a trend: with fewer, none reaches the required significance."""
BLOCKS = 20
OUTLIER_PCT = 5.0
OUTLIER_DEVIATIONS = 3.5
"""Iglewicz and Hoaglin (1993), How to Detect and Handle Outliers: 3.5 robust standard
deviations."""
FIRST_LOSS_PCT = 0.1
LAST_LOSS_PCT = 5.0
REPEAT_LOSS_PCT = 0.05
"""Rounding alone moves the first by up to 0.015 % (983 runs on H200), the second by 4.6 (685), the third by 0.024 (188
settings)."""
SAME_START = (
    *TASK, "weights", "tokenizer", "seed", "global_batch_size", "matmul", "frozen_weights",
)  # fmt: skip
"""Columns that determine the first loss."""
SAME_TRAINING = (
    *SAME_START, "lora_rank", "lora_targets", "optimizer", "learning_rate", "gradient_clipping",
    "gradient_compression", "warmup_steps", "steps",
)  # fmt: skip
"""Columns that determine the last loss, apart from number formats."""
EARLY_STEPS = 4
"""Synthetic data repeats after four steps: memorized batches then magnify rounding. A race shows
before."""
UNCOMPARED = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
"""Variables that schedulers set differently for each job."""
MAX_SAMPLED = 500
"""Runs whose samples are read: each is a separate file that takes some milliseconds."""
NORMAL_MAD = 1.4826
"""Standard deviation of normal values over their median absolute deviation."""


class Flag(StrEnum):
    """What is unusual about a run."""

    STALLED = "stalled"
    SLOW_STEPS = "slow steps"
    DRIFT = "drift"
    RECOMPILED = "recompiled"
    MEMORY_FULL = "memory full"
    SLOW_KERNELS = "slow kernels"
    THROTTLED = "throttled"
    OUTLIER = "outlier"
    LOSS = "loss"
    CONDITIONS = "conditions"
    UNSTABLE = "unstable"


WITHIN_RUN = ["step_spread_pct", "mean_over_median", "slow_steps", "drift_pct", "drift_p"]
COLUMNS = {
    "step_spread_pct": "Standard deviation of the timed steps in per cent of their mean: spread within the run.",
    "mean_over_median": "Mean over median of the timed step times; above 1.1, the run `stalled`.",
    "slow_steps": "Timed steps of more than twice the median.",
    "drift_pct": "Rise of the step time over the timed steps (Theil and Sen), in per cent of the median.",
    "drift_p": "p value of that trend (Mann and Kendall); `drift` is 2 % or more with a p value below 0.01.",
    "recompilations": "Graphs that were compiled during the timed steps.",
    "alloc_retries": "How often the allocator returned memory to the GPU and asked again during the timed steps.",
    "slow_kernels": "Attention or loss kernels of a profiled run that take much more than their FLOPs and bytes need.",
    "clock_drop_pct": "How much lower a GPU's clock was in the last third of the timed steps than in the first.",
    "clock_off_pct": "Deviation of the mean clock from the highest of the setting's runs.",
    "off_pct": "Deviation of the figure from the median of the setting's runs; missing for fewer than three.",
    "first_loss_gap_pct": "Deviation of the first loss from that of other settings with equal weights and batches.",
    "last_loss_gap_pct": "Deviation of the last loss from that of settings trained alike, over the first loss.",
    "repeat_loss_gap_pct": "How far the losses of the setting's runs are apart in the first 4 steps; missing for one.",
    "conditions": "Environment variables and input files in which the run differs from others of its setting.",
    "repeat_ratio": "Highest over lowest tokens/s of the setting's ok runs; above 1.5, all of them are `unstable`.",
    "flags": "Those of `Flag` that apply; an empty tuple if none does.",
    "words": "The same in words with the numbers; empty if none applies.",
}
"""Columns of `flags` and their meanings; percentages are stored as such."""


def flags(
    runs: pd.DataFrame,
    steps: pd.DataFrame | None = None,
    samples: Mapping[object, pd.DataFrame] | None = None,
    figure: str = "tokens_per_s",
) -> pd.DataFrame:
    """Flag unusual runs.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` returns it.
    steps
        Their steps, as `dsnb.load_steps` returns them. Without them, spread and drift are unknown.
    samples
        GPU samples (`dsnb.results.runs.load.load_gpu`) by the run's label in the index of `runs`.
    figure
        The figure in which a run may be an outlier among the repeats of its setting.

    Returns
    -------
    pandas.DataFrame
        With the index of `runs`: `sweep`, `experiment`, `repeat`, and `COLUMNS`. Unknown numbers are NaN.

    Examples
    --------
    >>> runs = pd.DataFrame({"sweep": "s", "experiment": "a", "repeat": [1, 2], "status": "ok",
    ...                      "tokens_per_s": [100.0, 102.0], "slow_steps": [0, 2]})
    >>> flags(runs)["words"].tolist()
    ['', '2 timed steps of more than twice the median']
    """
    runs = as_runs(runs)
    labels_of_runs = runs.index
    runs = runs.reset_index(drop=True)  # tables put together have labels twice
    named = named_runs(runs)
    timed = _timed_by_run(steps)
    rows = []
    keys = runs[KEYS].itertuples(index=False, name=None)
    for label, key in zip(labels_of_runs, keys, strict=True):
        own = timed.get(key)
        drop_pct = clock_drop_pct((samples or {}).get(label), own)
        rows.append((*_within_run(own), drop_pct))
    within = pd.DataFrame(rows, index=runs.index, columns=[*WITHIN_RUN, "clock_drop_pct"])
    table = pd.concat([runs[KEYS], within, loss_gaps_pct(named)], axis="columns")
    ratio = numbers(runs, "step_time_mean_s") / numbers(runs, "step_time_median_s")
    table["mean_over_median"] = table["mean_over_median"].fillna(ratio)
    table["slow_steps"] = table["slow_steps"].fillna(numbers(runs, "slow_steps"))
    table["recompilations"] = numbers(runs, "recompilations")
    table["alloc_retries"] = numbers(runs, "alloc_retries")
    table["slow_kernels"] = _slow_kernel_words(runs)
    is_ok = named["status"] == "ok"
    table["clock_off_pct"] = _off_pct(numbers(named, "sm_clock_mhz"), named, "max")
    figures = numbers(named, figure).where(is_ok)
    table["off_pct"] = _off_pct(figures, named, "median", least=3)
    table["repeat_loss_gap_pct"] = repeat_gaps_pct(runs, steps)
    table["conditions"] = odd_conditions(named)
    ratios = named["experiment"].map(repeat_ratios(named))
    table["repeat_ratio"] = ratios.astype(float).where(is_ok)
    limit_pct = _outlier_limit_pct(table["off_pct"])
    reasons = [_reasons(run, limit_pct) for run in table.itertuples()]
    table["flags"] = [tuple(of_run) for of_run in reasons]
    table["words"] = ["; ".join(of_run.values()) for of_run in reasons]
    return table[[*KEYS, *COLUMNS]].set_axis(labels_of_runs)


def _slow_kernel_words(runs: pd.DataFrame) -> list[str]:
    """Describe the attention and loss kernels of each run that take too long; empty if none does."""
    compared = pd.DataFrame({name: numbers(runs, name) for name in FIGURES}, index=runs.index)
    compared["attention_kernel"] = runs.get("attention_kernel")
    return ["; ".join(slow_kernels(run)) for run in compared.to_dict("records")]


def _timed_by_run(steps: pd.DataFrame | None) -> dict[tuple[object, ...], pd.DataFrame]:
    """Return the timed steps that have a time, by the names of their run."""
    if steps is None:
        return {}
    has_time = steps["step_time_s"].between(0, MAX_FIGURE, inclusive="neither")
    timed = steps[(steps["phase"] == "timed") & has_time]
    return dict(iter(timed.groupby(KEYS, sort=False)))


def _outlier_limit_pct(off_pct: pd.Series) -> float:
    """Return the deviation above which a run is an outlier, by the spread of all repeats."""
    # Deviations of 0 belong to the medians themselves and carry no spread.
    sizes = off_pct.abs()[off_pct.abs() > 0]
    if sizes.empty:
        return OUTLIER_PCT
    return max(OUTLIER_PCT, OUTLIER_DEVIATIONS * NORMAL_MAD * float(sizes.median()))


def load_samples(runs: pd.DataFrame) -> dict[object, pd.DataFrame]:
    """Return the GPU samples of the first runs with a clock, as `flags` takes them."""
    recorded = runs[numbers(runs, "sm_clock_mhz").notna()].head(MAX_SAMPLED)
    folders = recorded.get("run_dir", pd.Series(dtype=object))
    return {label: load_gpu(folder) for label, folder in folders.items() if isinstance(folder, str)}


def _within_run(timed: pd.DataFrame | None) -> tuple[float, ...]:
    """Return `WITHIN_RUN` for the timed steps of one run.

    Steps of one run share the machine's state, so their spread is not the noise between repeats.
    """
    if timed is None:
        return (math.nan,) * len(WITHIN_RUN)
    times_s = timed["step_time_s"]
    mean = times_s.mean()
    median = times_s.median()
    slow = (times_s > metrics.SLOW_STEP * median).sum()
    spread_pct = 100 * times_s.std() / mean
    return spread_pct, mean / median, float(slow), *drift(times_s.to_numpy(float))


def drift(times_s: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the rise of step times over the run, in per cent of their median, and the p value of the trend.

    The slope is the median over all pairs (Theil 1950, Sen 1968), tested by ranks (Mann 1945, with
    the normal approximation of Kendall 1948), so single slow steps count little. Neighbouring steps
    are correlated, so the values are medians of at most `BLOCKS` blocks. NaN for fewer than
    `MIN_STEPS` steps.
    """
    count = min(BLOCKS, len(times_s))
    if count < MIN_STEPS:
        return math.nan, math.nan
    values = np.array([np.median(block) for block in np.array_split(times_s, count)])
    first, second = np.triu_indices(count, 1)
    rises = values[second] - values[first]
    slope = float(np.median(rises / (second - first)))
    drift_pct = 100 * slope * (count - 1) / float(np.median(times_s))
    score = float(np.sign(rises).sum())
    deviation = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    deviations = max(0.0, abs(score) - 1) / deviation
    return drift_pct, math.erfc(deviations / math.sqrt(2))


def clock_drop_pct(samples: pd.DataFrame | None, timed: pd.DataFrame | None) -> float:
    """Return the largest drop of a GPU's clock from the first to the last third of the timed steps, in per cent.

    Medians are compared; NaN for fewer than `MIN_SAMPLES` samples of a busy GPU. Without steps, all
    samples count.
    """
    if samples is None or "sm_clock_mhz" not in samples:
        return math.nan
    is_busy = (samples["util_pct"] >= BUSY_PCT) & samples["sm_clock_mhz"].notna()
    busy = samples[is_busy].sort_values("t_s")
    if timed is not None and timed["t_s"].notna().any():
        start_s = timed["t_s"].min() - timed["step_time_s"].iloc[0]
        busy = busy[busy["t_s"].between(start_s, timed["t_s"].max())]
    drops_pct = []
    names = [name for name in ("host", "gpu") if name in busy]
    for _, clock in busy.groupby(names, dropna=False)["sm_clock_mhz"]:
        third = len(clock) // 3
        if len(clock) >= MIN_SAMPLES:
            kept = clock.tail(third).median() / clock.head(third).median()
            drops_pct.append(100 * (1 - kept))
    return float(max(drops_pct, default=math.nan))


def _off_pct(values: pd.Series, runs: pd.DataFrame, reference: str, least: int = 1) -> pd.Series:
    """Return the deviation of each value from a statistic of its setting; NaN for fewer than `least` values."""
    same = values.groupby(runs["experiment"])
    off_pct = 100 * (values / same.transform(reference) - 1)
    return off_pct.where(same.transform("count") >= least)


def _reasons(run: Any, limit_pct: float) -> dict[Flag, str]:
    """Return the flags of a run, each with its number in words."""
    words = {}
    if run.mean_over_median > STALLED:
        words[Flag.STALLED] = f"mean step {run.mean_over_median:.2f} times the median"
    if run.slow_steps > 0:
        words[Flag.SLOW_STEPS] = (
            f"{labels.count(run.slow_steps, 'timed step')} of more than twice the median"
        )
    if abs(run.drift_pct) >= DRIFT_PCT and run.drift_p < DRIFT_P:
        words[Flag.DRIFT] = f"step time drifted by {signed(run.drift_pct)}"
    if run.recompilations > 0:
        words[Flag.RECOMPILED] = (
            f"{labels.count(run.recompilations, 'graph')} compiled during the timed steps"
        )
    if run.alloc_retries > 0:
        times = labels.count(run.alloc_retries, "time")
        words[Flag.MEMORY_FULL] = (
            f"memory was returned to the GPU {times} in the timed steps: it was nearly full"
        )
    if run.slow_kernels:
        words[Flag.SLOW_KERNELS] = run.slow_kernels
    if run.clock_drop_pct >= CLOCK_DROP_PCT:
        words[Flag.THROTTLED] = (
            f"clock {run.clock_drop_pct:.1f} % lower at the end than at the beginning"
        )
    elif run.clock_off_pct <= -CLOCK_DROP_PCT:
        words[Flag.THROTTLED] = (
            f"clock {-run.clock_off_pct:.1f} % below that of another run of the setting"
        )
    if abs(run.off_pct) > limit_pct:
        words[Flag.OUTLIER] = f"{signed(run.off_pct)} from the median of the setting's runs"
    loss = _loss_words(run)
    if loss:
        words[Flag.LOSS] = loss
    if run.conditions:
        words[Flag.CONDITIONS] = run.conditions
    if run.repeat_ratio > UNSTABLE:
        words[Flag.UNSTABLE] = (
            f"the setting's runs differ by {run.repeat_ratio:.1f} times in tokens/s"
        )
    return words


def _loss_words(run: Any) -> str:
    """Describe the first unusual loss of a run; empty if there is none."""
    if abs(run.first_loss_gap_pct) > FIRST_LOSS_PCT:
        return f"first loss {signed(run.first_loss_gap_pct)} from that of settings that compute the same"
    if run.repeat_loss_gap_pct > REPEAT_LOSS_PCT:
        gap = f"{run.repeat_loss_gap_pct:.2f} %"
        return f"losses of the setting's runs differ by up to {gap} in the first steps, with the same seed"
    if abs(run.last_loss_gap_pct) > LAST_LOSS_PCT:
        gap = f"{signed(run.last_loss_gap_pct)} of the first loss"
        return f"last loss {gap} from that of settings that train alike"
    return ""


def single_run_words(step_spread_pct: float) -> str:
    """Describe the spread of the steps of a single run, which is no spread between runs."""
    return f"one run: its steps vary by {step_spread_pct:.1f} % (standard deviation within the run, not between runs)"


def loss_gaps_pct(runs: pd.DataFrame) -> pd.DataFrame:
    """Compare first and last losses with the median of other settings that should have the same loss.

    NaN without other settings, unless a run is `ok`, with dropout, if seed or global batch are
    unknown and, for the last loss, if a run skipped steps.
    """
    comparable = runs[_reproducible(runs)]
    skipped = numbers(comparable, "skipped_steps").fillna(0)
    skipped += numbers(comparable, "skipped_warmup_steps").fillna(0)
    gaps = {
        "first_loss_gap_pct": _gaps_pct(comparable, "loss_first", SAME_START),
        "last_loss_gap_pct": _gaps_pct(comparable[skipped == 0], "loss_last", SAME_TRAINING),
    }
    return pd.DataFrame(gaps, index=runs.index, dtype=float)


def repeat_gaps_pct(runs: pd.DataFrame, steps: pd.DataFrame | None) -> pd.Series:
    """Return the largest range of a setting's losses in an early step, in per cent of the smallest loss, for each run.

    Includes the warm-up; NaN for single runs, unless a run is `ok`, with dropout, and if the seed
    is unknown.
    """
    if steps is None or "loss" not in steps:
        return pd.Series(np.nan, index=runs.index)
    setting = KEYS[:-1]
    is_comparable = _reproducible(runs)
    early = steps[steps["step"].between(1, EARLY_STEPS) & steps["loss"].notna()]
    early = early.merge(runs.loc[is_comparable, KEYS].drop_duplicates(), on=KEYS)
    losses = early.groupby([*setting, "step"], sort=False)["loss"].agg(["min", "max", "count"])
    range_pct = 100 * (losses["max"] / losses["min"] - 1)
    range_pct = range_pct.where(losses["count"] > 1)
    worst = range_pct.groupby(setting, sort=False).max().rename("range_pct").reset_index()
    of_runs = runs[setting].merge(worst, how="left")
    return of_runs["range_pct"].set_axis(runs.index).where(is_comparable)


def median_of_others(values: np.ndarray) -> np.ndarray:
    """Return, for each of n numbers, the median of the n - 1 others; shape (n,), NaN for a single number.

    Of two middle numbers, the one nearer to the number itself is taken: of three numbers, only one
    is then far off.
    """
    count = len(values)
    if count < 2:
        return np.full(count, np.nan)
    others = np.sort([np.delete(values, place) for place in range(count)])
    low = others[:, (count - 2) // 2]
    high = others[:, (count - 1) // 2]
    return np.where(np.abs(values - low) <= np.abs(values - high), low, high)


def _reproducible(runs: pd.DataFrame) -> pd.Series:
    """Return whether the losses of each run can be compared: it is `ok`, without dropout, with a known seed and batch.

    Of another program, its data must be known as well. The losses of a run that was cut short are
    those of one rank, and those of a diverged one say nothing about others.
    """
    needed = runs.reindex(columns=["seed", "global_batch_size", "dropout"])
    is_known = needed.notna().all(axis=1)
    has_data = runs.reindex(columns=["data"])["data"].notna()
    is_known &= has_data | (loops(runs) == DSNB)
    return (runs["status"] == "ok") & is_known & (numbers(runs, "dropout") == 0)


def _gaps_pct(runs: pd.DataFrame, loss: str, same: Sequence[str]) -> pd.Series:
    """Compare the medians of settings, so that repeats count once; missing values are equal.

    Gaps of last losses are relative to the first: one that has fallen to 1 % of it differs by
    rounding alone.
    """
    determining = with_trained(runs).reindex(columns=list(same)).assign(program=loops(runs))
    alike = determining.groupby([*determining], dropna=False).ngroup()
    keys = [alike, runs["experiment"]]
    losses = numbers(runs, loss)
    medians = losses.groupby(keys, sort=False).median().dropna()
    if medians.empty:
        return losses
    alike_medians = medians.groupby(level=0, sort=False)
    others = alike_medians.transform(lambda part: median_of_others(part.to_numpy()))
    expected = others.reindex(pd.MultiIndex.from_arrays(keys)).to_numpy()
    first = expected
    if loss != "loss_first":
        first = numbers(runs, "loss_first").to_numpy()
    return 100 * (losses - expected) / first


def parsed(text: object) -> dict[str, str] | None:
    """Parse `NAME=value` words; None if there is no text or it is malformed."""
    if not isinstance(text, str):
        return None
    try:
        words = shlex.split(text)
    except ValueError:
        return None
    pairs = (word.partition("=") for word in words)
    return {name: value for name, equals, value in pairs if equals and name not in UNCOMPARED}


def _conditions(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a column per condition: environment variables, versions of input files, and torch's allocator.

    In runs older than the setting, the allocator may differ from what their names say. Unknown
    values are missing.
    """
    parts = []
    for kind, prefix in (("variables", ""), ("inputs", "version of ")):
        recorded = runs.get(kind, pd.Series(dtype=object)).map(parsed).dropna()
        values = pd.DataFrame(recorded.tolist(), index=recorded.index, dtype=object)
        parts.append(values.fillna("unset").sort_index(axis="columns").add_prefix(prefix))
    if "allocator" in runs:
        parts.append(runs["allocator"])
    return pd.concat(parts, axis="columns").reindex(runs.index)


def odd_conditions(runs: pd.DataFrame) -> pd.Series:
    """Describe the conditions in which each run differs from most runs of its experiment; empty if there are none."""
    table = _conditions(runs)
    differing = table[[name for name in table if table[name].nunique() > 1]]
    words: dict[object, list[str]] = {label: [] for label in runs.index}
    for _, group in differing.groupby(runs["experiment"], sort=False):
        for name, values in group.items():
            if values.nunique() < 2:
                continue
            usual = values.value_counts().idxmax()
            for label, value in values.dropna().items():
                if value != usual:
                    sentence = f"{name} is {value}, in other runs of the setting {usual}"
                    words[label].append(sentence)
    return pd.Series({label: "; ".join(of_run) for label, of_run in words.items()}, dtype=object)


def changed_conditions(before: pd.DataFrame, after: pd.DataFrame) -> list[str]:
    """Describe the conditions in which two sets of runs differ, a sentence each; unknown ones are skipped."""
    table = _conditions(pd.concat([before, after], ignore_index=True))
    sentences = []
    for name in table:
        values = table[name]
        parts = [values.iloc[: len(before)], values.iloc[len(before) :]]
        first, second = [" or ".join(sorted({*part.dropna()})) for part in parts]
        if first and second and first != second:
            sentences.append(
                f"{name} was {first} before and {second} after, which may explain a difference."
            )
    return sentences
