"""What an answer rests on, what it gains over a common starting point, and whether larger micro-batches were measured.

All of it depends on the runs alone, not on the question, so the page receives it as text.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from dsnb.results.answers.decide import MEASURED, first_runs
from dsnb.results.answers.sentences import Sentence, say
from dsnb.results.runs import labels
from dsnb.results.runs.number_text import fixed, significant
from dsnb.results.runs.table import numbers
from dsnb.results.statistics.intervals import RELEVANCE
from dsnb.results.statistics.setting_axes import setting_axes, with_setting_axes
from dsnb.settings import programs
from dsnb.settings.experiment import DEFAULTS

MIN_TIMED_S = 5.0
"""Runs timed for less are too short to rely on."""
TRAINING = (
    "optimizer", "learning_rate", "gradient_clipping", "lora_rank", "lora_targets", "frozen_weights", "dropout",
    "grad_accum_dtype", "gradient_compression", "powersgd_rank", "zeropp",
)  # fmt: skip
"""Settings, in addition to the global batch, that change the training and not only its speed."""
START = ("ZeRO 0", "DDP", "FSDP")
"""Common starting points, in bf16 and uncompiled; the first one that was measured is taken."""
_OF_START = {"precision": {"bf16"}, "mixed_precision": {"native", "-"}, "compile": {"off", "-"}}
_FREE = {labels.PARALLELISM, *_OF_START, "micro_batch_size", "grad_accum"}
_UNKNOWN = labels.text(None)
_SAME = ("gpus", "kind", "basis", "global_batch")


def evidence(
    runs: pd.DataFrame, table: pd.DataFrame, names: Iterable[object]
) -> dict[object, dict[str, str]]:
    """Return facts about some candidates, by experiment; unknown ones are empty.

    `rests`: what the speed rests on. `short`: seconds, if too few were timed. `gain`: the speed-up
    over `START` on the same hardware with the same global batch. `batch`: the global batch. `edge`:
    whether the largest measured micro-batch leaves enough memory for one twice as large;
    micro-batches that ran out of memory count as measured.
    """
    first = first_runs(runs)
    settings = with_setting_axes(first)
    sizes = numbers(first, "micro_batch_size")
    lengths = numbers(first, "seq_len")
    texts = labels.texts(settings[setting_axes(settings)])
    others = texts.drop(columns="micro_batch_size", errors="ignore")
    alike = pd.Series(list(others.itertuples(index=False, name=None)), texts.index, dtype=object)
    is_largest = sizes == sizes.groupby(alike).transform("max")
    described = texts.to_dict("index")
    options = table.to_dict("index")
    starts = []
    for name in options:
        may_lack = programs.has_defaults(first.loc[name].to_dict())
        if _is_start(described[name], may_lack):
            starts.append(name)
    found = {}
    for name in names:
        option = options[name]
        edge = say("edge")
        if is_largest[name]:
            edge = _edge(option, sizes[name])
        batch = option["global_batch"]
        found[name] = {
            **_rests(option),
            "gain": _gain(name, options, described, starts),
            "edge": edge,
            "batch": say("batch", n=fixed(batch), tokens=fixed(lengths[name] * batch)),
        }
    return found


def _rests(option: Mapping[Any, Any]) -> dict[str, str]:
    timed = significant(option["timed_s"], 2)
    facts: dict[str, object] = {"n": int(option["n"]), "steps": fixed(option["steps"])}
    if option["n"] > 1:
        facts["several"] = facts["n"]
        facts["hosts"] = fixed(option["hosts"])
        if option["spread_pct"] >= 0:
            facts["spread"] = f"±{option['spread_pct']:.1f}".replace("±0.0", "below 0.1")
    short = ""
    if option["basis"] == MEASURED and option["timed_s"] < MIN_TIMED_S:
        short = timed
    return {"rests": say("rests", timed=timed, **facts), "short": short}


def _edge(option: Mapping[Any, Any], size: float) -> Sentence:
    free_gib = option["gpu_memory_gib"] - option["memory_gib"]
    if option["basis"] == MEASURED and free_gib >= option["memory_gib"]:
        return say("edge", size=f"{size:g}", free=significant(free_gib))
    return say("edge")


def _is_start(described: Mapping[str, str], may_lack: bool) -> bool:
    """Return whether a setting is a starting point; `may_lack` says that what is missing was usual."""
    if not may_lack and any(described.get(name, _UNKNOWN) == _UNKNOWN for name in _OF_START):
        return False
    is_usual = all(described.get(name, "-") in values for name, values in _OF_START.items())
    return described.get(labels.PARALLELISM) in START and is_usual


def _gain(
    name: object,
    options: Mapping[Any, Mapping[Any, Any]],
    described: Mapping[Any, Mapping[str, str]],
    starts: Sequence[object],
) -> Sentence:
    """Return the speed-up over the starting point; empty if that was not measured or is this setting."""
    setting = described[name]
    option = options[name]

    def is_comparable(start: object) -> bool:
        if any(option[column] != options[start][column] for column in _SAME):
            return False
        return all(
            text in {setting[column], labels.text(DEFAULTS.get(column)), _UNKNOWN}
            for column, text in described[start].items()
            if column not in _FREE
        )

    def rank(start: object) -> tuple[int, int, float]:
        place = START.index(described[start][labels.PARALLELISM])
        changed = training_changes(described[start], setting)
        return place, len(changed), -options[start]["tokens_per_s"]

    comparable = [start for start in starts if is_comparable(start)]
    if not comparable or name in comparable:
        return say("gain")
    start = min(comparable, key=rank)
    times = option["tokens_per_s"] / options[start]["tokens_per_s"]
    if times < 1 + RELEVANCE:
        return say("gain")
    digits = 2 if times >= 1.1 else 3
    return say(
        "gain",
        times=significant(times, digits),
        start=described[start][labels.PARALLELISM],
        training=changed_training(described[start], setting),
    )


def training_changes(
    base: Mapping[Any, Any], other: Mapping[Any, Any], batches: Sequence[str] = ()
) -> list[Sentence]:
    """Return how another setting's training differs from a base's, as in "optimizer Adafactor instead of AdamW".

    `batches` are the global batches of both, if known.
    """
    changed = []
    if len(set(batches)) > 1:
        before, after = batches
        changed.append(say("training.change", title="global batch", before=before, after=after))
    for name in TRAINING:
        before = labels.text(base.get(name))
        after = labels.text(other.get(name))
        if before != after and _UNKNOWN not in (before, after) and labels.has_effect(other, name):
            axis = labels.axis(name)
            facts = {"before": axis.label(before), "after": axis.label(after)}
            changed.append(say("training.change", title=axis.title, **facts))
    return changed


def changed_training(
    base: Mapping[Any, Any], other: Mapping[Any, Any], batches: Sequence[str] = ()
) -> Sentence:
    """Return a remark on `training_changes`; empty without any."""
    return say("training", changed=", ".join(training_changes(base, other, batches)))
