"""Decisions in words: what to train with, what it costs, what comes next, and how sure that is.

The sentences of a card are templates (`dsnb.results.runs.texts.fill`), which the page receives as data and fills with the
same facts. Only the verdict on a difference says how certain it is (`dsnb.results.statistics.comparisons`).
"""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from dsnb.base.formulas.planning import GOAL_DAYS, MAX_DAYS, gpus_needed
from dsnb.results.answers.decide import (
    ASSUMED_PRICE,
    CPU,
    FEWEST_SETTINGS,
    PUBLISHED,
    WORTH_ROOM,
    Decision,
    Question,
    basis,
    memory_figure,
    worsening,
)
from dsnb.results.answers.evidence import (
    CHANGE,
    CHANGES,
    TRAINING,
    changes,
    evidence,
    training_changes,
)
from dsnb.results.literature.tables import SOURCE, is_own
from dsnb.results.runs import labels
from dsnb.results.runs.table import numbers
from dsnb.results.runs.texts import (
    HOURS,
    SIZES,
    amount,
    duration,
    fill,
    fixed,
    is_tight,
    signed,
    significant,
)
from dsnb.results.statistics import comparisons
from dsnb.results.statistics.intervals import CLEAR, CONFIDENCE, MIN_RUNS, Verdict
from dsnb.results.statistics.setting_axes import varying, with_setting_axes
from dsnb.results.statistics.summary import UNSTABLE

BEST = {
    "time": "Fastest",
    "gpu_hours": "Fewest {unit}-hours",
    "cost": "Cheapest",
    "memory": "Least memory",
}
"""Names of the best setting by objective; `unit` is GPU, or rank on a CPU."""
WORSE = {
    "time": ("slower", "faster"),
    "gpu_hours": ("more {unit}-hours", "fewer {unit}-hours"),
    "cost": ("more expensive", "cheaper"),
}
BY_MEAN = ("on average", "on average, though not by the median")
"""Qualifiers of a difference between repeated settings: settings are ranked by medians, differences are of means."""
TRIED_FIRST = (
    "parallelism",
    "precision",
    "micro_batch_size",
    "activation_checkpointing",
    "compile",
)
"""Choices that usually decide speed and memory, to be measured before others."""
PLACE = ("gpus", "nodes")
"""Choices that only set the number of GPUs."""
SHOWN_GIB = 0.05
"""Smaller differences in memory are left out."""
EQUAL_PCT = 0.005
"""Smaller changes are rounding errors of equal figures."""
NO_RUNS = "There are no runs here yet: start the sweep first."
ASSUMED = "an assumed"
NO_ANSWER = "No setting can be recommended: "
NOT_RANKED = "{unstable} {unstable:setting is|settings are} not ranked (repeats differ over {unstable_times}-fold)."
NEEDED = (
    "{goal_days} days would need {needed} {unit}s if each sustained {rate_per_gpu} tokens/s[ with {by}], an "
    "extrapolation beyond what was {basis}. At that rate, the training takes {hours} {unit}-hours[, {cost}]."
)
TEMPLATES = {
    "kicker": "{best} of {options} [{basis} ]{options:setting|settings}",
    "headline": "Train [{model} ][with {setting}, ]on {place}.",
    "headline.few": "No advice below {needed} measured settings, and there {settings:is|are} {settings}. Best so far: "
    "[{setting}, ]on {place}.",
    "headline.failed": NO_ANSWER + "{runs:the run|all} [{several} runs ]failed.",
    "headline.no_speed": NO_ANSWER + "no run measured speed on a known number of GPUs.",
    "headline.no_runs": NO_ANSWER + "none was run yet.",
    "headline.too_few_gpus": "No setting was measured on {at_hand} {unit}{at_hand:|s} or fewer: the smallest ran on "
    "{fewest}.",
    "headline.unstable": NO_ANSWER + NOT_RANKED,
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
    "note.only_measured": "At most {measured} of the {at_hand} {unit}s at hand {measured:was|were} measured: this "
    "answer is for {gpus} {unit}{gpus:|s}. Measure on more: dsnb sweep PARAMS --set gpus={number}.",
    "note.too_slow": "{too_slow} {too_slow:setting is left out: it takes|settings are left out: they take} more than "
    "{max_days} days.",
    "note.unstable": NOT_RANKED,
    "note.by_repeats": "Others are better by less than {relevance}, but in fewer than {fewest_runs} runs.",
    "few": "Measured: {measured}. Measure next: {missing} more {missing:setting|settings}[, such as other values of "
    "{untried}], with {fewest_runs} runs of each.",
    "few.setting": "[{setting}, ]on {place}: {rate} tokens/s ({n} {n:run|runs})",
    "following": "Runner-up: {changes}[, {difference}][, {gib} GiB {more}][ ({training})].",
    "following.none": "Only one setting was measured, so there is nothing to compare.",
    "changes.place": "the same on {place}",
    "changes.same": "the same settings as {experiment}",
    "training": CHANGES,
    "training.change": CHANGE,
    "size": "{by} {worse}[ {mean}]",
    "interval": "95 % interval {low} to {high}",
    f"difference.{Verdict.TOO_FEW}": "{size} ({base_n} and {n} {counted}s, too few to be sure: {needed} of each are "
    "needed)",
    f"difference.{Verdict.LIKELY}": "{size} ({interval})",
    f"difference.{Verdict.UNCLEAR}": "{size}, which may be chance ({interval})",
    f"difference.{Verdict.NO_LARGER}": "about the same ({size}, {interval})",
    "basis": "Speed[ and {memory_word}]: {origin}, {rests}.[ Only {short} s were timed{n:| in each run}: "
    "measure longer before you rely on it.] Time and costs: extrapolated to all tokens without restarts, checkpoints "
    "and evaluation."
    "[ {failed} more {failed:run|runs} of this setting failed.]",
    "take.entry": "include:\n  - {entry}",
    "take.command": "papermill notebooks/10_run.ipynb outputs/run.ipynb -y '{entry}'",
    "worth": "Worth measuring: {setting}, {gain} % {what} than the best measured setting, {sure} the mean error of "
    "such predictions.",
    "worth.first": "Worth measuring first: {setting}.",
    "verdict.none": "the interval of this pair is not in this page: dsnb.differences has it",
    **{f"verdict.{verdict}": template for verdict, template in comparisons.WORDS.items()},
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
"""Further sentences of plans (`dsnb.prediction.recommend`)."""
PAGE: dict[str, Any] = {
    "templates": TEMPLATES,
    "words": {
        "best": BEST,
        "worse": WORSE,
        "byMean": BY_MEAN,
        "more": ("more", "less"),
        "place": PLACE,
        "training": TRAINING,
        "sizes": SIZES,
        "hours": HOURS,
        "gain": {
            "time": "less time",
            "gpu_hours": "fewer GPU-hours",
            "cost": "less cost",
            "memory": "less memory",
        },
        "values": comparisons.VALUES,
        "method": f"The unit is a run. A change is likely if its {100 * CONFIDENCE:g} % interval excludes 0 and it is "
        f"at least {{relevance}}. {comparisons.TOGETHER}. A verdict needs {MIN_RUNS} runs of each setting "
        f"(dsnb sweep PARAMS --set repeats={MIN_RUNS} adds them).",
        "noRuns": NO_RUNS,
        "allTasks": "One answer for each task. Runs of different tasks are never compared.",
        "region": "Drag the mouse over the chart to select a region; click or tap a run to see its steps.",
        "leftOut": "are left out of this file to keep it small; they are in the run folders.",
        "notLoaded": "are not loaded yet: open a run to load its steps.",
        "whole": "Medians are over all successful runs of a setting, whether they are selected or not.",
        "assumed": ASSUMED,
    },
    "limits": {
        "maxDays": MAX_DAYS,
        "goalDays": GOAL_DAYS,
        "shownGib": SHOWN_GIB,
        "equalPct": EQUAL_PCT,
        "fewestRuns": MIN_RUNS,
        "fewestSettings": FEWEST_SETTINGS,
        "assumedPrice": ASSUMED_PRICE,
        "unstableTimes": UNSTABLE,
        "worthRoom": WORTH_ROOM,
        "clear": CLEAR,
    },
}
"""What the page needs, ready for JSON."""


def say(name: str, facts: Mapping[str, object]) -> str:
    """Return the sentence of this name; the limits that sentences state are added to the facts."""
    limits = {
        "max_days": f"{MAX_DAYS:g}",
        "goal_days": f"{GOAL_DAYS:g}",
        "unstable_times": f"{UNSTABLE:g}",
    }
    return fill((TEMPLATES | PLAN)[name], {**limits, **facts})


def words(decision: Decision) -> dict[str, str]:
    """Return the sentences of a decision on measured settings by the parts of a card; unknown parts are empty.

    `kicker`: the objective, and how many settings were compared. `headline`: what to train with, or why there is no
    answer. `costs`: time, cost and memory. `gain`: the speed-up over a common starting point. `note`: what was not
    measured. `following`: the runner-up. `edge`: untried larger micro-batches. `basis`: what the figures rest on.
    """
    parts = (
        "kicker",
        "headline",
        "costs",
        "gain",
        "note",
        "following",
        "edge",
        "basis",
    )  # in their order
    card: dict[str, Any] = dict.fromkeys(parts, "")
    if decision.options.empty:
        return {**card, "headline": _why_not(decision)}
    options, question = decision.options, decision.question
    best = _facts(decision, options.index[0])
    unit = best["unit"]
    of_what = BEST[question.objective].replace("{unit}", unit)
    number = fixed(len(options)) if len(options) > 1 else ""
    basis = best["basis"] if options["basis"].nunique() == 1 else ""
    card["kicker"] = say("kicker", {"best": of_what, "options": number, "basis": basis})
    card |= {
        "note": _note(decision, unit),
        "following": _following(decision, unit),
        "basis": say("basis", best),
    }
    card |= {"gain": best["gain"], "edge": best["edge"]}
    if not decision.is_beyond:
        costs = {**best, "cost": best["cost"] or TEMPLATES["no_cost"]}
        counts = {"settings": len(decision.table), "needed": FEWEST_SETTINGS}
        headline = (
            say("headline.few", {**best, **counts}) if decision.is_few else say("headline", best)
        )
        return card | {"headline": headline, "costs": say("costs", costs)}
    needed = needed_gpus(options, question)
    by = _facts(decision, needed["by"] or options.index[0])
    card |= {
        "kicker": "",
        "costs": say("costs.beyond", {**best, **needed, "by": by["setting"] or by["name"]}),
    }
    return card | {"headline": say("headline.beyond", _facts(decision, options["days"].idxmin()))}


def _facts(decision: Decision, name: object) -> dict[str, Any]:
    """Return the facts about an option, as text."""
    option, run = decision.options.loc[name], decision.settings.loc[name].to_dict()
    return {
        **figures(option, decision.question, memory_name(decision.runs)),
        **setting_texts(run),
        **evidence(decision.runs, decision.table, [name])[name],
        "memory_word": "" if pd.isna(option["memory_gib"]) else "memory",
        "n": int(option["n"]),
        "failed": int(option["n_failed"]) or "",
    }


def figures(
    option: "pd.Series[Any]", question: Question, memory: str = "GPU memory"
) -> dict[str, str]:
    """Return time, cost and memory of a training with a candidate, as text; predictions have errors."""
    device, gpu_name = ("cpu", None) if option["kind"] == CPU else (None, option.get("gpu_name"))
    run = {"gpus": option["gpus"], "gpu_name": gpu_name, "device": device}
    unit = "rank" if device else "GPU"
    amounts = {
        "rate": "tokens_per_s",
        "hours": "gpu_hours",
        "energy": "energy_kwh",
        "memory": "memory_gib",
    }
    amounts["capacity"] = "gpu_memory_gib"
    errors = {"rate_error": "tokens_per_s_error_pct", "memory_error": "peak_allocated_error_pct"}
    values, is_open, low = option.dropna(), is_tight(option), option["days_low"]
    factor, rate = 1 + option.get("tokens_per_s_error_pct", math.nan) / 100, option["tokens_per_s"]
    return {
        "name": str(option.name),
        "basis": str(option["basis"]),
        "place": labels.place(run),
        "unit": unit,
        **{
            text: significant(values[column])
            for text, column in amounts.items()
            if column in values
        },
        **{text: error(option.get(column)) for text, column in errors.items()},
        "rates": _rates(rate, factor, is_open),
        "tokens": f"{ASSUMED} {amount(question.tokens)}"
        if question.are_tokens_assumed
        else amount(question.tokens),
        "duration": f"at least {duration(24 * low)}"
        if is_open
        else duration(24 * low, 24 * option["days_high"]),
        "cost": cost(option, question, unit),
        "memory_name": memory,
    }


def _rates(rate: float, factor: float, is_open: bool) -> str:
    """Return the range of a predicted speed; without a lower end where memory is tight, empty for a measured one."""
    if is_open:
        return "at most"
    return "" if math.isnan(factor) else labels.span(rate / factor, rate * factor)


def error(pct: float | None) -> str:
    """Return the error of a prediction in per cent; empty for a measurement."""
    return "" if pct is None or math.isnan(pct) else f"{pct:.1f}"


def setting_texts(run: Mapping[str, Any]) -> dict[str, str]:
    """Return a setting in words: model, setting, place, unit of hardware, origin of its figures."""
    model, source = labels.text(run.get("model")), labels.text(run.get("source"))
    origin = "published, not measured here" if basis(run) == PUBLISHED else "measured"
    return {
        "model": "" if model == "-" else model,
        "setting": labels.setting(run),
        "place": labels.place(run),
        "unit": labels.unit(run),
        "origin": f"measured with dsnb, published as {source.removeprefix(SOURCE)}"
        if is_own(source)
        else origin,
    }


def memory_name(runs: pd.DataFrame) -> str:
    """Return the name of the runs' memory figure in a sentence."""
    return "host memory" if memory_figure(runs) == "host_memory_gib" else "GPU memory"


def cost(option: "pd.Series[Any]", question: Question, unit: str) -> str:
    """Return the cost of an option and the price it assumes; empty without a price."""
    if not option["price"] > 0:
        return ""
    assumed = "" if {option["kind"], ""} & set(question.prices) else ASSUMED
    price = {
        "currency": question.currency,
        "price": fixed(option["price"], 2),
        "unit": unit,
        "assumed": assumed,
    }
    return say("cost", {**price, "cost": significant(option["cost"])})


def needed_gpus(options: pd.DataFrame, question: Question) -> dict[str, str]:
    """Return how many GPUs `GOAL_DAYS` would need at the speed per GPU of the setting with the fewest GPU-hours."""
    least = options.loc[options["gpu_hours"].idxmin()]
    texts = figures(least, question)
    return {
        **{name: texts[name] for name in ("hours", "unit", "cost", "basis")},
        "needed": fixed(gpus_needed(least["gpu_hours"])),
        "rate_per_gpu": significant(least["tokens_per_s"] / least["gpus"]),
        "by": "" if least.name == options.index[0] else str(least.name),
    }


def _note(decision: Decision, unit: str) -> str:
    """Return remarks: fewer GPUs were measured than are at hand, and settings left out as too slow or unstable."""
    number, gpus = decision.question.gpus, decision.gpus
    notes = []
    if number > gpus[-1]:
        facts = {
            "measured": fixed(gpus[-1]),
            "unit": unit,
            "at_hand": fixed(number),
            "number": str(number),
        }
        notes.append(
            say("note.only_measured", {**facts, "gpus": fixed(decision.options["gpus"].iloc[0])})
        )
    if decision.too_slow:
        notes.append(say("note.too_slow", {"too_slow": fixed(decision.too_slow)}))
    if decision.unstable:
        notes.append(say("note.unstable", {"unstable": fixed(decision.unstable)}))
    if decision.is_by_repeats:
        relevance = f"{significant(100 * decision.question.relevance)} %"
        notes.append(say("note.by_repeats", {"relevance": relevance, "fewest_runs": MIN_RUNS}))
    notes.append(few_settings(decision.runs, decision.table))
    return " ".join(filter(None, notes))


def few_settings(runs: pd.DataFrame, table: pd.DataFrame) -> str:
    """Return the measured settings of a task and what to measure next; empty for enough settings or none."""
    if not 0 < len(table) < FEWEST_SETTINGS:
        return ""
    first = (
        with_setting_axes(runs.drop_duplicates("experiment"))
        .set_index("experiment", drop=False)
        .loc[table.index]
    )
    ranked = table.sort_values("tokens_per_s", ascending=False, kind="stable")
    rows = (
        runs.drop_duplicates("experiment")
        .set_index("experiment", drop=False)
        .loc[ranked.index]
        .to_dict("records")
    )
    measured = [
        say("few.setting", {**setting_texts(run), "rate": significant(rate), "n": int(n)})
        for run, rate, n in zip(rows, ranked["tokens_per_s"], ranked["n"], strict=True)
    ]
    varied = varying(first)
    untried = [
        labels.axis(name).title for name in TRIED_FIRST if name in first and name not in varied
    ]
    facts = {
        "missing": FEWEST_SETTINGS - len(table),
        "untried": " or ".join(untried),
        "fewest_runs": MIN_RUNS,
    }
    return say("few", {**facts, "measured": "; ".join(measured)})


def _why_not(decision: Decision) -> str:
    runs, question = decision.runs, decision.question
    if decision.table.empty:
        return say(
            f"headline.{case(runs)}",
            {"runs": len(runs), "several": len(runs) if len(runs) > 1 else ""},
        )
    fewest = decision.table["gpus"].min()
    unit = labels.unit(
        runs[(runs["status"] == "ok") & (numbers(runs, "gpus") > 0)].iloc[0].to_dict()
    )
    if question.global_batch and not decision.gpus:
        at_hand = fixed(question.gpus) if question.gpus else ""
        return say(
            "headline.no_batch",
            {"held": fixed(question.global_batch), "at_hand": at_hand, "unit": unit},
        )
    if question.gpus and fewest > question.gpus:
        facts = {"at_hand": fixed(question.gpus), "unit": unit, "fewest": f"{fewest:g}"}
        return say("headline.too_few_gpus", facts)
    if decision.unstable:
        return say("headline.unstable", {"unstable": fixed(decision.unstable)})
    return say("headline.no_price" if question.objective == "cost" else "headline.no_memory", {})


def case(runs: pd.DataFrame) -> str:
    """Return why the runs of a task have no candidate, as the templates `headline.*` name it."""
    return "no_runs" if runs.empty else "no_speed" if (runs["status"] == "ok").any() else "failed"


def _following(decision: Decision, unit: str) -> str:
    """Describe the runner-up, its difference from the best setting, and how certain that is."""
    if len(decision.options) < 2:
        return say("following.none", {})
    first, second = decision.options.iloc[0], decision.options.iloc[1]
    row, gib = decision.difference, second["memory_gib"] - first["memory_gib"]
    facts = {"changes": _changes(decision)}
    if row is not None and not pd.isna(row["change_pct"]):
        facts["difference"] = _difference(row, decision, unit)
    if abs(gib) >= SHOWN_GIB:  # false where it is unknown
        facts |= {"gib": significant(abs(gib)), "more": "more" if gib > 0 else "less"}
    batches = [fixed(batch) for batch in decision.options["global_batch"].head(2).dropna()]
    best, runner_up = decision.settings.head(2).to_dict("records")
    return say(
        "following", {**facts, "training": changes(training_changes(best, runner_up, batches))}
    )


def _changes(decision: Decision) -> str:
    """Return how the second option's settings differ from the first's, in words."""
    both, run = with_setting_axes(decision.settings.head(2)), decision.settings.iloc[1].to_dict()
    differing = varying(both)
    changed = [
        labels.axis(name).describe(both[name].astype(object).iloc[1])
        for name in differing
        if name not in PLACE and labels.has_effect(run, name)
    ]
    place = labels.place(run) if {*PLACE} & {*differing} else ""
    if changed:
        return ", ".join([*changed, *([f"on {place}"] if place else [])])
    return say("changes.place", {"place": place}) or say(
        "changes.same", {"experiment": decision.options.index[1]}
    )


def _difference(row: "pd.Series[Any]", decision: Decision, unit: str) -> str:
    """Return how much worse the mean of the second option is, with its interval; with too few runs, its median."""
    question = decision.question
    worse = worsening(row["change_pct"], question.objective)
    is_better, is_few = int(worse <= -EQUAL_PCT), row["verdict"] == Verdict.TOO_FEW
    by = "no" if abs(worse) < EQUAL_PCT else f"{significant(abs(worse), 2)} %"
    size = {"by": by, "worse": WORSE[question.objective][is_better].replace("{unit}", unit)}
    facts = {
        "size": say("size", {**size, "mean": "" if is_few else BY_MEAN[is_better]}),
        "needed": MIN_RUNS,
    }
    ratio = 1 + row["change_pct"] / 100
    if is_few and max(ratio, 1 / ratio) >= CLEAR:
        return str(facts["size"])
    if is_few:
        base_n, n = (int(number) for number in decision.options["n"].iloc[:2])
        counted = "run" if min(base_n, n) < MIN_RUNS else "host"
        if counted == "host":
            base_n, n = row["base_n"], row["n"]
        return say(
            f"difference.{Verdict.TOO_FEW}", {**facts, "n": n, "base_n": base_n, "counted": counted}
        )
    flip = -1 if worse < 0 else 1
    ends = sorted(
        flip * worsening(row[name], question.objective) for name in ("low_pct", "high_pct")
    )
    low, high = (signed(end, "", plus="") for end in ends)
    facts["interval"] = say("interval", {"low": low, "high": high})
    return say(f"difference.{row['verdict']}", facts)
