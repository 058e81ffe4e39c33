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
from dsnb.results.answers.decide import PREDICTED, Question, is_tight, tight
from dsnb.results.answers.lines import Line, height, line, note, split
from dsnb.results.answers.measured import spread
from dsnb.results.answers.sentences import PHRASES, Sentence, say
from dsnb.results.runs import labels
from dsnb.results.runs.number_text import (
    CARD_DIGITS,
    amount,
    duration_within,
    fixed,
    rounded,
    significant,
    supported,
)
from dsnb.results.statistics.intervals import RELEVANCE
from dsnb.settings.experiment import Experiment
from dsnb.settings.training import file_name

WORDS = PHRASES["of_lines"]
LEAST_PCT = 0.5
"""Smaller differences are rounding errors of whole per cents."""
MAX_LINES = 9
"""Most lines of 100 columns; a tenth has the options that were assumed, and those to go on with."""
MANY_ASSUMED = 3
"""With more assumed options, that line is two."""
MARK = "*"


def lines(
    search: Search,
    result: SearchResult,
    assumed: Sequence[str] = (),
    least_gpus: int = 0,
    offloaded: bool = False,
) -> list[Line]:
    """Return the lines of the recommended setting and its alternatives, or why there is none.

    `assumed` are the options that were not given. `least_gpus` is the smallest power of two of GPUs
    that fits, 0 if that is unknown. `offloaded` says that offload was considered. Bad news come
    first, and the last alternatives are left out where the lines would be too many.
    """
    name = next(iter(search.asked))
    if result.chosen:
        name = result.chosen[0]
    title = _title(search, search.asked[name], bool(assumed))
    if not result.chosen:
        unfit = [title, note(no_fit(search, offloaded, by_words=True))]
        if least_gpus:
            unfit.append(note(say("enough", least=least_gpus)))
        return unfit
    best = result.options.loc[name]
    found = [title]
    warnings = "; ".join(warnings_of(search, result, best))
    if warnings:
        found.append(line("warned", warnings=warnings[0].upper() + warnings[1:]))
    found.append(line("train", setting=labels.setting(vars(search.asked[name]))))
    found += [one for one in _figures(search, best, least_gpus) if one.cells[1]]
    alternatives = list(_alternatives(search, result))
    certainty = _certainty(search, best)
    most = MAX_LINES
    if len(assumed) > MANY_ASSUMED:
        most -= 1
    while alternatives[1:] and height([*found, *alternatives, certainty]) > most:
        alternatives.pop()
    return [*found, *alternatives, certainty]


def _title(search: Search, experiment: Experiment, is_marked: bool) -> Line:
    run = {"gpus": experiment.gpus, "gpu_name": search.target.hardware.gpu.name}
    if search.target.device == "cpu":
        run = {"gpus": experiment.gpus, "device": "cpu"}
    return title(experiment, search.question, labels.place(run), is_marked)


def title(experiment: Experiment, question: Question, place: str, is_marked: bool) -> Line:
    """Return what is trained on which GPUs; a mark says that some of it was assumed."""
    trained = ""
    if experiment.lora_rank:
        trained = "with LoRA"
    data = ""
    if experiment.data != "synthetic":
        data = labels.axis("data").describe(experiment.data)
    return line(
        "title",
        model=file_name(experiment.model),
        trained=trained,
        data=data,
        place=place,
        tokens=amount(question.tokens),
        batch=fixed(experiment.global_batch_size),
        length=fixed(experiment.seq_len),
        mark=MARK if is_marked else "",
    )


def _figures(search: Search, best: "pd.Series[Any]", least_gpus: int) -> Iterator[Line]:
    """Yield time, speed and memory; lines whose figure is unknown have none."""
    experiment = search.asked[str(best.name)]
    facts = card.figures(best, search.question)
    shown = card.within_range(best)
    time, times = duration_within(24 * shown["days"], 24 * best["days_low"], 24 * best["days_high"])
    bounds = {"least": "", "most": ""}
    if is_tight(best):
        bounds = WORDS["bounds"]
        times = ""
        facts["rates"] = ""
    facts |= bounds | {"time": time, "times": times}
    error = best["tokens_per_s_error_pct"] / 100
    facts["rate"] = supported(shown["tokens_per_s"], error, CARD_DIGITS)
    facts["hours"] = supported(shown["gpu_hours"], error, CARD_DIGITS)
    yield line("time", **facts)
    if best["basis"] != PREDICTED:
        facts["rates"] = spread(best["spread_pct"])
    else:
        part, share = next(iter(shares_of_step(best).items()))
        mfu = best["mfu"] * shown["tokens_per_s"] / best["tokens_per_s"]
        facts |= {"share": share, "part": WORDS["parts"].get(part, part)}
        facts["mfu"] = rounded(100 * mfu, 2)
    yield line("speed", **facts)
    room_gib = search.room_gib[str(best.name)]
    if search.target.device == "cpu" or math.isnan(best["memory_gib"]):
        return
    error_gib = best["memory_gib"] * best["peak_allocated_error_pct"] / 100
    facts["headroom"] = significant(max(0.0, room_gib - best["memory_gib"]))
    if is_tight(best):
        facts["headroom"] = ""
    yield line(
        "memory",
        memory=facts["memory"],
        room=significant(room_gib),
        memory_gib=significant(error_gib, 1),
        left=say("left", headroom=facts["headroom"]) or _reserved(best),
        host=_host(best, experiment),
        fewer=_fewer(experiment.gpus, least_gpus),
    )


def _reserved(row: "pd.Series[Any]") -> str:
    """Return what torch would reserve, which decides where memory is tight."""
    return say("reserved", reserved=significant(row["peak_reserved_gib"]))


def _host(best: "pd.Series[Any]", experiment: Experiment) -> str:
    """Return the host memory that offload needs."""
    if not offloads(experiment) or math.isnan(best["host_memory_gib"]):
        return ""
    return say("host", need=significant(best["host_memory_gib"]))


def _fewer(gpus: int, least: int) -> str:
    """Return how many GPUs have enough memory, if that is known."""
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
    label = WORDS["or"]
    for other in others:
        row = options.loc[other]
        worse_pct = 100 * (row[column] / options.loc[name, column] - 1)
        main, more = split(changes(search.asked[name], search.asked[other]))
        difference = _difference(options.loc[[name, other]], worse_pct, search)
        remarks = [_remark(options.loc[[name, other]], worse_pct, difference, search), *more]
        yield line(
            "alternative",
            label=label,
            changes=main,
            difference=difference,
            memory=significant(row["memory_gib"]),
            remark="; ".join(filter(None, remarks)),
        )
        label = " "


def _remark(pair: pd.DataFrame, worse_pct: float, difference: str, search: Search) -> str:
    """Return why the second setting is not recommended, or what its figures rest on."""
    first, second = pair["basis"]
    if is_tight(pair.iloc[1]):
        return _reserved(pair.iloc[1])
    if difference == WORDS["equal"]:
        simple, other = (simplicity(search.asked[name]) for name in pair.index)
        if simple < other:
            return str(WORDS["less_simple"])
    if first != second:
        return str(second)
    if second != PREDICTED and abs(worse_pct) < pair["spread_pct"].sum():
        return str(WORDS["overlap"])
    return ""


def _difference(pair: pd.DataFrame, worse_pct: float, search: Search) -> str:
    """Return by how much an alternative is worse, and the error of that; no more than `RELEVANCE` better is equal."""
    if -100 * RELEVANCE <= worse_pct < LEAST_PCT:
        return str(WORDS["equal"])
    worse, better = WORDS["longer"][search.question.objective]
    word = worse
    if worse_pct < 0:
        word = better
    error = ""
    if (pair["basis"] == PREDICTED).any() and not tight(pair).any():
        error = significant(doubt(pair, search)[0], 1)
    return say("difference.predicted", by=fixed(abs(worse_pct)), error=error, word=word)


def _certainty(search: Search, best: "pd.Series[Any]") -> Line:
    """Return what the figures rest on."""
    hardware = search.target.hardware
    if best["basis"] != PREDICTED:
        return line("measured", basis=str(best["basis"]).capitalize())
    experiment = search.asked[str(best.name)]
    facts = {"loop": "your loop" if hardware.loop else "", "ranges": WORDS["ranges"]}
    if is_tight(best):
        facts["ranges"] = ""
    nodes = hardware.link.nodes(experiment)
    in_short = nearest.in_short(experiment, hardware.gpu, nodes)
    return line("predicted", nearest=in_short, **facts)


def warnings_of(search: Search, result: SearchResult, best: "pd.Series[Any]") -> Iterator[Sentence]:
    """Yield what the reader must know before relying on a predicted setting, the worst first."""
    experiment = search.asked[str(best.name)]
    if best["days"] > MAX_DAYS:
        yield say("warning.too_slow", **card.needed_gpus(result.options, search.question))
    if best["basis"] != PREDICTED:
        return
    if is_tight(best):
        yield say("warning.tight")
    if offloads(experiment) and math.isnan(best["host_memory_gib"]):
        yield say("warning.host_memory")
    elif offloads(experiment) and math.isnan(search.target.hardware.host_gib):
        yield say("warning.host", need=significant(best["host_memory_gib"]))
    if experiment.allocator == "default":
        yield say("warning.allocator")
    if best["outside"]:
        yield say("warning.outside", outside=best["outside"])
    if search.failed:
        reason = next(iter(search.failed.values()))
        yield say("warning.untraced", left_out=len(search.failed), reason=reason)
