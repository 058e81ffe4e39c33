"""The lines of a recommendation: setting, time, speed, memory, alternatives, and how sure that is."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from dsnb.base.formulas.planning import MAX_DAYS
from dsnb.prediction import nearest
from dsnb.prediction.candidates import simplicity
from dsnb.prediction.explanation import changes, doubt, no_fit, shares_of_step
from dsnb.prediction.host_memory import offloads
from dsnb.prediction.search import Search, SearchResult
from dsnb.results.answers import card
from dsnb.results.answers.decide import PREDICTED, is_tight
from dsnb.results.answers.lines import Line, line, note
from dsnb.results.answers.sentences import PHRASES, say
from dsnb.results.runs import labels
from dsnb.results.runs.number_text import amount, duration_within, fixed, significant
from dsnb.results.statistics.intervals import RELEVANCE
from dsnb.settings.experiment import Experiment

WORDS = PHRASES["of_lines"]
DIGITS = 3
"""Significant digits of a speed."""
MAX_CHANGES = 30
"""Most characters of an alternative's main changes; further ones are remarks."""
LEAST_PCT = 0.5
"""Smaller differences are rounding errors of whole per cents."""
MARK = "*"


def lines(
    search: Search,
    result: SearchResult,
    assumed: Sequence[str] = (),
    least_gpus: int = 0,
    offloaded: bool = False,
) -> Iterator[Line]:
    """Yield the lines of the recommended setting and its alternatives, or why there is none.

    `assumed` are the options that were not given. `least_gpus` is the smallest power of two of GPUs
    that fits, 0 if that is unknown. `offloaded` says that offload was considered.
    """
    name = next(iter(search.asked))
    if result.chosen:
        name = result.chosen[0]
    yield _title(search, search.asked[name], bool(assumed))
    if not result.chosen:
        yield note(no_fit(search, offloaded, by_words=True))
        if least_gpus:
            yield note(say("least_gpus", least=least_gpus))
        return
    best = result.options.loc[name]
    yield line("train", setting=labels.setting(vars(search.asked[name])))
    for one in _figures(search, best, least_gpus):
        if one.cells[1]:
            yield one
    yield from _alternatives(search, result)
    yield _certainty(search, result, best)


def _title(search: Search, experiment: Experiment, is_marked: bool) -> Line:
    trained = ""
    if experiment.lora_rank:
        trained = "LoRA"
    data = ""
    if experiment.data != "synthetic":
        data = labels.axis("data").describe(experiment.data)
    run = {"gpus": experiment.gpus, "gpu_name": search.target.hardware.gpu.name}
    if search.target.device == "cpu":
        run = {"gpus": experiment.gpus, "device": "cpu"}
    return line(
        "title",
        model=nearest.model_name(experiment.model),
        trained=trained,
        data=data,
        place=labels.place(run),
        tokens=amount(search.question.tokens),
        batch=fixed(experiment.global_batch_size),
        length=fixed(experiment.seq_len),
        mark=MARK if is_marked else "",
    )


def _figures(search: Search, best: "pd.Series[Any]", least_gpus: int) -> Iterator[Line]:
    """Yield time, speed and memory; lines whose figure is unknown have none."""
    experiment = search.asked[str(best.name)]
    facts = card.figures(best, search.question)
    shown = card.within_range(best)
    hours = 24 * shown["days"] * best["tokens_per_s"] / shown["tokens_per_s"]
    time, times = duration_within(hours, 24 * best["days_low"], 24 * best["days_high"])
    if is_tight(best):
        time = f"at least {time}"
        times = ""
    yield line("time", **facts | {"time": time, "times": times})
    facts["rate"] = fixed(float(f"{shown['tokens_per_s']:.{DIGITS}g}"))
    rates = facts["rates"]
    if is_tight(best):
        facts["rate"] = f"up to {facts['rate']}"
        rates = ""
    if best["basis"] == PREDICTED:
        part, share = next(iter(shares_of_step(best).items()))
        mfu = best["mfu"] * shown["tokens_per_s"] / best["tokens_per_s"]
        facts |= {"share": share, "part": WORDS["parts"].get(part, part)}
        facts["mfu"] = fixed(100 * mfu)
    yield line("speed", **facts | {"rates": rates})
    room_gib = search.room_gib[str(best.name)]
    if search.target.device == "cpu" or math.isnan(best["memory_gib"]):
        return
    error_gib = best["memory_gib"] * best["peak_allocated_error_pct"] / 100
    yield line(
        "memory",
        memory=facts["memory"],
        room=significant(room_gib),
        memory_gib=significant(error_gib, 1),
        headroom=significant(max(0.0, room_gib - best["memory_gib"])),
        host=_host(search, best, experiment),
        fewer=_fewer(experiment.gpus, least_gpus),
    )


def _host(search: Search, best: "pd.Series[Any]", experiment: Experiment) -> str:
    """Return the host memory that offload needs."""
    if not offloads(experiment) or math.isnan(best["host_memory_gib"]):
        return ""
    return say("host", need=significant(best["host_memory_gib"]))


def _fewer(gpus: int, least: int) -> str:
    """Return whether fewer GPUs would fit the model."""
    if least and least < gpus:
        return say("fewer.enough", least=least)
    if least == gpus > 1:
        return say("fewer")
    return ""


def _alternatives(search: Search, result: SearchResult) -> Iterator[Line]:
    """Yield how each alternative differs from the recommended setting."""
    options = result.options
    name, *others = result.chosen
    column = search.question.column
    label = "Or"
    for other in others:
        row = options.loc[other]
        worse_pct = 100 * (row[column] / options.loc[name, column] - 1)
        main, more = _split(changes(search.asked[name], search.asked[other]))
        difference = _difference(worse_pct, search.question.objective)
        remarks = [_remark(options.loc[[name, other]], worse_pct, difference, search), *more]
        yield line(
            "alternative",
            label=label,
            changes=main,
            difference=difference or WORDS["equal"],
            memory=significant(row["memory_gib"]),
            remark="; ".join(filter(None, remarks)),
        )
        label = " "


def _remark(pair: pd.DataFrame, worse_pct: float, difference: str, search: Search) -> str:
    """Return why the second setting is not recommended, or how sure its figures are."""
    first, second = pair["basis"]
    if is_tight(pair.iloc[1]):
        return str(WORDS["tight"])
    remark = ""
    if not difference:
        simple, other = (simplicity(search.asked[name]) for name in pair.index)
        if simple < other:
            remark = WORDS["less_simple"]
        return remark
    if (pair["basis"] == PREDICTED).any() and abs(worse_pct) <= doubt(pair, search)[0]:
        remark = WORDS["within"]
    if first != second:
        return ", ".join(filter(None, [second, remark]))
    return remark


def _difference(worse_pct: float, objective: str) -> str:
    """Return by how much an alternative is worse; empty if it is as good: no more than `RELEVANCE` better."""
    if -100 * RELEVANCE <= worse_pct < LEAST_PCT:
        return ""
    worse, better = WORDS["longer"][objective]
    word = worse
    if worse_pct < 0:
        word = better
    return f"{abs(worse_pct):.0f} % {word}"


def _split(changed: Sequence[str]) -> tuple[str, list[str]]:
    """Return the changes that fit into a column, and the others."""
    number = 1
    while number < len(changed) and len(", ".join(changed[: number + 1])) <= MAX_CHANGES:
        number += 1
    return ", ".join(changed[:number]), list(changed[number:])


def _certainty(search: Search, result: SearchResult, best: "pd.Series[Any]") -> Line:
    """Return what the figures rest on; in one sentence with the bad news, if there is any."""
    hardware = search.target.hardware
    if best["basis"] != PREDICTED:
        return line("measured", basis=str(best["basis"]).capitalize())
    facts = {"loop": "your loop" if hardware.loop else ""}
    warnings = "; ".join(_warnings(search, result, best))
    if warnings:
        return line("warned", warnings=warnings, **facts)
    return line("predicted", nearest=nearest_in_short(search, str(best.name)), **facts)


def nearest_in_short(search: Search, name: str) -> str:
    """Return the measured run that is nearest to a candidate."""
    hardware = search.target.hardware
    experiment = search.asked[name]
    return nearest.in_short(experiment, hardware.gpu, hardware.link.nodes(experiment))


def _warnings(search: Search, result: SearchResult, best: "pd.Series[Any]") -> Iterator[str]:
    """Yield what the reader must know before relying on a predicted setting."""
    if is_tight(best):
        yield say("warning.tight")
    if best["days"] > MAX_DAYS:
        yield say("warning.too_slow", **card.needed_gpus(result.options, search.question))
    yield from lasting_warnings(search, best)


def lasting_warnings(search: Search, best: "pd.Series[Any]") -> Iterator[str]:
    """Yield what the reader must know of a setting with room, whatever the tokens."""
    experiment = search.asked[str(best.name)]
    if offloads(experiment) and math.isnan(best["host_memory_gib"]):
        yield say("warning.host_memory")
    elif offloads(experiment) and math.isnan(search.target.hardware.host_gib):
        yield say("warning.host")
    if experiment.allocator == "default":
        yield say("warning.allocator")
    if best["outside"]:
        yield say("warning.outside", outside=best["outside"])
