"""The answer in words: what the runs say to somebody who wants to choose settings, and nothing that they do not say."""

import html

import pandas as pd

from dsnb.summary import summarize
from dsnb.tables import Html

MEMORY = ("peak_allocated_gib", "device_memory_gib", "host_memory_gib")
NEAR = 0.9
SAME = 1.02
"""Memory figures that differ by less than 2 % are called equal."""


def answer(runs: pd.DataFrame) -> Html:
    """Name the fastest setting, the lightest one nearly as fast, and what did not work.

    Parameters
    ----------
    runs
        One row a run, as `dsnb.load_runs` gives it.
    """
    if runs.empty:
        return _box(["There are no runs here yet: start the sweep first."])
    summary = summarize(runs)
    speed = summary["tokens_per_s_per_gpu_median"].dropna()
    sentences = []
    if not speed.empty:
        sentences += [_fastest(summary, speed), *_as_fast(summary, speed), *_lightest(summary, speed)]
    bad = runs[runs["status"] != "ok"]
    counts = ", ".join(f"{count} {status}" for status, count in bad["status"].value_counts().items())
    sentences.append(
        f"All {len(runs)} runs ended well." if bad.empty else f"{len(bad)} of {len(runs)} runs are not ok: {counts}."
    )
    return _box(sentences)


def _fastest(summary: pd.DataFrame, speed: pd.Series) -> str:
    name = speed.idxmax()
    spread = summary.loc[name, "tokens_per_s_per_gpu_std"]
    more = "" if pd.isna(spread) else f" ± {spread:,.0f}"
    count = int(summary.loc[name, "n"])
    runs = "one run" if count == 1 else f"median of {count} runs"
    return f"Fastest: {_code(name)} with {speed[name]:,.0f}{more} tokens/s per GPU ({runs})."


def _as_fast(summary: pd.DataFrame, speed: pd.Series) -> list[str]:
    """Name the settings whose spread overlaps that of the fastest: repeats cannot tell them apart."""
    spread = summary["tokens_per_s_per_gpu_std"].fillna(0.0)
    fastest = speed.idxmax()
    reached = speed + spread.loc[speed.index] >= speed[fastest] - spread[fastest]
    others = [name for name in speed.index[reached] if name != fastest]
    if not others:
        return []
    return [f"Within the spread of repeats as fast: {', '.join(map(_code, others))}."]


def _lightest(summary: pd.DataFrame, speed: pd.Series) -> list[str]:
    """Name the setting with the least memory among those within 10 % of the fastest."""
    metric = next((name for name in MEMORY if summary[f"{name}_median"].notna().any()), None)
    if metric is None:
        return []
    near = speed.index[speed >= NEAR * speed.max()]
    memory = summary.loc[near, f"{metric}_median"].dropna()
    if memory.empty:
        return []
    name, fastest = memory.idxmin(), speed.idxmax()
    what = "host memory" if metric == "host_memory_gib" else "GPU memory"
    if memory[name] > memory.get(fastest, float("inf")) / SAME:
        return [f"The fastest is also the lightest within 10 % of its speed: {memory[fastest]:,.2f} GiB of {what}."]
    loss = 100 * (1 - speed[name] / speed.max())
    return [
        f"Lightest within 10 % of the fastest: {_code(name)} with {memory[name]:,.2f} GiB of {what}, "
        f"{loss:.0f} % slower (the fastest takes {summary.loc[fastest, f'{metric}_median']:,.2f} GiB)."
    ]


def _code(name: object) -> str:
    return f"<code>{html.escape(str(name))}</code>"


def _box(sentences: list[str]) -> Html:
    return Html('<div class="answer"><ul>' + "".join(f"<li>{sentence}</li>" for sentence in sentences) + "</ul></div>")
