"""A decision in words: what to train with, what it costs, what comes next. `web/decision.js` says the same.

What is certain about a difference is said by its verdict alone (`dsnb.analysis.differences`).
"""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from dsnb.analysis.decision import Decision, Question, memory_figure
from dsnb.analysis.intervals import FEWEST_RUNS, Verdict
from dsnb.render.rounding import fixed, significant
from dsnb.runs import labels, setting_words
from dsnb.runs.columns import numbers

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
    costs, following, basis
        What it takes, what comes next, and what that rests on; empty where nothing can be said.
    table
        Rows of choice, value in the first and in the second setting, where these differ in several.
    """

    kicker: str
    headline: str
    costs: str = ""
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
    return Words(
        kicker=kicker,
        headline=" ".join(parts),
        costs=f"{significant(best['tokens_per_s'])} tokens/s; {amount(decision.question.tokens)} tokens: "
        f"{costs(decision, unit)}.",
        following=_following(decision, unit),
        basis=_origin(best, known),
        table=_table(decision, unit),
    )


def costs(decision: Decision, unit: str) -> str:
    """Return what a training takes with the best option: time, hours, energy and cost, then memory."""
    best, question = decision.options.iloc[0], decision.question
    found = [duration(24 * best["days"]), f"{significant(best['gpu_hours'])} {unit}-hours"]
    if not pd.isna(best["energy_kwh"]):
        found.append(f"{significant(best['energy_kwh'])} kWh")
    if best["price"] > 0:
        sign = question.currency
        assumed = "" if {best["kind"], ""} & set(question.prices) else "an assumed "
        at = f"{assumed}{sign}{fixed(best['price'], 2)} a {unit}-hour"
        found.append(f"{sign}{significant(best['cost'])} at {at}")
    else:
        found.append("cost unknown without a price")
    memory = "" if pd.isna(best["memory_gib"]) else f"; {_memory(best, memory_figure(decision.runs))}"
    return f"{', '.join(found)}{memory}"


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
    if question.objective == "cost":
        return "The cheapest setting is unknown: give a price."
    return "The setting with the least memory is unknown: no run measured its memory."


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
        medians = _of_medians(first, second, decision.question.objective)
        said.append(_difference(decision.difference, medians, decision.question, unit))
    more = second["memory_gib"] - first["memory_gib"]
    if abs(more) >= SHOWN_GIB:  # false where it is unknown
        said.append(f"{significant(abs(more))} GiB {'more' if more > 0 else 'less'}")
    return f"Runner-up: {', '.join(said)}."


def _next_setting(decision: Decision) -> str:
    differing = decision.differing
    own = decision.settings.loc[decision.options.index[1]].to_dict()
    changed = [labels.axis(name).describe(other) for name, (_, other) in differing.items() if name not in PLACE]
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


def _of_medians(first: "pd.Series[Any]", second: "pd.Series[Any]", objective: str) -> float:
    """Return by how many per cent the median of the second option is worse, as the table of medians shows it."""
    if objective == "time":
        return float(100 * (1 - second["tokens_per_s"] / first["tokens_per_s"]))
    return float(100 * (second[objective] / first[objective] - 1))


def _difference(row: "pd.Series[Any]", of_medians: float, question: Question, unit: str) -> str:
    """Return how much worse a setting is, with the interval of that, or why there is none.

    The interval is that of geometric means, to which one run of three that is slow makes a difference; without it, the
    change is that of the medians, by which the best setting was chosen.
    """
    objective = question.objective
    worse = of_medians if row["verdict"] == Verdict.TOO_FEW else worsening(row["change_pct"], objective)
    ends = sorted(worsening(row[name], objective) for name in ("low_pct", "high_pct"))
    by = "no" if abs(worse) < EQUAL_PCT else f"{significant(abs(worse), 2)} %"
    size = f"{by} {WORSE[objective][int(worse <= -EQUAL_PCT)].format(unit=unit)}"
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
    return f"\N{MINUS SIGN}{significant(-value, 2)}" if value < 0 else significant(value, 2)


def basis(run: dict[str, Any]) -> str:
    """Return where the figures of a run come from."""
    return "published" if labels.text(run.get("source")).startswith("published") else "measured"


def _is_of_one_basis(decision: Decision) -> bool:
    """Return whether all options were measured, or all were published."""
    first = decision.runs.drop_duplicates("experiment").set_index("experiment").loc[decision.options.index]
    return len({basis(run) for run in first.to_dict("records")}) == 1


def _origin(best: "pd.Series[Any]", basis: str) -> str:
    """Tell what is measured from what is extrapolated."""
    runs = "one run" if best["n"] == 1 else f"the median of {int(best['n'])} runs"
    where = ", not measured here" if basis == "published" else ""
    memory = "Speed" if pd.isna(best["memory_gib"]) else "Speed and memory"
    bad = int(best["n_failed"])
    failed = f" {labels.count(bad, 'more run')} of this setting failed." if bad else ""
    return f"{memory}: {basis}{where}, {runs}. Time and costs: {EXTRAPOLATED}.{failed}"


def duration(hours: float) -> str:
    """Return hours in the largest unit that is at least one."""
    size, noun = next(((size, noun) for size, noun in HOURS if hours >= size), HOURS[-1])
    text = significant(hours / size)
    return f"{text} {noun}{'' if text == '1' else 's'}"


def amount(tokens: float) -> str:
    """Return a number of tokens in words, as in "100 billion"."""
    size, word = next(((size, word) for size, word in SIZES if tokens >= size), (1, ""))
    return f"{significant(tokens / size, 6)} {word}".strip()
