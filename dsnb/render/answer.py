"""The answer in words: fastest setting, least memory, effect of each setting, failures; only what the runs support."""

import html
import math
import re
from collections.abc import Iterator
from typing import Any

import pandas as pd

from dsnb.analysis.noise import beyond_noise
from dsnb.analysis.summary import axes, summarize
from dsnb.analysis.tradeoffs import effects
from dsnb.render.tables import Html
from dsnb.run_folder.paths import PROBE
from dsnb.runs import labels
from dsnb.runs.column_aliases import rename_old_columns
from dsnb.runs.labels import MEMORY

RATE = "tokens_per_s_per_gpu"
NEARLY_AS_FAST = 0.9
EQUAL_MEMORY = 1.02
"""Memory that differs by less than 2 % counts as equal."""
TASK = ("model", "seq_len", "gpu_name")
"""What is trained, and on which GPU; only settings for the same task are compared."""
MINUS = "\N{MINUS SIGN}"
NEGLIGIBLE_CHANGE = 0.0005
"""Smaller changes would be displayed as 0.0 %."""
MAX_ITEMS = 6
"""Tasks, and values of one setting, that the answer covers."""


def answer(runs: pd.DataFrame) -> Html:
    """State the fastest setting, the one that needs least memory, the effect of each setting, and failures.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` returns it.
    """
    runs = _without_probes(rename_old_columns(runs))
    if runs.empty:
        return _box(["There are no runs here yet: start the sweep first."])
    bad = runs[runs["status"] != "ok"]
    counts = ", ".join(f"{count} {status}" for status, count in bad["status"].value_counts().items())
    success = "The run succeeded." if len(runs) == 1 else f"All {len(runs)} runs succeeded."
    outcome = success if bad.empty else f"{len(bad)} of {len(runs)} runs are not ok: {counts}."
    parts = list(_tasks(runs))
    boxes = [f"{title}{_box(_recommendations(part))}" for title, part in parts[:MAX_ITEMS]]
    hidden = len(parts) - MAX_ITEMS
    rest = [f"The explorer has {hidden} more combinations of model, sequence length and GPU."] if hidden > 0 else []
    if len(parts) == 1:
        return _box([*_recommendations(runs), outcome])
    return Html("".join(boxes) + _box([*rest, outcome]).text)


def _without_probes(runs: pd.DataFrame) -> pd.DataFrame:
    """Leave out the probes of an automatic micro-batch size: their two steps measure memory, not speed."""
    own = [not re.search(rf"{PROBE}\d+$", labels.text(name)) for name in runs["experiment"]]
    return runs[own] if any(own) else runs


def _tasks(runs: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Split runs by task: the best setting for one model need not be that for another."""
    varying = [name for name in TASK if runs[name].nunique(dropna=False) > 1]
    if not varying:
        yield "", runs
        return
    for key, part in runs.groupby(varying, sort=False, dropna=False):
        title = ", ".join(labels.axis(name).describe(value) for name, value in zip(varying, key, strict=True))
        yield f"<h3>{html.escape(title)}</h3>", part


def _recommendations(runs: pd.DataFrame) -> list[str]:
    summary = summarize(runs)
    speed = summary[f"{RATE}_median"].dropna()
    if speed.empty and not summary["n"].sum():
        return ["No run succeeded, so speed and memory are unknown."]
    if speed.empty:
        return ["No run measured speed, so the fastest setting is unknown."]
    return [
        _fastest(summary, speed),
        *_equally_fast(summary, speed),
        *_least_memory(summary, speed),
        *_axis_effects(runs, summary, str(speed.idxmax())),
        *_not_tried(runs),
    ]


def _fastest(summary: pd.DataFrame, speed: pd.Series) -> str:
    name = speed.idxmax()
    row = summary.loc[name]
    std = row[f"{RATE}_std"]
    rate = f"{speed[name]:,.0f}" if pd.isna(std) else f"{speed[name]:,.0f} ± {std:,.0f}"
    runs = "one run" if row["n"] == 1 else f"median of {int(row['n'])} runs"
    basis = "; ".join([runs, *_failure_note(row)])
    return f"Fastest: {_code(name)} with {rate} tokens/s per GPU ({basis}){_beside_plain(row)}."


def _beside_plain(row: "pd.Series | dict[str, Any]") -> str:
    """Compare a setting with the plain loop, if there is one."""
    ratio = row["of_plain_median"]
    return "" if pd.isna(ratio) or math.isclose(ratio, 1) else f", {ratio:.0%} of the plain loop".replace("%", " %")


def _not_tried(runs: pd.DataFrame) -> list[str]:
    """Say so if only DeepSpeed's native half precision without compilation was measured on GPUs: it is rarely fast."""
    own = runs[(runs["status"] == "ok") & runs["gpu_name"].notna() & (runs.get("source", "dsnb") == "dsnb")]
    slow = {"strategy": "deepspeed", "mixed_precision": "native", "compile": "off"}
    half = own["precision"].isin(["fp16", "bf16"]) if "precision" in own else pd.Series(dtype=bool)
    if own.empty or not half.all() or any(name not in own or (own[name] != slow[name]).any() for name in slow):
        return []
    return [
        "Faster settings were not tried: <code>mixed_precision: autocast</code> with <code>compile: default</code>, or "
        "<code>compile: reduce-overhead</code> for a small model (see <code>params/fast_paths.yaml</code>)."
    ]


def _equally_fast(summary: pd.DataFrame, speed: pd.Series) -> list[str]:
    """Name the settings whose difference to the fastest is within the noise between repeats."""
    fastest, std = speed.idxmax(), summary[f"{RATE}_std"]
    others = [
        name
        for name in speed.index.drop(fastest)
        if beyond_noise(speed[fastest], speed[name], std[fastest], std[name]) is False
    ]
    if not others:
        return []
    more = f" and {len(others) - MAX_ITEMS} more" if len(others) > MAX_ITEMS else ""
    return [f"Equally fast within the noise: {', '.join(map(_code, others[:MAX_ITEMS]))}{more}."]


def _memory_metric(summary: pd.DataFrame) -> str | None:
    return next((name for name in MEMORY if summary[f"{name}_median"].notna().any()), None)


def _least_memory(summary: pd.DataFrame, speed: pd.Series) -> list[str]:
    """Name the setting with the least memory among those within 10 % of the fastest speed."""
    metric = _memory_metric(summary)
    if metric is None:
        return []
    near = speed.index[speed >= NEARLY_AS_FAST * speed.max()]
    memory = summary.loc[near, f"{metric}_median"].dropna()
    if memory.empty:
        return []
    name, fastest = memory.idxmin(), speed.idxmax()
    what = "host memory" if metric == "host_memory_gib" else "GPU memory"
    if memory[name] > memory.get(fastest, float("inf")) / EQUAL_MEMORY:
        return [f"No setting within 10 % of its speed uses less {what}: {memory[fastest]:,.2f} GiB."]
    loss = 100 * (1 - speed[name] / speed.max())
    beside = f" (the fastest uses {memory[fastest]:,.2f} GiB)" if fastest in memory else ""
    sentence = (
        f"Least memory within 10 % of the fastest: {_code(name)} with {memory[name]:,.2f} GiB of {what}, "
        f"{loss:.0f} % slower{beside}"
    )
    return ["; ".join([sentence, *_failure_note(summary.loc[name])]) + "."]


def _failure_note(row: "pd.Series | dict[str, Any]") -> list[str]:
    """Return how many runs of a setting are not ok, if any: the figures of the others alone would hide it."""
    return [f"{int(row['n_failed'])} of {int(row['n'] + row['n_failed'])} runs not ok"] if row["n_failed"] else []


def _axis_effects(runs: pd.DataFrame, summary: pd.DataFrame, fastest: str) -> list[str]:
    """State for each setting how other values change speed and memory, all else as in the fastest."""
    memory = _memory_metric(summary)
    varying = [name for name in axes(runs) if runs[name].nunique(dropna=False) > 1]
    table = effects(runs, fastest, varying, [RATE, *([memory] if memory else [])])
    sentences = []
    for name in dict.fromkeys(table["axis"]):
        changes = table[table["axis"] == name].to_dict("records")
        effects_text = "; ".join(_describe_change(row, memory) for row in changes[:MAX_ITEMS])
        before = html.escape(labels.text(changes[0]["before"]))
        title = html.escape(labels.axis(name).title)
        sentences.append(f"<b>{title}</b> ({before} in the fastest): {effects_text}.")
    return sentences


def _describe_change(row: dict[str, Any], memory: str | None) -> str:
    to = f"at {html.escape(labels.text(row['after']))}"
    if not row["n"]:
        return f"{to}, none of {row['n_failed']} runs succeeded"
    noise = {True: "", False: " (within the noise)", None: " (noise unknown)"}[row[f"{RATE}_beyond_noise"]]
    text = f"{to}, {percent(row[f'{RATE}_change'])} tokens/s{noise}"
    change = row.get(f"{memory}_change")
    if isinstance(change, float) and not pd.isna(change):
        text += f", {percent(change)} memory"
    return text + "".join(f" ({note})" for note in _failure_note(row))


def percent(change: object) -> str:
    """Format a relative change as a signed percentage: 0.1 is `+10 %`."""
    if not isinstance(change, float) or pd.isna(change):
        return "unknown"
    if abs(change) < NEGLIGIBLE_CHANGE:
        return "0 %"
    return f"{MINUS if change < 0 else '+'}{abs(100 * change):.{1 if abs(change) < 0.0995 else 0}f} %"


def _code(name: object) -> str:
    return f"<code>{html.escape(str(name))}</code>"


def _box(sentences: list[str]) -> Html:
    return Html('<div class="answer"><ul>' + "".join(f"<li>{sentence}</li>" for sentence in sentences) + "</ul></div>")
