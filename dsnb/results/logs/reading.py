"""A training run from another program's log, filled in line by line by the readers of programs' lines."""

import re
from collections import ChainMap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

LOGGED, DERIVED = PROVENANCES = ("as logged", "derived")
END, CONSEQUENCE, CAUSE, SHORTAGE = range(4)
"""How much a line says about why a run failed: that its ranks were ended, how, what ended the first, what it lacked."""
CONSOLE = "console"
"""The program of a log that only shows how its program was launched or how it failed."""


@dataclass
class Health:
    """Whether the losses and gradient norms of a run are numbers up to its last line."""

    lines: int = 0
    """Lines so far."""
    bad: int = 0
    """Lines in a row, up to the last one, whose loss or gradient norm is not a number."""
    says: str = ""
    """What the first of these lines says."""
    is_sure: bool = False
    """The last line alone shows that the training has diverged."""

    def read(
        self, loss: str, norm: str = "", step: int | None = None, skipped: bool = False
    ) -> None:
        """Judge a line by its texts of loss and gradient norm.

        With fp16, a step whose gradient overflows is skipped and training goes on: its gradient norm says nothing.
        """
        bad_loss, bad_norm = not_finite(loss), not_finite(norm)
        if bad_norm and not bad_loss and skipped:
            return
        if not bad_loss and not bad_norm:
            self.lines, self.bad, self.is_sure = self.lines + 1, 0, False
            return
        self.lines += 1
        if self.bad == 0:
            place = f"logged line {self.lines}" if step is None else f"step {step}"
            what = f"the loss is {bad_loss}" if bad_loss else f"the gradient norm is {bad_norm}"
            self.says = f"{what} from {place} on"
        self.bad += 1
        self.is_sure = bool(bad_loss) or bad_norm == "nan"

    @property
    def has_diverged(self) -> bool:
        """Whether training is over: a single infinite gradient norm may be an overflow."""
        return self.is_sure or self.bad > 1


def not_finite(text: str) -> str:
    """Return `nan` or `inf` if a text of a number is one of them, else nothing."""
    word = text.strip().lower().lstrip("+-")
    return {"nan": "nan", "inf": "inf", "infinity": "inf"}.get(word, "")


@dataclass
class LoggedRun:
    """A run: its settings, its figures, its steps and how it ended."""

    program: str = ""
    """The program that wrote the log, as specific as the log allows."""
    settings: ChainMap[str, Any] = field(default_factory=lambda: ChainMap({}, {}))
    """Settings that the program printed; behind them, the requested ones."""
    figures: dict[str, float] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)
    """`as logged` or `derived`, for every figure and for derived settings."""
    splits: dict[str, int] = field(default_factory=dict)
    """Ranks that share a sequence: context or sequence parallelism, if the log names it."""
    environment: dict[str, str] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)
    """GPUs by host."""
    shape: dict[str, int] = field(default_factory=dict)
    """Layers, hidden size, vocabulary size and other sizes of the model, if the log has them."""
    architecture: dict[str, str] = field(default_factory=dict)
    """Arguments that tell models of equal sizes apart, as text."""
    steps: list[dict[str, float]] = field(default_factory=list)
    """`step` and the logged fields, in the order of the log."""
    notes: list[str] = field(default_factory=list)
    failure: tuple[str, str] | None = None
    """Status and cause, from the first of the lines that say most about a failure."""
    failure_says: int = END
    """How much that line says."""
    failed_after: int = 0
    """Progress before that line."""
    unnumbered: int = 0
    """Number of logged losses without the number of their step."""
    health: Health = field(default_factory=Health)
    launched: bool = False
    """A launcher or a command line was printed."""
    configured: bool = False
    """Settings or steps were printed: a launcher's line after that belongs to the next run."""
    ended: bool = False
    """The program printed its final figures."""
    scratch: dict[str, Any] = field(default_factory=dict)
    """State that readers keep from one line to the next."""

    def set_requested(self, **settings: Any) -> None:
        """Set requested settings; later command lines override them until the program has printed its settings."""
        for name, value in settings.items():
            if value is not None and not (self.configured and name in self.settings):
                self.settings.maps[1][name] = value

    def set_used(self, **settings: Any) -> None:
        """Set the settings that the program printed."""
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

    def forget(self, figure: str) -> None:
        """Remove a figure that turned out to be of something else."""
        self.figures.pop(figure, None)
        self.provenance.pop(figure, None)

    def add_step(self, step: int, **values: float | None) -> None:
        """Add a step or complete the last one; an earlier one is another rank's copy."""
        measured = {name: value for name, value in values.items() if value is not None}
        last = self.steps[-1]["step"] if self.steps else -1
        if step > last:
            self.steps.append({"step": step, **measured})
        elif step == last:
            self.steps[-1] = measured | self.steps[-1]

    def add_loss(self, value: float | None) -> None:
        """Record a loss whose step is unknown."""
        if value is not None:
            self.unnumbered += 1
            self.record(loss_first=self.figures.get("loss_first", value), loss_last=value)

    def fail(self, status: str, cause: str, says: int = CAUSE) -> None:
        """Record a failure; the first of those that say most counts."""
        if not self.has_failed or says > self.failure_says:
            self.failure, self.failure_says = (status, " ".join(cause.split())[:300]), says
            self.failed_after = self.progress

    @property
    def progress(self) -> int:
        """Number of logged steps and losses."""
        return len(self.steps) + self.unnumbered

    @property
    def has_failed(self) -> bool:
        """Whether it failed and did not continue; other ranks may still print one line of steps after a failure."""
        return self.failure is not None and self.progress <= self.failed_after + 1

    @property
    def is_megatron(self) -> bool:
        """Whether a program of the Megatron family wrote the log."""
        return bool(self.scratch.get("megatron"))


Reader = Callable[[LoggedRun, str], None]
"""Records the content of a line."""
Handler = Callable[[LoggedRun, re.Match[str]], object]
"""Records the match of a pattern in a line."""
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
    """Return a handler for settings that a program printed: one per group of the match, with its parser."""
    return lambda run, match: run.set_used(**_parsed(settings, match))


def requested(**settings: Callable[[str], Any]) -> Handler:
    """Return a handler for requested settings, as `used`."""
    return lambda run, match: run.set_requested(**_parsed(settings, match))


def _parsed(settings: dict[str, Callable[[str], Any]], match: re.Match[str]) -> dict[str, Any]:
    return {
        name: parse(text)
        for (name, parse), text in zip(settings.items(), match.groups(), strict=True)
    }


def failure(status: str, cause: str = "", says: int = CAUSE) -> Handler:
    """Return a handler for the message of a failure; the `cause` is the match by default."""
    return lambda run, match: run.fail(status, cause or match[0].strip(), says)
