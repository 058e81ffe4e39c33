"""One run of a training, as its log tells it: what the readers fill in."""

from array import array
from dataclasses import dataclass, field
from typing import Any

LOGGED, PUBLISHED, DERIVED = PROVENANCES = ("as logged", "as published", "derived")
FIELDS = ("step", "t_s", "step_time_s", "step_time_logged_s", "loss", "tokens", "samples", "allocated_gib", "skipped")
MISSING = float("nan")
WIDTH = len(FIELDS)
_OTHERS = FIELDS[1:]
_PLACES = {name: place for place, name in enumerate(FIELDS)}


class Steps:
    """The steps of a run in the order in which they were logged: rows of doubles, for logs of any length."""

    def __init__(self) -> None:
        self._rows = array("d")
        self.restarted = False
        """The last step that was passed over was the first one again: another training has begun."""

    def __len__(self) -> int:
        return len(self._rows) // WIDTH

    def column(self, name: str) -> "array[float]":
        """Return the values of a field, missing ones as NaN."""
        return self._rows[_PLACES[name] :: WIDTH]

    @property
    def first(self) -> float:
        """The number of the first step."""
        return self._rows[0] if self._rows else MISSING

    @property
    def last(self) -> float:
        """The number of the last step."""
        return self._rows[-WIDTH] if self._rows else MISSING

    @property
    def last_span(self) -> float:
        """How many steps the last line stands for: those since the line before."""
        return self._rows[-WIDTH] - self._rows[-2 * WIDTH] if len(self) > 1 else 1.0

    def add(self, step: int, **values: float | None) -> None:
        """Add a step, or add to the last one; one that came before is another rank's echo and is passed over."""
        rows = self._rows
        self.restarted = len(rows) > WIDTH and step <= rows[0]
        if not rows or step > rows[-WIDTH]:
            rows.append(step)
            rows.extend([MISSING if value is None else value for value in map(values.get, _OTHERS)])
        elif step == rows[-WIDTH]:
            for name, value in values.items():
                place = _PLACES[name] - WIDTH
                if value is not None and rows[place] != rows[place]:
                    rows[place] = value


@dataclass
class LoggedRun:
    """One run: what was set, what was measured, how it ended."""

    program: str = ""
    """Which program wrote the log; the most telling line wins."""
    settings: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)
    """`as logged` or `derived`, for every figure and every setting that is not as it was logged."""
    environment: dict[str, str] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)
    """GPUs by host."""
    shape: dict[str, int] = field(default_factory=dict)
    """Layers, hidden size and vocabulary, where the log has them."""
    steps: Steps = field(default_factory=Steps)
    notes: list[str] = field(default_factory=list)
    failure: tuple[str, str] | None = None
    """Status and cause of the first sign that it did not end well."""
    failed_after_steps: int = 0
    """Lines of steps before that sign."""
    configured: bool = False
    """Settings or steps were printed: a launcher's line after that belongs to the next run."""
    ended: bool = False
    """The program printed its final figures."""
    began_s: float | None = None
    """The first time stamp, in seconds."""
    reader_errors: int = 0
    """Lines at which a reader failed."""
    first_reader_error: tuple[int, str] | None = None
    """The place in the log of the first of them, and the error."""
    scratch: dict[str, Any] = field(default_factory=dict)
    """What a reader must remember from one line to another."""

    @property
    def is_empty(self) -> bool:
        """True if no program was recognised in it."""
        return not self.program

    def set_requested(self, **settings: Any) -> None:
        """Take settings from a command line, which a later command corrects, and what the program prints more so.

        Once the program has printed what it uses, a command can only add to it.
        """
        said = self.scratch.setdefault("said", set())
        for name, value in settings.items():
            if value is not None and (name not in self.settings or (name in said and not self.configured)):
                self.settings[name] = value
                said.add(name)

    def set_used(self, **settings: Any) -> None:
        """Take settings as the program printed them: what it really used."""
        for name, value in settings.items():
            if value is not None:
                self.settings[name] = value
                if "said" in self.scratch:
                    self.scratch["said"].discard(name)

    def record(self, origin: str = LOGGED, **figures: float | None) -> None:
        """Take figures; the last one of a name counts."""
        for name, value in figures.items():
            if value is not None:
                self.figures[name] = value
                self.provenance[name] = origin

    def record_max(self, **figures: float | None) -> None:
        """Take figures of which the largest counts."""
        for name, value in figures.items():
            if value is not None and value >= self.figures.get(name, 0.0):
                self.record(LOGGED, **{name: value})

    def fail(self, status: str, cause: str) -> None:
        """Note that it did not end well; the first sign counts, but running out of memory tells more than the rest."""
        if not self.has_failed or (self.failure and status == "oom" and self.failure[0] != "oom"):
            self.failure, self.failed_after_steps = (status, " ".join(cause.split())[:300]), len(self.steps)

    @property
    def has_failed(self) -> bool:
        """True if it did not go on after what looked like its end; other ranks may still print one line of steps."""
        return self.failure is not None and len(self.steps) <= self.failed_after_steps + 1
