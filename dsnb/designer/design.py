"""`design` returns a form that designs a sweep by hand, writes its params file, and starts, follows and stops it.

A `Plan` is what the form comes to: a row for each setting, and the params file of those that can be run.
"""

import asyncio
import contextlib
import html
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import pandas as pd

from dsnb.analysis.texts import predicted_figures
from dsnb.designer.form import Form, button
from dsnb.designer.process import SweepProcess
from dsnb.errors import DsnbError, SettingsError
from dsnb.explorer.explore import Explorer, explore
from dsnb.files import plain_yaml, records
from dsnb.prediction import gpus
from dsnb.prediction.predict import predict
from dsnb.prediction.step_time import problem
from dsnb.run_folder import paths
from dsnb.runs import labels
from dsnb.settings.experiment import Experiment
from dsnb.settings.params_file import combinations, experiments, validated
from dsnb.sweep.params import Sweep, load_sweep
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
START_S = 20.0
"""Usual time of a run outside its steps."""
MAX_ROWS = 200
"""Settings that the form shows."""
STYLE = "<style>.dsnb-plan * { padding-right: 1em } .dsnb-plan td:not(:last-child) { white-space: nowrap }</style>"


@dataclass
class Plan:
    """The settings of a form. Those that are refused are left out of the params file and of the sweep."""

    table: pd.DataFrame = field(default_factory=pd.DataFrame)
    """A row for each combination: its axes, `experiment` and `refused`, why; empty if it can be run."""
    experiments: dict[int, Experiment] = field(default_factory=dict)
    """Row -> experiment, without refused ones."""
    problems: list[str] = field(default_factory=list)
    """Why there is no sweep."""
    text: str = ""
    """The params file."""
    sweep: Sweep | None = None


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
        self.stop_button = button("Stop", lambda: self.stop(wait=False))
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
        if self.plan.sweep and self.form.gpu.value and not self._is_predicting:
            with contextlib.suppress(RuntimeError):  # no event loop is running, so nobody sees the form
                self._predicting = asyncio.get_running_loop().create_task(self._predict_beside())

    async def _predict_beside(self) -> None:
        """Predict in a thread, so that the form answers meanwhile, until what the form says now is predicted."""
        made, self._is_predicting = None, True
        while made is not self.plan and self.form.gpu.value:
            made = self.plan
            self._show(made.table)
            table = await asyncio.to_thread(predicted, made, self.form.gpu.value, self._link, self.form.tokens.value)
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

    def stop(self, wait: bool = True) -> None:
        """Stop the sweep, and wait until it has ended."""
        if self.process:
            self.process.stop()
            self._say("Stopping.")
        if self.process and wait:
            self.process.wait()
            self.look()

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


def plan(content: dict[str, Any], path: Path, output: Path) -> Plan:
    """Return what the content of a params file without `exclude` comes to; `output` is the folder of the sweep."""
    made = Plan()
    try:
        chosen = combinations(validated(content, path))
        made.experiments, problems = experiments(chosen)
        refused = ["; ".join(problems.get(number, [])) for number in range(len(chosen))]
        several_models = len({each.model for each in made.experiments.values()}) > 1
        names = {
            number: each.name_with_model if several_models else each.name for number, each in made.experiments.items()
        }
        axes = [{axis: settings[axis] for axis in content["grid"]} for settings in chosen]
        table = pd.DataFrame(axes, index=range(len(axes)), dtype=object)
        made.table = table.assign(experiment=pd.Series(names, dtype=object), refused=refused)
        if not made.experiments:
            raise SettingsError("every setting is refused: change one")
        exclude = [values for values, reason in zip(axes, refused, strict=True) if reason]
        made.text = plain_yaml.dump({key: part for key, part in {**content, "exclude": exclude}.items() if part})
        made.sweep = load_sweep(validated(plain_yaml.parse(made.text), path), output=output)
    except SettingsError as error:
        made.problems = error.problems
    return made


def predicted(made: Plan, gpu: str, link: str, tokens: float) -> pd.DataFrame:
    """Return the table of a plan with the columns of `dsnb.predict`, `cost`, and `note`, why nothing is predicted.

    A model, a micro-batch or a sequence length that is new is traced first, which takes seconds.
    """
    notes = {number: problem(experiment, gpu, link) for number, experiment in made.experiments.items()}
    numbers = [number for number, note in notes.items() if not note]
    rows = pd.DataFrame()
    if numbers:
        try:
            rows = predict([made.experiments[number] for number in numbers], gpu, link=link, tokens=tokens)
            rows = rows.drop(columns=made.table.columns, errors="ignore").set_axis(numbers)
            prices = [made.experiments[number].price_per_gpu_hour or math.nan for number in numbers]
            rows["cost"] = rows["gpu_hours"] * prices
        except Exception as error:  # such as a model that cannot be traced; a thread has nobody else to tell
            notes = dict.fromkeys(notes, f"nothing is predicted: {error}")
    return made.table.join(rows).assign(note=pd.Series(notes, dtype=object))


def shown(made: Plan, table: pd.DataFrame) -> str:
    """Return a plan with its table, as `predicted` returns it or without figures, as HTML; everything is escaped."""
    problems = "".join(f"<li>{html.escape(line)}</li>" for line in made.problems)
    texts = _texts(made, table.head(MAX_ROWS))
    rows = texts.to_html(index=False, border=0, justify="left", classes="dsnb-plan") if len(texts) else ""
    more = f"<p>and {len(table) - MAX_ROWS:,} more</p>" if len(table) > MAX_ROWS else ""
    parts = [f"<p>{_summary(made, table)}</p><ul>{problems}</ul>", f'<div style="overflow-x: auto">{rows}</div>{more}']
    return f'{STYLE}<div role="status" style="line-height: normal">{"".join(parts)}</div>'


def _summary(made: Plan, table: pd.DataFrame) -> str:
    """Return the number of runs and the time that they are predicted to take, one after the other."""
    if made.sweep is None:
        return ""
    experiments = {run.name: run.experiment for run in made.sweep.runs}
    repeats = len(made.sweep.runs) // len(experiments)
    runs = f"{labels.count(len(made.sweep.runs), 'run')}: {labels.count(len(experiments), 'experiment')} x {repeats}"
    if "step_time_s" not in table or table["step_time_s"].isna().all():
        return runs
    step_s = dict(zip(table["experiment"], table["step_time_s"], strict=True))
    run_s = [step_s[name] * (each.warmup_steps + each.steps) + START_S for name, each in experiments.items()]
    least = "at least" if any(map(math.isnan, run_s)) else "about"
    return f"{runs}, {least} {math.ceil(repeats * sum(s for s in run_s if not math.isnan(s)) / 60):,} min"


def _texts(made: Plan, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table as it is read: figures with their errors, and why something is missing."""
    if made.table.empty:
        return made.table
    axes = list(made.table.columns[:-2])
    texts = table[axes or ["experiment"]].fillna("").map(labels.text)
    notes = "refused: " + table["refused"].where(table["refused"].ne(""))
    if "fits" in table:
        texts = texts.join(predicted_figures(table)[["fits", "GiB", "tokens/s", "days", "cost"]])
        notes = notes.fillna(table["note"])
    return texts.assign(why=notes).replace("", math.nan).dropna(axis="columns", how="all").fillna("")
