"""The progress of a sweep: a line for each run that has ended, and in a terminal the current run and the time left."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from dsnb.base.files import plain_text
from dsnb.base.system import signals
from dsnb.measure.launcher.progress import RunState
from dsnb.measure.sweep.params import Run
from dsnb.settings.records.result import Result

REFRESHES_PER_S = 2


class Progress:
    """Shows the progress of a sweep of `total` runs within a `with` block; `todo` has the runs to execute.

    `show_eta` is false for runs that wait in a queue, because the time left is unknown then.
    """

    def __init__(
        self, total: int, todo: Sequence[Run], enabled: bool = True, show_eta: bool = True
    ) -> None:
        self.console = Console(stderr=True, quiet=not enabled)
        self.queued = 0
        self._total = total
        self._ended = total - len(todo)
        self._show_eta = show_eta
        self._hint = signals.stop_hint() if todo else None
        self._todo = len(todo)
        self._running: dict[Path, tuple[Run, RunState, float]] = {}
        """Runs that are being executed, with the time of their start."""
        self._took_s: list[float] = []
        self._began = time.monotonic()
        self._live = Live(
            get_renderable=self._row,
            console=self.console,
            refresh_per_second=REFRESHES_PER_S,
            transient=True,
        )

    def __enter__(self) -> Self:
        if self._ended:
            self.say(f"{self._ended} of {self._total} runs are finished and are not repeated")
        if self._hint:
            self.say(self._hint)
        if self.console.is_terminal and not self.console.quiet:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def begin(self, run: Run) -> None:
        """Show that a run has started; later calls have no effect."""
        if run.paths.dir not in self._running:
            self._running[run.paths.dir] = (
                run,
                RunState(run.experiment, run.paths),
                time.monotonic(),
            )

    def end(self, run: Run, result: Result, location: str = "") -> None:
        """Print the line of a run that has ended; `location` is a phrase such as `in job 7`."""
        *_, began = self._running.pop(run.paths.dir, (None,))
        seconds = result.phases_s.get("wall")
        if began is not None:
            seconds = time.monotonic() - began
        took = "?"
        if seconds is not None:
            self._took_s.append(seconds)
            took = f"{seconds:.0f} s"
        self._ended += 1
        if self._show_eta:
            took += f", {_duration(self._left_s())} left"
        where = f" {location}" if location else ""
        self.say(
            f"run {self._ended}/{self._total}  {run.name} run{run.repeat}{where}: "
            f"{result.status}, {_figures(result)}  ({took})"
        )

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(plain_text.line(text), markup=False, highlight=False, soft_wrap=True)

    def _part(self) -> float:
        """Return the fraction of the work that is done."""
        usual_s = sum(self._took_s) / len(self._took_s) if self._took_s else math.inf
        done = float(self._ended + self._todo - self._total)
        for _, state, began in [*self._running.values()]:
            state.read()
            done += max(state.step / state.total, min((time.monotonic() - began) / usual_s, 0.99))
        return done / self._todo if self._todo else 1.0

    def _left_s(self) -> float | None:
        """Return the estimated seconds left; None before anything is done."""
        part = self._part()
        if part:
            return (time.monotonic() - self._began) * (1 - part) / part
        return None

    def _row(self) -> Text:
        """Return the line at the bottom of a terminal."""
        left_s = self._left_s() if self._show_eta else None
        running = [*self._running.values()]
        parts = [f"{self._ended} of {self._total} runs", f"{len(running)} running"]
        if len(running) == 1:
            run, state, _ = running[0]
            note = f"step {state.step}, {state}" if state.step else str(state)
            parts = [f"run {self._ended + 1}/{self._total}  {run.name}", note]
        parts += [f"{self.queued} queued"] if self.queued else []
        parts += [f"{_duration(left_s)} left"] if left_s is not None else []
        return Text(", ".join(parts), no_wrap=True, overflow="ellipsis")


def _figures(result: Result) -> str:
    """Return speed and loss of a run, or the cause if it is not ok."""
    if result.status != "ok":
        return result.cause or ""
    rate = result.summary.get("tokens_per_s")
    loss = result.summary.get("loss_last")
    text = f"{rate:,.0f} tokens/s" if rate else result.cause or ""
    if loss is not None:
        text += f", loss {loss:.3f}"
    return text


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min"
