"""The scores of all planners as tables: what they are, speed, and memory."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.outside.rows import HERE
from benchmarks.planners import question, registry, scoring
from benchmarks.planners.question import Planner, Question
from benchmarks.planners.scoring import FigureError, Score

PREDICTED = HERE / "predicted.csv"
"""dsnb's speeds by `python -m benchmarks.outside --write`; `of_dsnb` are those of its own training."""
REFERENCE = "dsnb-left-out"
"""The planner that each other one is compared with on the rows that both answer."""
NONE = "none"
"""Of a planner that does not give a figure."""
ABOUT_HEADER = ["| planner | version | rows answered | what its figures are |", "|---|---|---|---|"]
SPEED_HEADER = [
    "| speed | rows | median error | bias | dsnb on these rows | closer than dsnb "
    "| order in a project | pairs ordered | range covers |",
    "|---|---|---|---|---|---|---|---|---|",
]
MEMORY_HEADER = [
    "| memory | claims | rows | median error | bias | dsnb on these rows | closer than dsnb "
    "| shortages found | false alarms |",
    "|---|---|---|---|---|---|---|---|---|",
]


def tables(
    questions: Sequence[Question], folder: Path = registry.PREDICTIONS
) -> Mapping[str, pd.DataFrame]:
    """Return for each planner that has predictions the rows beside its answers."""
    published = [question.published for question in questions]
    found = {}
    for name in registry.PLANNERS:
        if (folder / f"{name}.csv").exists():
            found[name] = scoring.table(published, registry.predictions(name, folder))
    return found


def lines(questions: Sequence[Question], folder: Path = registry.PREDICTIONS) -> list[str]:
    """Return all tables, and which planners have no predictions."""
    known = tables(questions, folder)
    found = [*about_lines(known), "", *speed_lines(known), "", *memory_lines(known)]
    for name in registry.PLANNERS:
        if name not in known:
            found.append(f"\n{name} has no predictions in {folder}")
    return found


def about_lines(known: Mapping[str, pd.DataFrame]) -> list[str]:
    """Return the table of planners: version, answered rows, and what they claim."""
    found = list(ABOUT_HEADER)
    for name, table in known.items():
        planner = registry.PLANNERS[name]
        score = scoring.score(table)
        answered = f"{score.answered} of {score.rows}"
        found.append(_row([_linked(planner), planner.version, answered, planner.claims]))
    return found


def _linked(planner: Planner) -> str:
    if planner.source.startswith("https://"):
        return f"[{planner.title}]({planner.source})"
    return planner.title


def speed_lines(known: Mapping[str, pd.DataFrame]) -> list[str]:
    """Return the table of speeds."""
    found = list(SPEED_HEADER)
    for name, table in known.items():
        score = scoring.score(table)
        cells = error_cells(score.speed)
        cells += against_cells(known, name, "tokens_per_s", "measured")
        found.append(_row([registry.PLANNERS[name].title, *cells, *order_cells(score)]))
    return found


def memory_lines(known: Mapping[str, pd.DataFrame]) -> list[str]:
    """Return the table of memory."""
    found = list(MEMORY_HEADER)
    for name, table in known.items():
        score = scoring.score(table)
        cells = error_cells(score.memory)
        cells += against_cells(known, name, "memory_gib", "mem")
        planner = registry.PLANNERS[name]
        cells = [planner.title, planner.memory_of, *cells]
        found.append(_row([*cells, *shortage_cells(score)]))
    return found


def error_cells(error: FigureError | None) -> list[str]:
    """Return rows, median error and bias."""
    if error is None:
        return [NONE, "", ""]
    rows = f"{error.answered} of {error.measured}"
    return [rows, f"{error.median_pct:.1f} %", f"{error.bias_pct:+.1f} %"]


def against_cells(
    known: Mapping[str, pd.DataFrame], name: str, figure: str, measured: str
) -> list[str]:
    """Return the median error of the reference on the rows that a planner answers, and how often it is beaten there."""
    if name == REFERENCE or REFERENCE not in known:
        return ["", ""]
    own = known[name]
    reference = known[REFERENCE]
    assert reference["row"].tolist() == own["row"].tolist()
    theirs = reference[figure].where(own[figure] > 0)
    error = scoring.figure_error(theirs, reference[measured])
    if error is None:
        return ["", ""]
    closer = scoring.closer(own[figure], theirs, reference[measured])
    return [f"{error.median_pct:.1f} %", f"{closer} of {error.answered}"]


def order_cells(score: Score) -> list[str]:
    """Return rank correlation, ordered pairs and the coverage of ranges."""
    order = ""
    pairs = ""
    within = ""
    if score.ranking and score.ranking.sources:
        order = f"{score.ranking.correlation:.2f} ({score.ranking.sources})"
    if score.ranking and score.ranking.pairs:
        pairs = f"{100 * score.ranking.ordered:.0f} % of {score.ranking.pairs}"
    if score.coverage:
        within = f"{score.coverage.within_pct:.0f} % of {score.coverage.stated}"
    elif score.speed:
        within = "states none"
    return [order, pairs, within]


def shortage_cells(score: Score) -> list[str]:
    """Return found shortages and false alarms."""
    if score.shortages is None:
        return ["", ""]
    told = score.shortages
    found = f"{told.found} of {told.short}" if told.short else ""
    return [found, f"{told.false_alarms} of {told.ran}"]


def _row(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


@cache
def known() -> Mapping[str, pd.DataFrame]:
    """Return the committed predictions beside the rows of this repository."""
    return tables(question.read())


def figures(name: str) -> Mapping[str, float]:
    """Return the figures of a planner that texts name; those that it does not give are absent."""
    score = scoring.score(known()[name])
    found = {"rows": float(score.rows), "answered": float(score.answered)}
    for kind, error in (("speed", score.speed), ("memory", score.memory)):
        if error is not None:
            found[f"{kind}_rows"] = float(error.answered)
            found[f"{kind}_error"] = error.median_pct
            found[f"{kind}_bias"] = error.bias_pct
    if score.ranking:
        found["order"] = score.ranking.correlation
        found["pairs"] = float(score.ranking.pairs)
        found["ordered"] = 100 * score.ranking.ordered
    if score.shortages:
        found["ran"] = float(score.shortages.ran)
        found["alarms"] = float(score.shortages.false_alarms)
    if score.coverage:
        found["stated"] = float(score.coverage.stated)
        found["within"] = score.coverage.within_pct
    return found


def untold() -> Mapping[str, float]:
    """Return the error of dsnb with all its constants, without what is known of the rows' programs."""
    table = pd.read_csv(PREDICTED)
    error = scoring.figure_error(table["of_dsnb"], table["measured"])
    assert error
    return {"speed_rows": float(error.answered), "speed_error": error.median_pct}
