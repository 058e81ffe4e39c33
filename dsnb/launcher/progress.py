"""What a run shows while it goes on: its phase until the first step, then steps, loss and tokens/s.

The same bar serves notebooks and terminals. A phase is shown with its elapsed seconds, because importing torch and
building or compiling a large model can take minutes in which there is nothing else to show.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tqdm.auto import tqdm

from dsnb.run_folder.paths import RunPaths
from dsnb.settings.experiment import Experiment
from dsnb.system import launch_clock

REFRESH_S = 0.5
"""Seconds between refreshes of the bar."""


def start_phase(experiment: Experiment) -> str:
    """Return the phase before the ranks run; the first of a process that forks its ranks imports the libraries."""
    return "starting the ranks" if _imports_in_ranks(experiment) else "importing torch, DeepSpeed and transformers"


def phase(experiment: Experiment, run: RunPaths) -> str:
    """Return the phase of a run that has no step yet, in words, from the files in its folder."""
    if not run.console.exists():
        return "starting"
    if run.steps.exists():
        return "first step" if experiment.compile == "off" else "compiling, first step"
    return "importing, building the model" if _imports_in_ranks(experiment) else "building the model"


def _imports_in_ranks(experiment: Experiment) -> bool:
    return bool(experiment.hostfile) or experiment.launcher != "fork"


class PhaseTimer:
    """Names the current phase with the seconds since it was first seen."""

    def __init__(self, now_s: Callable[[], float] = launch_clock.now_s) -> None:
        self._now_s, self._name, self._began_s = now_s, "", 0.0

    def text(self, name: str) -> str:
        """Return a phase with its elapsed seconds, which start at its first call."""
        if name != self._name:
            self._name, self._began_s = name, self._now_s()
        return f"{name}: {self._now_s() - self._began_s:.0f} s"


@contextlib.contextmanager
def progress_bar(experiment: Experiment, enabled: bool) -> Iterator[Any]:
    """Show the bar of one run while the block runs."""
    total = experiment.warmup_steps + experiment.steps
    with tqdm(total=total, unit="step", disable=not enabled, desc=experiment.name) as bar:
        try:
            yield bar
        finally:
            if hasattr(bar, "container"):
                # A saved notebook would keep the widget's first state, 0 %.
                from IPython.display import clear_output

                clear_output(wait=True)


@contextlib.contextmanager
def ticking(bar: Any, name: str) -> Iterator[None]:
    """Show a phase and its elapsed seconds while the block, which may wait for long, runs."""
    if bar.disable:
        yield
        return
    timer, stop = PhaseTimer(), threading.Event()

    def tick() -> None:
        bar.set_postfix_str(timer.text(name))
        while not stop.wait(REFRESH_S):
            bar.set_postfix_str(timer.text(name))

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
