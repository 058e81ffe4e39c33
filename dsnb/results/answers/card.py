"""The card of a decision: what to train with, what it costs, what comes next, and how sure that is.

The page makes the same card of the same facts and templates. Only the verdict on a difference says
how certain it is (`dsnb.results.statistics.comparisons`).
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from dsnb.base.formulas.planning import gpus_needed
from dsnb.results.answers.decide import (
    CPU,
    PUBLISHED,
    Decision,
    Question,
    basis,
    first_runs,
    is_tight,
    memory_figure,
    of_runs,
    worsening,
)
from dsnb.results.answers.evidence import changed_training, evidence
from dsnb.results.answers.sentences import PHRASES, Sentence, say
from dsnb.results.literature.tables import SOURCE, is_own
from dsnb.results.runs import labels
from dsnb.results.runs.number_text import (
    CARD_DIGITS,
    amount,
    duration,
    fixed,
    signed,
    significant,
    span,
    supported,
)
from dsnb.results.runs.sources import DATA
from dsnb.results.runs.table import numbers
from dsnb.results.runs.templates import fill
from dsnb.results.statistics.intervals import CLEAR, MIN_RUNS, Verdict
from dsnb.results.statistics.setting_axes import varying, with_setting_axes
from dsnb.results.statistics.tasks import FEWEST_SETTINGS

PARTS = ("kicker", "headline", "costs", "gain", "note", "following", "edge", "basis")
"""Roles of a card's sentences, in the order of the card."""
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
AMOUNTS = {
    "rate": "tokens_per_s",
    "hours": "gpu_hours",
    "energy": "energy_kwh",
    "memory": "memory_gib",
    "capacity": "gpu_memory_gib",
}
"""Facts about a candidate, and their columns."""
OF_TIME = ("step_time_s", "days", "gpu_hours", "energy_kwh", "cost")
"""What grows with the time of a step."""
ERRORS = {"rate_error": "tokens_per_s_error_pct", "memory_error": "peak_allocated_error_pct"}


def card(decision: Decision) -> dict[str, str]:
    """Return the texts of a card on measured settings by `PARTS`; unknown parts are empty.

    `kicker`: the objective, and how many settings were compared. `headline`: what to train with, or
    why there is no answer. `costs`: time, cost and memory. `gain`: the speed-up over a common
    starting point. `note`: what was not measured. `following`: the runner-up. `edge`: untried
    larger micro-batches. `basis`: what the figures rest on.
    """
    parts: dict[str, list[str]] = {part: [] for part in PARTS}
    for sentence in filter(None, sentences(decision)):
        parts[sentence.role].append(sentence)
    return {part: " ".join(texts) for part, texts in parts.items()}


def sentences(decision: Decision) -> Iterator[Sentence]:
    """Yield the sentences of a card; their roles are `PARTS`."""
    if decision.options.empty:
        yield _why_not(decision)
        return
    options = decision.options
    question = decision.question
    best = _facts(decision, options.index[0])
    yield from _notes(decision, best["unit"])
    yield _following(decision, best["unit"])
    yield from (best["gain"], best["edge"], say("basis", **best))
    if decision.is_beyond:
        needed = needed_gpus(options, question)
        by = _facts(decision, needed["by"] or options.index[0])
        yield say("costs.beyond", **best | needed | {"by": by["setting"] or by["name"]})
        yield say("headline.beyond", **_facts(decision, options["days"].idxmin()))
        return
    yield _kicker(decision, best)
    yield say("costs", **best | {"cost": best["cost"] or say("no_cost")})
    headline = "headline"
    if decision.is_few:
        headline = "headline.few"
    yield say(headline, **best, settings=len(decision.table), needed=FEWEST_SETTINGS)


def confirmed(runs: pd.DataFrame) -> Sentence:
    """Return the fastest setting of many runs, and the faster one of a few; empty unless there are both."""
    decision = of_runs(runs, Question())
    if decision.options.empty or decision.is_few or not decision.is_by_repeats:
        return say("confirmed")
    facts = _facts(decision, decision.options.index[0])
    return say("confirmed", following=_following(decision, facts["unit"]), **facts)


def _kicker(decision: Decision, best: Mapping[str, Any]) -> Sentence:
    """Return among how many settings this is the best one; if its runs put it first, among those with as many."""
    compared = len(decision.options)
    role = "kicker"
    if decision.is_by_repeats:
        compared = decision.confirmed
        role = "kicker.confirmed"
    facts = {"best": fill(PHRASES["best"][decision.question.objective], best), "n": best["n"]}
    if compared > 1:
        facts["options"] = fixed(compared)
    if decision.options["basis"].nunique() == 1:
        facts["basis"] = best["basis"]
    return say(role, **facts)


def _facts(decision: Decision, name: object) -> dict[str, Any]:
    """Return the facts about an option."""
    option = decision.options.loc[name]
    facts: dict[str, Any] = {
        **figures(option, decision.question, memory_name(decision.runs)),
        **setting_texts(decision.settings.loc[name].to_dict()),
        **evidence(decision.runs, decision.table, [name])[name],
        "n": int(option["n"]),
        "failed": int(option["n_failed"]) or "",
    }
    if facts["memory"]:
        facts["memory_word"] = "memory"
    return facts


def figures(
    option: "pd.Series[Any]", question: Question, memory: str = "GPU memory"
) -> dict[str, Any]:
    """Return time, cost and memory of a training with a candidate as facts; predictions have errors."""
    option = within_range(option)
    run = {"gpus": option["gpus"], "gpu_name": option.get("gpu_name")}
    if option["kind"] == CPU:
        run = {"gpus": option["gpus"], "device": "cpu"}
    facts: dict[str, Any] = {
        "name": option.name,
        "basis": option["basis"],
        "place": labels.place(run),
        "unit": labels.unit(run),
        "memory_name": memory,
        "tokens": amount(question.tokens),
        "rates": "",
    }
    for fact, column in AMOUNTS.items():
        facts[fact] = significant(option.get(column, math.nan))
    for fact, column in ERRORS.items():
        facts[fact] = fixed(option.get(column, math.nan), 1)
    facts["cost"] = cost(option, question, facts["unit"])
    if question.are_tokens_assumed:
        facts["tokens"] = f"{PHRASES['assumed']} {facts['tokens']}"
    low = 24 * option["days_low"]
    if is_tight(option):
        return facts | {"rates": "at most", "duration": f"at least {duration(low)}"}
    if facts["rate_error"]:
        facts["rates"] = span(option["tokens_per_s_low"], option["tokens_per_s_high"])
    return facts | {"duration": duration(low, 24 * option["days_high"])}


def within_range(option: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return a candidate that is no faster than its range, which ends at the best that was ever measured."""
    rate = option["tokens_per_s"]
    end = option.get("tokens_per_s_high", math.nan)
    if not end < rate:
        return option
    slower = option.copy()
    slower["tokens_per_s"] = end
    for column in OF_TIME:
        if column in option:
            slower[column] = option[column] * rate / end
    return slower


def setting_texts(run: Mapping[str, Any]) -> dict[str, str]:
    """Return a setting in words: model, setting, place, unit of hardware, origin of its figures."""
    model = labels.axis("model").label(run.get("model"))
    source = labels.text(run.get("source"))
    name = source.removeprefix(SOURCE)
    by = ""
    if name in DATA:
        by = DATA[name].by
    origin = say("origin")
    if is_own(source):
        origin = say("origin.own", title=DATA[name].title)
    elif basis(source) == PUBLISHED:
        origin = say("origin.published", by=by)
    if model == "-":
        model = ""
    return {
        "model": model,
        "setting": labels.setting(run),
        "place": labels.place(run),
        "unit": labels.unit(run),
        "origin": origin,
    }


def memory_name(runs: pd.DataFrame) -> str:
    """Return the name of the runs' memory figure in a sentence."""
    if memory_figure(runs) == "host_memory_gib":
        return "host memory"
    return "GPU memory"


def cost(option: "pd.Series[Any]", question: Question, unit: str) -> str:
    """Return the cost of an option and the price it assumes; empty without a price."""
    if not option["price"] > 0:
        return ""
    assumed = PHRASES["assumed"]
    if question.prices.keys() & {option["kind"], ""}:
        assumed = ""
    return say(
        "cost",
        currency=question.currency,
        amount=cost_amount(option),
        assumed=assumed,
        price=fixed(option["price"], 2),
        unit=unit,
    )


def cost_amount(option: Mapping[str, Any]) -> str:
    """Return what an option costs, with the digits that the error of its predicted speed supports."""
    error_pct = option.get("tokens_per_s_error_pct", math.nan)
    if math.isnan(error_pct):
        return significant(option["cost"])
    return supported(option["cost"], error_pct / 100, CARD_DIGITS)


def needed_gpus(options: pd.DataFrame, question: Question) -> dict[str, Any]:
    """Return how many GPUs `GOAL_DAYS` would need at the speed per GPU of the setting with the fewest GPU-hours."""
    least = options.loc[options["gpu_hours"].idxmin()]
    facts = figures(least, question)
    needed = {name: facts[name] for name in ("hours", "unit", "cost", "basis")}
    needed["needed"] = fixed(gpus_needed(least["gpu_hours"]))
    needed["rate_per_gpu"] = significant(least["tokens_per_s"] / least["gpus"])
    needed["by"] = ""
    if least.name != options.index[0]:
        needed["by"] = least.name
    return needed


def _notes(decision: Decision, unit: str) -> Iterator[Sentence]:
    """Yield remarks: fewer GPUs were measured than are at hand, and settings left out as too slow or unstable."""
    at_hand = decision.question.gpus
    most = decision.gpus[-1]
    if at_hand > most:
        gpus = fixed(decision.options["gpus"].iloc[0])
        facts = {"measured": fixed(most), "at_hand": fixed(at_hand), "number": at_hand}
        yield say("note.only_measured", unit=unit, gpus=gpus, **facts)
    if decision.too_slow:
        yield say("note.too_slow", too_slow=fixed(decision.too_slow))
    if decision.unstable:
        yield say("note.unstable", unstable=fixed(decision.unstable))
    if decision.is_few:
        yield few_settings(decision.runs, decision.table)


def few_settings(runs: pd.DataFrame, table: pd.DataFrame) -> Sentence:
    """Return the measured settings of a task and what to measure next, for a task with few of them."""
    first = first_runs(runs)
    ranked = table.sort_values("tokens_per_s", ascending=False, kind="stable")
    measured = [
        say(
            "few.setting",
            **setting_texts(first.loc[name].to_dict()),
            rate=significant(row["tokens_per_s"]),
            n=int(row["n"]),
        )
        for name, row in ranked.iterrows()
    ]
    choices = with_setting_axes(first).loc[table.index]
    varied = varying(choices)
    untried = [name for name in TRIED_FIRST if name in choices and name not in varied]
    return say(
        "note.few",
        measured="; ".join(measured),
        missing=FEWEST_SETTINGS - len(table),
        untried=" or ".join(labels.axis(name).title for name in untried),
    )


def _why_not(decision: Decision) -> Sentence:
    runs = decision.runs
    question = decision.question
    if decision.table.empty:
        several: int | str = ""
        if len(runs) > 1:
            several = len(runs)
        return say(f"headline.{case(runs)}", runs=len(runs), several=several)
    is_known = (runs["status"] == "ok") & (numbers(runs, "gpus") > 0)
    facts = {"unit": labels.unit(runs[is_known].iloc[0].to_dict())}
    if question.gpus:
        facts["at_hand"] = fixed(question.gpus)
    if question.global_batch and not decision.gpus:
        return say("headline.no_batch", held=fixed(question.global_batch), **facts)
    fewest = decision.table["gpus"].min()
    if question.gpus and fewest > question.gpus:
        return say("headline.too_few_gpus", fewest=f"{fewest:g}", **facts)
    if decision.unstable:
        return say("headline.unstable", unstable=fixed(decision.unstable))
    if question.objective == "cost":
        return say("headline.no_price")
    return say("headline.no_memory")


def case(runs: pd.DataFrame) -> str:
    """Return why the runs of a task have no candidate, as the templates `headline.*` name it."""
    if runs.empty:
        return "no_runs"
    if (runs["status"] == "ok").any():
        return "no_speed"
    return "failed"


def _following(decision: Decision, unit: str) -> Sentence:
    """Describe the runner-up, its difference from the best setting, and how certain that is."""
    if len(decision.options) < 2:
        return say("following.none")
    pair = decision.options.head(2)
    batches = [fixed(batch) for batch in pair["global_batch"].dropna()]
    best, runner_up = decision.settings.head(2).to_dict("records")
    facts: dict[str, Any] = {
        "changes": _changes(decision),
        "training": changed_training(best, runner_up, batches),
    }
    row = decision.difference
    if row is not None and not pd.isna(row["change_pct"]):
        facts["difference"] = _difference(row, decision, unit)
        facts["size"] = _size(row, decision, unit)
    more_gib = pair["memory_gib"].iloc[1] - pair["memory_gib"].iloc[0]
    if abs(more_gib) >= SHOWN_GIB:  # false where it is unknown
        facts["gib"] = significant(abs(more_gib))
        facts["more"] = "less"
        if more_gib > 0:
            facts["more"] = "more"
    if not decision.is_by_repeats:
        return say("following", **facts)
    n = int(pair["n"].iloc[1])
    several = ""
    if n > 1:
        several = str(n)
    return say("following.perhaps", n=n, several=several, **facts)


def _changes(decision: Decision) -> str:
    """Return how the second option's settings differ from the first's, in words."""
    run = decision.settings.iloc[1].to_dict()
    both = with_setting_axes(decision.settings.head(2))
    differing = varying(both)
    changed = [
        labels.axis(name).describe(both[name].astype(object).iloc[1])
        for name in differing
        if name not in PLACE and labels.has_effect(run, name)
    ]
    if not {*PLACE} & {*differing}:
        return ", ".join(changed) or say("changes.same", experiment=decision.options.index[1])
    place = labels.place(run)
    if changed:
        return ", ".join([*changed, f"on {place}"])
    return say("changes.place", place=place)


def _size(row: "pd.Series[Any]", decision: Decision, unit: str) -> Sentence:
    """Return how much worse the mean of the second option is; with too few runs, its median."""
    objective = decision.question.objective
    worse = worsening(row["change_pct"], objective)
    is_better = int(worse <= -EQUAL_PCT)
    facts: dict[str, Any] = {
        "by": f"{significant(abs(worse), 2)} %",
        "worse": fill(PHRASES["worse"][objective][is_better], {"unit": unit}),
    }
    if abs(worse) < EQUAL_PCT:
        facts["by"] = "no"
    if row["verdict"] != Verdict.TOO_FEW:
        facts["mean"] = PHRASES["by_mean"][is_better]
    return say("size", **facts)


def _difference(row: "pd.Series[Any]", decision: Decision, unit: str) -> Sentence:
    """Return how much worse the second option is, and how certain that is."""
    objective = decision.question.objective
    worse = worsening(row["change_pct"], objective)
    size = _size(row, decision, unit)
    name = f"difference.{row['verdict']}"
    if row["verdict"] != Verdict.TOO_FEW:
        flip = 1
        if worse < 0:
            flip = -1
        ends = [flip * worsening(row[end], objective) for end in ("low_pct", "high_pct")]
        low, high = (signed(end, "", plus="") for end in sorted(ends))
        return say(name, size=size, interval=say("interval", low=low, high=high))
    ratio = 1 + row["change_pct"] / 100
    if max(ratio, 1 / ratio) >= CLEAR:
        return size
    facts = {"counted": "host", "base_n": row["base_n"], "n": row["n"]}
    base_n, n = decision.options["n"].iloc[:2]
    if min(base_n, n) < MIN_RUNS:
        facts = {"counted": "run", "base_n": int(base_n), "n": int(n)}
    return say(name, size=size, needed=MIN_RUNS, **facts)
