"""`design` returns a form that designs a sweep by hand, writes its params file, and starts, follows and stops it."""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from dsnb.designer import markup
from dsnb.designer.draft import write
from dsnb.designer.form import Form
from dsnb.designer.gpu_prediction import predict_on, this_gpu
from dsnb.designer.plan import Plan, plan
from dsnb.designer.predicted import Predict
from dsnb.designer.predicting import Predicting
from dsnb.designer.running import Running
from dsnb.designer.values import unique
from dsnb.errors import SettingsError
from dsnb.explorer.explore import Explorer
from dsnb.prediction import gpus, links
from dsnb.run_folder import paths
from dsnb.settings import checks, deepspeed_keys
from dsnb.settings.experiment import Experiment

USUAL: dict[str, Any] = {
    "model": "gpt2",
    "gpus": "auto",
    "zero_stage": [0, 1, 2, 3],
    "precision": "bf16",
    "micro_batch_size": 8,
    "seq_len": 128,
    "steps": 20,
    "price_per_gpu_hour": 0.0,
}
"""The settings that the form begins with."""


class Design:
    """A form, the plan beside it, and the sweep that it starts; displayed as the last expression of a notebook cell.

    `form` has the fields, `plan` what they come to, `running` the sweep.
    """

    def __init__(
        self,
        settings: Mapping[str, list[Any]],
        name: str,
        question: str,
        folder: Path,
        outputs: Path,
        gpu: str | None,
        predict: Callable[[Form], Predict],
    ) -> None:
        self.folder, self.outputs = folder, outputs
        self.plan = Plan()
        self._written: tuple[Path, str] | None = None
        self.plan_view, self.message = widgets.HTML(), widgets.HTML()
        self.write_button = self._button("Write params file", self.write)
        self.start_button = self._button("Start", self.start)
        self.stop_button = self._button("Stop", self._ask_to_stop)
        self.running = Running(self._enable)
        self.form = Form(name, question, settings, gpu, self.refresh, self._predict_anew)
        self._predict = Predicting(predict(self.form), self._show_plan)
        self.form.box.layout = widgets.Layout(flex="1 1 28rem", min_width="0")
        side = widgets.VBox([self.plan_view], layout={"flex": "1 1 24rem", "min_width": "0", "padding": "0 0 0 1rem"})
        wrapping = {"flex_flow": "row wrap"}
        buttons = widgets.HBox([self.write_button, self.start_button, self.stop_button], layout=wrapping)
        above = widgets.HBox([self.form.box, side], layout=wrapping)
        self.box = widgets.VBox([above, buttons, self.message, self.running.box])
        self.refresh()

    @property
    def path(self) -> Path:
        """The params file that the form writes."""
        return self.folder / f"{self.form.name.value.strip()}.yaml"

    @property
    def output(self) -> Path:
        """The folder of the sweep."""
        return self.outputs / self.form.name.value.strip()

    @property
    def explorer(self) -> Explorer | None:
        """The explorer of the sweep that was started; None until one of its runs has ended."""
        return self.running.explorer

    def refresh(self) -> None:
        """Work out what the form says now, and show it; a prediction that takes time is added when it is there."""
        self._show_plan()
        self.message.value = ""

    def _predict_anew(self) -> None:
        self._predict.forget()
        self.refresh()

    def _show_plan(self) -> None:
        form = self.form
        try:
            self.plan = plan(
                form.draft, self.path, self.output, self._predict, form.start_s.value, form.leave_out_unfit.value
            )
        except SettingsError as error:
            self.plan = Plan(problems=error.problems)
        self.plan_view.value = markup.plan_html(self.plan, form.start_s.value, form.objective.value, form.gpu.value)
        self._enable()

    def write(self) -> None:
        """Write the params file; if that is not possible, the form says why."""
        if self.plan.sweep is None:
            self._say("The params file is not written: what the form says cannot be run.")
            return
        if self._must_wait():
            self._say("The params file is not written: wait until it is predicted what will not fit.")
            return
        try:
            write(self.path, self.plan.text, own=self._written)
        except SettingsError as error:
            self._say(str(error))
            return
        self._written = self.path, self.plan.text
        self._say(f"Written. On the command line, the same sweep is: {self._command()}")
        self._enable()

    def start(self) -> None:
        """Start the sweep of the params file that was written; it ends with this process at the latest."""
        if self.plan.sweep is None or not self._may_start():
            reasons = self.plan.unsupported or ["write the params file first, and let a running sweep end."]
            self._say("The sweep is not started: " + " ".join(reasons))
            return
        try:
            self.running.start(self.path, self.plan.sweep, self.form.objective.value)
        except OSError as error:
            self._say(f"The sweep cannot be started: {error.strerror}.")
        else:
            self._say(f"Started: {self._command()}")

    def stop(self) -> None:
        """Stop the sweep, and wait until it has ended."""
        self.running.stop()

    def _command(self) -> str:
        """Return the command that is the same as the button Start."""
        output = ["--output", str(self.output)] if self.outputs != paths.outputs_root() else []
        return shlex.join(["dsnb", "sweep", str(self.path), *output])

    def _ask_to_stop(self) -> None:
        self.running.ask_to_stop()

    def _is_written(self) -> bool:
        return self._written == (self.path, self.plan.text)

    def _must_wait(self) -> bool:
        """Return whether it is not known yet what is to be left out."""
        return self.plan.is_predicting and self.form.leave_out_unfit.value

    def _may_start(self) -> bool:
        return (
            self._is_written() and not self._must_wait() and not self.running.is_running and not self.plan.unsupported
        )

    def _enable(self) -> None:
        """Enable the buttons that can be used now."""
        self.write_button.disabled = self.plan.sweep is None or self._is_written() or self._must_wait()
        self.start_button.disabled = self.plan.sweep is None or not self._may_start()
        self.stop_button.disabled = not self.running.may_stop

    def _say(self, sentence: str) -> None:
        self.message.value = markup.sentence(sentence)

    def _button(self, description: str, react: Callable[[], None]) -> widgets.Button:
        button = widgets.Button(description=description, layout={"width": "auto"})
        button.on_click(lambda _: react())
        return button

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the form for notebooks with a kernel, and the plan for pages without."""
        found = self.box._repr_mimebundle_()
        bundle, metadata = found if isinstance(found, tuple) else (found, {})
        return {**bundle, "text/html": self.plan_view.value}, metadata


def design(
    settings: Mapping[str, Any] | None = None,
    *,
    name: str = "my_sweep",
    question: str = "",
    folder: str | Path | None = None,
    outputs: str | Path | None = None,
    gpu: str = "",
    link: str = "nvlink",
    predict: Predict | None = None,
) -> Design:
    """Return a form for JupyterLab that designs a sweep: settings and their values, and beside them what they come to.

    It shows the number of runs, which combinations are refused and why, and what is predicted for a GPU: which do not
    fit into memory, how long the sweep takes and what it costs. One button writes the params file that `dsnb sweep`
    takes, one starts it, one stops it; the explorer follows. The sweep ends with the kernel.

    Parameters
    ----------
    settings
        Settings that the form begins with, by name: a value, or a list of them for an axis. They replace the usual
        ones, and every other setting can be added in the form.
    name, question
        Those of the params file.
    folder
        The folder for the params file; by default `params` beside the nearest `notebooks` folder.
    outputs
        The folder for the sweep's own folder; by default `$DSNB_OUTPUTS`, or `outputs` beside `notebooks`.
    gpu
        Name of the GPU to predict for, as `dsnb.predict` takes it; by default this machine's.
    link
        How GPUs are connected, as `dsnb.predict` takes it.
    predict
        Predicts experiments instead of `dsnb.predict`: takes a list of `Experiment`, returns a row for each, in order,
        with `experiment`, `fits`, `peak_allocated_gib`, `tokens_per_s` and `step_time_s`, NaN where unknown. Where an
        event loop is running, as in JupyterLab, it is called in a thread.

    Raises
    ------
    SettingsError
        If a setting is unknown or has no value, or the GPU or the link is unknown.
    """
    chosen = {**USUAL, **(settings or {})}
    lists = {key: list(value) if isinstance(value, list | tuple) else [value] for key, value in chosen.items()}
    known = Experiment.model_fields
    problems = [
        checks.unknown_setting(key, known)
        for key in lists
        if key not in known and not str(key).startswith(deepspeed_keys.PREFIX)
    ]
    problems += [f"{key} is an empty list: give a value" for key, several in lists.items() if not several]
    if problems:
        raise SettingsError(problems)
    lists = {key: unique(key, several) for key, several in lists.items()}
    links.link(link)
    return Design(
        lists,
        name,
        question,
        Path(folder) if folder else paths.params_root(),
        Path(outputs) if outputs else paths.outputs_root(),
        None if predict else gpus.find(gpu).name if gpu else this_gpu(),
        lambda form: predict or predict_on(lambda: str(form.gpu.value), link),
    )
