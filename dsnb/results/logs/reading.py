"""A training run from another program's log, filled in line by line by the readers of programs' lines."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dsnb.results.logs.values import DECLARED, NUMBER, PARSERS

LOGGED, DERIVED, STATED = PROVENANCES = ("as logged", "derived", "stated")
END, CONSEQUENCE, CAUSE, SHORTAGE = range(4)
"""How much a line says about why a run failed: that its ranks were ended, how, what ended the
first, what it lacked."""
WEIGHTS = {"end": END, "consequence": CONSEQUENCE, "cause": CAUSE, "shortage": SHORTAGE}
CONSOLE = "console"
"""The program of a log that only shows how its program was launched or how it failed."""
_STAMP = re.compile(r"\b(20\d\d-[01]\d-[0-3]\d [0-2]\d:[0-5]\d:[0-5]\d)(?:[,.](\d{1,6})\b)?")


class Facts(dict[str, Any]):
    """What is known, by name; None for what is not."""

    def __missing__(self, name: str) -> None:
        """Return None without keeping it."""


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

        With fp16, a step whose gradient overflows is skipped and training goes on: its gradient
        norm says nothing.
        """
        bad_loss = not_finite(loss)
        bad_norm = not_finite(norm)
        if bad_norm and not bad_loss and skipped:
            return
        self.lines += 1
        self.is_sure = bool(bad_loss) or bad_norm == "nan"
        if not bad_loss and not bad_norm:
            self.bad = 0
            return
        if self.bad == 0:
            what = f"the gradient norm is {bad_norm}"
            if bad_loss:
                what = f"the loss is {bad_loss}"
            place = f"step {step}"
            if step is None:
                place = f"logged line {self.lines}"
            self.says = f"{what} from {place} on"
        self.bad += 1

    @property
    def has_diverged(self) -> bool:
        """Whether training is over: a single infinite gradient norm may be an overflow."""
        return self.is_sure or self.bad > 1


def not_finite(text: str) -> str:
    """Return `nan` or `inf` if a text of a number is one of them, else nothing."""
    word = text.strip().lower().lstrip("+-").removesuffix("inity")
    if word in {"nan", "inf"}:
        return word
    return ""


@dataclass
class LoggedRun:
    """A run: its settings, its figures, its steps and how it ended."""

    program: str = ""
    """The program that wrote the log, as specific as the log allows."""
    settings: Facts = field(default_factory=Facts)
    """Settings that the program printed, else the requested ones."""
    printed: set[str] = field(default_factory=set)
    """Names of the settings that the program printed."""
    figures: Facts = field(default_factory=Facts)
    provenance: dict[str, str] = field(default_factory=dict)
    """`as logged`, `derived` or `stated`, for every figure and for settings that the log does not say."""
    splits: dict[str, int] = field(default_factory=dict)
    """Ranks that share a sequence: context or sequence parallelism, if the log names it."""
    environment: dict[str, str] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)
    """GPUs by host."""
    shape: Facts = field(default_factory=Facts)
    """Layers, hidden size, vocabulary size and other sizes of the model."""
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
    is_megatron: bool = False
    """A program of the Megatron family wrote the log."""
    first_is_slow: bool = False
    """The first line is warm-up: it includes compilation and the setup of NCCL."""
    has_parts: bool = False
    """Several engines share the log, so the time and the rate of one are of a part of a step."""
    has_pairs: bool = False
    """A sample is a pair of sequences."""
    launchers: int = 0
    """Number of torch's launchers, one on every node."""
    gpus_by_rates: int = 0
    """GPUs, from the rates of all and of one."""
    has_trainer_total: bool = False
    """The global batch size is that of transformers' Trainer, which leaves out model
    parallelism."""
    has_engine_world: bool = False
    """DeepSpeed's engine has printed its world size."""
    has_stages: bool = False
    """A pipeline was printed."""
    has_experts: bool = False
    """The model is a mixture of experts."""
    parameters_by_rank: dict[str, int] = field(default_factory=dict)
    """Parameters by model-parallel rank."""
    skipped_by_engine: int = 0
    """Steps that DeepSpeed's engine has skipped, which Megatron's own lines miss in a pipeline."""
    resumed_from: int = 0
    """Step of the checkpoint from which the training was continued."""
    planned_by_bar: int = 0
    """Length of the first progress bar of a training whose number of steps is not printed."""
    reached: int = 0
    """Last step that a progress bar or an entry without a loss names."""
    columns: dict[str, Any] = field(default_factory=dict)
    """Further columns of its row, as a table states them."""
    longest: int = 0
    """The most tokens that a sample may have, if nothing says that all have as many."""
    scratch: Facts = field(default_factory=Facts)
    """State that readers keep from one line to the next."""

    def start(self, program: str) -> None:
        """Record that a program has printed a step; the first one is warm-up."""
        self.program = program
        self.configured = True
        self.first_is_slow = True

    def set_requested(self, **settings: Any) -> None:
        """Set requested settings; later command lines override them until the program has printed its settings."""
        for name, value in settings.items():
            is_fixed = name in self.printed or (self.configured and name in self.settings)
            if value is not None and not is_fixed:
                self.settings[name] = value

    def set_used(self, **settings: Any) -> None:
        """Set the settings that the program printed."""
        for name, value in settings.items():
            if value is not None:
                self.settings[name] = value
                self.printed.add(name)

    def derive(self, **settings: Any) -> None:
        """Set settings that follow from others, if they are unknown."""
        for name, value in settings.items():
            if value and name not in self.settings:
                self.settings[name] = value
                self.provenance[name] = DERIVED

    def record(self, origin: str = LOGGED, /, **figures: float | None) -> None:
        """Record figures; a later value of a figure replaces an earlier one, a peak only a lower one."""
        for name, value in figures.items():
            is_lower = (
                name.startswith("peak_")
                and value is not None
                and value < self.figures.get(name, 0.0)
            )
            if value is not None and not is_lower:
                self.figures[name] = value
                self.provenance[name] = origin

    def forget(self, figure: str) -> None:
        """Remove a figure that turned out to be of something else."""
        self.figures.pop(figure, None)
        self.provenance.pop(figure, None)

    def add_step(self, step: int, **values: float | None) -> None:
        """Add a step or complete the last one; an earlier one is another rank's copy."""
        measured = {name: value for name, value in values.items() if value is not None}
        if self.is_new(step):
            self.steps.append({"step": step, **measured})
        elif step == self.steps[-1]["step"]:
            self.steps[-1] = measured | self.steps[-1]

    def is_new(self, step: int) -> bool:
        """Return whether a step is none that another rank has printed."""
        return not self.steps or step > self.steps[-1]["step"]

    def add_loss(self, value: float) -> None:
        """Record a loss, whose step may be unknown."""
        self.record(loss_first=self.figures.get("loss_first", value), loss_last=value)

    def fail(self, status: str, cause: str, says: int = CAUSE) -> None:
        """Record a failure; the first of those that say most counts."""
        if not self.has_failed or says > self.failure_says:
            self.failure = (status, " ".join(cause.split())[:300])
            self.failure_says = says
            self.failed_after = self.progress

    @property
    def progress(self) -> int:
        """Number of logged steps and losses."""
        return len(self.steps) + self.unnumbered

    @property
    def has_failed(self) -> bool:
        """Whether it failed and did not continue; other ranks may still print one line of steps after a failure."""
        return self.failure is not None and self.progress <= self.failed_after + 1

    def clock(self, line: str) -> float | None:
        """Return the seconds from the first time stamp of this run to that of a line."""
        match = _STAMP.search(line)
        if not match:
            return None
        try:
            now = datetime.fromisoformat(match[1]).timestamp() + float(f"0.{match[2] or 0}")
        except ValueError:
            return None
        since = now - self.scratch.setdefault("began_s", now)
        if since >= 0:
            return since
        return None


Match = re.Match[str]
Reader = Callable[[LoggedRun, str], None]
"""Records the content of a line."""
Handler = Callable[[LoggedRun, Match], object]
"""Records the match of a pattern in a line."""
SETTERS: dict[str, Callable[..., None]] = {
    "settings": LoggedRun.set_used,
    "requested": LoggedRun.set_requested,
    "figures": LoggedRun.record,
}
"""What a line of `lines.toml` prints -> how it is kept."""
READERS: list[tuple[str, Reader]] = []
"""Search string -> reader, called only for lines that contain the string."""
MARKS: list[str] = []
"""Search strings by each of which a text is recognised as a log."""


def reads(*needles: str, pattern: str = "", marks: bool = False) -> Callable[[Handler], Handler]:
    """Register a function for the lines that contain one of the search strings and match a pattern.

    With `marks`, a text that contains one of them is a log; the built-in readers are listed in
    `console`.
    """
    compiled = re.compile(pattern)
    if marks:
        MARKS.extend(needles)

    def register(handler: Handler) -> Handler:
        def read(run: LoggedRun, line: str) -> None:
            match = compiled.search(line)
            if match:
                handler(run, match)

        READERS.extend((needle, read) for needle in needles)
        return handler

    return register


def parsed(parsers: Mapping[str, str], match: Match) -> dict[str, Any]:
    """Return a value for each group of a match, by the name of its parser."""
    texts = zip(parsers.items(), match.groups(), strict=True)
    return {name: PARSERS[parser](text) for (name, parser), text in texts}


def setter(line: Mapping[str, Any]) -> Handler:
    """Return the handler of a line of `lines.toml`: it prints values, or shows a fact about the run."""

    def handle(run: LoggedRun, match: Match) -> None:
        for kind, set_values in SETTERS.items():
            if kind in line:
                set_values(run, **parsed(line[kind], match))
        for fact, value in line.get("facts", {}).items():
            setattr(run, fact, value)

    return handle


def failure(line: Mapping[str, Any]) -> Handler:
    """Return the handler of the message of a failure in `lines.toml`; its cause is the match by default."""
    cause = line.get("cause", "<MATCH>")
    status = line.get("status", "failed")
    says = WEIGHTS[line.get("says", "cause")]
    return lambda run, match: run.fail(status, cause.replace("<MATCH>", match[0].strip()), says)


def declared(table: str, handler: Callable[[Mapping[str, Any]], Handler]) -> None:
    """Register the lines of a table of `lines.toml`."""
    for line in DECLARED[table]:
        pattern = line.get("pattern", "").replace("<NUMBER>", NUMBER)
        reads(*line["has"], pattern=pattern)(handler(line))


declared("lines", setter)
