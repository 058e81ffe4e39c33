"""The lines of an answer by measured settings: the best one, the runner-up, and what the figures rest on.

Their facts and sentences are those of the card (`dsnb.results.answers.card`).
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from dsnb.results.answers import card
from dsnb.results.answers.decide import (
    ASSUMED_PRICE,
    Decision,
    Question,
    default_objective,
    of_runs,
    recorded_prices,
    without_probes,
)
from dsnb.results.answers.lines import Line, line, note, split
from dsnb.results.answers.sentences import PHRASES, Sentence, say
from dsnb.results.runs.number_text import fixed, rounded
from dsnb.results.runs.table import as_runs
from dsnb.results.runs.templates import fill
from dsnb.results.statistics.tasks import FEWEST_SETTINGS, Task, tasks

WORDS = PHRASES["of_lines"]
WARNED = {"short": "", "failed": ""}
"""Facts that are among the bad news, and so not repeated."""
LEAST_PCT = 0.1
"""A smaller spread is shown as this."""
Said = Mapping[str, Sequence[Sentence]]
"""Sentences of a card by role."""


def decisions(
    runs: pd.DataFrame, question: Question | None = None, most: int | None = None
) -> list[tuple[Task, Decision]]:
    """Return the decision on each task, of `most` tasks.

    By default, the question is the least time, or the fewest GPU-hours if the runs differ in their
    number of GPUs, at the price that the runs state, or an assumed one.
    """
    runs = without_probes(as_runs(runs))
    prices = recorded_prices(runs)
    found = []
    for task in tasks(runs)[:most]:
        objective = default_objective(task.runs)
        usual = Question(0, objective, prices=prices, assumed_price=ASSUMED_PRICE)
        found.append((task, of_runs(task.runs, question or usual)))
    return found


def lines(
    decision: Decision, task: str, by_objective: Mapping[str, Decision] | None = None
) -> list[Line]:
    """Return the lines of the best measured setting of a task, or why there is none.

    With the decisions `by_objective`, their best settings take the place of the runner-up.
    """
    said: dict[str, list[Sentence]] = defaultdict(list)
    for sentence in card.sentences(decision):
        if sentence:
            said[sentence.role].append(sentence)
    if decision.options.empty or decision.is_beyond:
        return [line("task", task=task), *map(note, [*said["headline"], *said["costs"]])]
    best: dict[str, Any] = {**said["basis"][0].facts}
    found = [line("title", model=task, place=best["place"], tokens=best["tokens"])]
    found += _warnings(decision, said, best)
    role = "train"
    if decision.is_few:
        role = "so_far"
    found.append(line(role, setting=best["setting"] or best["name"]))
    found += _figures(decision.options.iloc[0], best)
    if by_objective:
        found += _of_objectives(by_objective)
    else:
        found += _runner_up(decision, said)
    if not decision.is_few:
        found += map(note, said["edge"])
    kicker = "".join(f"{one}. " for one in said["kicker"])
    found.append(note(kicker + say("basis", **best | WARNED)))
    if decision.is_few:
        facts = card.few_settings(decision.runs, decision.table).facts
        found.append(line("measure_next", **facts))
    return found


def _warnings(decision: Decision, said: Said, best: Mapping[str, Any]) -> Iterator[Line]:
    """Yield what the reader must know before relying on the answer, as one line."""
    warnings: list[Sentence] = []
    if decision.is_few:
        warnings.append(say("few", settings=len(decision.table), needed=FEWEST_SETTINGS))
    warnings += [say("short", **best), say("failed_runs", **best)]
    warnings += [one for one in said["note"] if one.name != "note.few"]
    told = " ".join(filter(None, warnings))
    if told:
        yield note(told)


def _figures(option: "pd.Series[Any]", facts: Mapping[str, Any]) -> Iterator[Line]:
    """Yield time, speed and memory, each with what makes it certain."""
    shown = {**facts, "time": facts["duration"], "times": "", "hours": rounded(option["gpu_hours"])}
    yield line("time", **shown)
    shown["rate"] = rounded(option["tokens_per_s"])
    if option["n"] > 1:
        shown["rates"] = spread(option["spread_pct"])
    shown["gain"] = str(facts["gain"]).rstrip(".")
    yield line("speed", **shown)
    if facts["memory"]:
        left = rounded(option["gpu_memory_gib"] - option["memory_gib"])
        place = {"room": facts["capacity"], "left": say("left", headroom=left)}
        if facts["memory_name"] != "GPU memory":
            place = {"room": "", "left": facts["memory_name"]}
        yield line("memory", **place, memory=facts["memory"])


def spread(pct: float) -> Sentence:
    """Return a spread in words; empty if it is unknown."""
    if math.isnan(pct):
        return say("spread")
    return say("spread", pct=fixed(max(pct, LEAST_PCT), 1))


def _runner_up(decision: Decision, said: Said) -> Iterator[Line]:
    """Yield the second setting with its difference, and how certain that is."""
    facts: Mapping[str, Any] = said["following"][0].facts
    if "changes" not in facts:
        return
    difference = facts.get("difference", "")
    main, more = split(facts["changes"].split(", "))
    remarks = [", ".join(more), facts["training"]]
    if isinstance(difference, Sentence) and "size" in difference.facts:
        verdict = difference.name.partition(".")[2]
        remarks.insert(1, say(f"sure.{verdict}", **difference.facts))
        difference = difference.facts["size"]
    yield line(
        "alternative",
        label=WORDS["or"],
        changes=main,
        difference=difference,
        memory=rounded(decision.options["memory_gib"].iloc[1]),
        remark="; ".join(filter(None, remarks)),
    )


def _of_objectives(decided: Mapping[str, Decision]) -> Iterator[Line]:
    """Yield the best setting of each further objective, if it is another one than those before."""
    named: list[object] = []
    for objective, decision in decided.items():
        if decision.options.empty or decision.is_beyond:
            continue
        best = decision.options.iloc[0]
        if named and best.name not in named:
            facts = card.figures(best, decision.question)
            setting = card.setting_texts(decision.settings.loc[best.name].to_dict())
            what = fill(PHRASES["plan"][objective], facts)
            shown = {**facts, "setting": setting["setting"] or best.name}
            yield line(
                "alternative",
                label=WORDS["or"],
                changes=what[0].lower() + what[1:],
                difference=facts["duration"],
                memory=facts["memory"],
                remark=say("objective", **shown),
            )
        named.append(best.name)


def sentences(by_objective: Mapping[str, Decision], memory: str) -> Iterator[Sentence]:
    """Yield the best setting of each objective in sentences, or that none is fast enough, and what is not ranked."""
    fastest = by_objective["time"]
    if fastest.is_beyond:
        facts = card.figures(fastest.options.iloc[0], fastest.question)
        yield say("beyond", what="measured setting", **facts)
        yield say("needed", **card.needed_gpus(fastest.options, fastest.question))
    named: set[object] = set()
    for objective, decision in by_objective.items():
        if decision.options.empty or decision.is_beyond or fastest.is_beyond:
            continue
        best = decision.options.iloc[0]
        facts = card.figures(best, decision.question, memory)
        what = fill(PHRASES["plan"][objective], facts)
        yield say("plan.again" if best.name in named else "plan", what=f"{what}:", **facts)
        named.add(best.name)
    if fastest.unstable:
        yield say("note.unstable", unstable=fastest.unstable)
