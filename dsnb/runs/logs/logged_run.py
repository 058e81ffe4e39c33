"""A training run from another program's log, as the readers fill it in line by line."""

import math
import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

LOGGED, PUBLISHED, DERIVED = PROVENANCES = ("as logged", "as published", "derived")
FIELDS = ("step", "t_s", "step_time_s", "step_time_logged_s", "loss", "tokens", "samples", "allocated_gib", "skipped")
MISSING = float("nan")
WIDTH = len(FIELDS)
_OTHERS = FIELDS[1:]
_PLACES = {name: place for place, name in enumerate(FIELDS)}


class Steps:
    """The steps of a run in the order of the log, stored compactly as rows of doubles."""

    def __init__(self) -> None:
        self._rows = array("d")
        self.restarted = False
        """The last call of `add` had the first step again: another training has begun."""

    def __len__(self) -> int:
        return len(self._rows) // WIDTH

    def column(self, name: str) -> "array[float]":
        """Return all values of a field; missing ones are NaN."""
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
        """The number of steps since the previous line."""
        return self._rows[-WIDTH] - self._rows[-2 * WIDTH] if len(self) > 1 else 1.0

    def add(self, step: int, **values: float | None) -> None:
        """Add a step or complete the last one; an earlier step is another rank's copy and is ignored."""
        rows = self._rows
        self.restarted = len(rows) > WIDTH and step <= rows[0]
        if not rows or step > rows[-WIDTH]:
            rows.append(step)
            rows.extend([MISSING if value is None else value for value in map(values.get, _OTHERS)])
        elif step == rows[-WIDTH]:
            for name, value in values.items():
                place = _PLACES[name] - WIDTH
                if value is not None and math.isnan(rows[place]):
                    rows[place] = value


@dataclass
class LoggedRun:
    """A run: its settings, its figures, its steps and how it ended."""

    program: str = ""
    """The program that wrote the log, as specific as the log allows."""
    settings: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)
    """`as logged` or `derived`, for every figure and for derived settings."""
    environment: dict[str, str] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)
    """GPUs by host."""
    shape: dict[str, int] = field(default_factory=dict)
    """Layers, hidden size and vocabulary size, if the log has them."""
    steps: Steps = field(default_factory=Steps)
    notes: list[str] = field(default_factory=list)
    failure: tuple[str, str] | None = None
    """Status and cause, from the first line that reports a failure."""
    failed_after_steps: int = 0
    """Number of steps before that line."""
    configured: bool = False
    """Settings or steps were printed: a launcher's line after that belongs to the next run."""
    ended: bool = False
    """The program printed its final figures."""
    began_s: float | None = None
    """The first time stamp, in seconds since 1970."""
    scratch: dict[str, Any] = field(default_factory=dict)
    """State that readers keep from one line to the next."""

    def set_requested(self, **settings: Any) -> None:
        """Set what a command line requests; a later command line overrides it, and so does `set_used`.

        Once the program has printed its settings, a command line can only add others.
        """
        requested = self.scratch.setdefault("requested", set())
        for name, value in settings.items():
            if value is not None and (name not in self.settings or (name in requested and not self.configured)):
                self.settings[name] = value
                requested.add(name)

    def set_used(self, **settings: Any) -> None:
        """Set what the program printed about itself: the settings that it used."""
        for name, value in settings.items():
            if value is not None:
                self.settings[name] = value
                self.scratch.get("requested", set()).discard(name)

    def record(self, origin: str = LOGGED, **figures: float | None) -> None:
        """Record figures; a later value of a figure replaces an earlier one."""
        for name, value in figures.items():
            if value is not None:
                self.figures[name] = value
                self.provenance[name] = origin

    def record_max(self, **figures: float | None) -> None:
        """Record figures, keeping the largest value of each."""
        for name, value in figures.items():
            if value is not None and value >= self.figures.get(name, 0.0):
                self.record(LOGGED, **{name: value})

    def fail(self, status: str, cause: str) -> None:
        """Record a failure; the first one counts, except that running out of memory replaces any other."""
        if not self.has_failed or (self.failure and status == "oom" and self.failure[0] != "oom"):
            self.failure, self.failed_after_steps = (status, " ".join(cause.split())[:300]), len(self.steps)

    @property
    def has_failed(self) -> bool:
        """Whether it failed and did not continue; other ranks may still print one line of steps after a failure."""
        return self.failure is not None and len(self.steps) <= self.failed_after_steps + 1


Reader = Callable[[LoggedRun, str], None]
"""Takes from a line what it understands of it."""


def used(pattern: str, **settings: Callable[[str], Any]) -> Reader:
    """Return a reader of settings that a program used: one for each group of the pattern, with its parser."""
    return _reader(pattern, LoggedRun.set_used, settings)


def requested(pattern: str, **settings: Callable[[str], Any]) -> Reader:
    """Return a reader of settings that were requested, as `used`."""
    return _reader(pattern, LoggedRun.set_requested, settings)


def _reader(pattern: str, set_: Callable[..., None], settings: dict[str, Callable[[str], Any]]) -> Reader:
    compiled = re.compile(pattern)

    def read(run: LoggedRun, line: str) -> None:
        if found := compiled.search(line):
            groups = zip(settings.items(), found.groups(), strict=True)
            set_(run, **{name: parse(text) for (name, parse), text in groups})

    return read


def failure(status: str, cause: str = "", pattern: str = "") -> Reader:
    """Return a reader of a message that reports a failure; without a `cause`, it is what the pattern matches."""
    compiled = re.compile(pattern)

    def read(run: LoggedRun, line: str) -> None:
        if found := compiled.search(line):
            run.fail(status, cause or found[0])

    return read
