"""Why a setting is recommended: its cost, what limits it, the alternatives, how sure that is, and what cannot fit."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from dsnb.base.formulas.planning import MAX_DAYS
from dsnb.prediction import ratio_errors
from dsnb.prediction.host_memory import USABLE, offloads
from dsnb.prediction.predict import nearest_run
from dsnb.prediction.search import Search, SearchResult
from dsnb.prediction.speed_range import SpeedRange
from dsnb.results.answers import card
from dsnb.results.answers.decide import PREDICTED, Question, is_tight, tight
from dsnb.results.answers.sentences import PHRASES, Sentence, say
from dsnb.results.runs import labels
from dsnb.results.runs.number_text import significant
from dsnb.results.statistics.intervals import RELEVANCE
from dsnb.settings.experiment import Experiment
from dsnb.settings.parallelism import parallelism

CHANGED = (
    "precision", "mixed_precision", "compile", "activation_checkpointing", "checkpoint_every", "loss", "offload",
    "optimizer", "gpus", "micro_batch_size", "grad_accum",
)  # fmt: skip
"""Settings named where two settings differ, in this order, after the strategy."""
LIMITS: dict[str, list[str]] = PHRASES["limits"]
"""What can limit a step, and the parts of its time (`dsnb.prediction.step_time.StepTime`)."""


def explanation(search: Search, result: SearchResult) -> Iterator[Sentence]:
    """Yield the sentences on the recommended setting and its alternatives."""
    question = search.question
    options = result.options
    ranked = options.loc[result.chosen]
    best = ranked.iloc[0]
    name, *others = result.chosen
    experiment = search.asked[name]
    worse = 100 * (options[question.column] / best[question.column] - 1)
    facts = card.figures(best, question) | {"name": labels.setting(vars(experiment))}
    if facts["memory"]:
        room_gib = search.room_gib[name]
        facts["room"] = significant(room_gib)
        facts["headroom"] = significant(max(0.0, room_gib - best["memory_gib"]))
    yield say("plan", what="Train with", **facts)
    if best["basis"] == PREDICTED:
        yield _limits(best)
    if offloads(experiment):
        yield _host_memory(best, experiment, search)
    if is_tight(best):
        room = best["peak_allocated_gib"] + best["headroom_gib"]
        yield say("tight", reserved=f"{best['peak_reserved_gib']:.1f}", room=f"{room:.1f}")
    if best["days"] > MAX_DAYS:
        yield say("too_slow", needed=say("needed", **card.needed_gpus(options, question)))
    first = options.index[0]
    if result.tied > 1 and first == name:
        yield say("simplest", tied=result.tied)
    elif result.tied > 1:
        by = f"{-worse[first]:.1f} % better"
        yield say("simplest.slower", tied=result.tied, first=first, by=by)
    for other in others:
        row = options.loc[other]
        yield say(
            "alternative",
            changes=", ".join(changes(experiment, search.asked[other])),
            difference=_by(worse[other], question),
            need=significant(row["memory_gib"]),
            tight="memory is tight" if is_tight(row) else "",
        )
    if others:
        yield _runner_up(ranked.head(2), search)
    if best["basis"] == PREDICTED:
        if experiment.allocator == "default":
            yield say("allocator")
        yield from _evidence(best, nearest_run(experiment, search.target.hardware))
    if best["outside"]:
        yield say("outside", outside=best["outside"])


def shares_of_step(best: "pd.Series[Any]") -> dict[str, int]:
    """Return what a predicted step spends its time on in per cent, the largest part first."""
    shares = {}
    for name, parts in LIMITS.items():
        seconds = sum(best.get(part, 0.0) for part in parts)
        shares[name] = round(100 * seconds / best["step_time_s"])
    ordered = sorted(shares, key=lambda name: -shares[name])
    return {name: shares[name] for name in ordered if shares[name]}


def _limits(best: "pd.Series[Any]") -> Sentence:
    """Return what a predicted step spends its time on."""
    shown = ", ".join(f"{share} % {name}" for name, share in shares_of_step(best).items())
    shown_s = card.within_range(best)["step_time_s"]
    return say("limits", step=significant(shown_s), shares=shown)


def _evidence(best: "pd.Series[Any]", nearest: str) -> Iterator[Sentence]:
    """Yield what the range of a predicted speed was measured on, that of other programs, and the nearest run."""
    if not is_tight(best):
        facts = {"on": best["step_time_error_on"], "bases": bases(best), "beyond": ""}
        rate = best["tokens_per_s"]
        if best["tokens_per_s_high"] < rate:
            facts["beyond"] = f"{100 * best['mfu'] * best['tokens_per_s_high'] / rate:.0f} %"
        yield say("range", **facts)
    yield say("nearest", nearest=nearest)


def bases(row: Mapping[Any, Any]) -> str:
    """Return the range of a speed by dsnb's own runs beside that by other programs; empty without both."""
    texts = {}
    for basis in ("own", "others"):
        ends = [row[f"{basis}_{end}"] / row["tokens_per_s"] for end in ("low", "high")]
        if any(map(math.isnan, ends)):
            return ""
        low, high = ends
        texts[basis] = SpeedRange(low, high, on=basis).words
    return say("range.bases", **texts)


def _host_memory(best: "pd.Series[Any]", experiment: Experiment, search: Search) -> Sentence:
    """Return the host memory that offload needs, and what the host has, if that is known."""
    on = search.target.hardware
    need_gib = best["host_memory_gib"]
    if math.isnan(need_gib):
        return say("host_memory.unpredicted")
    each_node = "on each node" if on.link.nodes(experiment) > 1 else ""
    facts = {"need": significant(need_gib), "each_node": each_node}
    if math.isnan(on.host_gib):
        return say("host_memory.unknown", **facts)
    lack = "which is too little"
    if need_gib <= USABLE * on.host_gib:
        lack = ""
    return say("host_memory", host=significant(on.host_gib), lack=lack, **facts)


def changes(before: Experiment, after: Experiment) -> list[str]:
    """Return how a setting differs from another one, as in ["FSDP", "not compiled", "micro-batch 16"].

    The accumulation follows from the micro-batch where the global batch is the same.
    """
    first = vars(before)
    then = vars(after)
    differing = [name for name in first if first[name] != then[name]]
    named = dict.fromkeys(name for name in CHANGED if name in differing)
    if "activation_checkpointing" in named:
        named.pop("checkpoint_every", None)
    if "micro_batch_size" in named and before.global_batch_size == after.global_batch_size:
        named.pop("grad_accum", None)
    found = []
    if parallelism(then) != parallelism(first):
        found.append(labels.axis(labels.PARALLELISM).describe(parallelism(then)))
    for name in named:
        if labels.has_effect(then, name):
            found.append(labels.choice(then, name))
    return found or [labels.choice(then, name) for name in differing]


def _by(worse_pct: float, question: Question) -> str:
    """Return by how much a setting is worse than the recommended one, as in "5.7 % longer".

    One that is better by no more than `RELEVANCE` counts as equal, and is less simple.
    """
    if abs(worse_pct) < 0.05:
        return "equal"
    if -100 * RELEVANCE <= worse_pct < 0:
        return "equal within 2 %"
    worse, better = PHRASES["of_lines"]["longer"][question.objective]
    word = worse
    if worse_pct < 0:
        word = better
    return f"{abs(worse_pct):.1f} % {word}"


def _runner_up(pair: pd.DataFrame, search: Search) -> Sentence:
    """Return how far the second setting is from the first, and whether the error of predictions is larger.

    For two predicted settings that is the error of predicted ratios, for one the error of its
    figure.
    """
    question = search.question
    best, second = pair[question.column]
    worse = 100 * (second / best - 1)
    predicted = pair[pair["basis"] == PREDICTED]
    facts = {
        "name": pair.index[1],
        "basis": pair["basis"].iloc[1],
        "difference": _by(worse, question),
        "predicted": " and ".join(predicted.index),
    }
    of_memory = question.objective == "memory"
    open_ = predicted.index[tight(predicted)]
    if len(open_) and not of_memory:
        return say("runner_up.tight", tight=" and ".join(open_), **facts)
    if predicted.empty:
        return say("runner_up.measured", **facts)
    doubt_pct, origin = doubt(pair, search)
    role = "runner_up" if abs(worse) > doubt_pct else "runner_up.within"
    return say(role, doubt=origin, **facts)


def doubt(pair: pd.DataFrame, search: Search) -> tuple[float, str]:
    """Return the error of the difference of two settings in per cent, and in words; one at least is predicted."""
    of_memory = search.question.objective == "memory"
    predicted = pair[pair["basis"] == PREDICTED]
    if len(predicted) == 2 and not of_memory:
        target = search.target
        known = ratio_errors.errors_for(target.hardware.gpu, target.link, target.calibrate)
        experiments = [search.asked[name] for name in pair.index]
        return ratio_errors.doubt(experiments, list(pair["limited_by"] == "CPU"), known)
    figure = "peak_allocated" if of_memory else "tokens_per_s"
    doubt_pct = predicted[f"{figure}_error_pct"].max()
    return doubt_pct, f"the error of {doubt_pct:.1f} %"


def out_of_reach(search: Search) -> Sentence:
    """Return which ways of sharing cannot fit: what the smallest candidate of each needs."""
    need_gib = search.table["peak_allocated_gib"].fillna(search.least_gib)
    needs = []
    for name in need_gib.groupby(search.sharing, sort=False).idxmin():
        if need_gib[name] > search.room_gib[name]:
            sharing = parallelism(vars(search.asked[name]))
            facts = {"need": f"{need_gib[name]:.0f}", "room": f"{search.room_gib[name]:.0f}"}
            needs.append(say("out_of_reach.need", sharing=sharing, **facts))
    return say("out_of_reach", needs=", ".join(needs))


def no_fit(search: Search, offloaded: bool = False, by_words: bool = False) -> Sentence:
    """Return that no setting fits, and what the smallest one needs, by its name or in words."""
    row = search.table.loc[search.table["peak_allocated_gib"].idxmin()]
    host_gib = search.target.hardware.host_gib
    facts = {
        "need": f"{row['peak_allocated_gib']:.1f}",
        "room": f"{row['peak_allocated_gib'] + row['headroom_gib']:.1f}",
    }
    if row["host_memory_gib"] > USABLE * host_gib:
        facts["host_need"] = significant(row["host_memory_gib"])
        facts["host"] = significant(host_gib)
    least = str(row.name)
    if by_words:
        least = labels.setting(vars(search.asked[least]))
    smallest = {"least": least, "need": say("need", **facts)}
    if offloaded:
        return say("no_fit.offloaded", **smallest)
    if search.table["fits"].any():
        return say("no_fit", reason=say("reason.out_of_memory"))
    model = next(iter(search.asked.values())).model
    return say("no_fit", reason=say("reason.smallest", model=model, **smallest))
