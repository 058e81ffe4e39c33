"""Decisions in words: what to train with, what it costs, what comes next, and how sure that is.

The sentences of a card are templates (`dsnb.analysis.texts.fill`), which the page receives as data and fills with the
same facts. What is certain about a difference is said by its verdict alone (`dsnb.analysis.comparisons`).
"""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from dsnb.analysis import comparisons
from dsnb.analysis.decide import ASSUMED_PRICE, CPU, PUBLISHED, Decision, Question, basis, memory_figure, worsening
from dsnb.analysis.evidence import CHANGE, CHANGES, EDGE, EDGE_FACTS, TRAINING, changed_training, evidence
from dsnb.analysis.intervals import CLEAR, CONFIDENCE, MIN_RUNS, Verdict
from dsnb.analysis.summary import UNSTABLE
from dsnb.analysis.texts import HOURS, MINUS, SIZES, amount, duration, fill, fixed, significant
from dsnb.formulas.planning import GOAL_DAYS, MAX_DAYS, gpus_needed
from dsnb.runs import labels
from dsnb.runs.literature.tables import SOURCE, is_own
from dsnb.runs.table import numbers

BEST = {"time": "Fastest", "gpu_hours": "Fewest {unit}-hours", "cost": "Cheapest", "memory": "Least memory"}
"""What the best setting of an objective is called; `unit` is GPU, or rank where there are none."""
WORSE = {
    "time": ("slower", "faster"),
    "gpu_hours": ("more {unit}-hours", "fewer {unit}-hours"),
    "cost": ("more expensive", "cheaper"),
}
BY_MEAN = ("on average", "on average, though not by the median")
"""What the difference between repeated settings is one of; the best one has the best median."""
PLACE = ("gpus", "nodes")
"""Choices that say how many GPUs, not what they do."""
SHOWN_GIB = 0.05
"""Smaller differences in memory are left out."""
EQUAL_PCT = 0.005
"""Smaller changes are rounding errors of equal figures."""
NO_RUNS = "There are no runs here yet: start the sweep first."
ASSUMED = "an assumed"
NO_ANSWER = "No setting can be recommended: "
NEEDED = (
    "{goal_days} days would need {needed} {unit}s if each sustained {rate_per_gpu} tokens/s[ with {by}], an "
    "extrapolation beyond what was {basis}. At that rate, the training takes {hours} {unit}-hours[, {cost}]."
)
VERDICTS = {
    Verdict.TOO_FEW: "few",
    Verdict.NO_LARGER: "no_larger",
    Verdict.LIKELY: "likely",
    Verdict.UNCLEAR: "unclear",
}
"""Verdicts as the names of templates end."""
TEMPLATES = {
    "kicker": "{best} of {options} [{basis} ]{options:setting|settings}",
    "headline": "Train [{model} ][with {setting}, ]on {place}.",
    "headline.failed": NO_ANSWER + "{runs:the run|all} [{several} runs ]failed.",
    "headline.no_gpus": NO_ANSWER + "the number of GPUs is unknown.",
    "headline.no_speed": NO_ANSWER + "no run measured speed.",
    "headline.no_runs": NO_ANSWER + "none was run yet.",
    "headline.too_few_gpus": "No setting was measured on {at_hand} {unit}{at_hand:|s} or fewer: the smallest ran on "
    "{fewest}.",
    "headline.unstable": NO_ANSWER + "{unstable} {unstable:setting is|settings are} not ranked, because "
    "{unstable:its|their} repeats differ by more than {unstable_times} times.",
    "headline.no_price": "The cheapest setting is unknown: give a price.",
    "headline.no_memory": "The setting with the least memory is unknown: no run measured memory.",
    "headline.no_batch": "No setting was measured with a global batch of {held} {held:sequence|sequences}"
    "[ on {at_hand} {unit}{at_hand:|s} or fewer].",
    "headline.beyond": "No measured setting trains [{model} ]in reasonable time on {place}.",
    "costs": "{rate} tokens/s[ ± {rate_error} %]; {tokens} tokens: {duration}, {hours} {unit}-hours[, {energy} kWh]"
    "[, {cost}][; {memory_name} {memory}[ of {capacity}] GiB[ ± {memory_error} %]].[ Global batch: {batch}.]",
    "costs.beyond": "{needed} {unit}s would train on {tokens} tokens in {goal_days} days if each sustained "
    "{rate_per_gpu} tokens/s, as with {by}[: {cost}]. This extrapolates beyond what was {basis}.",
    "cost": "[{currency}]{cost} at [{assumed} ][{currency}]{price} a {unit}-hour",
    "no_cost": "cost unknown without a price",
    "note.only_measured": "Only {measured} {unit}{measured:|s} {measured:was|were} measured, fewer than the {at_hand} "
    "at hand: this answer is for {gpus} {unit}{gpus:|s}. {more}",
    "note.more.GPU": "Measure on more (dsnb sweep PARAMS --set gpus={number}) or predict it "
    "(dsnb predict PARAMS --gpus {number}).",
    "note.more.rank": "Measure on more: dsnb sweep PARAMS --set gpus={number}.",
    "note.too_slow": "{too_slow} {too_slow:setting is left out: it takes|settings are left out: they take} more than "
    "{max_days} days.",
    "note.unstable": "{unstable} {unstable:setting is|settings are} not ranked, because {unstable:its|their} repeats "
    "differ by more than {unstable_times} times.",
    "following": "Runner-up: {changes}[, {difference}][, {gib} GiB {more}][ ({training})].",
    "following.none": "Only one setting was measured, so this is no comparison.",
    "changes.place": "the same on {place}",
    "changes.same": "the same settings as {experiment}",
    "training": CHANGES,
    "training.change": CHANGE,
    "size": "{by} {worse}[ {mean}]",
    "interval": "95 % interval {low} to {high}",
    "runs.one_each": "one {counted} each",
    "runs.both": "{base_n} and {n} {counted}s",
    "difference.few": "{size} ({runs}, too few to be sure: {needed} of each are needed)",
    "difference.few_same": "about the same ({size}; {runs}, too few to be sure: {needed} of each are needed)",
    "difference.likely": "{size} ({interval})",
    "difference.unclear": "{size}, which may be chance ({interval})",
    "difference.no_larger": "about the same ({size}, {interval})",
    "edge": EDGE,
    "basis": "Speed[ and {memory_word}]: {origin}, {rests}.[ Only {short} s were timed{n:| in each run}: "
    "measure longer[ (--set steps={more_steps})] before you rely on it.] Time and costs: extrapolated to all tokens "
    "without restarts, checkpoints and evaluation."
    "[ {failed} more {failed:run|runs} of this setting failed.]",
    "take.entry": "include:\n  - {entry}",
    "take.command": "papermill notebooks/10_run.ipynb outputs/run.ipynb -y '{entry}'",
    "worth": "Worth measuring: {said}, {gain} % {what} than the best measured setting, {sure} the mean error of such "
    "predictions.",
    "worth.first": "Worth measuring first: {said}.",
    "verdict.none": "the interval of this pair is not in this page: dsnb.analysis.comparisons.differences has it",
    **{f"verdict.{name}": comparisons.WORDS[verdict] for verdict, name in VERDICTS.items()},
}
"""Sentences of a card by name."""
PLAN = {
    "plan": "{what} {name} ({basis}) on {place}, {rate} tokens/s[ ({rates})]; {tokens} tokens: {duration}, {hours} "
    "{unit}-hours[, {energy} kWh][, {cost}][; {memory_name} {memory}[ of {room}] GiB[ ± {memory_error} %]"
    "[, {headroom} GiB left]].",
    "plan.again": "{what} {name}, as above.",
    "beyond": "No {what} trains [{model} ]on {tokens} tokens within {max_days} days on {place}. The fastest is {name} "
    "({basis}), {rate} tokens/s[ ± {rate_error} %].",
    "needed": NEEDED,
    "too_slow": "That is more than {max_days} days. " + NEEDED,
}
"""Further sentences of plans (`dsnb.analysis.recommend`)."""
PAGE: dict[str, Any] = {
    "templates": TEMPLATES,
    "words": {
        "best": BEST,
        "worse": WORSE,
        "byMean": BY_MEAN,
        "more": ("more", "less"),
        "place": PLACE,
        "training": TRAINING,
        "edge": EDGE_FACTS,
        "sizes": SIZES,
        "hours": HOURS,
        "gain": {"time": "less time", "gpu_hours": "fewer GPU-hours", "cost": "less cost", "memory": "less memory"},
        "values": comparisons.VALUES,
        "method": f"The unit is a run. A change is likely if its {100 * CONFIDENCE:g} % interval excludes 0 and it is "
        f"at least {{relevance}}. {comparisons.TOGETHER}.",
        "noRuns": NO_RUNS,
        "notRun": "No run of this task has ended, and no predicted setting can be drawn.",
        "allTasks": "One answer for each task. Runs of different tasks are never compared.",
        "region": "Drag the mouse over the chart to select a region.",
        "leftOut": "are left out of this file to keep it small; they are in the run folders.",
        "notLoaded": "are not loaded yet: open a run to load its steps.",
        "whole": "Medians are over all runs of these experiments, those that are not selected included.",
        "assumed": ASSUMED,
    },
    "limits": {
        "maxDays": MAX_DAYS,
        "goalDays": GOAL_DAYS,
        "shownGib": SHOWN_GIB,
        "equalPct": EQUAL_PCT,
        "fewestRuns": MIN_RUNS,
        "assumedPrice": ASSUMED_PRICE,
        "unstableTimes": UNSTABLE,
        "clear": CLEAR,
    },
}
"""What the page needs, ready for JSON."""


def say(name: str, facts: Mapping[str, object]) -> str:
    """Return the sentence of this name; the limits that sentences state are added to the facts."""
    limits = {"max_days": f"{MAX_DAYS:g}", "goal_days": f"{GOAL_DAYS:g}", "unstable_times": f"{UNSTABLE:g}"}
    return fill((TEMPLATES | PLAN)[name], {**limits, **facts})


def words(decision: Decision) -> dict[str, str]:
    """Return what a decision on measured settings says, by the parts of a card; what cannot be said is empty.

    `kicker`: in what the setting is the best, and of how many. `headline`: what to train with, or why nothing can be
    said. `costs`, `gain`, `note`, `following`, `edge`, `basis`: what it takes, what it gains over the usual start, what
    the measured settings do not cover, what comes next, which larger micro-batches to try, and what that rests on.
    """
    parts = ("kicker", "headline", "costs", "gain", "note", "following", "edge", "basis")  # in their order
    card: dict[str, Any] = dict.fromkeys(parts, "")
    if decision.options.empty:
        return {**card, "headline": _why_not(decision), "costs": memory_of_failed(decision.runs)}
    options, question = decision.options, decision.question
    best = _facts(decision, options.index[0])
    unit = best["unit"]
    of_what = BEST[question.objective].replace("{unit}", unit)
    number = fixed(len(options)) if len(options) > 1 else ""
    basis = best["basis"] if options["basis"].nunique() == 1 else ""
    card["kicker"] = say("kicker", {"best": of_what, "options": number, "basis": basis})
    card |= {"note": _note(decision, unit), "following": _following(decision, unit), "basis": say("basis", best)}
    card |= {"gain": best["gain"], "edge": say("edge", dict(zip(EDGE_FACTS, best["edge"], strict=False)))}
    if not decision.is_beyond:
        costs = {**best, "cost": best["cost"] or TEMPLATES["no_cost"]}
        return card | {"headline": say("headline", best), "costs": say("costs", costs)}
    needed = needed_gpus(options, question)
    by = _facts(decision, needed["by"] or options.index[0])
    card |= {"kicker": "", "costs": say("costs.beyond", {**best, **needed, "by": by["setting"] or by["name"]})}
    return card | {"headline": say("headline.beyond", _facts(decision, options["days"].idxmin()))}


def _facts(decision: Decision, name: object) -> dict[str, Any]:
    """Return all that sentences say about an option, as texts."""
    option, run = decision.options.loc[name], decision.settings.loc[name].to_dict()
    return {
        **figures(option, decision.question, memory_name(decision.runs)),
        **said_of(run),
        **evidence(decision.runs, decision.table, [name])[name],
        "memory_word": "" if pd.isna(option["memory_gib"]) else "memory",
        "n": int(option["n"]),
        "failed": int(option["n_failed"]) or "",
    }


def figures(option: "pd.Series[Any]", question: Question, memory: str = "GPU memory") -> dict[str, str]:
    """Return what a training takes with a candidate, as texts; predictions have errors."""
    device, gpu_name = ("cpu", None) if option["kind"] == CPU else (None, option.get("gpu_name"))
    run = {"gpus": option["gpus"], "gpu_name": gpu_name, "device": device}
    unit = "rank" if device else "GPU"
    amounts = {"rate": "tokens_per_s", "hours": "gpu_hours", "energy": "energy_kwh", "memory": "memory_gib"}
    amounts["capacity"] = "gpu_memory_gib"
    errors = {"rate_error": "tokens_per_s_error_pct", "memory_error": "peak_allocated_error_pct"}
    known = option.dropna()
    factor, rate = 1 + option.get("tokens_per_s_error_pct", math.nan) / 100, option["tokens_per_s"]
    return {
        "name": str(option.name),
        "basis": str(option["basis"]),
        "place": labels.place(run),
        "unit": unit,
        **{text: significant(known[column]) for text, column in amounts.items() if column in known},
        **{text: error(option.get(column)) for text, column in errors.items()},
        "rates": "" if math.isnan(factor) else labels.span(rate / factor, rate * factor),
        "tokens": amount(question.tokens),
        "duration": duration(24 * option["days_low"], 24 * option["days_high"]),
        "cost": cost(option, question, unit),
        "memory_name": memory,
    }


def error(pct: float | None) -> str:
    """Return the error of a prediction in per cent; empty for a measurement."""
    return "" if pct is None or math.isnan(pct) else f"{pct:.1f}"


def said_of(run: Mapping[str, Any]) -> dict[str, str]:
    """Return what sentences say about a setting: model, setting, place, unit of hardware, origin of its figures."""
    model, source = labels.text(run.get("model")), labels.text(run.get("source"))
    origin = "published, not measured here" if basis(run) == PUBLISHED else "measured"
    return {
        "model": "" if model == "-" else model,
        "setting": labels.setting(run),
        "place": labels.place(run),
        "unit": labels.unit(run),
        "origin": f"measured with dsnb, published as {source.removeprefix(SOURCE)}" if is_own(source) else origin,
    }


def memory_name(runs: pd.DataFrame) -> str:
    """Return what the figure of memory of runs is called in a sentence."""
    return "host memory" if memory_figure(runs) == "host_memory_gib" else "GPU memory"


def cost(option: "pd.Series[Any]", question: Question, unit: str) -> str:
    """Return what an option costs and at which price; empty without a price."""
    if not option["price"] > 0:
        return ""
    assumed = "" if {option["kind"], ""} & set(question.prices) else ASSUMED
    price = {"currency": question.currency, "price": fixed(option["price"], 2), "unit": unit, "assumed": assumed}
    return say("cost", {**price, "cost": significant(option["cost"])})


def needed_gpus(options: pd.DataFrame, question: Question) -> dict[str, str]:
    """Return how many GPUs would be enough if each were as fast as those of the setting with the fewest GPU-hours."""
    least = options.loc[options["gpu_hours"].idxmin()]
    known = figures(least, question)
    return {
        **{name: known[name] for name in ("hours", "unit", "cost", "basis")},
        "needed": fixed(gpus_needed(least["gpu_hours"])),
        "rate_per_gpu": significant(least["tokens_per_s"] / least["gpus"]),
        "by": "" if least.name == options.index[0] else str(least.name),
    }


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
        said.append(say("note.unstable", {"unstable": fixed(decision.unstable)}))
    return " ".join(said)


def _why_not(decision: Decision) -> str:
    runs, question = decision.runs, decision.question
    if decision.table.empty:
        return say(f"headline.{case(runs)}", {"runs": len(runs), "several": len(runs) if len(runs) > 1 else ""})
    fewest = decision.table["gpus"].min()
    unit = labels.unit(runs[(runs["status"] == "ok") & (numbers(runs, "gpus") > 0)].iloc[0].to_dict())
    if question.global_batch and not decision.gpus:
        at_hand = fixed(question.gpus) if question.gpus else ""
        return say("headline.no_batch", {"held": fixed(question.global_batch), "at_hand": at_hand, "unit": unit})
    if question.gpus and fewest > question.gpus:
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
    return say("following", {**facts, "training": changed_training(decision)})


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


def _difference(row: "pd.Series[Any]", decision: Decision, unit: str) -> str:
    """Return how much worse the mean of a setting is, with the interval of that; of too few runs, their median."""
    question = decision.question
    worse = worsening(row["change_pct"], question.objective)
    is_better, is_few = int(worse <= -EQUAL_PCT), row["verdict"] == Verdict.TOO_FEW
    by = "no" if abs(worse) < EQUAL_PCT else f"{significant(abs(worse), 2)} %"
    size = {"by": by, "worse": WORSE[question.objective][is_better].replace("{unit}", unit)}
    facts = {"size": say("size", {**size, "mean": "" if is_few else BY_MEAN[is_better]}), "needed": MIN_RUNS}
    if is_few and decision.is_clear:
        return str(facts["size"])
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


def _end(value: float) -> str:
    """Return an end of an interval with the digits that `dsnb.analysis.texts.signed` shows it with."""
    text = fixed(abs(value), 1 if abs(value) < 99.95 else 0)
    return f"{MINUS}{text}" if value < 0 and text != "0.0" else text
