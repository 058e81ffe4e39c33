"""The progress of a sweep on a terminal: which run of how many, its step, loss and tokens/s, and the time left.

Without a terminal it prints one line per run. Of parallel runs it shows the number.
"""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import rich.progress
from rich.console import Console

from dsnb.files import plain_text
from dsnb.files.records import Tail
from dsnb.launcher.progress import PhaseTimer, phase
from dsnb.run_folder import record_schema
from dsnb.run_folder.result import Result
from dsnb.sweep.params import Run

REFRESH_S = 0.5


class Progress:
    """The progress bar of a sweep, shown within its `with` block.

    Parameters
    ----------
    total
        Runs of the whole sweep, finished ones included.
    todo
        The runs to be executed.
    show_eta
        Show the estimated time left; it is unknown for runs that wait in a queue.
    """

    def __init__(self, total: int, todo: Sequence[Run], enabled: bool = True, show_eta: bool = True) -> None:
        self.console = Console(stderr=True, quiet=not enabled)
        self._total, self._done = total, total - len(todo)
        self._left = Counter(run.stage for run in todo)
        self._lanes = {stage: len({run.lane for run in todo if run.stage == stage}) for stage in self._left}
        self._alone = show_eta and not any(run.lane for run in todo)
        self._show_eta = show_eta
        self._ran_s: list[float] = []
        self._began: dict[Path, float] = {}
        self._stop = threading.Event()
        self._watcher: threading.Thread | None = None
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}", markup=False),
            rich.progress.BarColumn(bar_width=20),
            rich.progress.TextColumn("{task.fields[note]}", markup=False),
            console=self.console,
            disable=not enabled or not self.console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=1, note="")

    def __enter__(self) -> Self:
        if self._done:
            self.say(f"{self._done} of {self._total} runs are finished and are not repeated")
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_watch()
        self._bar.stop()

    def begin(self, run: Run) -> None:
        """Show that a run has started; nothing changes if it is shown already."""
        if run.paths.dir in self._began:
            return
        self._began[run.paths.dir] = time.monotonic()
        if not self._alone:
            return
        number = self._done + 1
        steps = run.experiment.warmup_steps + run.experiment.steps
        self._bar.update(
            self._task, description=f"run {number}/{self._total}  {run.name}", completed=0, total=steps, note="starting"
        )
        self._stop.clear()
        self._watcher = threading.Thread(target=self._watch, args=(run,), daemon=True)
        self._watcher.start()

    def count(self, running: int, waiting: int) -> None:
        """Show the number of running and queued jobs."""
        parts = [f"{running} running", f"{waiting} queued" if waiting else ""]
        left_s = self._time_left_s()
        parts += [f"{_minutes(left_s)} left"] if left_s is not None and self._show_eta else []
        self._bar.update(
            self._task,
            description=f"{self._done} of {self._total} runs",
            completed=self._done,
            total=self._total,
            note=", ".join(filter(None, parts)),
        )

    def end(self, run: Run, result: Result, location: str = "") -> None:
        """Print the line of a run that has ended; `location` is in words, such as `in job 7`.

        The duration of a run whose start was not seen is the wall time in its result.
        """
        self._end_watch()
        began = self._began.pop(run.paths.dir, None)
        self._ran_s.append(result.phases_s.get("wall", 0.0) if began is None else time.monotonic() - began)
        self._done += 1
        self._left[run.stage] -= 1
        rate = result.summary.get("tokens_per_s")
        figure = f"{rate:,.0f} tokens/s" if result.status == "ok" and rate else (result.cause or "")
        loss = result.summary.get("loss_last")
        loss_text = f", loss {loss:.3f}" if result.status == "ok" and loss is not None else ""
        left = f", {_minutes(self._time_left_s())} left" if self._show_eta else ""
        self.say(
            f"run {self._done}/{self._total}  {run.name} run{run.repeat}{f' {location}' if location else ''}: "
            f"{result.status}, {figure}{loss_text}  ({self._ran_s[-1]:.0f} s{left})"
        )

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(plain_text.line(text), markup=False, highlight=False, soft_wrap=True)

    def _time_left_s(self, part: float = 0.0) -> float | None:
        """Estimate the time left in seconds, from finished runs or from the finished `part` of the first one.

        Lanes run in parallel, so a stage takes as long as its runs divided by its lanes.
        """
        began = [] if self._alone and not part else list(self._began.values())
        running_s = sum(time.monotonic() - one for one in began)
        if self._ran_s:
            run_s = sum(self._ran_s) / len(self._ran_s)
        elif part:
            run_s = running_s / part
        else:
            return None
        rounds = sum(left / self._lanes[stage] for stage, left in self._left.items())
        now = next((self._lanes[stage] for stage, left in sorted(self._left.items()) if left), 1)
        return max(0.0, rounds * run_s - running_s / now)

    def _watch(self, run: Run) -> None:
        tail, timer, stepped = Tail(run.paths.steps), PhaseTimer(), False
        while not self._stop.wait(REFRESH_S):
            steps = list(record_schema.steps(tail))
            stepped = stepped or bool(steps)
            if not stepped:
                self._bar.update(self._task, note=timer.text(phase(run.experiment, run.paths)))
            if not steps:
                continue
            last = steps[-1]
            loss, seconds, tokens = (last.get(name) for name in ("loss", "step_time_s", "tokens"))
            total = run.experiment.warmup_steps + run.experiment.steps
            left_s = self._time_left_s(last.get("step", 0) / total)
            parts = [
                f"loss {loss:.3f}" if loss is not None else "",
                f"{tokens / seconds:,.0f} tokens/s" if seconds and tokens else "",
                f"{_minutes(left_s)} left" if left_s is not None else "",
            ]
            self._bar.update(self._task, completed=last.get("step", 0), note=", ".join(filter(None, parts)))

    def _end_watch(self) -> None:
        self._stop.set()
        if self._watcher and self._watcher.is_alive():  # it is not if Ctrl-C came before it began
            self._watcher.join()
        self._watcher = None


def _minutes(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
