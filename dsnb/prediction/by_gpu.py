"""One training on several kinds of GPUs: time, cost and memory of the setting recommended for each."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from dsnb.prediction import brief
from dsnb.prediction.nearest import runs
from dsnb.prediction.target import Budget
from dsnb.results.answers import card
from dsnb.results.answers.answer import Answer
from dsnb.results.answers.decide import is_tight
from dsnb.results.answers.lines import Line, line, note
from dsnb.results.answers.sentences import PHRASES, say
from dsnb.results.runs.number_text import CARD_DIGITS, duration_within, significant, supported
from dsnb.results.statistics.intervals import RELEVANCE

COLUMNS = {"days": "days", "tokens_per_s": "days", "memory": "peak_allocated_gib", "cost": "cost"}
"""Objective of `dsnb.recommend` -> the column that orders GPUs, the smallest value first."""
LEAST = "≥ "
"""Before time and cost where memory is tight."""
MERITS = PHRASES["by_gpu"]


def compared(answers: Mapping[str, Answer], budget: Budget, gpus: int) -> Answer:
    """Return one answer from those on several GPUs, by the names of these; the best GPU comes first.

    GPUs on which memory is tight are last. `gpus` is the number of each, 0 for as few as fit.
    """
    fitting = {name: one for name, one in answers.items() if len(one.table)}
    if not fitting:
        return next(iter(answers.values()))
    column = COLUMNS[budget.objective]
    firsts = [one.table.head(1).assign(gpu=name) for name, one in fitting.items()]
    table = pd.concat(firsts).sort_values(["tight", column], kind="stable", ignore_index=True)
    experiments = tuple(fitting[name].experiments[0] for name in table["gpu"])
    table.insert(1, "gpus", [one.gpus for one in experiments])
    table["worse_pct"] = 100 * (table[column] / table[column].iloc[0] - 1)

    numbers = table["gpus"]
    fewest = ""
    if numbers.min() < numbers.max():
        fewest = numbers.min()
    on = say("by_gpu.place", fewest=fewest, most=numbers.max())
    first = next(iter(fitting.values()))
    lines = [brief.title(experiments[0], budget.question(experiments[:1]), on, bool(first.assumed))]
    for place, experiment in enumerate(experiments):
        row = card.within_range(table.iloc[place]).to_dict()
        lines.append(_row(row, [experiment.label, *_merits(table, place)], budget.currency))
    lines += [_unfit(name, one, gpus) for name, one in answers.items() if name not in fitting]
    known = {run.gpu for run in runs()}
    unmeasured = [name for name in fitting if name not in known]
    lines.append(line("by_gpu", unmeasured=", ".join(unmeasured)))
    sentences = tuple(first.about("assumed"))
    return Answer(first.task, table, sentences, experiments, None, tuple(lines), first.assumed)


def _merits(table: pd.DataFrame, place: int) -> Iterator[str]:
    """Yield in what a GPU is as good as the best; one whose memory is tight promises nothing."""
    if is_tight(table.iloc[place].to_dict()):
        yield MERITS["tight"]
        return
    for column in ("days", "cost"):
        values = table[column].mask(table["tight"].eq(True))
        if values.count() > 1 and values.iloc[place] <= (1 + RELEVANCE) * values.min():
            yield MERITS[column]


def _row(row: Mapping[str, Any], remarks: Sequence[str], currency: str) -> Line:
    """Return time, cost and memory of the setting recommended for a GPU."""
    time, times = duration_within(24 * row["days"], 24 * row["days_low"], 24 * row["days_high"])
    least = ""
    if is_tight(row):
        least = LEAST
        times = ""
    hours = supported(row["gpu_hours"], row["tokens_per_s_error_pct"] / 100, CARD_DIGITS)
    spent = f"{hours} GPU-hours"
    if row["cost"] > 0:
        spent = f"{currency}{card.cost_amount(row)}"
    return line(
        "gpu",
        place=f"{row['gpus']} {row['gpu']}",
        time=f"{least}{time}",
        times=times,
        spent=f"{least}{spent}",
        memory=significant(row["peak_allocated_gib"]),
        room=significant(row["peak_allocated_gib"] + row["headroom_gib"]),
        remarks=", ".join(remarks),
    )


def _unfit(name: str, answer: Answer, gpus: int) -> Line:
    """Return that no setting fits on a GPU, and how many would be enough."""
    least: object = ""
    for sentence in answer.about("least_gpus"):
        least = sentence.facts["least"]
    return note(say("by_gpu.unfit", place=f"{gpus} {name}", least=least))
