"""Settings in words, such as "ZeRO 1, bf16 autocast, compiled", and titles of axes.

The words are declared in `dsnb/settings/settings.toml`, the titles and units of figures in
`dsnb/settings/records/columns.toml`.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from dsnb.results.runs import sources
from dsnb.settings import flat_keys
from dsnb.settings.experiment import DECLARED
from dsnb.settings.parallelism import SHARING, parallelism, parallelism_order
from dsnb.settings.records.columns import MEMORY, METRIC_LABELS, STATUSES, Metric
from dsnb.settings.strategies import STRATEGIES
from dsnb.settings.training import Setting, text

__all__ = [
    "AXES", "MEMORY", "METRIC_LABELS", "PARALLELISM", "SHARING", "Metric", "axis", "choice", "common_unit", "count",
    "has_effect", "is_missing", "is_on", "place", "setting", "short_number", "text", "texts", "unit", "unusual_choice",
]  # fmt: skip
PARALLELISM = "parallelism"
"""Derived column: how GPUs share the training, the settings of `SHARING` as one value such as "ZeRO
3"."""
_PHRASES = {one.label: one.phrase for one in STRATEGIES.values() if one.phrase}
_WORK = ("micro_batch_size", "seq_len", "data")
"""Settings of a rank's work; settings of the hardware come before them."""
AXES = {
    "model": DECLARED["model"],
    PARALLELISM: Setting("parallelism", "{}", order=parallelism_order(), phrases=_PHRASES),
    **{
        name: DECLARED[name]
        for name in sorted(DECLARED, key=_WORK.__contains__)
        if DECLARED[name].is_axis
    },
    "trained": Setting("trained", "{}"),
    "gpu_name": Setting("GPU", "{}"),
    "program": Setting("program", "{}"),
    "source": Setting("source", "{}", words=sources.TITLES),
    "sweep": Setting("sweep", "{}", words=sources.SWEEPS),
    "status": Setting(
        "status", "{}", order=STATUSES, words={"oom": "out of memory", "nan": "loss not a number"}
    ),
}
"""The most important settings, and other columns that tell runs apart, in display order; other
settings follow."""
_WORDED = {
    PARALLELISM, *SHARING, "precision", "mixed_precision", "compile", "micro_batch_size", "grad_accum", "gpus", "nodes",
    "gpu_name", "model", "seq_len", "data", "trained", "program", "source", "sweep", "status", "checkpoint_every",
}  # fmt: skip
"""Columns that `setting` words separately, and columns that are no settings or belong to the
task."""


def axis(name: str) -> Setting:
    """Return the display of a column that tells runs apart; an undeclared one is titled by its name."""
    if flat_keys.is_key(name):
        key = name.rpartition(".")[2]
        # A dash is a run that does not set it.
        return Setting(key, phrases={"-": f"default {key}"}, words={"-": "default"})
    return AXES.get(name) or DECLARED.get(name) or Setting(name.replace("_", " "))


def short_number(value: object) -> str:
    """Return a number with four significant digits, or all before the point; other values as text, missing as empty."""
    if is_missing(value):
        return ""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return str(value)
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:,.4g}"


def is_missing(value: object) -> bool:
    """Return whether a cell has no value."""
    return bool(pd.api.types.is_scalar(value) and pd.isna(value))


def texts(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with its values as text, in which a missing one is equal to another."""
    return table.astype(object).map(text)


def count(number: float, noun: str) -> str:
    """Return a number with its noun: "1 setting", "2 settings"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,.0f} {noun}s"


def setting(run: Mapping[str, Any]) -> str:
    """Return the settings of a run in words, without its task and without usual or unknown values.

    >>> setting({"strategy": "deepspeed", "zero_stage": 3, "precision": "bf16", "micro_batch_size": 8})
    'ZeRO 3, bf16, micro-batch 8'
    """
    return ", ".join(setting_parts(run))


def setting_parts(run: Mapping[str, Any]) -> list[str]:
    """Return the parts of `setting`."""
    precision = _known(run, "precision")
    if precision and run.get("mixed_precision") == "autocast":
        precision += " autocast"
    elif precision and run.get("mixed_precision") == "none":
        precision = f"pure {precision}"
    sharing = parallelism(run)
    if sharing:
        sharing = axis(PARALLELISM).describe(sharing)
    parts = [sharing, precision]
    mode = _known(run, "compile")
    if mode not in {"", "off", "false"}:
        parts.append(axis("compile").label(mode))
    parts += [unusual_choice(run, name) for name in AXES if name not in _WORDED]
    size = _known(run, "micro_batch_size")
    if size:
        parts.append(f"micro-batch {size}")
    accumulated = run.get("grad_accum")
    if isinstance(accumulated, int | float) and accumulated > 1:
        parts.append(f"{accumulated:g} accumulated")
    return [part for part in parts if part]


def unit(run: Mapping[str, Any]) -> str:
    """Return the unit in which a run's hardware is counted: `GPU`, or `rank` without GPUs."""
    if run.get("device") == "cpu" and not _known(run, "gpu_name"):
        return "rank"
    return "GPU"


def common_unit(runs: pd.DataFrame) -> str:
    """Return the unit in which the hardware of several runs is counted: `rank` if none used a GPU."""
    distinct = runs.reindex(columns=["device", "gpu_name"]).drop_duplicates()
    units = {unit(run) for run in distinct.to_dict("records")}
    if units == {"rank"}:
        return "rank"
    return "GPU"


def choice(run: Mapping[str, Any], name: str) -> str:
    """Return one setting of a run in words: "ZeRO 3", "compiled", "4 GPUs", "2 ranks", "micro-batch 24".

    That blocks are recomputed is said with which ones.
    """
    if name == "gpus" and _known(run, name):
        return count(float(run[name]), unit(run))
    if name == "activation_checkpointing" and is_on(name, run[name]):
        which = _known(run, "checkpoint_every")
        if which:
            return axis("checkpoint_every").describe(run["checkpoint_every"])
    return axis(name).describe(run[name])


def has_effect(run: Mapping[str, Any], name: str) -> bool:
    """Return whether a setting has an effect in a run: mixed precision needs half precision."""
    needed = axis(name).only_with
    return not needed or is_on(needed, run.get(needed))


def is_on(name: str, value: object) -> bool:
    """Return whether a value of a setting lets settings that depend on it have an effect; unknown values do."""
    return text(value).lower() not in axis(name).off


def unusual_choice(run: Mapping[str, Any], name: str) -> str:
    """Return one setting of a run in words; empty if it is unknown, usual, off or without effect."""
    is_off = text(run.get(name)).lower() in {"-", "false", "0"}
    if is_off or run[name] == axis(name).usual or not has_effect(run, name):
        return ""
    return choice(run, name)


def place(run: Mapping[str, Any]) -> str:
    """Return the hardware of a run: "4 NVIDIA H200", "2 CPU ranks", "512 GPUs"."""
    if not _known(run, "gpus"):
        return "an unknown number of GPUs"
    gpus = float(run["gpus"])
    gpu_name = _known(run, "gpu_name")
    if gpu_name:
        return f"{gpus:g} {gpu_name}"
    if run.get("device") == "cpu":
        return count(gpus, "CPU rank")
    return count(gpus, "GPU")


def _known(run: Mapping[str, Any], name: str) -> str:
    """Return a value of a run as text; empty if it is unknown."""
    shown = text(run.get(name))
    if shown == "-":
        return ""
    return shown
