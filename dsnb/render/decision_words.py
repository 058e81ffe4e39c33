"""A decision in words: what to train with, what it costs, what comes next. `web/decision.js` says the same.

What is certain about a difference is said by its verdict alone (`dsnb.analysis.differences`).
"""

from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from dsnb.analysis.decision import Decision, Question, memory_figure
from dsnb.analysis.intervals import FEWEST_RUNS, Verdict
from dsnb.analysis.stability import UNSTABLE
from dsnb.render.rounding import fixed, significant
from dsnb.runs import labels, setting_words
from dsnb.runs.columns import numbers
from dsnb.runs.literature.measured import SOURCE, is_own
from dsnb.settings.planning import GOAL_DAYS, MOST_DAYS, gpus_needed

BEST = {
    "time": "Fastest",
    "gpu_hours": "Fewest {unit}-hours",
    "cost": "Cheapest",
    "memory": "Least memory",
}
"""What the best setting of an objective is called; `unit` is GPU, or rank where there are none."""
WORSE = {
    "time": ("slower", "faster"),
    "gpu_hours": ("more {unit}-hours", "fewer {unit}-hours"),
    "cost": ("more expensive", "cheaper"),
}
BY_MEAN = (" on average", " on average, though not by the median")
"""What the difference between repeated settings is one of; the best one has the best median."""
PLACE = {"gpus", "nodes"}
"""Choices that say how many GPUs, not what they do."""
SIZES = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))
HOURS = ((24, "day"), (1, "hour"), (1 / 60, "minute"))
SHOWN_GIB = 0.05
"""Smaller differences in memory are left out."""
EQUAL_PCT = 0.005
"""Smaller changes are rounding errors of equal figures."""
EXTRAPOLATED = "extrapolated to all tokens without restarts, checkpoints and evaluation"


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


def words(decision: Decision) -> Words:
    """Return what a decision says."""
    if decision.options.empty:
        return Words("", _why_not(decision), costs=memory_of_failed(decision.runs))
    best = decision.options.iloc[0]
    own = decision.settings.loc[decision.options.index[0]].to_dict()
    unit, place = setting_words.unit(own), setting_words.place(own)
    model, setting = labels.text(own.get("model")), setting_words.setting(own)
    known = basis(own)
    number = labels.count(len(decision.options), f"{known} setting" if _is_of_one_basis(decision) else "setting")
    kicker = f"{BEST[decision.question.objective].format(unit=unit)} of {number}" if len(decision.options) > 1 else ""
    parts = ["Train", *([] if model == "-" else [model]), *([f"with {setting},"] if setting else []), f"on {place}."]
    said = Words(
        kicker=kicker,
        headline=" ".join(parts),
        costs=f"{significant(best['tokens_per_s'])} tokens/s; {amount(decision.question.tokens)} tokens: "
        f"{costs(decision, unit)}.",
        note=_note(decision, best, unit),
        following=_following(decision, unit),
        basis=_origin(best, origin(own)),
        table=_table(decision, unit),
    )
    if not decision.is_beyond:
        return said
    found = f"{kicker or known.capitalize()}: {f'{setting}, ' if setting else ''}on {place}, "
    found += f"{significant(best['tokens_per_s'])} tokens/s."
    return replace(said, kicker="", headline=_beyond_reason(decision), costs=f"{found} {_beyond(decision, unit)}")


def costs(decision: Decision, unit: str) -> str:
    """Return what a training takes with the best option: time, hours, energy and cost, then memory."""
    best, question = decision.options.iloc[0], decision.question
    found = [duration(24 * best["days"]), f"{significant(best['gpu_hours'])} {unit}-hours"]
    if not pd.isna(best["energy_kwh"]):
        found.append(f"{significant(best['energy_kwh'])} kWh")
    found.append(_cost(best, question, unit) or "cost unknown without a price")
    memory = "" if pd.isna(best["memory_gib"]) else f"; {_memory(best, memory_figure(decision.runs))}"
    return f"{', '.join(found)}{memory}"


def _cost(option: "pd.Series[Any]", question: Question, unit: str) -> str:
    """Return what an option costs and at which price; empty without a price."""
    if not option["price"] > 0:
        return ""
    sign = question.currency
    assumed = "" if {option["kind"], ""} & set(question.prices) else "an assumed "
    return f"{sign}{significant(option['cost'])} at {assumed}{sign}{fixed(option['price'], 2)} a {unit}-hour"


def _beyond_reason(decision: Decision) -> str:
    """Say that no measured setting is fast enough."""
    fastest = _first_run(decision, decision.options["days"].idxmin())
    model = labels.text(fastest.get("model"))
    what = beyond_reason("measured setting", "" if model == "-" else model, decision.question.tokens)
    return f"{what} on {setting_words.place(fastest)}."


def _beyond(decision: Decision, unit: str) -> str:
    """Say how many GPUs would be enough if each were as fast as those of the setting with the fewest GPU-hours."""
    thrifty = decision.options.loc[decision.options["gpu_hours"].idxmin()]
    is_other = thrifty.name != decision.options.index[0]
    setting = setting_words.setting(_first_run(decision, thrifty.name)) if is_other else ""
    cost = _cost(thrifty, decision.question, unit)
    hours = f"{significant(thrifty['gpu_hours'])} {unit}-hours{f', {cost}' if cost else ''}"
    return beyond(thrifty["gpu_hours"], thrifty["tokens_per_s"] / thrifty["gpus"], unit, hours, setting)


def _first_run(decision: Decision, experiment: object) -> dict[Any, Any]:
    return decision.runs[decision.runs["experiment"] == experiment].iloc[0].to_dict()


def beyond_reason(setting: str, model: str, tokens: float) -> str:
    """Return that no setting of a kind, such as a measured one, is fast enough; without the end of the sentence."""
    return f"No {setting} trains {f'{model} ' if model else ''}on {amount(tokens)} tokens within {MOST_DAYS:g} days"


def beyond(gpu_hours: float, rate: float, unit: str, hours: str, setting: str = "", basis: str = "measured") -> str:
    """Return how many GPUs finish in `GOAL_DAYS`, and why that costs so much.

    Parameters
    ----------
    gpu_hours, rate
        What the training takes at these tokens/s of one GPU.
    unit
        `GPU` or `rank`.
    hours
        The GPU-hours, and their cost if it is known, in words.
    setting
        The setting with this rate, in words, unless it was named before.
    basis
        `measured` or `predicted`.
    """
    by = f" with {setting}" if setting else ""
    needed = fixed(gpus_needed(gpu_hours), 0)
    return (
        f"{GOAL_DAYS:g} days would need {needed} {unit}s if each sustained {significant(rate)} tokens/s{by}, an "
        f"extrapolation beyond what was {basis}. At that rate, the training takes {hours}."
    )


def _note(decision: Decision, shown: "pd.Series[Any]", unit: str) -> str:
    """Say that fewer GPUs were measured than are at hand, and how many settings are too slow or unstable to answer."""
    said, gpus = [], decision.question.gpus
    if decision.gpus and gpus > decision.gpus[-1]:
        said.append(f"{_measured(decision.gpus, unit)}, fewer than the {fixed(gpus, 0)} at hand: ")
        said[0] += f"this answer is for {labels.count(shown['gpus'], unit)}. {_more(gpus, unit)}"
    if decision.too_slow:
        are = "setting is left out: it takes" if decision.too_slow == 1 else "settings are left out: they take"
        said.append(f"{fixed(decision.too_slow, 0)} {are} more than {MOST_DAYS:g} days.")
    if decision.unstable:
        said.append(f"{left_out_unstable(decision.unstable)}.")
    return " ".join(said)


def _measured(gpus: tuple[int, ...], unit: str) -> str:
    *others, last = (fixed(number, 0) for number in gpus)
    which = f"{', '.join(others)} and {last}" if others else last
    one = gpus == (1,)
    return f"Only {which} {unit}{'' if one else 's'} {'was' if one else 'were'} measured"


def _more(gpus: int, unit: str) -> str:
    """Say how to know more: measure on more GPUs, or predict; ranks without GPUs cannot be predicted."""
    sweep = f"dsnb sweep PARAMS --set gpus={gpus}"
    if unit != "GPU":
        return f"Measure on more: {sweep}."
    return f"Measure on more ({sweep}) or predict it (dsnb predict PARAMS --gpus {gpus})."


def _memory(option: "pd.Series[Any]", figure: str | None) -> str:
    name = "host memory" if figure == "host_memory_gib" else "GPU memory"
    has = "" if pd.isna(option["gpu_memory_gib"]) else f" of {significant(option['gpu_memory_gib'])}"
    return f"{name} {significant(option['memory_gib'])}{has} GiB"


def _why_not(decision: Decision) -> str:
    question, runs = decision.question, decision.runs
    ok = runs[runs["status"] == "ok"]
    timed = ok[(numbers(ok, "tokens_per_s") > 0) & (numbers(ok, "gpus") > 0)]
    if ok.empty:
        return f"No setting can be recommended: {'the run' if len(runs) == 1 else f'all {len(runs)} runs'} failed."
    if timed.empty:
        is_timed = (numbers(ok, "tokens_per_s") > 0).any()
        missing = "the number of GPUs is unknown" if is_timed else "no run measured speed"
        return f"No setting can be recommended: {missing}."
    fewest = numbers(timed, "gpus").min()
    if question.gpus and fewest > question.gpus:
        limit = labels.count(question.gpus, setting_words.unit(timed.iloc[0].to_dict()))
        return f"No setting was measured on {limit} or fewer: the smallest ran on {fewest:g}."
    if decision.unstable:
        return f"No setting can be recommended: {left_out_unstable(decision.unstable)}."
    if question.objective == "cost":
        return "The cheapest setting is unknown: give a price."
    return "The setting with the least memory is unknown: no run measured its memory."


def left_out_unstable(number: int) -> str:
    """Return that settings are not ranked because their repeats do not agree, without the end of the sentence."""
    return (
        f"{labels.count(number, 'setting')} {'is' if number == 1 else 'are'} not ranked, because "
        f"{'its' if number == 1 else 'their'} repeats differ by more than {UNSTABLE:g} times"
    )


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
        return "No other setting can be compared with it."
    first, second = decision.options.iloc[0], decision.options.iloc[1]
    said = [_next_setting(decision)]
    if decision.difference is not None and not pd.isna(decision.difference["change_pct"]):
        said.append(_difference(decision.difference, decision.question, unit))
    more = second["memory_gib"] - first["memory_gib"]
    if abs(more) >= SHOWN_GIB:  # false where it is unknown
        said.append(f"{significant(abs(more))} GiB {'more' if more > 0 else 'less'}")
    return f"Runner-up: {', '.join(said)}."


def _next_setting(decision: Decision) -> str:
    differing = decision.differing
    own = decision.settings.loc[decision.options.index[1]].to_dict()
    changed = [
        labels.axis(name).describe(other)
        for name, (_, other) in differing.items()
        if name not in PLACE and setting_words.has_effect(own, name)
    ]
    place = [f"on {setting_words.place(own)}"] if PLACE & set(differing) else []
    if changed:
        return ", ".join([*changed, *place])
    return f"the same {place[0]}" if place else f"the same settings as {decision.options.index[1]}"


def _table(decision: Decision, unit: str) -> tuple[tuple[str, str, str], ...]:
    differing = decision.differing
    if len(differing.keys() - PLACE) + bool(differing.keys() & PLACE) < 2:
        return ()
    rows = (
        (axis_title(name, unit), labels.text(best), labels.text(other)) for name, (best, other) in differing.items()
    )
    return tuple(rows)


def axis_title(name: str, unit: str) -> str:
    """Return the title of a setting; where there are no GPUs, their number is that of ranks."""
    return f"{unit}s" if name == "gpus" else labels.axis(name).title


def _difference(row: "pd.Series[Any]", question: Question, unit: str) -> str:
    """Return how much worse the mean of a setting is, with the interval of that; of too few runs, their median.

    The best setting has the best median; by the mean of its runs, another one may be better.
    """
    objective = question.objective
    worse = worsening(row["change_pct"], objective)
    ends = sorted(worsening(row[name], objective) for name in ("low_pct", "high_pct"))
    by = "no" if abs(worse) < EQUAL_PCT else f"{significant(abs(worse), 2)} %"
    size = f"{by} {WORSE[objective][int(worse <= -EQUAL_PCT)].format(unit=unit)}"
    size += "" if row["verdict"] == Verdict.TOO_FEW else BY_MEAN[int(worse <= -EQUAL_PCT)]
    if row["verdict"] == Verdict.TOO_FEW:
        runs = "one run each" if row["n"] == row["base_n"] == 1 else f"{row['base_n']} and {row['n']} runs"
        few = f"{runs}, too few to be sure: {FEWEST_RUNS} of each are needed"
        return f"about the same ({size}; {few})" if abs(worse) < 100 * question.relevance else f"{size} ({few})"
    flip = -1 if worse < 0 else 1
    interval = f"95 % interval {' to '.join(_end(flip * end) for end in ends[::flip])}"
    if row["verdict"] == Verdict.NO_LARGER:
        return f"about the same ({size}, {interval})"
    return f"{size}{'' if row['verdict'] == Verdict.LIKELY else ', which may be chance'} ({interval})"


def worsening(change_pct: float, objective: str) -> float:
    """Return by how many per cent less speed, or more of what is to be least, a change of throughput is."""
    return -change_pct if objective == "time" else 100 * (1 / (1 + change_pct / 100) - 1)


def _end(value: float) -> str:
    """Return an end of an interval with the digits that `dsnb.analysis.comparison_table.signed` shows it with."""
    text = fixed(abs(value), 1 if abs(value) < 99.95 else 0)
    return f"\N{MINUS SIGN}{text}" if value < 0 and text != "0.0" else text


def basis(run: dict[str, Any]) -> str:
    """Return whether the figures of a run were `measured` with dsnb, or `published` by others."""
    source = labels.text(run.get("source"))
    return "published" if source.startswith(SOURCE) and not is_own(source) else "measured"


def origin(run: dict[str, Any]) -> str:
    """Return where the figures of a run come from: measured here, in dsnb's own published tables, or by others."""
    if basis(run) == "published":
        return "published, not measured here"
    source = labels.text(run.get("source"))
    return f"measured with dsnb, published as {source.removeprefix(SOURCE)}" if is_own(source) else "measured"


def _is_of_one_basis(decision: Decision) -> bool:
    """Return whether all options were measured, or all were published."""
    first = decision.runs.drop_duplicates("experiment").set_index("experiment").loc[decision.options.index]
    return len({basis(run) for run in first.to_dict("records")}) == 1


def _origin(best: "pd.Series[Any]", origin: str) -> str:
    """Tell what is measured from what is extrapolated."""
    runs = "one run" if best["n"] == 1 else f"the median of {int(best['n'])} runs"
    memory = "Speed" if pd.isna(best["memory_gib"]) else "Speed and memory"
    bad = int(best["n_failed"])
    failed = f" {labels.count(bad, 'more run')} of this setting failed." if bad else ""
    return f"{memory}: {origin}, {runs}. Time and costs: {EXTRAPOLATED}.{failed}"


def duration(hours: float) -> str:
    """Return hours in the largest unit that is at least one."""
    size, noun = next(((size, noun) for size, noun in HOURS if hours >= size), HOURS[-1])
    text = significant(hours / size)
    return f"{text} {noun}{'' if text == '1' else 's'}"


def duration_range(low_hours: float, high_hours: float) -> str:
    """Return a range of hours in the largest unit that its end is at least one of, as in "3 to 6 days"."""
    size, noun = next(((size, noun) for size, noun in HOURS if high_hours >= size), HOURS[-1])
    return (
        f"{labels.span(low_hours / size, high_hours / size)} {noun}s"
        if low_hours < high_hours
        else duration(high_hours)
    )


def amount(tokens: float) -> str:
    """Return a number of tokens in words, as in "100 billion"."""
    size, word = next(((size, word) for size, word in SIZES if tokens >= size), (1, ""))
    return f"{significant(tokens / size, 6)} {word}".strip()
