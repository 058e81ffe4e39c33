"""Single runs in the page: steps and samples over time, parts of a step, memory, remarks."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from dsnb.results.literature import tables as literature
from dsnb.results.runs import labels
from dsnb.results.runs.load import load_gpu, load_steps
from dsnb.results.runs.table import json_numbers, numbers
from dsnb.results.statistics.cpu_bound import cpu_bound_words
from dsnb.results.statistics.flags import flags, single_run_words
from dsnb.settings.experiment import Experiment
from dsnb.settings.records import record_schema
from dsnb.settings.records.columns import GPU_COLUMNS, OVER_TIME
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.shortage import Shortage
from dsnb.show.explorer.data import Data, plain, run_place

Json = dict[str, Any]
Row = dict[Any, Any]
MAX_NUMBERS = 26_000
"""Maximum count of numbers in the series of all runs of a page, about 130 kB."""
MIN_POINTS, MAX_POINTS = 24, 240
COLUMNS = 9
"""Numbers of a point of a run, at most."""
DIGITS = 4
GPU = ["host", "gpu"]
"""Columns that identify a GPU of a run: each host counts its GPUs from 0."""
STEPS = ["step", "t_s", "step_time_s", "loss", "allocated_gib"]
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
SHORTAGE = {
    "oom_allocated_gib": "{:.2f} GiB allocated",
    "oom_requested_gib": ", {:.2f} GiB more requested",
    "gpu_memory_gib": "; the GPU has {:.2f} GiB",
}
"""Columns of a run that ran out of memory -> their amounts in words."""
ON_GPU = [name for name in labels.MEMORY if name != "host_memory_gib"]
"""The figures limited by a GPU's capacity, the most informative first."""
FULLEST = ["device_memory_gib", "peak_reserved_gib", "peak_allocated_gib"]
"""The figures of headroom; the first one includes most of what occupies the GPU."""


def charts() -> list[Json]:
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


def load_all(data: Data) -> dict[int, Json]:
    """Load the series of as many runs as fit, first repeats first, by position; of many runs with fewer points each."""
    is_repeat = pd.Series(data.experiments).duplicated()
    order = is_repeat.sort_values(kind="stable").index[: MAX_NUMBERS // (COLUMNS * MIN_POINTS)]
    points = MAX_NUMBERS // (COLUMNS * max(len(order), 1))
    points = min(max(points, MIN_POINTS), MAX_POINTS)
    return {position: load(data, position, points) for position in sorted(order)}


def load(data: Data, position: int, points: int = MAX_POINTS) -> Json:
    """Load one run's steps and samples, at most `points` of each, evenly spaced; empty if the run recorded none."""
    steps, samples = steps_and_samples(data, position)
    result: Json = {}
    if len(steps):
        stride = math.ceil(len(steps) / points)
        thin = steps.iloc[(len(steps) - 1) % stride :: stride]  # up to the last step
        warm_s = steps["t_s"][steps["phase"] == "warmup"].max()
        result = {name: json_numbers(thin[name], DIGITS) for name in STEPS}
        result |= {"every": stride, "warm_s": json_numbers([warm_s], DIGITS)[0]}
    means = mean_over_gpus(samples) if len(samples) else samples
    if len(means):
        thin = means.iloc[:: math.ceil(len(means) / points)]
        result |= {name: json_numbers(thin[name], DIGITS) for name in SAMPLED}
        result["sample_s"] = json_numbers(thin["t_s"], DIGITS)
        result["gpus"] = samples.groupby(GPU, dropna=False).ngroups
    return result


def steps_and_samples(data: Data, position: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read the steps and samples of one run; empty tables if it recorded none."""
    place = run_place(data, position)
    row = data.runs.iloc[position]
    if place and place.is_dir():
        return load_steps(place), load_gpu(place)
    own = ["experiment", "repeat"]  # a log, or a published table, may hold several runs
    if place:
        steps = load_steps(place)
    else:
        steps = literature.steps(str(row.get("source")))
        own.insert(0, "sweep")
    for name in own if len(steps) else ():
        steps = steps[steps[name] == row[name]]
    return steps, load_gpu(place) if place else pd.DataFrame(columns=GPU_COLUMNS)


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
    """Return, by position, the flags of runs in words, and the spread within runs not repeated.

    Steps and samples are read at the positions `read`; other runs are judged by their columns.
    """
    runs = data.runs.reset_index(drop=True).assign(sweep="", experiment=data.experiments)
    runs["repeat"] = range(len(runs))  # tables put together may number two runs alike
    steps = []
    samples: dict[object, pd.DataFrame] = {}
    for position in read:
        own, samples[position] = steps_and_samples(data, position)
        if len(own):
            experiment = data.experiments[position]
            steps.append(own.assign(sweep="", experiment=experiment, repeat=position))
    table = flags(runs, pd.concat(steps) if steps else None, samples)
    counts = pd.Series(data.is_ok).groupby(data.experiments).transform("sum")
    is_alone = data.is_ok & (counts == 1)
    spreads = table["step_spread_pct"][is_alone].reindex(list(samples)).dropna()
    words = table["words"][table["words"] != ""]
    return words.to_dict(), {int(at): single_run_words(pct) for at, pct in spreads.items()}


def remarks(data: Data, unusual: dict[int, str]) -> Json:
    """Return the remarks on single runs: distinct `texts`, and by position in `runs` the places of a run's texts."""
    cpu_bound = cpu_bound_words(data.runs)
    places: dict[str, int] = {}  # thousands of runs share texts
    runs = {}
    for position, row in enumerate(data.runs.to_dict("records")):
        texts = {
            "Memory: {}.": _shortage(row),
            "To change: {}.": "; ".join(_advice(row)),
            "Note: {}.": plain(row.get("note")),
            "{}.": cpu_bound.get(position),
            "Profiled step: {}.": _profile(data, position, row),
            "Look at this run: {}. It counts in every figure.": unusual.get(position),
        }
        said = [form.format(text) for form, text in texts.items() if text]
        if said:
            runs[position] = [places.setdefault(text, len(places)) for text in said]
    return {"texts": list(places), "runs": runs}


def _profile(data: Data, position: int, row: Row) -> str:
    """Return the parts of a profiled step in words; empty without a profile."""
    place = run_place(data, position) if plain(row.get("profile")) is True else None
    if place is None or not place.is_dir():
        return ""
    profile = record_schema.read(RunPaths(place).profile) or {}
    parts = {title: profile.get(name) for name, title in STEP_PARTS.items()}
    known = [f"{title} {1000 * s:.1f} ms" for title, s in parts.items() if s is not None]
    return ", ".join(known)


def gpu_memory(data: Data) -> Json:
    """Return the memory of GPUs (one number if it is the same for all), and the memory that failed runs needed."""
    runs = data.runs.reset_index(drop=True)
    capacity = json_numbers(numbers(runs, "gpu_memory_gib").round(2))
    needed = numbers(runs, "oom_allocated_gib") + numbers(runs, "oom_requested_gib").fillna(0)
    needed = needed[~data.is_ok & np.isfinite(needed)]
    return {
        "figures": ON_GPU,
        "fullest": FULLEST,
        "capacity_gib": capacity[0] if len(set(capacity)) == 1 else capacity,
        "needed_gib": needed.round(3).to_dict(),
    }


def _shortage(row: Row) -> str:
    """Return how much memory a run had and requested when it ran out; empty if unknown."""
    amounts = {name: plain(row.get(name)) for name in SHORTAGE}
    if labels.text(row["status"]) == "ok" or amounts["oom_allocated_gib"] is None:
        return ""
    texts = ""
    for name, gib in amounts.items():
        if isinstance(gib, int | float):
            texts += SHORTAGE[name].format(gib)
    return texts


def _advice(row: Row) -> list[str]:
    """Return the changes that could make a run of dsnb fit; other programs name their settings differently."""
    if labels.text(row["status"]) != "oom" or plain(row.get("source")) not in {None, "dsnb"}:
        return []
    phase = str(plain(row.get("oom_phase")) or "")
    try:
        return Shortage(Experiment.of_row(row), phase, row.get("device") == "cpu").advice()
    except (ValueError, TypeError):  # the table is of someone else
        return []
