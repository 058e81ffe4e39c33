"""`design` returns a form that designs a sweep by hand, predicts it, writes its params file, and starts and stops it.

A `Plan` holds the result of the form: a row for each setting, and the params file of those that can
be run.
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

from dsnb.base.errors import SettingsError
from dsnb.base.files import json_files, plain_yaml
from dsnb.base.system import hardware
from dsnb.measure.sweep.params import Sweep, load_sweep
from dsnb.prediction import gpus
from dsnb.prediction.predict import predict
from dsnb.prediction.step_time import problem
from dsnb.results.answers.answer import Answer
from dsnb.results.runs import labels
from dsnb.settings.experiment import DEFAULTS, Experiment
from dsnb.settings.params_file import combinations, experiments, validated
from dsnb.settings.records import paths
from dsnb.show.form.fields import Form, button
from dsnb.show.form.process import SweepProcess
from dsnb.show.form.recommend import recommend
from dsnb.show.render.predictions import predicted_figures
from dsnb.show.render.tables import mimebundle

INITIAL: dict[str, Any] = {
    "model": "gpt2",
    "gpus": "auto",
    "zero_stage": [0, 1, 2, 3],
    "precision": "bf16",
    "micro_batch_size": 8,
    "seq_len": 128,
    "steps": 20,
    "price_per_gpu_hour": 0.0,
}
"""Settings of a new form."""
POLL_S = 1.0
"""Interval at which the form updates the log of a running sweep."""
MAX_ROWS = 200
SHOWN_FIGURES = 5
"""Predicted figures that the form shows: the first ones."""
STYLE = "<style>.dsnb-plan * { padding-right: 1em } .dsnb-plan td:not(:last-child) { white-space: nowrap }</style>"


@dataclass
class Plan:
    """The settings of a form. The params file and the sweep exclude those that are refused."""

    table: pd.DataFrame = field(default_factory=pd.DataFrame)
    """A row for each combination: its axes, `experiment` and `refused` (the reason; empty if it can
    be run)."""
    experiments: dict[int, Experiment] = field(default_factory=dict)
    """Row -> experiment, without refused ones."""
    problems: list[str] = field(default_factory=list)
    """Why there is no sweep."""
    text: str = ""
    """The params file."""
    sweep: Sweep | None = None


class Design:
    """A form for JupyterLab that designs a sweep: settings with their values, and a table of their combinations.

    The table has a row for each combination, and says if it is refused. Buttons recommend a setting, predict
    whether each fits into the memory of the chosen GPU, its speed, days and cost, write the params
    file that `dsnb sweep` takes, start and stop that sweep. The sweep ends with the kernel.

    `form` has the fields, `plan` their result, `process` the sweep that was started.

    Parameters
    ----------
    settings
        Initial settings of the form, by name: a value, or a list of values for an axis. They replace the usual ones;
        any other setting can be added in the form.
    name, question
        Name and question of the params file.
    folder
        The folder for the params file; by default `params` beside the nearest `notebooks` folder.
    outputs
        The parent folder of the sweep's folder; by default `$DSNB_OUTPUTS`, or `outputs` beside `notebooks`.
    gpu
        Name of the GPU to predict for, as `dsnb.predict` takes it; by default this machine's.
    link
        How GPUs are connected, as `dsnb.predict` takes it.

    Raises
    ------
    SettingsError
        If a setting, the GPU or the link is unknown.

    Examples
    --------
    Two settings, in the table below the form:

    >>> design = dsnb.design({"zero_stage": [1, 3], "gpus": 2}, name="stages")
    >>> print(design.plan.table.to_string())
      zero_stage                experiment refused
    0          1  zs1_bf16_gpus2_bs8_sl128
    1          3  zs3_bf16_gpus2_bs8_sl128
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
        self.folder = Path(folder or paths.params_root())
        self.outputs = Path(outputs or paths.outputs_root())
        self.plan = Plan()
        self.process: SweepProcess | None = None
        self._link = link
        self._written: tuple[Path, str] | None = None
        self.answer: Answer | None = None
        self._asked_for: dict[str, Any] = {}
        self.recommended = widgets.HTML()
        self.recommend_button = button("Recommend", self.recommend)
        self.adopt_button = button("Use this setting", self.adopt)
        self.adopt_button.layout.display = "none"
        self.table = widgets.HTML()
        self.message = widgets.HTML()
        self.log = widgets.Output(layout={"max_height": "14rem", "overflow": "auto"})
        actions = {"Predict": self.predict, "Write params file": self.write, "Start": self.start}
        self.buttons = [button(text, action) for text, action in actions.items()]
        self.buttons.append(button("Stop", lambda: self.stop(wait=False)))
        row = widgets.HBox(self.buttons, layout={"flex_flow": "row wrap"})
        gpu_name = gpus.find(gpu).name if gpu else _this_gpu()
        self.form = Form(name, question, {**INITIAL, **(settings or {})}, gpu_name, self.refresh)
        advice = widgets.HBox([self.recommend_button, self.adopt_button])
        parts = [self.form.box, advice, self.recommended, self.table, row, self.message, self.log]
        self.box = widgets.VBox(parts)
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
        """Plan the current settings of the form and show them."""
        self.message.value = ""
        try:
            if self._asked() != self._asked_for:
                self._withdraw()
            self.plan = plan(self.form.content, self.path, self.output)
        except SettingsError as error:
            self.plan = Plan(problems=error.problems)
        self.table.value = shown(self.plan, self.plan.table)

    def recommend(self) -> None:
        """Show the best setting for the form's first model and length; a new model is traced first, for seconds."""
        self._withdraw()
        self._say("Comparing all settings ...")
        try:
            self._asked_for = self._asked()
            self.answer = recommend(**self._asked_for, link=self._link)
        except SettingsError as error:
            self._say(f"Nothing is recommended: {error}")
            return
        self._say("")
        self.recommended.value = self.answer._repr_html_()
        if len(self.answer.table):
            self.adopt_button.layout.display = ""

    def _asked(self) -> dict[str, Any]:
        """Return what a recommendation depends on, as arguments of `recommend`."""
        first: dict[str, Any] = {}
        for name in ("model", "gpus", "seq_len", "price_per_gpu_hour"):
            row = self.form.rows.get(name)
            values = row.values if row else []
            first[name] = next((value for value in values if value != "auto"), None)
        return {
            "target": first["model"] or DEFAULTS["model"],
            "gpu": self.form.gpu.value,
            "gpus": first["gpus"],
            "seq_len": first["seq_len"],
            "tokens": self.form.tokens.value or None,
            "price": first["price_per_gpu_hour"] or None,
        }

    def _withdraw(self) -> None:
        """Remove an answer that is not about the form as it is now."""
        self.answer = None
        self._asked_for = {}
        self.recommended.value = ""
        self.adopt_button.layout.display = "none"

    def adopt(self) -> None:
        """Take the recommended setting into the form; settings of the measurement stay."""
        if self.answer is None or self.answer.table.empty:
            return
        settings = self.answer.experiments[0].model_dump(exclude={"device", "nodes"})
        for name, value in settings.items():
            is_chosen = name in self.form.rows and name in {*labels.AXES, *labels.SHARING}
            if is_chosen or value != DEFAULTS[name]:
                self.form.add(name, [value])
        self._asked_for = self._asked()
        self.refresh()

    def predict(self) -> None:
        """Add predicted memory, speed, days and cost to the table; a new model is traced first, which takes seconds."""
        if not self.form.gpu.value:
            self._say("Choose a GPU to predict memory and speed.")
            return
        self._say("Predicting memory and speed ...")
        table = predicted(self.plan, self.form.gpu.value, self._link, self.form.tokens.value)
        self.table.value = shown(self.plan, table)
        self._say("")

    def write(self) -> bool:
        """Write the params file, and return whether it has the settings of the form; if not, the form says why."""
        new = (self.path, self.plan.text)
        try:
            old = (self.path, self.path.read_text()) if self.path.exists() else new
            if self.plan.sweep is None:
                self._say("The params file is not written: the settings cannot be run.")
            elif old not in (self._written, new):
                self._say(f"{self.path} exists already: choose another name, or delete it.")
            else:
                json_files.write_text(*new)
                self._written = new
                self._say(f"Written. On the command line, the same sweep is: {self._command}")
                return True
        except OSError as error:
            self._say(f"{self.path} cannot be written: {error.strerror}.")
        return False

    def start(self) -> None:
        """Write the params file and start its sweep, which ends with this process at the latest."""
        if self._is_running:
            self._say("A sweep is running: stop it, or wait until it ends.")
        elif self.write():
            output = str(self.output.absolute())
            self.process = SweepProcess(str(self.path.absolute()), "--output", output)
            self._say(f"Started: {self._command}")
            self.look()
            with contextlib.suppress(RuntimeError):  # without an event loop, call `look`
                self._following = asyncio.get_running_loop().create_task(self._look_until_it_ends())

    def stop(self, wait: bool = True) -> None:
        """Stop the sweep, and wait until it has ended."""
        if self.process and self._is_running:
            self.process.stop()
            self._say("Stopping.")
        if self.process and wait:
            self.process.wait()
            self.look()

    def look(self) -> None:
        """Show the sweep's output; a running event loop calls this once a second."""
        if self.process is None:
            return
        text = "".join(f"{line}\n" for line in self.process.lines)
        if text:
            self.log.outputs = ({"output_type": "stream", "name": "stdout", "text": text},)
        if self.process.end:
            self._say(self.process.end)

    async def _look_until_it_ends(self) -> None:
        while self._is_running:
            self.look()
            await asyncio.sleep(POLL_S)
        self.look()

    @property
    def _command(self) -> str:
        output = ["--output", str(self.output)] if self.outputs != paths.outputs_root() else []
        return shlex.join(["dsnb", "sweep", str(self.path), *output])

    @property
    def _is_running(self) -> bool:
        return self.process is not None and self.process.code is None

    def _say(self, sentence: str) -> None:
        self.message.value = f'<p role="status">{html.escape(sentence)}</p>'

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return mimebundle(self.box, self.table.value)


design = Design


def _this_gpu() -> str:
    """Return the name of this machine's first GPU in `gpus.known()`; empty if there is none, or it is not known."""
    with contextlib.suppress(SettingsError):
        return next((gpus.find(gpu.name).name for gpu in hardware.gpus()), "")
    return ""


def plan(content: dict[str, Any], path: Path, output: Path) -> Plan:
    """Plan the content of a params file without `exclude`; `output` is the folder of the sweep."""
    result = Plan()
    try:
        chosen = combinations(validated(content, path))
        result.experiments, problems = experiments(chosen)
        refused = ["; ".join(problems.get(number, [])) for number in range(len(chosen))]
        several_models = len({each.model for each in result.experiments.values()}) > 1
        kind = "name_with_model" if several_models else "name"
        names = {number: getattr(each, kind) for number, each in result.experiments.items()}
        axes = pd.DataFrame(chosen, dtype=object)[[*content["grid"]]]
        result.table = axes.assign(experiment=pd.Series(names, dtype=object), refused=refused)
        if not result.experiments:
            raise SettingsError("every setting is refused: change one")
        exclude = [{axis: chosen[number][axis] for axis in axes} for number in problems]
        content = {key: part for key, part in {**content, "exclude": exclude}.items() if part}
        result.text = plain_yaml.dump(content)
        result.sweep = load_sweep(validated(plain_yaml.parse(result.text), path), output=output)
    except SettingsError as error:
        result.problems = error.problems
    return result


def predicted(plan: Plan, gpu: str, link: str, tokens: float) -> pd.DataFrame:
    """Return the table of a plan with the columns of `dsnb.predict`, `cost`, and `note` (why nothing is predicted)."""
    notes = {
        number: problem(experiment, gpu, link) for number, experiment in plan.experiments.items()
    }
    numbers = [number for number, note in notes.items() if not note]
    rows = pd.DataFrame()
    if numbers:
        asked = [plan.experiments[number] for number in numbers]
        try:
            rows = predict(asked, gpu, link=link, tokens=tokens or None)
            rows = rows.drop(columns=plan.table.columns, errors="ignore").set_axis(numbers)
            rows["cost"] = rows["gpu_hours"] * [
                each.price_per_gpu_hour or math.nan for each in asked
            ]
        except Exception as error:  # such as a model that cannot be traced
            notes = dict.fromkeys(notes, f"nothing is predicted: {error}")
    return plan.table.join(rows).assign(note=pd.Series(notes, dtype=object))


def shown(plan: Plan, table: pd.DataFrame) -> str:
    """Return a plan as HTML with its table, with or without the columns of `predicted`; everything is escaped."""
    count = ""
    if plan.sweep:
        runs = len(plan.sweep.runs)
        experiments = len({run.name for run in plan.sweep.runs})
        each = f"{labels.count(experiments, 'experiment')} x {runs // experiments}"
        count = f"{labels.count(runs, 'run')}: {each}"
    lines = [*plan.problems, *_reasons(table)]
    problems = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    rows = ""
    if len(plan.table):
        rows = _texts(plan, table).to_html(
            index=False, border=0, justify="left", classes="dsnb-plan", max_rows=MAX_ROWS
        )
    content = f'<p>{count}</p><ul>{problems}</ul><div style="overflow-x: auto">{rows}</div>'
    return f'{STYLE}<div role="status" style="line-height: normal">{content}</div>'


def _reasons(table: pd.DataFrame) -> list[str]:
    """Return why settings are refused or not predicted, each reason once."""
    if table.empty:
        return []
    found = table.get("note", pd.Series("", table.index)).fillna("")
    found = found.where(table["refused"].eq(""), "refused: " + table["refused"])
    reasons = []
    for reason, number in found[found.ne("")].value_counts(sort=False).items():
        of = f" ({labels.count(number, 'setting')})" if number > 1 else ""
        reasons.append(f"{reason}{of}")
    return reasons


def _texts(plan: Plan, table: pd.DataFrame) -> pd.DataFrame:
    """Format a table: figures with their errors, and whether one is missing."""
    axes = list(plan.table.columns[:-2])
    texts = table[axes or ["experiment"]].fillna("").map(labels.text)
    notes = table["refused"].ne("").map({True: "refused"})
    if "fits" in table:
        texts = texts.join(predicted_figures(table).iloc[:, :SHOWN_FIGURES])
        notes = notes.fillna(table["note"].ne("").map({True: "not predicted"}))
    texts = texts.assign(note=notes).fillna("")
    return texts.loc[:, (texts != "").any()]
