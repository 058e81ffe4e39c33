"""What a run shows while it goes on: its phase until the first step, then steps, loss and tokens/s.

A notebook and a terminal show the same. A phase is shown with its elapsed seconds, because importing torch and
building or compiling a large model can take minutes in which there is nothing else to show.
"""

import contextlib
import html
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tqdm import tqdm

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


class NotebookBar:
    """The progress of a run in a notebook: one output that is replaced, so that a saved notebook has its last state.

    Of a widget, a notebook without the widget's state would show the first one.

    Parameters
    ----------
    total
        Steps of the run, warm-up included.
    name
        The experiment's name.
    """

    disable = False

    def __init__(self, total: int, name: str) -> None:
        from IPython.display import display

        self.n, self._total, self._name, self._note = 0, total, name, ""
        self._handle: Any = display(self, display_id=True)

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        """Set the text behind the bar."""
        self._note = text
        if refresh:
            self.refresh()

    def refresh(self) -> None:
        """Show the current state."""
        self._handle.update(self)

    def clear(self) -> None:
        """Remove the bar."""
        from IPython.display import clear_output

        clear_output(wait=True)

    def end(self, how: str) -> None:
        """Leave the last state with the way in which the run ended."""
        self.set_postfix_str(", ".join(filter(None, [self._note, how])))

    def __repr__(self) -> str:
        return ", ".join(filter(None, [f"{self._name}: {self.n} of {self._total} steps", self._note]))

    def _repr_html_(self) -> str:
        text = html.escape(repr(self))
        return f'<progress value="{self.n}" max="{self._total}" aria-label="steps"></progress> {text}'


@contextlib.contextmanager
def progress_bar(experiment: Experiment, enabled: bool) -> Iterator[Any]:
    """Show the bar of one run while the block runs."""
    total = experiment.warmup_steps + experiment.steps
    if enabled and _in_notebook():
        bar = NotebookBar(total, experiment.name)
        try:
            yield bar
        except BaseException as error:
            bar.end("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
            raise
        bar.clear()
        return
    with tqdm(total=total, unit="step", disable=not enabled, desc=experiment.name) as bar:
        yield bar


def _in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None
