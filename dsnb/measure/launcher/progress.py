"""The progress of a run: its phase until the first step, then steps, loss and tokens/s.

A phase is shown with its elapsed seconds, because importing torch and building or compiling a large
model can take minutes without other output.
"""

import html
from typing import Any, Self

from tqdm import tqdm

from dsnb.base.files.json_files import Tail
from dsnb.base.system import launch_clock, waiting
from dsnb.settings.experiment import Experiment
from dsnb.settings.records import record_schema
from dsnb.settings.records.paths import RunPaths


class RunState:
    """How far a run is, from the files in its folder; as a string, its phase or its last loss and tokens/s."""

    def __init__(self, experiment: Experiment, run: RunPaths) -> None:
        self.step = 0
        self.total = experiment.warmup_steps + experiment.steps
        # On hosts, the console begins before torch is imported.
        self._building = (
            "importing, building the model" if experiment.hostfile else "building the model"
        )
        if experiment.command:
            self._building = "waiting for the first step"
        is_compiled = experiment.compile not in {"off", None}
        self._first_step = "compiling, first step" if is_compiled else "first step"
        self._run = run
        self._tail = Tail(run.steps)
        self._last: dict[str, Any] = {}
        self._phase = ""
        self._began_s = 0.0

    def read(self) -> bool:
        """Read the steps since the last call; return whether there were any."""
        steps = list(record_schema.steps(self._tail))
        if steps:
            self._last = steps[-1]
            self.step = self._last["step"]
        return bool(steps)

    @property
    def left_s(self) -> float | None:
        """The time that the remaining steps take at the speed of the last one; None before the first step."""
        step_s = self._last.get("step_time_s")
        if step_s is None:
            return None
        return float((self.total - self.step) * step_s)

    def __str__(self) -> str:
        if self.step:
            parts = []
            if "loss" in self._last:
                parts.append(f"loss {self._last['loss']:.3f}")
            tokens = self._last.get("tokens")
            step_s = self._last.get("step_time_s")
            if tokens and step_s:
                parts.append(f"{tokens / step_s:,.0f} tokens/s")
            return ", ".join(parts)
        phase = "starting"
        if self._run.steps.exists():
            phase = self._first_step
        elif self._run.console.exists():
            phase = self._building
        now_s = launch_clock.now_s()
        if phase != self._phase:
            self._phase = phase
            self._began_s = now_s
        return f"{phase}: {now_s - self._began_s:.0f} s"


class Progress:
    """The progress of a run within a `with` block: a bar in a terminal, in a notebook an output that is replaced.

    Unlike a widget, the output of an interrupted run shows its last state in a saved notebook. A
    run that ends leaves no output.
    """

    def __init__(self, experiment: Experiment, run: RunPaths, enabled: bool) -> None:
        self.state = RunState(experiment, run)
        self._name = experiment.name
        self._note = "importing torch, DeepSpeed and transformers"
        if experiment.command:
            self._note = "starting the command"
        elif experiment.hostfile:
            self._note = "starting the ranks"
        self._refreshed_s = 0.0
        self._output: Any = None
        in_notebook = enabled and waiting.in_notebook()
        self._bar = tqdm(
            total=self.state.total, unit="step", disable=not enabled or in_notebook, desc=self._name
        )
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

    def refresh(self, at_once: bool = False) -> None:
        """Show the current state, at most every `waiting.REFRESH_S` unless `at_once`."""
        if at_once or launch_clock.now_s() > self._refreshed_s + waiting.REFRESH_S:
            self._refreshed_s = launch_clock.now_s()
            self._note = str(self.state)
            self._show()

    def _show(self) -> None:
        self._bar.n = self.state.step
        self._bar.set_postfix_str(self._note)
        if self._output:
            self._output.update(self)

    def __repr__(self) -> str:
        shown = f"{self._name}: {self.state.step} of {self.state.total} steps, {self._note}"
        if self.state.left_s is None:
            return shown
        return f"{shown}, {tqdm.format_interval(self.state.left_s)} left"

    def _repr_html_(self) -> str:
        bar = f'<progress value="{self.state.step}" max="{self.state.total}" aria-label="steps"></progress>'
        return f"{bar} {html.escape(repr(self))}"
