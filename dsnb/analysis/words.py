"""Decisions in words: what to train with, what it costs, what comes next, and how sure that is.

All sentences are templates (`dsnb.analysis.texts.fill`), which the page receives as data and fills with the same facts.
What is certain about a difference is said by its verdict alone (`dsnb.analysis.comparisons`).
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from dsnb.analysis.decide import CPU, MEASURED, PUBLISHED, Decision, Question, basis, memory_figure
from dsnb.analysis.intervals import MIN_RUNS, Verdict
from dsnb.analysis.summary import UNSTABLE
from dsnb.analysis.templates import (
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
from dsnb.analysis.texts import MINUS, amount, duration, duration_range, fill, fixed, significant
from dsnb.runs import labels
from dsnb.runs.literature.tables import SOURCE, is_own
from dsnb.runs.table import numbers
from dsnb.settings.planning import GOAL_DAYS, MAX_DAYS, gpus_needed


def say(name: str, facts: Mapping[str, object]) -> str:
    """Return the sentence of this name in `TEMPLATES`; the limits that sentences state are added to the facts."""
    limits = {"max_days": f"{MAX_DAYS:g}", "goal_days": f"{GOAL_DAYS:g}", "unstable_times": f"{UNSTABLE:g}"}
    return fill(TEMPLATES[name], {**limits, **facts})


def words(decision: Decision) -> dict[str, Any]:
    """Return what a decision on measured settings says, by the parts of a card.

    Returns
    -------
    dict
        `kicker`: in what the setting is the best, and of how many. `headline`: what to train with, or why nothing can
        be said. `costs`, `note`, `following`, `basis`: what it takes, what the measured settings do not cover, what
        comes next, and what that rests on. `table`: rows of choice, value in the first and in the second setting, where
        these differ in several. What cannot be said is empty.
    """
    card: dict[str, Any] = dict.fromkeys(("kicker", "headline", "costs", "note", "following", "basis"), "")
    if decision.options.empty:
        return {**card, "headline": _why_not(decision), "costs": memory_of_failed(decision.runs), "table": []}
    options, question = decision.options, decision.question
    best = _facts(decision, options.index[0])
    unit, tokens = best["unit"], amount(question.tokens)
    of_what = BEST[question.objective].replace("{unit}", unit)
    number = fixed(len(options)) if len(options) > 1 else ""
    basis = best["basis"] if options["basis"].nunique() == 1 else ""
    card["kicker"] = say("kicker", {"best": of_what, "options": number, "basis": basis})
    card |= {"note": _note(decision, unit), "following": _following(decision, unit), "basis": say("basis", best)}
    card["table"] = _table(decision, unit)
    if not decision.is_beyond:
        costs = {**best, "tokens": tokens, "cost": best["cost"] or TEMPLATES["no_cost"]}
        return card | {"headline": say("headline", best), "costs": say("costs", costs)}
    fastest, least = (options[name].idxmin() for name in ("days", "gpu_hours"))
    thrifty = _facts(decision, least)
    needed = {**_needed(options.loc[least]), "cost": thrifty["cost"], "basis": MEASURED}
    needed["by"] = "" if least == options.index[0] else thrifty["setting"]
    kicker = card["kicker"] or best["basis"].capitalize()
    card |= {"kicker": "", "costs": say("costs.beyond", {**best, **needed, "kicker": kicker})}
    return card | {"headline": say("headline.beyond", {**_facts(decision, fastest), "tokens": tokens})}


def _facts(decision: Decision, name: object) -> dict[str, Any]:
    """Return all that sentences say about an option, as texts."""
    option, run = decision.options.loc[name], decision.settings.loc[name].to_dict()
    facts, n, failed = said_of(run), int(option["n"]), int(option["n_failed"])
    texts = {"hours": "gpu_hours", "energy": "energy_kwh", "memory": "memory_gib", "capacity": "gpu_memory_gib"}
    return {
        **facts,
        **{text: "" if pd.isna(option[column]) else significant(option[column]) for text, column in texts.items()},
        "basis": str(option["basis"]),
        "rate": significant(option["tokens_per_s"]),
        "duration": duration(24 * option["days"]),
        "cost": cost(option, decision.question, facts["unit"]),
        "memory_name": memory_name(memory_figure(decision.runs)),
        "memory_word": "" if pd.isna(option["memory_gib"]) else "memory",
        "n": n,
        "several": n if n > 1 else "",
        "failed": failed or "",
    }


def said_of(run: Mapping[str, Any]) -> dict[str, str]:
    """Return what sentences say about a setting: model, setting, place, unit of hardware, origin of its figures."""
    model = labels.text(run.get("model"))
    return {
        "model": "" if model == "-" else model,
        "setting": labels.setting(run),
        "place": labels.place(run),
        "unit": labels.unit(run),
        "origin": origin(run),
    }


def memory_name(figure: str | None) -> str:
    """Return what a figure of memory is called in a sentence."""
    return "host memory" if figure == "host_memory_gib" else "GPU memory"


def cost(option: "pd.Series[Any]", question: Question, unit: str) -> str:
    """Return what an option costs and at which price; empty without a price."""
    if not option["price"] > 0:
        return ""
    assumed = "" if {option["kind"], ""} & set(question.prices) else ASSUMED
    price = {"currency": question.currency, "price": fixed(option["price"], 2), "unit": unit, "assumed": assumed}
    return say("cost", {**price, "cost": significant(option["cost"])})


def _needed(least: "pd.Series[Any]") -> dict[str, str]:
    """Return how many GPUs would be enough if each were as fast as those of the setting with the fewest GPU-hours."""
    return {
        "needed": fixed(gpus_needed(least["gpu_hours"])),
        "rate_per_gpu": significant(least["tokens_per_s"] / least["gpus"]),
        "hours": significant(least["gpu_hours"]),
    }


def beyond(decision: Decision, currency: str) -> Iterator[str]:
    """Yield that no option is fast enough, which one is the fastest, and how many GPUs would be enough."""
    best = decision.options.iloc[0]
    what = "measured setting" if is_measured(best) else "setting"
    tokens = amount(decision.question.tokens)
    facts = {"max_days": f"{MAX_DAYS:g}", "what": what, "tokens": tokens, "place": place(best)}
    name = str(best.name) if is_measured(best) else f"{best.name} ({best['basis']})"
    yield f"{fill(BEYOND, facts)} The fastest is {name}, {rate(best)}."
    yield needed(decision.options, currency)


def needed(options: pd.DataFrame, currency: str) -> str:
    """Return how many GPUs would be enough if each sustained the speed of those with the fewest GPU-hours."""
    least = options.loc[options["gpu_hours"].idxmin()]
    by = "" if least.name == options.index[0] else str(least.name)
    facts = {"by": by, "unit": unit_of(least), "cost": _amount(least["cost"], currency), "basis": least["basis"]}
    return fill(NEEDED, {"goal_days": f"{GOAL_DAYS:g}", **_needed(least), **facts})


def described(row: "pd.Series[Any]", currency: str) -> str:
    """Return a candidate and what a training takes with it: where it was measured, or its speed and memory."""
    if is_measured(row):
        return f"{row.name} on {place(row)}, {_spent(row, currency)}"
    return f"{row.name} ({row['basis']}), {takes(row, currency)}"


def takes(row: "pd.Series[Any]", currency: str = "") -> str:
    """Return the figures of a candidate of a forecast with their errors; costs only with a currency."""
    size = "" if pd.isna(row["memory_gib"]) else f", {memory(row)}"
    return f"{rate(row)}, {_spent(row, currency)}{size}"


def _spent(row: "pd.Series[Any]", currency: str) -> str:
    days = duration_range(24 * row["days_low"], 24 * row["days_high"])
    energy = "" if pd.isna(row["energy_kwh"]) else f", {significant(row['energy_kwh'])} kWh"
    price = _amount(row["cost"], currency)
    return f"{days}, {significant(row['gpu_hours'])} {unit_of(row)}-hours{energy}{price and f', {price}'}"


def _amount(cost: float, currency: str) -> str:
    return "" if pd.isna(cost) or not currency else f"{currency}{significant(cost)}"


def is_measured(row: "pd.Series[Any]") -> bool:
    """Return whether a candidate is one of measured runs alone, whose hardware may differ, and not of a forecast."""
    return "tokens_per_s_error_pct" not in row


def rate(row: "pd.Series[Any]") -> str:
    """Return the speed of a candidate with its error."""
    return f"{significant(row['tokens_per_s'])} tokens/s{_error(row.get('tokens_per_s_error_pct'))}"


def memory(row: "pd.Series[Any]") -> str:
    """Return the memory of a candidate of a forecast with its error."""
    return f"{row['memory_gib']:.1f} GiB{_error(row['peak_allocated_error_pct'])}"


def _error(pct: float | None) -> str:
    return "" if pct is None or pd.isna(pct) else f" ± {pct:.1f} %"


def place(row: "pd.Series[Any]") -> str:
    """Return where a candidate ran, or would run."""
    device, gpu_name = ("cpu", None) if row["kind"] == CPU else (None, row.get("gpu_name"))
    return labels.place({"gpus": row["gpus"], "gpu_name": gpu_name, "device": device})


def unit_of(row: "pd.Series[Any]") -> str:
    """Return what is counted of the hardware of a candidate: `GPU` or `rank`."""
    return "rank" if row["kind"] == CPU else "GPU"


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
        unit = labels.unit(runs[(runs["status"] == "ok") & (numbers(runs, "gpus") > 0)].iloc[0].to_dict())
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
        if name not in PLACE and labels.has_effect(run, name)
    ]
    place = labels.place(run) if {*PLACE} & set(decision.differing) else ""
    if changed:
        return ", ".join([*changed, *([f"on {place}"] if place else [])])
    return say("changes.place", {"place": place}) or say("changes.same", {"experiment": decision.options.index[1]})


def _table(decision: Decision, unit: str) -> list[list[str]]:
    differing = decision.differing if len(decision.options) > 1 else {}
    if len(differing.keys() - PLACE) + bool(differing.keys() & PLACE) < 2:
        return []
    return [[axis_title(name, unit), *map(labels.text, values)] for name, values in differing.items()]


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
    size = {"by": by, "worse": WORSE[question.objective][is_better].replace("{unit}", unit)}
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
    return say(f"difference.{VERDICTS[row['verdict']]}", facts)


def worsening(change_pct: float, objective: str) -> float:
    """Return by how many per cent less speed, or more of what is to be least, a change of throughput is."""
    return -change_pct if objective == "time" else 100 * (1 / (1 + change_pct / 100) - 1)


def _end(value: float) -> str:
    """Return an end of an interval with the digits that `dsnb.analysis.texts.signed` shows it with."""
    text = fixed(abs(value), 1 if abs(value) < 99.95 else 0)
    return f"{MINUS}{text}" if value < 0 and text != "0.0" else text


def origin(run: Mapping[str, Any]) -> str:
    """Return where the figures of a run come from: measured here, in dsnb's own published tables, or by others."""
    if basis(run) == PUBLISHED:
        return "published, not measured here"
    source = labels.text(run.get("source"))
    return f"measured with dsnb, published as {source.removeprefix(SOURCE)}" if is_own(source) else "measured"
