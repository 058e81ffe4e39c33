"""What an answer rests on, what it gains over a common starting point, and whether larger micro-batches were measured.

All of it depends on the runs alone, not on the question, so the page receives it as text.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from dsnb.results.answers.decide import MEASURED
from dsnb.results.runs import labels
from dsnb.results.runs.table import numbers
from dsnb.results.runs.texts import fill, fixed, significant
from dsnb.results.statistics.setting_axes import setting_axes, with_setting_axes
from dsnb.settings.experiment import DEFAULTS

MIN_TIMED_S = 5.0
"""Runs timed for less are too short to rely on."""
TRAINING = (
    "optimizer", "learning_rate", "gradient_clipping", "lora_rank", "dropout", "grad_accum_dtype",
    "gradient_compression", "powersgd_rank", "zeropp",
)  # fmt: skip
"""Settings, in addition to the global batch, that change the training and not only its speed."""
START = ("ZeRO 0", "DDP", "FSDP")
"""Common starting points, in bf16 and uncompiled; the first one that was measured is taken."""
_OF_START = {"precision": {"bf16"}, "mixed_precision": {"native", "-"}, "compile": {"off", "-"}}
_FREE = {labels.PARALLELISM, *_OF_START, "micro_batch_size", "grad_accum"}
_UNKNOWN = labels.text(None)
RESTS = (
    "{n:one run|the median of}[ {several} runs][ of {steps} {steps:step|steps}][ ({timed} s{n:| each})]"
    "[ on {hosts} {hosts:host|hosts}][, spread {spread} %]"
)
GAIN = "{times} times as fast as {start} in bf16, uncompiled[ ({training})]."
CHANGE = "{title} {after} instead of {before}"
CHANGES = "changes the training: {changed}"
EDGE = "Micro-batch {size} is the largest measured and {free} GiB are free: a larger one may be faster."


def evidence(
    runs: pd.DataFrame, table: pd.DataFrame, names: Iterable[object]
) -> dict[object, dict[str, str]]:
    """Return texts about some candidates, by experiment; unknown ones are empty.

    `rests`: what the speed rests on. `short`: seconds, if too few were timed. `gain`: the speed-up over `START` on the
    same hardware with the same global batch. `batch`: the global batch. `edge`: whether the largest measured
    micro-batch leaves enough memory for one twice as large; micro-batches that ran out of memory count as measured.
    """
    first = runs.drop_duplicates("experiment").set_index("experiment", drop=False)
    settings, sizes, lengths = (
        with_setting_axes(first),
        numbers(first, "micro_batch_size"),
        numbers(first, "seq_len"),
    )
    texts = settings[setting_axes(settings)].astype(object).map(labels.text)
    others = texts.drop(columns="micro_batch_size", errors="ignore").itertuples(
        index=False, name=None
    )
    is_largest = sizes == sizes.groupby(pd.Index(list(others), tupleize_cols=False)).transform(
        "max"
    )
    described, options = texts.to_dict("index"), table.to_dict("index")
    starts = [name for name in options if _is_start(described[name])]
    return {
        name: {
            **_rests(options[name]),
            "gain": _gain(name, options, described, starts),
            "edge": _edge(options[name], sizes[name]) if is_largest[name] else "",
            "batch": _batch(options[name]["global_batch"], lengths[name]),
        }
        for name in names
    }


def _rests(option: Mapping[Any, Any]) -> dict[str, str]:
    n, steps, timed_s = int(option["n"]), option["steps"], option["timed_s"]
    several = n if n > 1 else ""
    spread = f"±{option['spread_pct']:.1f}"
    facts = {
        "n": n,
        "several": several,
        "steps": fixed(steps) if steps >= 1 else "",
        "timed": significant(timed_s, 2) if timed_s > 0 else "",
        "hosts": fixed(option["hosts"]) if several and option["hosts"] >= 1 else "",
        "spread": spread.replace("±0.0", "below 0.1")
        if several and option["spread_pct"] >= 0
        else "",
    }
    is_short = option["basis"] == MEASURED and 0 < timed_s < MIN_TIMED_S
    return {"rests": fill(RESTS, facts), "short": str(facts["timed"]) if is_short else ""}


def _batch(sequences: float, seq_len: float) -> str:
    facts = {
        "n": fixed(sequences) if sequences >= 1 else "",
        "tokens": fixed(seq_len * sequences) if seq_len * sequences >= 1 else "",
    }
    return fill("{n} {n:sequence|sequences}[, {tokens} tokens]", facts)


def _edge(option: Mapping[Any, Any], size: float) -> str:
    free_gib = option["gpu_memory_gib"] - option["memory_gib"]
    is_enough = option["basis"] == MEASURED and free_gib >= option["memory_gib"]
    return fill(EDGE, {"size": f"{size:g}", "free": significant(free_gib)}) if is_enough else ""


def _is_start(described: Mapping[str, str]) -> bool:
    is_usual = all(described.get(name, "-") in values for name, values in _OF_START.items())
    return described.get(labels.PARALLELISM) in START and is_usual


def _gain(
    name: object,
    options: Mapping[Any, Mapping[Any, Any]],
    described: Mapping[Any, Mapping[str, str]],
    starts: Sequence[object],
) -> str:
    """Return the speed-up over the starting point; empty if that was not measured or is this setting."""
    setting, option = described[name], options[name]

    def is_comparable(start: object) -> bool:
        same = all(
            option[column] == options[start][column]
            for column in ("gpus", "kind", "basis", "global_batch")
        )
        return same and all(
            text in {setting[column], labels.text(DEFAULTS.get(column)), _UNKNOWN}
            for column, text in described[start].items()
            if column not in _FREE
        )

    def rank(start: object) -> tuple[int, int, float]:
        changed = training_changes(described[start], setting)
        return (
            START.index(described[start][labels.PARALLELISM]),
            len(changed),
            -options[start]["tokens_per_s"],
        )

    comparable = [start for start in starts if is_comparable(start)]
    if not comparable or name in comparable:
        return ""
    start = min(comparable, key=rank)
    facts = {
        "times": significant(option["tokens_per_s"] / options[start]["tokens_per_s"], 2),
        "start": described[start][labels.PARALLELISM],
        "training": changes(training_changes(described[start], setting)),
    }
    return fill(GAIN, facts)


def training_changes(
    base: Mapping[Any, Any], other: Mapping[Any, Any], batches: Sequence[str] = ()
) -> list[str]:
    """Return how another setting's training differs from a base's, as in "optimizer Adafactor instead of AdamW".

    `batches` are the global batches of both, if known.
    """
    changed = [("global batch", *batches)] if len(set(batches)) > 1 else []
    for name in TRAINING:
        before, after = labels.text(base.get(name)), labels.text(other.get(name))
        if before != after and _UNKNOWN not in (before, after) and labels.has_effect(other, name):
            axis = labels.axis(name)
            changed.append((axis.title, axis.label(before), axis.label(after)))
    return [
        fill(CHANGE, dict(zip(("title", "before", "after"), change, strict=True)))
        for change in changed
    ]


def changes(changed: Sequence[str]) -> str:
    """Return a remark that these changes affect the training; empty without any."""
    return fill(CHANGES, {"changed": ", ".join(changed)})
