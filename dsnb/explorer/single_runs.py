"""What a page shows of single runs: steps and samples over time, parts of a step and of memory, remarks."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from dsnb.analysis.cpu_bound import cpu_bound_words
from dsnb.analysis.flags import flags, single_run_words
from dsnb.explorer.data import Data, plain, run_place
from dsnb.run_folder import record_schema
from dsnb.run_folder.columns import GPU_COLUMNS, OVER_TIME, SETTINGS
from dsnb.run_folder.paths import RunPaths
from dsnb.run_folder.result import Shortage
from dsnb.runs import labels
from dsnb.runs.literature import tables as literature
from dsnb.runs.load import load_gpu, load_steps
from dsnb.runs.table import json_numbers, numbers
from dsnb.settings.experiment import Experiment

MAX_NUMBERS = 26_000
"""Numbers in the series of all runs of a page together: about 130 kB."""
MIN_POINTS, MAX_POINTS = 24, 240
COLUMNS = 9
DIGITS = 4
GPU = ["host", "gpu"]
"""What identifies a GPU of a run: every host numbers its own from 0."""
SAMPLED = ["util_pct", "memory_used_gib", "power_w"]
SERIES = {
    "step_time_s": "t_s",
    "loss": "t_s",
    "allocated_gib": "t_s",
    "memory_used_gib": "sample_s",
    "util_pct": "sample_s",
    "power_w": "sample_s",
}
"""The charts of one run over time: the column of a series, and that of its times."""
STEP_PARTS = {
    "forward_s": "forward",
    "backward_s": "backward",
    "optimizer_s": "optimizer",
    "handover_s": "handover",
    "exposed_communication_s": "of it communication that nothing hides",
}
ON_GPU = [name for name in labels.MEMORY if name != "host_memory_gib"]
"""The figures that a GPU's capacity limits, the most informative first."""
FULLEST = ["device_memory_gib", "peak_reserved_gib", "peak_allocated_gib"]
"""The figures that headroom is measured by: the first that includes most of what occupies the GPU."""


def charts() -> list[dict[str, Any]]:
    """Return the charts of one run: the column of a series and of its times, the heading, the factor to its unit."""
    return [
        {"values": name, "times": times, "heading": OVER_TIME[name].heading, "factor": OVER_TIME[name].factor}
        for name, times in SERIES.items()
    ]


def load_all(data: Data) -> dict[int, dict[str, Any]]:
    """Load the series of as many runs as fit, by position: first repeats first, fewer points each if they are many."""
    firsts = ~pd.Series(data.experiments).duplicated()
    order = sorted(range(len(data.runs)), key=lambda position: not firsts[position])
    room = MAX_NUMBERS // (COLUMNS * MIN_POINTS)
    points = MAX_NUMBERS // (COLUMNS * max(min(len(order), room), 1))
    points = min(max(points, MIN_POINTS), MAX_POINTS)
    found = {position: load(data, position, points) for position in order[:room]}
    return dict(sorted(found.items()))


def load(data: Data, position: int, points: int = MAX_POINTS) -> dict[str, Any]:
    """Load one run's steps and samples, at most `points` of each, evenly spaced; empty if the run recorded none."""
    steps, samples = steps_and_samples(data, position)
    result: dict[str, Any] = {}
    if len(steps):
        every = math.ceil(len(steps) / points)
        warm = steps[steps["phase"] == "warmup"]
        thin = steps.iloc[(len(steps) - 1) % every :: every]  # up to the last step
        result = {
            name: json_numbers(thin[name], DIGITS) for name in ("step", "t_s", "step_time_s", "loss", "allocated_gib")
        }
        result |= {"every": every, "warm_s": json_numbers([warm["t_s"].max()], DIGITS)[0]}
    if len(samples) and len(means := mean_over_gpus(samples)):
        thin = means.iloc[:: math.ceil(len(means) / points)]
        result |= {name: json_numbers(thin[name], DIGITS) for name in SAMPLED}
        result |= {"sample_s": json_numbers(thin["t_s"], DIGITS), "gpus": samples.groupby(GPU, dropna=False).ngroups}
    return result


def steps_and_samples(data: Data, position: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read the steps and samples of one run; empty tables if it recorded none."""
    place, row = run_place(data, position), data.runs.iloc[position]
    if place is None:
        steps = literature.steps(str(row.get("source")))
        own = _of_run(steps[steps["sweep"] == row["sweep"]], row) if len(steps) else steps
        return own, pd.DataFrame(columns=GPU_COLUMNS)
    steps, samples = load_steps(place), load_gpu(place)
    return _of_run(steps, row) if place.is_file() else steps, samples  # a log may hold several runs


def _of_run(steps: pd.DataFrame, row: pd.Series) -> pd.DataFrame:
    return steps[(steps["experiment"] == row["experiment"]) & (steps["repeat"] == row["repeat"])]


def mean_over_gpus(samples: pd.DataFrame) -> pd.DataFrame:
    """Average samples over GPUs, each counted once per sampling interval, whenever within it its host read it."""
    gpus = samples.dropna(subset="t_s").groupby(GPU, dropna=False)
    every_s = gpus["t_s"].diff().median()
    if gpus.ngroups < 2 or not every_s > 0:
        return samples.groupby("t_s")[SAMPLED].mean().reset_index()
    interval = (samples["t_s"] / every_s).round().rename("interval")
    each = samples.groupby([interval, *GPU], dropna=False)[["t_s", *SAMPLED]].mean()
    return each.groupby(level="interval").mean()


def unusual(data: Data, read: Iterable[int]) -> tuple[dict[int, str], dict[int, str]]:
    """Return what is unusual about runs (`dsnb.analysis.flags`), and the spread within runs that have no repeats.

    Both are by position; steps and samples are read at the positions `read`, of other runs only the columns count.
    """
    found = {position: steps_and_samples(data, position) for position in read}
    runs = data.runs.reset_index(drop=True).assign(sweep="", experiment=data.experiments)
    runs["repeat"] = range(len(runs))  # tables put together may number two runs alike
    steps = [
        own.assign(sweep="", experiment=data.experiments[position], repeat=position)
        for position, (own, _) in found.items()
        if len(own)
    ]
    samples: dict[object, pd.DataFrame] = {position: own for position, (_, own) in found.items() if len(own)}
    table = flags(runs, pd.concat(steps) if steps else None, samples)
    unusual = {position: words for position, words in enumerate(table["words"]) if words}
    is_ok = [status == "ok" for status in runs["status"].map(labels.text)]
    counts = Counter(name for name, ok in zip(data.experiments, is_ok, strict=True) if ok)
    alone = [position for position in found if is_ok[position] and counts[data.experiments[position]] == 1]
    spreads = table["step_spread_pct"]
    return unusual, {at: single_run_words(spreads[at]) for at in alone if pd.notna(spreads[at])}


def remarks(data: Data, unusual: dict[int, str]) -> dict[str, Any]:
    """Return what is said of single runs: `texts`, and by position in `runs` the places of a run's own in them."""
    said: dict[int, list[str]] = {}
    waited = cpu_bound_words(data.runs)
    for position, row in enumerate(data.runs.to_dict("records")):
        note = plain(row.get("note"))
        said[position] = [
            *([f"Memory: {shortage}."] if (shortage := _shortage(row)) else []),
            *([f"To change: {'; '.join(advice)}."] if (advice := _advice(row)) else []),
            *([] if note is None else [f"Note: {note}."]),
            *([f"{waited[position]}."] if position in waited else []),
            *([f"Profiled step: {parts}."] if (parts := _profile(data, position, row)) else []),
            *([f"Look at this run: {unusual[position]}. It counts in every figure."] if position in unusual else []),
        ]
    texts = {text: place for place, text in enumerate(dict.fromkeys(text for own in said.values() for text in own))}
    runs = {position: [texts[text] for text in own] for position, own in said.items() if own}
    return {"texts": list(texts), "runs": runs}  # thousands of runs share theirs


def _profile(data: Data, position: int, row: dict[Hashable, Any]) -> str:
    """Return what a profiled step consists of, in words; nothing of a run without a profile."""
    place = run_place(data, position) if plain(row.get("profile")) is True else None
    profile = (record_schema.read(RunPaths(place).profile) if place and place.is_dir() else None) or {}
    known = [(title, profile[name]) for name, title in STEP_PARTS.items() if profile.get(name) is not None]
    return ", ".join(f"{title} {1000 * seconds:.1f} ms" for title, seconds in known)


def gpu_memory(data: Data) -> dict[str, Any]:
    """Return what GPUs have (`capacity_gib`: one number if all have the same), and what runs that ran out needed."""
    capacity = json_numbers(numbers(data.runs, "gpu_memory_gib").round(2))
    allocated, requested = (numbers(data.runs, f"oom_{name}_gib") for name in ("allocated", "requested"))
    needed = (allocated + requested.fillna(0)).where(data.runs["status"].map(labels.text) != "ok")
    return {
        "figures": ON_GPU,
        "fullest": FULLEST,
        "capacity_gib": capacity[0] if len(set(capacity)) == 1 else capacity,
        "needed_gib": {position: round(gib, 3) for position, gib in enumerate(needed) if math.isfinite(gib)},
    }


def _shortage(row: dict[Hashable, Any]) -> str:
    """Return how much memory a run had and wanted when it ran out; empty where that is unknown."""
    forms = {
        "oom_allocated_gib": "{:.2f} GiB allocated",
        "oom_requested_gib": ", {:.2f} GiB more requested",
        "gpu_memory_gib": "; the GPU has {:.2f} GiB",
    }
    known = {name: gib for name in forms if isinstance(gib := plain(row.get(name)), int | float)}
    has_ended = labels.text(row["status"]) != "ok" and "oom_allocated_gib" in known
    return "".join(forms[name].format(gib) for name, gib in known.items()) if has_ended else ""


def _advice(row: dict[Hashable, Any]) -> list[str]:
    """Return what a run of dsnb could change to fit; the settings of other programs have other names."""
    if labels.text(row["status"]) != "oom" or plain(row.get("source")) not in {None, "dsnb"}:
        return []
    given = {name: value for name in SETTINGS if (value := plain(row.get(name))) is not None}
    settings, _ = record_schema.cleaned(RunPaths(Path()).experiment.name, given)
    known = Experiment.recorded(settings).model_dump()
    return Shortage(known, str(plain(row.get("oom_phase")) or ""), row.get("device") == "cpu").advice()
