"""What the answer rests on, what it gains over the usual start, and whether larger micro-batches were left untried.

All of it follows from the runs alone, whatever is asked, so that a page receives it as texts.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from dsnb.analysis.choices import choices, with_choices
from dsnb.analysis.decide import MEASURED, Decision
from dsnb.analysis.intervals import RELEVANCE
from dsnb.analysis.predicted import larger_batches
from dsnb.analysis.texts import fill, fixed, significant
from dsnb.runs import labels
from dsnb.settings.experiment import DEFAULTS

MIN_TIMED_S, GOAL_TIMED_S = 5.0, 10.0
"""Runs that were timed for less are too short to rely on; longer ones should be timed for as long as this."""
TRAINING = (
    "optimizer", "learning_rate", "gradient_clipping", "lora_rank", "dropout", "grad_accum_dtype",
    "gradient_compression", "powersgd_rank", "zeropp",
)  # fmt: skip
"""Settings that change the training and not only its speed, besides the global batch."""
START = ("ZeRO 0", "DDP", "FSDP")
"""What most people start with: the first of these that was measured, in bf16, uncompiled."""
_OF_START = {"precision": {"bf16"}, "mixed_precision": {"native", "-"}, "compile": {"off", "-"}}
_FREE = {"strategy", *_OF_START, "micro_batch_size", "grad_accum"}
_UNKNOWN = labels.text(None)
TIMES = (2, 4)
"""Multiples of the largest measured micro-batch that may be worth trying."""
RESTS = (
    "{n:one run|the median of}[ {several} runs][ of {steps} {steps:step|steps}][ ({timed} s{n:| each})]"
    "[ on {hosts} {hosts:host|hosts}][, spread {spread} %]"
)
GAIN = "{times} times as fast as {start} in bf16, uncompiled[ ({training})]."
CHANGE = "{title} {after} instead of {before}"
CHANGES = "changes the training: {changed}"
EDGE_FACTS = ("size", "free", "sizes", "list", "rate", "before", "after", "pattern", "little")
EDGE = (
    "Micro-batch {size} is the largest measured and {free} GiB are free[: try {sizes}[, predicted {rate} tokens/s]"
    f"[ ({CHANGES.replace('{changed}', CHANGE.replace('{title}', 'global batch'))})]"
    ": dsnb sweep PARAMS --only '{pattern}' --set 'micro_batch_size={list}']"
    "[, but larger ones are predicted to gain less than {little} %.]"
)
"""The sentence about an untried larger micro-batch, and its facts in the order in which a page receives them."""


def evidence(runs: pd.DataFrame, table: pd.DataFrame, names: Iterable[object]) -> dict[object, dict[str, Any]]:
    """Return texts about some candidates, by experiment; what cannot be said is empty.

    `rests`: what the speed rests on. `short` and `more_steps`: seconds, where too few were timed, and how many steps to
    time. `gain`: how much faster it is than `START` on the same hardware with the same global batch. `batch`: the
    global batch. `edge`: the `EDGE_FACTS` of larger micro-batches to try; none if they were tried or do not fit.
    """
    first = runs.drop_duplicates("experiment").set_index("experiment", drop=False)
    known, rows = with_choices(first), first.to_dict("index")
    columns = choices(known)
    said = {
        name: {column: labels.text(row[column]) for column in columns} for name, row in known.to_dict("index").items()
    }
    options = table.to_dict("index")
    starts = {name: said[name] for name in table.index if _is_start(said[name])}
    chosen = list(names)
    edges = _edges(chosen, options, rows, said)
    return {
        name: {
            **_rests(options[name]),
            "gain": _gain(name, options, said, starts),
            "edge": edges.get(name, []),
            "batch": _batch(options[name]["global_batch"], rows[name].get("seq_len")),
        }
        for name in chosen
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
        "spread": spread.replace("±0.0", "below 0.1") if several and option["spread_pct"] >= 0 else "",
    }
    is_short = option["basis"] == MEASURED and 0 < timed_s < MIN_TIMED_S
    more = str(_round_up(GOAL_TIMED_S * steps / timed_s)) if is_short and steps >= 1 else ""
    return {"rests": fill(RESTS, facts), "short": str(facts["timed"]) if is_short else "", "more_steps": more}


def _round_up(value: float) -> int:
    """Return the next number with one significant digit."""
    place = 10 ** math.floor(math.log10(value))
    return int(math.ceil(value / place) * place)


def _batch(sequences: float, seq_len: Any) -> str:
    if not sequences >= 1:
        return ""
    tokens = float(seq_len) * sequences if isinstance(seq_len, int | float) else math.nan
    facts = {"n": fixed(sequences), "tokens": fixed(tokens) if tokens >= 1 else ""}
    return fill("{n} {n:sequence|sequences}[, {tokens} tokens]", facts)


def _is_start(said: Mapping[str, str]) -> bool:
    return said.get("strategy") in START and all(said.get(name, "-") in known for name, known in _OF_START.items())


def _gain(
    name: object,
    options: Mapping[Any, Mapping[Any, Any]],
    said: Mapping[Any, Mapping[str, str]],
    starts: Mapping[Any, Mapping[str, str]],
) -> str:
    """Say how many times as fast a setting is as the usual start; empty if that was not measured or is this one."""
    own, option = said[name], options[name]

    def is_comparable(other: object) -> bool:
        same = all(option[column] == options[other][column] for column in ("gpus", "kind", "basis", "global_batch"))
        return same and all(
            text in {own[column], labels.text(DEFAULTS.get(column)), _UNKNOWN}
            for column, text in starts[other].items()
            if column not in _FREE
        )

    def rank(other: object) -> tuple[int, int, float]:
        changed = training_changes(starts[other], own)
        return START.index(starts[other]["strategy"]), len(changed), -options[other]["tokens_per_s"]

    found = [other for other in starts if is_comparable(other)]
    if not found or name in found:
        return ""
    start = min(found, key=rank)
    facts = {
        "times": significant(option["tokens_per_s"] / options[start]["tokens_per_s"], 2),
        "start": starts[start]["strategy"],
        "training": changes(training_changes(starts[start], own)),
    }
    return fill(GAIN, facts)


def training_changes(base: Mapping[Any, Any], other: Mapping[Any, Any]) -> list[str]:
    """Return in what another setting trains otherwise than a base, in words, without the global batch."""
    pairs = {name: (labels.text(base.get(name)), labels.text(other.get(name))) for name in TRAINING}
    return [
        changed(labels.axis(name).title, *map(labels.axis(name).label, pair))
        for name, pair in pairs.items()
        if pair[0] != pair[1] and _UNKNOWN not in pair and labels.has_effect(other, name)
    ]


def changed(title: str, before: str, after: str) -> str:
    """Return a change in words: "optimizer Adafactor instead of AdamW"."""
    return fill(CHANGE, {"title": title, "after": after, "before": before})


def changes(changed: Sequence[str]) -> str:
    """Return that these changes change the training; empty without any."""
    return fill(CHANGES, {"changed": ", ".join(changed)})


def changed_training(decision: Decision) -> str:
    """Say in what the second option trains otherwise than the first; empty if it differs in speed alone."""
    base, other = decision.settings.head(2).to_dict("records")
    batches = [fixed(batch) for batch in decision.options["global_batch"].head(2).dropna()]
    batch = [changed("global batch", *batches)] if len(set(batches)) > 1 else []
    return changes([*batch, *training_changes(base, other)])


def _edges(
    names: Sequence[object],
    options: Mapping[Any, Mapping[Any, Any]],
    rows: Mapping[Any, Mapping[Any, Any]],
    said: Mapping[Any, Mapping[str, str]],
) -> dict[object, list[str]]:
    """Return what is known of micro-batches larger than the largest of the settings that differ in nothing else.

    A larger one that ran out of memory counts as tried.
    """
    others = {
        name: tuple(text for column, text in own.items() if column != "micro_batch_size") for name, own in said.items()
    }
    sizes: dict[Any, float] = {}
    for name, key in others.items():
        size = _number(rows[name].get("micro_batch_size"))
        sizes[key] = max(sizes.get(key, 0), size) if size > 0 else sizes.get(key, 0)
    edges = {}
    for name in names:
        option, size = options[name], _number(rows[name].get("micro_batch_size"))
        free = option["gpu_memory_gib"] - option["memory_gib"]
        label = str(name).rpartition("/")[2]
        part = f"_bs{size:g}_"
        if option["basis"] == MEASURED and free > 0 and size == sizes[others[name]] and part in label:
            edges[name] = (int(size), free, label.replace(part, "_bs*_"))
    asked = [{**rows[name], "memory_gib": options[name]["memory_gib"]} for name in edges]
    found = zip(edges.items(), larger_batches(asked, TIMES), strict=True)
    return {name: _edge(options[name], *edge, larger) for (name, edge), larger in found if larger}


def _edge(option: Mapping[Any, Any], size: int, free: float, pattern: str, larger: Mapping[int, float]) -> list[str]:
    tried, batch = [size * times for times in larger], option["global_batch"]
    gain = max(larger.values())  # NaN where it is unknown
    facts = {"size": str(size), "free": significant(free)}
    if gain < 1 + RELEVANCE:
        facts["little"] = f"{100 * RELEVANCE:g}"
    else:
        facts |= {"sizes": " and ".join(map(str, tried)), "list": f"[{','.join(map(str, tried))}]", "pattern": pattern}
        if gain > 0:
            facts["rate"] = fixed(float(f"{gain * option['tokens_per_s']:.2g}"))
        if batch >= 1:
            facts |= {"before": fixed(batch), "after": " or ".join(fixed(batch * times) for times in larger)}
    return [facts.get(name, "") for name in EDGE_FACTS]


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
