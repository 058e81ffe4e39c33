"""The form: a name, a question, one row for each setting with its values, and what the estimate assumes."""

import html
from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets as widgets

from dsnb.analysis.decide import OBJECTIVES
from dsnb.designer import markup, values
from dsnb.designer.draft import Draft
from dsnb.designer.predicted import START_S
from dsnb.errors import SettingsError
from dsnb.prediction.gpus import GPUS
from dsnb.runs.labels import text
from dsnb.settings import checks, deepspeed_keys
from dsnb.settings.experiment import Experiment

WIDE = {"width": "auto"}
WORDS = {"description_width": "9rem"}
FIELD = {"width": "18rem", "max_width": "100%"}
LABEL = {"width": "9rem", "display": "flex", "justify_content": "flex-end"}
ROW = {"flex_flow": "row wrap", "align_items": "center"}


class Row:
    """The values of one setting: buttons for one with fixed values, otherwise a field for typed ones."""

    def __init__(
        self, name: str, chosen: list[Any], changed: Callable[[], None], remove: Callable[[str], None]
    ) -> None:
        self.name = name
        self._buttons: dict[int, widgets.ToggleButton] = {}
        self._options = values.choices(name)
        self.remove = widgets.Button(description="remove", tooltip=f"Remove {name}", layout={"width": "auto"})
        self.remove.on_click(lambda _: remove(name))
        controls = self._toggles(chosen) if self._options else [self._field(chosen)]
        for control in controls:
            control.observe(lambda _: changed(), "value")
        label = [widgets.Label(name, layout=LABEL)] if self._options else []
        about = f"<summary>meaning</summary>{html.escape(values.meaning(name))}"
        meaning = widgets.HTML(f"<small><details>{about}</details></small>", layout={"max_width": "100%"})
        self.box = widgets.HBox([*label, *controls, self.remove, meaning], layout=ROW)

    @property
    def values(self) -> list[Any]:
        """The chosen or typed values.

        Raises
        ------
        SettingsError
            If there is none, or what was typed cannot be read.
        """
        if not self._options:
            return values.parse(self.name, self.field.value)
        chosen = [self._options[place] for place, button in self._buttons.items() if button.value]
        if not chosen:
            raise SettingsError(f"{self.name} has no value: choose one, or remove it")
        return chosen

    @values.setter
    def values(self, chosen: list[Any]) -> None:
        if not self._options:
            self.field.value = values.typed(chosen)
        for place, button in self._buttons.items():
            button.value = self._options[place] in chosen

    def _toggles(self, chosen: list[Any]) -> list[widgets.ToggleButton]:
        for place, option in enumerate(self._options):
            label = text(option)
            button = widgets.ToggleButton(
                value=option in chosen, description=label, tooltip=f"{self.name}: {label}", layout={"width": "auto"}
            )
            widgets.dlink((button, "value"), (button, "button_style"), {True: "primary", False: ""}.get)
            self._buttons[place] = button
        return list(self._buttons.values())

    def _field(self, chosen: list[Any]) -> widgets.Text:
        self.field = widgets.Text(
            values.typed(chosen) if chosen else "",
            description=self.name,
            placeholder="8, 16",
            style=WORDS,
            continuous_update=False,
            layout=FIELD,
        )
        return self.field


class Form:
    """All fields; `changed` is called after every change, but after one of the GPU `changed_gpu`.

    There is no field for the GPU if `gpu` is None, and none is chosen if it is empty.
    """

    def __init__(
        self,
        name: str,
        question: str,
        settings: Mapping[str, list[Any]],
        gpu: str | None,
        changed: Callable[[], None],
        changed_gpu: Callable[[], None],
    ) -> None:
        self._changed = changed
        self.rows: dict[str, Row] = {}
        self._rows = widgets.VBox()
        self.name = self._text(name, "name")
        self.question = self._text(question, "question")
        self.repeats = self._number(widgets.BoundedIntText(4, min=1, max=1000), "repeats")
        objectives = [(markup.TITLES[one], one) for one in OBJECTIVES]
        self.objective = widgets.Dropdown(options=objectives, description="objective", style=WORDS, layout=FIELD)
        kinds = [("choose", ""), *((one, one) for one in GPUS)]
        self.gpu = widgets.Dropdown(
            options=kinds, value=gpu or "", description="predict for", style=WORDS, layout=FIELD
        )
        self.gpu.observe(lambda _: changed_gpu(), "value")
        self.start_s = self._number(widgets.BoundedFloatText(START_S, min=0, max=1e6), "start of a run (s)")
        self.leave_out_unfit = widgets.Checkbox(
            False, description="leave out what is predicted not to fit", indent=False, layout={"width": "auto"}
        )
        for field in (self.objective, self.leave_out_unfit):
            field.observe(lambda _: changed(), "value")
        self.new = widgets.Combobox(
            description="another setting", placeholder="name", options=(), style=WORDS, layout=FIELD
        )
        self.add_button = widgets.Button(description="Add", layout={"width": "auto"})
        self.add_button.on_click(lambda _: self._add_typed())
        self.message = widgets.HTML()
        for one, chosen in settings.items():
            self._add(one, chosen)
        self.box = widgets.VBox(
            [
                self.name,
                self.question,
                self._rows,
                widgets.HBox([self.new, self.add_button], layout=ROW),
                self.message,
                self.repeats,
                *([] if gpu is None else [self.gpu]),
                self.objective,
                self.start_s,
                self.leave_out_unfit,
            ]
        )

    @property
    def draft(self) -> Draft:
        """What the form says.

        Raises
        ------
        SettingsError
            With every field that cannot be read.
        """
        settings, problems = {}, []
        for name, row in self.rows.items():
            try:
                settings[name] = row.values
            except SettingsError as error:
                problems += error.problems
        if problems:
            raise SettingsError(problems)
        return Draft(self.name.value.strip(), self.question.value.strip(), settings, self.repeats.value)

    def add(self, name: str) -> None:
        """Add a row for a setting, at its default.

        Raises
        ------
        SettingsError
            If there is no such setting, or it has a row already.
        """
        if name in self.rows:
            raise SettingsError(f"{name} is in the form already")
        if name not in Experiment.model_fields and not name.startswith(deepspeed_keys.PREFIX):
            raise SettingsError(checks.unknown_setting(name, Experiment.model_fields))
        field = Experiment.model_fields.get(name)
        self._add(name, [field.default] if field and field.default != "" else [])
        self._changed()

    def remove(self, name: str) -> None:
        """Remove the row of a setting: every run then has its default."""
        del self.rows[name]
        self._show_rows()
        self._changed()

    def _add(self, name: str, chosen: list[Any]) -> None:
        self.rows[name] = Row(name, chosen, self._changed, self.remove)
        self._show_rows()

    def _show_rows(self) -> None:
        self._rows.children = [row.box for row in self.rows.values()]
        self.new.options = [name for name in Experiment.model_fields if name not in self.rows]

    def _add_typed(self) -> None:
        try:
            self.add(self.new.value.strip())
        except SettingsError as error:
            self.message.value = markup.sentence(str(error))
        else:
            self.message.value = self.new.value = ""

    def _text(self, value: str, description: str) -> widgets.Text:
        field = widgets.Text(value, description=description, style=WORDS, continuous_update=False, layout=WIDE)
        field.observe(lambda _: self._changed(), "value")
        return field

    def _number(self, field: Any, description: str) -> Any:
        field.description, field.style.description_width, field.layout = description, "9rem", widgets.Layout(**FIELD)
        field.observe(lambda _: self._changed(), "value")
        return field
