"""One start of a training, as its log tells it: what the readers fill in."""

from array import array
from dataclasses import dataclass, field
from typing import Any

LOGGED, PUBLISHED, DERIVED = ORIGINS = ("as logged", "as published", "derived")
FIELDS = ("step", "t_s", "step_time_s", "step_time_logged_s", "loss", "tokens", "samples", "allocated_gib", "skipped")
MISSING = float("nan")


class Steps:
    """The steps of a start in the order in which they were logged: columns of doubles, for logs of any length."""

    def __init__(self) -> None:
        self.columns = {name: array("d") for name in FIELDS}
        self.fell_back = False
        """The last step that was passed over was the first one again: another training has begun."""

    def __len__(self) -> int:
        return len(self.columns["step"])

    @property
    def first(self) -> float:
        """The number of the first step."""
        return self.columns["step"][0] if len(self) else MISSING

    @property
    def last(self) -> float:
        """The number of the last step."""
        return self.columns["step"][-1] if len(self) else MISSING

    def add(self, step: int, **values: float | None) -> None:
        """Add a step, or add to the last one; one that came before is another rank's echo and is passed over."""
        self.fell_back = len(self) > 1 and step <= self.first
        if len(self) and step < self.last:
            return
        if not len(self) or step > self.last:
            for column in self.columns.values():
                column.append(MISSING)
            self.columns["step"][-1] = step
        for name, value in values.items():
            if value is not None and self.columns[name][-1] != self.columns[name][-1]:
                self.columns[name][-1] = value

    def known(self, name: str) -> list[float]:
        """Give the values of a column that are not missing."""
        return [value for value in self.columns[name] if value == value]


@dataclass
class Start:
    """One start: what was set, what was measured, how it ended."""

    program: str = ""
    """Which program wrote the log; the most telling line wins."""
    settings: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    """`as logged` or `derived`, for every figure and every setting that is not as it was logged."""
    environment: dict[str, str] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)
    """GPUs by host."""
    shape: dict[str, int] = field(default_factory=dict)
    """Layers, hidden size and vocabulary, where the log has them."""
    steps: Steps = field(default_factory=Steps)
    notes: list[str] = field(default_factory=list)
    trouble: tuple[str, str] | None = None
    """Status and cause of the first sign that it did not end well."""
    trouble_at: int = 0
    """Lines of steps before that sign."""
    configured: bool = False
    """Settings or steps were printed: a launcher's line after that belongs to the next start."""
    ended: bool = False
    """The program printed its final figures."""
    began_s: float | None = None
    """The first time stamp, in seconds."""
    scratch: dict[str, Any] = field(default_factory=dict)
    """What a reader must remember from one line to another."""

    @property
    def is_empty(self) -> bool:
        """True if no program was recognised in it."""
        return not self.program

    def say(self, **settings: Any) -> None:
        """Take settings from the command line, which what is printed later corrects."""
        for name, value in settings.items():
            if value is not None:
                self.settings.setdefault(name, value)

    def print(self, **settings: Any) -> None:
        """Take settings as the program printed them: what it really used."""
        self.settings.update({name: value for name, value in settings.items() if value is not None})

    def measure(self, origin: str = LOGGED, **figures: float | None) -> None:
        """Take figures; the last one of a name counts."""
        for name, value in figures.items():
            if value is not None:
                self.figures[name] = value
                self.origins[name] = origin

    def peak(self, **figures: float | None) -> None:
        """Take figures of which the largest counts."""
        for name, value in figures.items():
            if value is not None and value >= self.figures.get(name, 0.0):
                self.measure(LOGGED, **{name: value})

    def fail(self, status: str, cause: str) -> None:
        """Note that it did not end well; the first sign counts, but running out of memory tells more than the rest."""
        if not self.is_in_trouble or (self.trouble and status == "oom" and self.trouble[0] != "oom"):
            self.trouble, self.trouble_at = (status, " ".join(cause.split())[:300]), len(self.steps)

    @property
    def is_in_trouble(self) -> bool:
        """True if it did not go on after what looked like its end; other ranks may still print one line of steps."""
        return self.trouble is not None and len(self.steps) <= self.trouble_at + 1
