"""A training run from another program's log, as the readers fill it in line by line."""

import re
from collections import ChainMap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

LOGGED, DERIVED = PROVENANCES = ("as logged", "derived")


class Restarted(Exception):
    """A line has the first step of the run again: another training has begun."""


@dataclass
class LoggedRun:
    """A run: its settings, its figures, its steps and how it ended."""

    program: str = ""
    """The program that wrote the log, as specific as the log allows."""
    settings: ChainMap[str, Any] = field(default_factory=lambda: ChainMap({}, {}))
    """Settings that the program said it used; behind them, those that were requested."""
    figures: dict[str, float] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)
    """`as logged` or `derived`, for every figure and for derived settings."""
    environment: dict[str, str] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)
    """GPUs by host."""
    shape: dict[str, int] = field(default_factory=dict)
    """Layers, hidden size and vocabulary size, if the log has them."""
    steps: list[dict[str, float]] = field(default_factory=list)
    """`step` and the fields that are known, in the order of the log."""
    notes: list[str] = field(default_factory=list)
    failure: tuple[str, str] | None = None
    """Status and cause, from the first line that reports a failure."""
    failed_after_steps: int = 0
    """Number of steps before that line."""
    configured: bool = False
    """Settings or steps were printed: a launcher's line after that belongs to the next run."""
    ended: bool = False
    """The program printed its final figures."""
    scratch: dict[str, Any] = field(default_factory=dict)
    """State that readers keep from one line to the next."""

    def set_requested(self, **settings: Any) -> None:
        """Set what a command line requests; a later one overrides it, unless the program has printed its settings."""
        for name, value in settings.items():
            if value is not None and not (self.configured and name in self.settings):
                self.settings.maps[1][name] = value

    def set_used(self, **settings: Any) -> None:
        """Set what the program printed about itself: the settings that it used."""
        self.settings.update({name: value for name, value in settings.items() if value is not None})

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

    def add_step(self, step: int, **values: float | None) -> None:
        """Add a step or complete the last one; an earlier step is another rank's copy and is ignored.

        Raises
        ------
        Restarted
            If it is the first step again.
        """
        known = {name: value for name, value in values.items() if value is not None}
        last = self.steps[-1]["step"] if self.steps else -1
        if step > last:
            self.steps.append({"step": step, **known})
        elif step == last:
            self.steps[-1] = known | self.steps[-1]
        elif len(self.steps) > 1 and step <= self.steps[0]["step"]:
            raise Restarted

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
Handler = Callable[[LoggedRun, re.Match[str]], object]
"""Takes what it understands from the match of a pattern in a line."""
READERS: list[tuple[str, Reader]] = []
"""Search string -> reader, called only for lines that contain the string."""


def reads(*needles: str, pattern: str = "") -> Callable[[Handler], Handler]:
    """Register a function for the lines that contain one of the search strings and match a pattern."""
    compiled = re.compile(pattern)

    def register(handler: Handler) -> Handler:
        def read(run: LoggedRun, line: str) -> None:
            if match := compiled.search(line):
                handler(run, match)

        READERS.extend((needle, read) for needle in needles)
        return handler

    return register


def used(**settings: Callable[[str], Any]) -> Handler:
    """Return a function for settings that a program used: one for each group of the match, with its parser."""
    return lambda run, match: run.set_used(**_parsed(settings, match))


def requested(**settings: Callable[[str], Any]) -> Handler:
    """Return a function for settings that were requested, as `used`."""
    return lambda run, match: run.set_requested(**_parsed(settings, match))


def logged(**figures: Callable[[str], Any]) -> Handler:
    """Return a function for figures as they are logged, as `used`."""
    return lambda run, match: run.record(**_parsed(figures, match))


def _parsed(settings: dict[str, Callable[[str], Any]], match: re.Match[str]) -> dict[str, Any]:
    return {name: parse(text) for (name, parse), text in zip(settings.items(), match.groups(), strict=True)}


def failure(status: str, cause: str = "") -> Handler:
    """Return a function for a message that reports a failure; without a `cause`, it is what the pattern matches."""
    return lambda run, match: run.fail(status, cause or match[0].strip())
