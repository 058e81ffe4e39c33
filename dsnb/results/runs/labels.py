"""Titles and units of the columns of runs, and settings in words: "ZeRO 1, bf16 autocast, compiled"."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from dsnb.settings import deepspeed_keys
from dsnb.settings.experiment import DECLARED
from dsnb.settings.records.columns import MEMORY, METRIC_LABELS, STATUSES, Metric
from dsnb.settings.training import Setting, text

__all__ = [
    "AXES", "MEMORY", "METRIC_LABELS", "PARALLELISM", "SHARING", "WITHOUT_ZERO", "Metric", "axis", "choice",
    "common_unit", "count", "has_effect", "is_on", "parallelism", "place", "setting", "span", "text", "unit",
    "unusual_choice",
]  # fmt: skip
PARALLELISM = "parallelism"
"""Derived column: how GPUs share the training, the settings of `SHARING` as one value such as "ZeRO 3"."""
PARALLEL_SIZES = {"TP": "tensor_parallel", "PP": "pipeline_parallel"}
SHARING = ("strategy", "zero_stage", *PARALLEL_SIZES.values())
WITHOUT_ZERO = {"plain": "plain", "ddp": "DDP", "fsdp": "FSDP"}
"""Strategies that have no ZeRO stage -> display names."""
WHOLE = ("plain", "ddp")
"""Strategies that split no layers: every process has the whole model."""
_WORK = ("micro_batch_size", "seq_len", "data")
"""Settings of a rank's work; settings of the hardware come before them."""
AXES = {
    "model": DECLARED["model"],
    PARALLELISM: Setting(
        "parallelism", "{}", order=(*WITHOUT_ZERO.values(), "ZeRO 0", "ZeRO 1", "ZeRO 2", "ZeRO 3")
    ),
    **{
        name: DECLARED[name]
        for name in sorted(DECLARED, key=_WORK.__contains__)
        if DECLARED[name].is_axis
    },
    "trained": Setting("trained", "{}"),
    "gpu_name": Setting("GPU", "{}"),
    "source": Setting("source", "{}"),
    "sweep": Setting("sweep", "{}"),
    "status": Setting(
        "status", "{}", order=STATUSES, words={"oom": "out of memory", "nan": "loss not a number"}
    ),
}
"""The most important settings, and other columns that tell runs apart, in display order; other settings follow."""
_NOT_UNUSUAL = {
    PARALLELISM, *SHARING, "precision", "mixed_precision", "compile", "micro_batch_size", "grad_accum", "gpus", "nodes",
    "gpu_name", "model", "seq_len", "data", "trained", "source", "sweep", "status",
}  # fmt: skip
"""Columns that `setting` words separately, and columns that are no settings or belong to the task."""


def axis(name: str) -> Setting:
    """Return the display of a column that tells runs apart; an undeclared one is titled by its name."""
    if name.startswith(deepspeed_keys.PREFIX):
        key = name.rpartition(".")[2]
        return Setting(
            key, phrases={"-": f"default {key}"}, words={"-": "default"}
        )  # a run that does not set it
    return AXES.get(name) or DECLARED.get(name) or Setting(name.replace("_", " "))


def span(low: float, high: float) -> str:
    """Return a range with as many digits as it supports, as in "30 to 60" for 31.2 to 56.4.

    Its ends are rounded down and up to the first digit of half the range, or of `low` if that is finer.
    """
    if not 0 < low < high < math.inf:
        return "" if math.isnan(high) else f"{high:,.0f}" if high >= 100 else f"{high:.3g}"
    place = math.floor(math.log10(min((high - low) / 2, low)))
    ends = math.floor(low / 10**place), math.ceil(high / 10**place)
    return " to ".join(f"{end * 10**place:,.{max(-place, 0)}f}" for end in ends)


def count(number: float, noun: str) -> str:
    """Return a number with its noun: "1 setting", "2 settings"."""
    return f"{number:,.0f} {noun}{'' if number == 1 else 's'}"


def parallelism(run: Mapping[str, Any]) -> str:
    """Return how GPUs share the training: "plain", "ZeRO 3", "TP 2 x PP 2 x ZeRO 1"; empty if nothing is known.

    A size without a value is `?`, since it need not be 1; a row without the column has no such size.
    """
    name = _text(run, "strategy")
    named = "" if name in {"-", "deepspeed"} else name
    sharded = WITHOUT_ZERO.get(
        name, f"ZeRO {_text(run, 'zero_stage')}" if _is_known(run, "zero_stage") else named
    )
    sizes = {short: _text(run, name) for short, name in PARALLEL_SIZES.items() if name in run}
    may_be_split = sharded and name not in WHOLE
    unshown = {"0", "1"} if may_be_split else {"0", "1", "-"}
    shares = [
        f"{short} {size.replace('-', '?')}" for short, size in sizes.items() if size not in unshown
    ]
    return " x ".join(filter(None, [*shares, sharded]))


def setting(run: Mapping[str, Any]) -> str:
    """Return the settings of a run in words, without its task and without usual or unknown values."""
    shared = "the plain loop" if (name := parallelism(run)) == "plain" else name
    precision = _text(run, "precision") if _is_known(run, "precision") else ""
    autocast = " autocast" if precision and run.get("mixed_precision") == "autocast" else ""
    unusual = [unusual_choice(run, name) for name in AXES if name not in _NOT_UNUSUAL]
    batch = (
        [f"micro-batch {_text(run, 'micro_batch_size')}"]
        if _is_known(run, "micro_batch_size")
        else []
    )
    accumulated = run.get("grad_accum")
    if isinstance(accumulated, int | float) and accumulated > 1:
        batch.append(f"{accumulated:g} accumulated")
    return ", ".join(filter(None, [shared, precision + autocast, _compiled(run), *unusual, *batch]))


def unit(run: Mapping[str, Any]) -> str:
    """Return the unit in which a run's hardware is counted: `GPU`, or `rank` without GPUs."""
    return "rank" if run.get("device") == "cpu" and not _is_known(run, "gpu_name") else "GPU"


def common_unit(runs: pd.DataFrame) -> str:
    """Return the unit in which the hardware of several runs is counted: `rank` if none used a GPU."""
    distinct = runs.reindex(columns=["device", "gpu_name"]).drop_duplicates()
    return "rank" if set(map(unit, distinct.to_dict("records"))) == {"rank"} else "GPU"


def choice(run: Mapping[str, Any], name: str) -> str:
    """Return one setting of a run in words: "ZeRO 3", "compiled", "4 GPUs", "2 ranks", "micro-batch 24"."""
    if name == "gpus" and _is_known(run, name):
        return count(float(run[name]), unit(run))
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
    shown = _text(run, name)
    if (
        shown.lower() in {"-", "false", "0"}
        or run[name] == axis(name).usual
        or not has_effect(run, name)
    ):
        return ""
    return choice(run, name)


def place(run: Mapping[str, Any]) -> str:
    """Return the hardware of a run: "4 NVIDIA H200", "2 CPU ranks", "512 GPUs"."""
    if not _is_known(run, "gpus"):
        return "an unknown number of GPUs"
    if _is_known(run, "gpu_name"):
        return f"{float(run['gpus']):g} {_text(run, 'gpu_name')}"
    return count(float(run["gpus"]), "CPU rank" if run.get("device") == "cpu" else "GPU")


def _compiled(run: Mapping[str, Any]) -> str:
    mode = _text(run, "compile")
    return "" if mode in {"-", "off", "false"} else axis("compile").label(mode)


def _is_known(run: Mapping[str, Any], name: str) -> bool:
    return _text(run, name) != "-"


def _text(run: Mapping[str, Any], name: str) -> str:
    return text(run.get(name))
