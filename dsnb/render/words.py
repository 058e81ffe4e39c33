"""Decisions in words: what to train with, what it costs, what comes next, and how sure that is.

All sentences are templates (`dsnb.analysis.texts.fill`), which the page receives as data and fills with the same facts.
What is certain about a difference is said by its verdict alone (`dsnb.analysis.comparisons`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dsnb.analysis.decide import MEASURED, PUBLISHED, Decision, Question, basis, memory_figure
from dsnb.analysis.intervals import MIN_RUNS, Verdict
from dsnb.analysis.summary import UNSTABLE
from dsnb.analysis.texts import MINUS, amount, duration, fill, fixed, significant
from dsnb.render.templates import (
    ASSUMED,
    BEST,
    BEYOND,
    BY_MEAN,
    EQUAL_PCT,
    NEEDED,
    PLACE,
    SHOWN_GIB,
    TEMPLATES,
    VERDICTS,
    WORSE,
)
from dsnb.runs import labels, setting_words
from dsnb.runs.columns import numbers
from dsnb.runs.literature.tables import SOURCE, is_own
from dsnb.settings.planning import GOAL_DAYS, MOST_DAYS, gpus_needed


@dataclass(frozen=True)
class Words:
    """The sentences of a card, as plain text.

    Attributes
    ----------
    kicker
        In what the setting is the best, and of how many.
    headline
        What to train with, or why nothing can be said.
    costs, note, following, basis
        What it takes, what the measured settings do not cover, what comes next, and what that rests on; empty where
        nothing can be said.
    table
        Rows of choice, value in the first and in the second setting, where these differ in several.
    """

    kicker: str
    headline: str
    costs: str = ""
    note: str = ""
    following: str = ""
    basis: str = ""
    table: tuple[tuple[str, str, str], ...] = ()


def say(name: str, facts: Mapping[str, object]) -> str:
    """Return the sentence of this name in `TEMPLATES`; the limits that sentences state are added to the facts."""
    limits = {"max_days": f"{MOST_DAYS:g}", "goal_days": f"{GOAL_DAYS:g}", "unstable_times": f"{UNSTABLE:g}"}
    return fill(TEMPLATES[name], {**limits, **facts})


def words(decision: Decision) -> Words:
    """Return what a decision on measured settings says."""
    if decision.options.empty:
        return Words("", _why_not(decision), costs=memory_of_failed(decision.runs))
    best, run = decision.options.iloc[0], decision.settings.iloc[0].to_dict()
    unit = setting_words.unit(run)
    facts = {**_setting(run), "unit": unit, "tokens": amount(decision.question.tokens), **_origin(best, run)}
    facts |= {"rate": significant(best["tokens_per_s"]), "basis": best["basis"]}
    bases = set(decision.options["basis"])
    number = len(decision.options)
    named = {"best": _unit(BEST[decision.question.objective], unit), "options": fixed(number) if number > 1 else ""}
    kicker = say("kicker", {**named, "basis": best["basis"] if len(bases) == 1 else ""})
    rest = (_note(decision, unit), _following(decision, unit), say("basis", facts), _table(decision, unit))
    if decision.is_beyond:
        fastest = _setting(decision.settings.loc[decision.options["days"].idxmin()].to_dict())
        headline = say("headline.beyond", {**fastest, "tokens": facts["tokens"]})
        needed = _needed(decision.options, unit, _cost_of(decision, unit), _named(decision))
        first = {"kicker": kicker or str(best["basis"]).capitalize()}
        return Words("", headline, say("costs.beyond", {**facts, **first, **needed, "basis": MEASURED}), *rest)
    return Words(kicker, say("headline", facts), say("costs", {**facts, **_costs(decision, unit)}), *rest)


def _unit(text: str, unit: str) -> str:
    return text.replace("{unit}", unit)


def _setting(run: Mapping[str, Any]) -> dict[str, str]:
    model = labels.text(run.get("model"))
    setting, place = setting_words.setting(run), setting_words.place(run)
    return {"model": "" if model == "-" else model, "setting": setting, "place": place}


def said_of(run: Mapping[str, Any]) -> dict[str, str]:
    """Return what sentences say about a setting: model, setting, place, unit of hardware, origin of its figures."""
    return {**_setting(run), "unit": setting_words.unit(run), "origin": origin(run)}


def _costs(decision: Decision, unit: str) -> dict[str, str]:
    """Return what a training takes with the best option: time, hours, energy and cost, then memory."""
    best = decision.options.iloc[0]
    figure = memory_figure(decision.runs)
    return {
        "duration": duration(24 * best["days"]),
        "hours": significant(best["gpu_hours"]),
        "energy": _known(best["energy_kwh"]),
        "cost": cost(best, decision.question, unit) or TEMPLATES["no_cost"],
        "memory_name": memory_name(figure),
        "memory": _known(best["memory_gib"]),
        "capacity": _known(best["gpu_memory_gib"]),
    }


def memory_name(figure: str | None) -> str:
    """Return what a figure of memory is called in a sentence."""
    return "host memory" if figure == "host_memory_gib" else "GPU memory"


def _known(value: float) -> str:
    return "" if pd.isna(value) else significant(value)


def cost(option: "pd.Series[Any]", question: Question, unit: str) -> str:
    """Return what an option costs and at which price; empty without a price."""
    if not option["price"] > 0:
        return ""
    assumed = "" if {option["kind"], ""} & set(question.prices) else ASSUMED
    price = {"currency": question.currency, "price": fixed(option["price"], 2), "unit": unit, "assumed": assumed}
    return say("cost", {**price, "cost": significant(option["cost"])})


def _cost_of(decision: Decision, unit: str) -> str:
    return cost(thrifty(decision.options), decision.question, unit)


def thrifty(options: pd.DataFrame) -> "pd.Series[Any]":
    """Return the option with the fewest GPU-hours."""
    return options.loc[options["gpu_hours"].idxmin()]


def _named(decision: Decision) -> str:
    """Return the setting with the fewest GPU-hours in words, unless it is the best one, which was named before."""
    name = decision.options["gpu_hours"].idxmin()
    return "" if name == decision.options.index[0] else setting_words.setting(decision.settings.loc[name].to_dict())


def _needed(options: pd.DataFrame, unit: str, cost: str, by: str) -> dict[str, str]:
    """Return how many GPUs would be enough if each were as fast as those of the setting with the fewest GPU-hours."""
    least = thrifty(options)
    return {
        "needed": fixed(gpus_needed(least["gpu_hours"])),
        "rate_per_gpu": significant(least["tokens_per_s"] / least["gpus"]),
        "by": by,
        "hours": significant(least["gpu_hours"]),
        "unit": unit,
        "cost": cost,
        "basis": str(least["basis"]),
    }


def beyond(
    options: pd.DataFrame, what: str, place: str, tokens: float, currency: str, unit: str = "GPU"
) -> tuple[str, str]:
    """Return that no option is fast enough, and how many GPUs would be.

    Parameters
    ----------
    options
        Candidates with their costs, the fastest first.
    what
        What they are, such as `measured setting`.
    place
        Where the fastest ran, such as `8 GPUs`.
    tokens, currency
        Tokens to train on, and the sign of amounts.
    unit
        `GPU` or `rank`.
    """
    least = thrifty(options)
    limits = {"max_days": f"{MOST_DAYS:g}", "goal_days": f"{GOAL_DAYS:g}"}
    spent = "" if pd.isna(least["cost"]) else f"{currency}{significant(least['cost'])}"
    by = "" if least.name == options.index[0] else str(least.name)
    first = fill(BEYOND, {**limits, "what": what, "tokens": amount(tokens), "place": place})
    return first, fill(NEEDED, {**limits, **_needed(options, unit, spent, by)})


def _note(decision: Decision, unit: str) -> str:
    """Say that fewer GPUs were measured than are at hand, and how many settings are too slow or unstable to answer."""
    number, gpus = decision.question.gpus, decision.gpus
    said = []
    if number > gpus[-1]:
        *others, last = map(fixed, gpus)
        facts = {"measured": f"{', '.join(others)} and {last}" if others else last, "unit": unit}
        facts |= {"at_hand": fixed(number), "gpus": fixed(decision.options["gpus"].iloc[0])}
        said.append(say("note.only_measured", {**facts, "more": say(f"note.more.{unit}", {"number": number})}))
    if decision.too_slow:
        said.append(say("note.too_slow", {"too_slow": fixed(decision.too_slow)}))
    if decision.unstable:
        said.append(left_out_unstable(decision.unstable))
    return " ".join(said)


def left_out_unstable(number: int) -> str:
    """Return that settings are not ranked because their repeats do not agree."""
    return say("note.unstable", {"unstable": fixed(number)})


def _why_not(decision: Decision) -> str:
    runs, question = decision.runs, decision.question
    if decision.table.empty:
        return say(f"headline.{case(runs)}", {"runs": len(runs), "several": len(runs) if len(runs) > 1 else ""})
    fewest = decision.table["gpus"].min()
    if question.gpus and fewest > question.gpus:
        unit = setting_words.unit(runs[(runs["status"] == "ok") & (numbers(runs, "gpus") > 0)].iloc[0].to_dict())
        facts = {"at_hand": fixed(question.gpus), "unit": unit, "fewest": f"{fewest:g}"}
        return say("headline.too_few_gpus", facts)
    if decision.unstable:
        return say("headline.unstable", {"unstable": fixed(decision.unstable)})
    return say("headline.no_price" if question.objective == "cost" else "headline.no_memory", {})


def case(runs: pd.DataFrame) -> str:
    """Return why the runs of a task have no candidate, as the templates `headline.*` name it."""
    ok = runs[runs["status"] == "ok"]
    if runs.empty or ok.empty:
        return "no_runs" if runs.empty else "failed"
    return "no_gpus" if (numbers(ok, "tokens_per_s") > 0).any() else "no_speed"


def memory_of_failed(runs: pd.DataFrame) -> str:
    """Return how much memory runs used that are not ok, where no run is."""
    if (runs["status"] == "ok").any():
        return ""
    used = pd.concat([numbers(runs, name) for name in ("oom_allocated_gib", *labels.MEMORY)], axis=1).max(axis=1)
    known = used.dropna()
    if known.empty:
        return ""
    ends = dict.fromkeys([significant(known.min()), significant(known.max())])
    return f"Memory in use before they ended: {' to '.join(ends)} GiB."


def _following(decision: Decision, unit: str) -> str:
    """Say which setting comes next, how far it is from the best, and how sure that is."""
    if len(decision.options) < 2:
        return say("following.none", {})
    first, second = decision.options.iloc[0], decision.options.iloc[1]
    row, gib = decision.difference, second["memory_gib"] - first["memory_gib"]
    facts = {"changes": _changes(decision)}
    if row is not None and not pd.isna(row["change_pct"]):
        facts["difference"] = _difference(row, decision, unit)
    if abs(gib) >= SHOWN_GIB:  # false where it is unknown
        facts |= {"gib": significant(abs(gib)), "more": "more" if gib > 0 else "less"}
    return say("following", facts)


def _changes(decision: Decision) -> str:
    """Return what the second option does otherwise, in words."""
    run = decision.settings.iloc[1].to_dict()
    changed = [
        labels.axis(name).describe(other)
        for name, (_, other) in decision.differing.items()
        if name not in PLACE and setting_words.has_effect(run, name)
    ]
    place = setting_words.place(run) if {*PLACE} & set(decision.differing) else ""
    if changed:
        return ", ".join([*changed, *([f"on {place}"] if place else [])])
    return say("changes.place", {"place": place}) or say("changes.same", {"experiment": decision.options.index[1]})


def _table(decision: Decision, unit: str) -> tuple[tuple[str, str, str], ...]:
    differing = decision.differing if len(decision.options) > 1 else {}
    if len(differing.keys() - PLACE) + bool(differing.keys() & PLACE) < 2:
        return ()
    rows = (
        (axis_title(name, unit), labels.text(best), labels.text(other)) for name, (best, other) in differing.items()
    )
    return tuple(rows)


def axis_title(name: str, unit: str) -> str:
    """Return the title of a setting; where there are no GPUs, their number is that of ranks."""
    return f"{unit}s" if name == "gpus" else labels.axis(name).title


def _difference(row: "pd.Series[Any]", decision: Decision, unit: str) -> str:
    """Return how much worse the mean of a setting is, with the interval of that; of too few runs, their median.

    The best setting has the best median; by the mean of its runs, another one may be better.
    """
    question = decision.question
    worse = worsening(row["change_pct"], question.objective)
    is_better, is_few = int(worse <= -EQUAL_PCT), row["verdict"] == Verdict.TOO_FEW
    by = "no" if abs(worse) < EQUAL_PCT else f"{significant(abs(worse), 2)} %"
    size = {"by": by, "worse": _unit(WORSE[question.objective][is_better], unit)}
    facts = {"size": say("size", {**size, "mean": "" if is_few else BY_MEAN[is_better]}), "needed": MIN_RUNS}
    if is_few:
        base_n, n = (int(number) for number in decision.options["n"].iloc[:2])
        counted = "run" if min(base_n, n) < MIN_RUNS else "host"
        if counted == "host":
            base_n, n = row["base_n"], row["n"]
        counts = {"n": n, "base_n": base_n, "counted": counted}
        runs = say("runs.one_each" if n == base_n == 1 else "runs.both", counts)
        is_same = abs(worse) < 100 * question.relevance
        return say("difference.few_same" if is_same else "difference.few", {**facts, "runs": runs})
    flip = -1 if worse < 0 else 1
    ends = sorted(flip * worsening(row[name], question.objective) for name in ("low_pct", "high_pct"))
    facts["interval"] = say("interval", dict(zip(("low", "high"), map(_end, ends), strict=True)))
    return say(f"difference.{next(name for name, verdict in VERDICTS.items() if verdict == row['verdict'])}", facts)


def worsening(change_pct: float, objective: str) -> float:
    """Return by how many per cent less speed, or more of what is to be least, a change of throughput is."""
    return -change_pct if objective == "time" else 100 * (1 / (1 + change_pct / 100) - 1)


def _end(value: float) -> str:
    """Return an end of an interval with the digits that `dsnb.analysis.texts.signed` shows it with."""
    text = fixed(abs(value), 1 if abs(value) < 99.95 else 0)
    return f"{MINUS}{text}" if value < 0 and text != "0.0" else text


def _origin(best: "pd.Series[Any]", run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that tell what is measured from what is extrapolated."""
    n, failed = int(best["n"]), int(best["n_failed"])
    memory = "" if pd.isna(best["memory_gib"]) else "memory"
    return {"memory_word": memory, "origin": origin(run), "n": n, "several": n if n > 1 else "", "failed": failed or ""}


def origin(run: Mapping[str, Any]) -> str:
    """Return where the figures of a run come from: measured here, in dsnb's own published tables, or by others."""
    if basis(run) == PUBLISHED:
        return "published, not measured here"
    source = labels.text(run.get("source"))
    return f"measured with dsnb, published as {source.removeprefix(SOURCE)}" if is_own(source) else "measured"
