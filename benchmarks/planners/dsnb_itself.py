"""dsnb, as it is released, and with each row predicted without its own source.

Both predict the other program's run as far as `benchmarks/outside/programs.toml` knows how it
differs, and state the range that `dsnb predict` prints. Some constants were fitted to these rows
(`dsnb_fitted` of the rows, `benchmarks.outside.marks`), so the released dsnb has seen them; the
second planner takes these constants without the row's own source, and has no answer where that
cannot be done.
"""

import math
from collections.abc import Sequence
from typing import Any

from benchmarks.outside import marks
from benchmarks.outside import rows as outside
from benchmarks.outside.rows import Row
from benchmarks.planners.question import Answer, Planner, Question
from dsnb import __version__

CHOSEN = "constants were chosen with this row in view"


class Dsnb(Planner):
    """dsnb with its constants as they are."""

    name = "dsnb"
    title = "dsnb, having seen the rows"
    source = "docs/explanation/prediction.md"
    version = __version__
    claims = "speed with an 80 % range, and the peak of memory"
    memory_of = "the peak"
    command = "python -m benchmarks.planners predict dsnb"

    def answers(self, questions: Sequence[Question]) -> list[Answer]:
        """Return speed, range and memory of each row that dsnb can express."""
        return [answer(line) for line in lines(questions)]


class DsnbLeftOut(Planner):
    """dsnb without the source of the row."""

    name = "dsnb-left-out"
    title = "dsnb, without the row's source"
    source = Dsnb.source
    version = Dsnb.version
    claims = Dsnb.claims
    memory_of = Dsnb.memory_of
    command = "python -m benchmarks.planners predict dsnb-left-out"

    def answers(self, questions: Sequence[Question]) -> list[Answer]:
        """Return the answers of dsnb, without figures that a constant was fitted to."""
        rows = read(questions)
        speeds = marks.left_out(rows)
        found = []
        for place, line in enumerate(lines(questions)):
            found.append(unseen(rows[place], line, speeds.get(place)))
        return found


def read(questions: Sequence[Question]) -> list[Row]:
    """Return the rows of the questions, as dsnb reads them."""
    return [outside.row_of(question.published, question.folder) for question in questions]


def lines(questions: Sequence[Question]) -> list[dict[Any, Any]]:
    """Return the predicted line of each row; models are traced."""
    return outside.predicted(read(questions)).to_dict("records")


def answer(line: dict[Any, Any]) -> Answer:
    """Return what dsnb says of a row."""
    if line["problem"]:
        return Answer(why_not=str(line["problem"]))
    return Answer(
        known(line["predicted"]),
        known(line["low"]),
        known(line["high"]),
        known(line["memory_gib"]),
        is_true(line["fits"]),
    )


def unseen(row: Row, line: dict[Any, Any], speed: float | None) -> Answer:
    """Return what dsnb says of a row without its source; its range has the width that dsnb prints."""
    released = answer(line)
    if released.why_not:
        return released
    memory_gib = released.memory_gib
    if marks.marks(row)[marks.MEMORY]:
        memory_gib = None
    fits = None if memory_gib is None else released.fits
    if speed is None or released.tokens_per_s is None:
        why_not = CHOSEN if memory_gib is None else ""
        return Answer(memory_gib=memory_gib, fits=fits, why_not=why_not)
    low = speed * line["low"] / line["predicted"]
    high = speed * line["high"] / line["predicted"]
    return Answer(speed, known(low), known(high), memory_gib, fits)


def known(value: float | None) -> float | None:
    """Return a figure, or None for NaN."""
    if value is None or math.isnan(value):
        return None
    return float(value)


def is_true(value: object) -> bool | None:
    """Return a verdict, or None where there is none."""
    if value is None or value != value:  # NaN
        return None
    return bool(value)
