"""Single runs in the page: steps and samples over time, parts of a step, memory, remarks."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from dsnb.results.literature import tables as literature
from dsnb.results.runs import labels
from dsnb.results.runs.load import load_gpu, load_steps
from dsnb.results.runs.table import json_numbers, numbers
from dsnb.results.statistics.cpu_bound import cpu_bound_words
from dsnb.results.statistics.flags import flags, single_run_words
from dsnb.settings.experiment import Experiment
from dsnb.settings.records import record_schema
from dsnb.settings.records.columns import GPU_COLUMNS, OVER_TIME, SETTINGS
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.shortage import Shortage
from dsnb.show.explorer.data import Data, plain, run_place

MAX_NUMBERS = 26_000
"""Maximum count of numbers in the series of all runs of a page, about 130 kB."""
MIN_POINTS, MAX_POINTS = 24, 240
COLUMNS = 9
DIGITS = 4
GPU = ["host", "gpu"]
"""Columns that identify a GPU of a run: each host counts its GPUs from 0."""
SAMPLED = ["util_pct", "memory_used_gib", "power_w"]
SERIES = {
    "step_time_s": "t_s",
    "loss": "t_s",
    "allocated_gib": "t_s",
    "memory_used_gib": "sample_s",
    "util_pct": "sample_s",
    "power_w": "sample_s",
}
"""The charts of one run over time: column of a series -> column of its times."""
STEP_PARTS = {
    "forward_s": "forward",
    "backward_s": "backward",
    "optimizer_s": "optimizer",
    "handover_s": "handover",
    "exposed_communication_s": "of it communication that nothing hides",
}
ON_GPU = [name for name in labels.MEMORY if name != "host_memory_gib"]
"""The figures limited by a GPU's capacity, the most informative first."""
FULLEST = ["device_memory_gib", "peak_reserved_gib", "peak_allocated_gib"]
"""The figures of headroom; the first one includes most of what occupies the GPU."""


def charts() -> list[dict[str, Any]]:
    """Return the charts of one run: columns of a series and its times, heading, factor to the displayed unit."""
    return [
        {
            "values": name,
            "times": times,
            "heading": OVER_TIME[name].heading,
            "factor": OVER_TIME[name].factor,
        }
        for name, times in SERIES.items()
    ]


def load_all(data: Data) -> dict[int, dict[str, Any]]:
    """Load the series of as many runs as fit, first repeats first, by position; of many runs with fewer points each."""
    firsts = ~pd.Series(data.experiments).duplicated()
    order = sorted(range(len(data.runs)), key=lambda position: not firsts[position])
    room = MAX_NUMBERS // (COLUMNS * MIN_POINTS)
    points = MAX_NUMBERS // (COLUMNS * max(min(len(order), room), 1))
    points = min(max(points, MIN_POINTS), MAX_POINTS)
    return {position: load(data, position, points) for position in sorted(order[:room])}


def load(data: Data, position: int, points: int = MAX_POINTS) -> dict[str, Any]:
    """Load one run's steps and samples, at most `points` of each, evenly spaced; empty if the run recorded none."""
    steps, samples = steps_and_samples(data, position)
    result: dict[str, Any] = {}
    if len(steps):
        stride = math.ceil(len(steps) / points)
        warm = steps[steps["phase"] == "warmup"]
        thin = steps.iloc[(len(steps) - 1) % stride :: stride]  # up to the last step
        result = {
            name: json_numbers(thin[name], DIGITS)
            for name in ("step", "t_s", "step_time_s", "loss", "allocated_gib")
        }
        result |= {"every": stride, "warm_s": json_numbers([warm["t_s"].max()], DIGITS)[0]}
    if len(samples) and len(means := mean_over_gpus(samples)):
        thin = means.iloc[:: math.ceil(len(means) / points)]
        result |= {name: json_numbers(thin[name], DIGITS) for name in SAMPLED}
        result |= {
            "sample_s": json_numbers(thin["t_s"], DIGITS),
            "gpus": samples.groupby(GPU, dropna=False).ngroups,
        }
    return result


def steps_and_samples(data: Data, position: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read the steps and samples of one run; empty tables if it recorded none."""
    place, row = run_place(data, position), data.runs.iloc[position]
    if place is None:
        steps = literature.steps(str(row.get("source")))
        steps = _of_run(steps[steps["sweep"] == row["sweep"]], row) if len(steps) else steps
        return steps, pd.DataFrame(columns=GPU_COLUMNS)
    steps, samples = load_steps(place), load_gpu(place)
    return _of_run(steps, row) if place.is_file() else steps, samples  # a log may hold several runs


def _of_run(steps: pd.DataFrame, row: pd.Series) -> pd.DataFrame:
    return steps[(steps["experiment"] == row["experiment"]) & (steps["repeat"] == row["repeat"])]


def mean_over_gpus(samples: pd.DataFrame) -> pd.DataFrame:
    """Average samples over GPUs, with one sample of each GPU per sampling interval."""
    gpus = samples.dropna(subset="t_s").groupby(GPU, dropna=False)
    every_s = gpus["t_s"].diff().median()
    if gpus.ngroups < 2 or not every_s > 0:
        return samples.groupby("t_s")[SAMPLED].mean().reset_index()
    interval = (samples["t_s"] / every_s).round().rename("interval")
    each = samples.groupby([interval, *GPU], dropna=False)[["t_s", *SAMPLED]].mean()
    return each.groupby(level="interval").mean()


def unusual(data: Data, read: Iterable[int]) -> tuple[dict[int, str], dict[int, str]]:
    """Return, by position, the flags of runs (`dsnb.results.statistics.flags`) in words, and the spread within runs not repeated.

    Steps and samples are read at the positions `read`; other runs are judged by their columns.
    """
    series = {position: steps_and_samples(data, position) for position in read}
    runs = data.runs.reset_index(drop=True).assign(sweep="", experiment=data.experiments)
    runs["repeat"] = range(len(runs))  # tables put together may number two runs alike
    steps = [
        table.assign(sweep="", experiment=data.experiments[position], repeat=position)
        for position, (table, _) in series.items()
        if len(table)
    ]
    samples: dict[object, pd.DataFrame] = {
        position: table for position, (_, table) in series.items() if len(table)
    }
    table = flags(runs, pd.concat(steps) if steps else None, samples)
    unusual = {position: words for position, words in enumerate(table["words"]) if words}
    is_ok = [status == "ok" for status in runs["status"].map(labels.text)]
    counts = Counter(name for name, ok in zip(data.experiments, is_ok, strict=True) if ok)
    alone = [
        position
        for position in series
        if is_ok[position] and counts[data.experiments[position]] == 1
    ]
    spreads = table["step_spread_pct"]
    return unusual, {at: single_run_words(spreads[at]) for at in alone if pd.notna(spreads[at])}


def remarks(data: Data, unusual: dict[int, str]) -> dict[str, Any]:
    """Return the remarks on single runs: distinct `texts`, and by position in `runs` the places of a run's texts."""
    sentences: dict[int, list[str]] = {}
    cpu_bound = cpu_bound_words(data.runs)
    for position, row in enumerate(data.runs.to_dict("records")):
        note = plain(row.get("note"))
        sentences[position] = [
            *([f"Memory: {shortage}."] if (shortage := _shortage(row)) else []),
            *([f"To change: {'; '.join(advice)}."] if (advice := _advice(row)) else []),
            *([] if note is None else [f"Note: {note}."]),
            *([f"{cpu_bound[position]}."] if position in cpu_bound else []),
            *([f"Profiled step: {parts}."] if (parts := _profile(data, position, row)) else []),
            *(
                [f"Look at this run: {unusual[position]}. It counts in every figure."]
                if position in unusual
                else []
            ),
        ]
    distinct = dict.fromkeys(
        text for texts in sentences.values() for text in texts
    )  # thousands of runs share them
    places = {text: place for place, text in enumerate(distinct)}
    runs = {
        position: [places[text] for text in texts] for position, texts in sentences.items() if texts
    }
    return {"texts": list(places), "runs": runs}


def _profile(data: Data, position: int, row: dict[Hashable, Any]) -> str:
    """Return the parts of a profiled step in words; empty without a profile."""
    place = run_place(data, position) if plain(row.get("profile")) is True else None
    profile = (
        record_schema.read(RunPaths(place).profile) if place and place.is_dir() else None
    ) or {}
    parts = [
        (title, profile[name])
        for name, title in STEP_PARTS.items()
        if profile.get(name) is not None
    ]
    return ", ".join(f"{title} {1000 * seconds:.1f} ms" for title, seconds in parts)


def gpu_memory(data: Data) -> dict[str, Any]:
    """Return the memory of GPUs (one number if it is the same for all), and the memory that failed runs needed."""
    capacity = json_numbers(numbers(data.runs, "gpu_memory_gib").round(2))
    allocated, requested = (
        numbers(data.runs, f"oom_{name}_gib") for name in ("allocated", "requested")
    )
    needed = (allocated + requested.fillna(0)).where(data.runs["status"].map(labels.text) != "ok")
    return {
        "figures": ON_GPU,
        "fullest": FULLEST,
        "capacity_gib": capacity[0] if len(set(capacity)) == 1 else capacity,
        "needed_gib": {
            position: round(gib, 3) for position, gib in enumerate(needed) if math.isfinite(gib)
        },
    }


def _shortage(row: dict[Hashable, Any]) -> str:
    """Return how much memory a run had and requested when it ran out; empty if unknown."""
    forms = {
        "oom_allocated_gib": "{:.2f} GiB allocated",
        "oom_requested_gib": ", {:.2f} GiB more requested",
        "gpu_memory_gib": "; the GPU has {:.2f} GiB",
    }
    amounts = {name: gib for name in forms if isinstance(gib := plain(row.get(name)), int | float)}
    ran_out = labels.text(row["status"]) != "ok" and "oom_allocated_gib" in amounts
    return "".join(forms[name].format(gib) for name, gib in amounts.items()) if ran_out else ""


def _advice(row: dict[Hashable, Any]) -> list[str]:
    """Return the changes that could make a run of dsnb fit; other programs name their settings differently."""
    if labels.text(row["status"]) != "oom" or plain(row.get("source")) not in {None, "dsnb"}:
        return []
    recorded = {name: value for name in SETTINGS if (value := plain(row.get(name))) is not None}
    settings, _ = record_schema.cleaned(RunPaths(Path()).experiment.name, recorded)
    phase = str(plain(row.get("oom_phase")) or "")
    return Shortage(Experiment.recorded(settings), phase, row.get("device") == "cpu").advice()
