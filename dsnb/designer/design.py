"""`design` returns a form that designs a sweep by hand, writes its params file, and starts, follows and stops it."""

import asyncio
import contextlib
import html
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import pandas as pd

from dsnb.designer.form import Form, button
from dsnb.designer.plan import Plan, plan, predicted, shown
from dsnb.designer.process import SweepProcess
from dsnb.errors import DsnbError, SettingsError
from dsnb.explorer.explore import Explorer, explore
from dsnb.files import records
from dsnb.prediction import gpus
from dsnb.run_folder import paths
from dsnb.system import hardware

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
EVERY_S = 1.0
"""Time between two looks at a running sweep."""


class Design:
    """A form for JupyterLab that designs a sweep: settings and their values, and a table of what they come to.

    The table has a row for each combination: whether it fits into the memory of the chosen GPU, memory, speed, days and
    cost by prediction, or why it is refused. One button writes the params file that `dsnb sweep` takes, one starts it,
    one stops it, one shows its runs in the explorer. The sweep ends with the kernel.

    `form` has the fields, `plan` what they come to, `process` the sweep that was started, `explorer` the view of it.

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

    Raises
    ------
    SettingsError
        If a setting, the GPU or the link is unknown.
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        name: str = "my_sweep",
        question: str = "",
        folder: str | Path | None = None,
        outputs: str | Path | None = None,
        gpu: str = "",
        link: str = "nvlink",
    ) -> None:
        gpus.link(link)
        self.folder, self.outputs = Path(folder or paths.params_root()), Path(outputs or paths.outputs_root())
        self.plan, self._link = Plan(), link
        self.process: SweepProcess | None = None
        self.explorer: Explorer | None = None
        self._written: tuple[Path, str] | None = None
        self._is_predicting = False
        self.table, self.message, self._below = widgets.HTML(), widgets.HTML(), widgets.VBox()
        self.log = widgets.Output(layout={"max_height": "14rem", "overflow": "auto"})
        self.write_button = button("Write params file", self.write)
        self.start_button = button("Start", self.start)
        self.stop_button = button("Stop", self._ask_to_stop)
        self.follow_button = button("Follow", self.follow)
        buttons = [self.write_button, self.start_button, self.stop_button, self.follow_button]
        row = widgets.HBox(buttons, layout={"flex_flow": "row wrap"})
        kind = gpus.find(gpu).name if gpu else _this_gpu()
        self.form = Form(name, question, {**USUAL, **(settings or {})}, kind, self.refresh)
        self.box = widgets.VBox([self.form.box, self.table, row, self.message, self.log, self._below])
        self.refresh()

    @property
    def path(self) -> Path:
        """The params file that the form writes."""
        return self.folder / f"{self.form.name.value.strip()}.yaml"

    @property
    def output(self) -> Path:
        """The folder of the sweep."""
        return self.outputs / self.form.name.value.strip()

    def refresh(self) -> None:
        """Work out what the form says now, and show it; in a kernel, predictions are added when they are there."""
        self.message.value = ""
        try:
            self.plan = plan(self.form.content, self.path, self.output)
        except SettingsError as error:
            self.plan = Plan(problems=error.problems)
        self._show(self.plan.table)
        if not self.plan.sweep or not self.form.gpu.value or self._is_predicting:
            return
        try:
            self._predicting = asyncio.get_running_loop().create_task(self._predict_beside())
        except RuntimeError:
            self._show(self._predict(self.plan))

    def _predict(self, made: Plan) -> pd.DataFrame:
        return predicted(made, self.form.gpu.value, self._link, self.form.tokens.value)

    async def _predict_beside(self) -> None:
        """Predict in a thread, so that the form answers meanwhile, until what the form says now is predicted."""
        made, self._is_predicting = None, True
        while made is not self.plan and self.form.gpu.value:
            made = self.plan
            self._show(made.table)
            table = await asyncio.to_thread(self._predict, made)
        self._is_predicting = False
        self._show(table if made is self.plan else self.plan.table)

    def _show(self, table: pd.DataFrame) -> None:
        note = "Predicting memory and speed ..." if self._is_predicting else ""
        note = note if self.form.gpu.value else "Choose a GPU to predict memory and speed."
        self.table.value = _sentence(note) + shown(self.plan, table)
        self._enable()

    def write(self) -> None:
        """Write the params file; if that is not possible, the form says why."""
        new = self.path, self.plan.text
        try:
            if self.plan.sweep is None:
                self._say("The params file is not written: the settings cannot be run.")
            elif self.path.exists() and (self.path, self.path.read_text()) not in (self._written, new):
                self._say(f"{self.path} exists already: choose another name, or delete it.")
            else:
                records.write_text(*new)
                self._written = new
                self._say(f"Written. On the command line, the same sweep is: {self._command}")
        except OSError as error:
            self._say(f"{self.path} cannot be written: {error.strerror}.")

    def start(self) -> None:
        """Start the sweep of the params file that was written; it ends with this process at the latest."""
        if self._written != (self.path, self.plan.text) or self._is_running:
            self._say("The sweep is not started: write the params file first, and let a running sweep end.")
            return
        self.process = SweepProcess(str(self.path.absolute()), "--output", str(self.output.absolute()))
        self._say(f"Started: {self._command}")
        self.look()
        with contextlib.suppress(RuntimeError):  # no event loop is running: `look` has to be called
            self._following = asyncio.get_running_loop().create_task(self._look_until_it_ends())

    def stop(self) -> None:
        """Stop the sweep, and wait until it has ended."""
        if self.process:
            self._ask_to_stop()
            self.process.wait()
            self.look()

    def _ask_to_stop(self) -> None:
        if self.process:
            self.process.stop()
            self._say("Stopping.")

    def follow(self) -> None:
        """Show the explorer of the sweep's runs, which follows the sweep."""
        try:
            self.explorer = explore(self.output, watch=True)
            self._below.children = [self.explorer.live]
        except (DsnbError, OSError) as error:
            self._say(f"There is no run to follow yet: {error}")

    def look(self) -> None:
        """Show how far the sweep is; a running event loop does so once a second."""
        if self.process:
            text = "".join(f"{line}\n" for line in self.process.lines)
            self.log.outputs = ({"output_type": "stream", "name": "stdout", "text": text},) if text else ()
            if self.process.end:
                self._say(self.process.end)

    async def _look_until_it_ends(self) -> None:
        while self._is_running:
            self.look()
            await asyncio.sleep(EVERY_S)
        self.look()

    @property
    def _command(self) -> str:
        output = ["--output", str(self.output)] if self.outputs != paths.outputs_root() else []
        return shlex.join(["dsnb", "sweep", str(self.path), *output])

    @property
    def _is_running(self) -> bool:
        return self.process is not None and self.process.code is None

    def _enable(self) -> None:
        """Enable the buttons that can be used now."""
        is_written = self._written == (self.path, self.plan.text)
        self.write_button.disabled = self.plan.sweep is None or is_written
        self.start_button.disabled = not is_written or self._is_running
        self.stop_button.disabled = not self._is_running or (self.process is not None and self.process.is_stopping)

    def _say(self, sentence: str) -> None:
        self.message.value = _sentence(sentence)
        self._enable()

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the form for notebooks with a kernel, and the table for pages without."""
        view = self.box._repr_mimebundle_()
        bundle, metadata = view if isinstance(view, tuple) else (view, {})
        return {**bundle, "text/html": self.table.value}, metadata


design = Design


def _sentence(text: str) -> str:
    return f'<p role="status">{html.escape(text)}</p>'


def _this_gpu() -> str:
    """Return the name of this machine's first GPU in `gpus.GPUS`; empty if there is none, or it is not known."""
    with contextlib.suppress(SettingsError):
        return next((gpus.find(gpu.name).name for gpu in hardware.gpus()), "")
    return ""
