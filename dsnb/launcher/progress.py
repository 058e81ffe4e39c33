"""What a run shows while it goes on: its phase until the first step, then steps, loss and tokens/s.

A notebook and a terminal show the same. A phase is shown with its elapsed seconds, because importing torch and
building or compiling a large model can take minutes in which there is nothing else to show.
"""

import html
import sys
from collections.abc import Iterable
from typing import Any, Self

from tqdm import tqdm

from dsnb.run_folder.paths import RunPaths
from dsnb.settings.experiment import Experiment
from dsnb.system import launch_clock

REFRESH_S = 0.5
"""Seconds between refreshes of the bar."""


class Phase:
    """The phase of a run that has no step yet, from the files in its folder, and since when it was seen."""

    def __init__(self, experiment: Experiment, run: RunPaths) -> None:
        self._experiment, self._run = experiment, run
        self._name, self._began_s = "", 0.0

    def __str__(self) -> str:
        name = "importing, building the model" if self._experiment.hostfile else "building the model"
        if not self._run.console.exists():
            name = "starting"
        elif self._run.steps.exists():
            name = "first step" if self._experiment.compile == "off" else "compiling, first step"
        if name != self._name:
            self._name, self._began_s = name, launch_clock.now_s()
        return f"{name}: {launch_clock.now_s() - self._began_s:.0f} s"


class Progress:
    """The progress of a run while a `with` block runs: a bar in a terminal, in a notebook one output that is replaced.

    A saved notebook has the last state of the output. Of a widget, a notebook without the widget's state would show the
    first one. A run that ends leaves no output, one that is cut short its last state.
    """

    def __init__(self, experiment: Experiment, run: RunPaths, enabled: bool) -> None:
        self.step, self.total = 0, experiment.warmup_steps + experiment.steps
        self._experiment, self._phase = experiment, Phase(experiment, run)
        self._note = "starting the ranks" if experiment.hostfile else "importing torch, DeepSpeed and transformers"
        self._refreshed_s = 0.0
        self._output: Any = None
        in_notebook = enabled and _in_notebook()
        self._bar = tqdm(total=self.total, unit="step", disable=not enabled or in_notebook, desc=experiment.name)
        if in_notebook:
            from IPython.display import display

            self._output = display(self, display_id=True)
        self._show()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bar.close()
        if self._output and kind is None:
            from IPython.display import clear_output

            clear_output(wait=True)
        elif self._output:
            self._note += ", interrupted" if kind is KeyboardInterrupt else ", failed"
            self._output.update(self)

    def update(self, steps: Iterable[dict[str, Any]], at_once: bool = False) -> None:
        """Take the steps that are new; show them, or the phase before the first one, at most every `REFRESH_S`."""
        for step in steps:
            self.step = step["step"]
            rate = self._experiment.tokens_per_step / step["step_time_s"] if step.get("step_time_s") else 0.0
            loss = step["loss"] if step.get("loss") is not None else float("nan")
            self._note = f"loss {loss:.3f}, {rate:,.0f} tokens/s"
        if at_once or launch_clock.now_s() > self._refreshed_s + REFRESH_S:
            self._refreshed_s = launch_clock.now_s()
            if not self.step:
                self._note = str(self._phase)
            self._show()

    def _show(self) -> None:
        self._bar.n = self.step
        self._bar.set_postfix_str(self._note)
        if self._output:
            self._output.update(self)

    def __repr__(self) -> str:
        return f"{self._experiment.name}: {self.step} of {self.total} steps, {self._note}"

    def _repr_html_(self) -> str:
        text = html.escape(repr(self))
        return f'<progress value="{self.step}" max="{self.total}" aria-label="steps"></progress> {text}'


def _in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None
