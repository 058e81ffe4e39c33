"""The answer in words: what the runs say to somebody who wants to choose settings, and nothing that they do not say."""

import html
import re
from collections.abc import Iterator
from typing import Any

import pandas as pd

from dsnb.analysis.summary import axes, summarize
from dsnb.analysis.tradeoffs import effects
from dsnb.render.tables import Html
from dsnb.run_folder.paths import PROBE
from dsnb.runs import labels
from dsnb.runs.column_aliases import rename_old_columns
from dsnb.runs.labels import MEMORY

RATE = "tokens_per_s_per_gpu"
NEAR = 0.9
SAME = 1.02
"""Memory figures that differ by less than 2 % are called equal."""
TASK = ("model", "seq_len", "gpu_name")
"""What is to be trained, and on what; settings are compared within it."""
MINUS = "\N{MINUS SIGN}"
NEGLIGIBLE_CHANGE = 0.0005
"""Smaller changes would be displayed as 0.0 %."""
MOST = 6
"""Tasks that are spoken of, and values of an axis."""


def answer(runs: pd.DataFrame) -> Html:
    """Name the fastest setting, the lightest one nearly as fast, what each axis is worth, and what did not work.

    Parameters
    ----------
    runs
        One row a run, as `dsnb.load_runs` gives it.
    """
    runs = _without_probes(rename_old_columns(runs))
    if runs.empty:
        return _box(["There are no runs here yet: start the sweep first."])
    bad = runs[runs["status"] != "ok"]
    counts = ", ".join(f"{count} {status}" for status, count in bad["status"].value_counts().items())
    well = "The one run ended well." if len(runs) == 1 else f"All {len(runs)} runs ended well."
    ended = well if bad.empty else f"{len(bad)} of {len(runs)} runs are not ok: {counts}."
    parts = list(_tasks(runs))
    boxes = [f"{title}{_box(_best(part))}" for title, part in parts[:MOST]]
    rest = [f"{len(parts) - MOST} more models or lengths are in the explorer."] if len(parts) > MOST else []
    if len(parts) == 1:
        return _box([*_best(runs), ended])
    return Html("".join(boxes) + _box([*rest, ended]).text)


def _without_probes(runs: pd.DataFrame) -> pd.DataFrame:
    """Leave out the short runs that looked for a micro-batch: two steps tell of memory, not of speed."""
    own = [not re.search(rf"{PROBE}\d+$", labels.text(name)) for name in runs["experiment"]]
    return runs[own] if any(own) else runs


def _tasks(runs: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Split runs by what they train: a setting for one model says nothing about another."""
    varying = [name for name in TASK if runs[name].nunique(dropna=False) > 1]
    if not varying:
        yield "", runs
        return
    for key, part in runs.groupby(varying, sort=False, dropna=False):
        said = ", ".join(labels.axis(name).say(value) for name, value in zip(varying, key, strict=True))
        yield f"<h3>{html.escape(said)}</h3>", part


def _best(runs: pd.DataFrame) -> list[str]:
    summary = summarize(runs)
    speed = summary[f"{RATE}_median"].dropna()
    if speed.empty and not summary["n"].sum():
        return ["No run here ended well, so nothing is known about speed and memory."]
    if speed.empty:
        return ["No speed was measured here, so nothing is known about which setting is the fastest."]
    return [
        _fastest(summary, speed),
        *_as_fast(summary, speed),
        *_lightest(summary, speed),
        *_worth(runs, summary, str(speed.idxmax())),
    ]


def _fastest(summary: pd.DataFrame, speed: pd.Series) -> str:
    name = speed.idxmax()
    spread = summary.loc[name, f"{RATE}_std"]
    more = "" if pd.isna(spread) else f" ± {spread:,.0f}"
    count = int(summary.loc[name, "n"])
    runs = "one run" if count == 1 else f"median of {count} runs"
    return f"Fastest: {_code(name)} with {speed[name]:,.0f}{more} tokens/s per GPU ({runs}{_lost(summary.loc[name])})."


def _as_fast(summary: pd.DataFrame, speed: pd.Series) -> list[str]:
    """Name the settings whose spread overlaps that of the fastest: repeats cannot tell them apart."""
    spread = summary[f"{RATE}_std"].fillna(0.0)
    fastest = speed.idxmax()
    reached = speed + spread.loc[speed.index] >= speed[fastest] - spread[fastest]
    others = [name for name in speed.index[reached] if name != fastest]
    if not others:
        return []
    more = f" and {len(others) - MOST} more" if len(others) > MOST else ""
    return [f"Within the spread of repeats as fast: {', '.join(map(_code, others[:MOST]))}{more}."]


def _memory(summary: pd.DataFrame) -> str | None:
    return next((name for name in MEMORY if summary[f"{name}_median"].notna().any()), None)


def _lightest(summary: pd.DataFrame, speed: pd.Series) -> list[str]:
    """Name the setting with the least memory among those within 10 % of the fastest."""
    metric = _memory(summary)
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
    beside = f" (the fastest takes {memory[fastest]:,.2f} GiB)" if fastest in memory else ""
    return [
        f"Lightest within 10 % of the fastest: {_code(name)} with {memory[name]:,.2f} GiB of {what}, "
        f"{loss:.0f} % slower{beside}{_lost(summary.loc[name])}."
    ]


def _lost(row: "pd.Series | dict[str, Any]") -> str:
    """Say how many runs of a setting did not end well, if any: a figure of the others alone would hide it."""
    return f"; {int(row['n_failed'])} of {int(row['n'] + row['n_failed'])} runs not ok" if row["n_failed"] else ""


def _worth(runs: pd.DataFrame, summary: pd.DataFrame, fastest: str) -> list[str]:
    """Say for each axis what leaving the fastest setting along it alone costs in speed, and changes in memory."""
    memory = _memory(summary)
    varying = [name for name in axes(runs) if runs[name].nunique(dropna=False) > 1]
    table = effects(runs, fastest, varying, [RATE, *([memory] if memory else [])])
    sentences = []
    for name in dict.fromkeys(table["axis"]):
        changes = table[table["axis"] == name].to_dict("records")
        said = "; ".join(_one_change(row, memory) for row in changes[:MOST])
        before = html.escape(labels.text(changes[0]["before"]))
        title = html.escape(labels.axis(name).title)
        sentences.append(f"<b>{title}</b> ({before} in the fastest): {said}.")
    return sentences


def _one_change(row: dict[str, Any], memory: str | None) -> str:
    to = f"with {html.escape(labels.text(row['after']))}"
    if not row["n"]:
        return f"{to} not one of {row['n_failed']} runs ended well"
    noise = {True: "", False: " (within the noise)", None: " (noise unknown)"}[row[f"{RATE}_beyond_noise"]]
    speed = f"{percent(row[f'{RATE}_change'])} tokens/s{noise}"
    change = row.get(f"{memory}_change")
    said = f"{to} {speed}" + (f", {percent(change)} memory" if isinstance(change, float) and change == change else "")
    return said + (f" ({_lost(row).removeprefix('; ')})" if row["n_failed"] else "")


def percent(change: object) -> str:
    """Give a share as a signed percentage: 0.1 is `+10 %`."""
    if not isinstance(change, float) or change != change:
        return "unknown"
    if abs(change) < NEGLIGIBLE_CHANGE:
        return "0 %"
    return f"{MINUS if change < 0 else '+'}{abs(100 * change):.{1 if abs(change) < 0.0995 else 0}f} %"


def _code(name: object) -> str:
    return f"<code>{html.escape(str(name))}</code>"


def _box(sentences: list[str]) -> Html:
    return Html('<div class="answer"><ul>' + "".join(f"<li>{sentence}</li>" for sentence in sentences) + "</ul></div>")
