"""The fields of the form: which GPU, a name and a question, and one row for each setting with its values."""

import html
import typing
from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets as widgets

from dsnb.errors import SettingsError
from dsnb.files import plain_yaml
from dsnb.files.plain_text import short_repr
from dsnb.prediction.gpus import GPUS
from dsnb.runs.labels import text
from dsnb.settings import checks, deepspeed_keys
from dsnb.settings.experiment import Experiment

WORDS = {"description_width": "9rem"}
FIELD = {"width": "20rem", "max_width": "100%"}
ROW = {"flex_flow": "row wrap", "align_items": "center"}
LABEL = {"width": "9rem", "display": "flex", "justify_content": "flex-end"}


class Row:
    """The values of one setting: buttons for one with fixed values, otherwise a field for typed ones."""

    def __init__(
        self, name: str, chosen: list[Any], changed: Callable[[], None], remove: Callable[[str], None]
    ) -> None:
        field = Experiment.model_fields.get(name)
        kind = field and field.annotation
        choices = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()
        self.name, self.options = name, (False, True) if kind is bool else choices
        self.controls: list[Any] = []
        for option in self.options:
            toggle = widgets.ToggleButton(
                option in chosen, description=text(option), tooltip=f"{name}: {text(option)}", layout={"width": "auto"}
            )
            widgets.dlink((toggle, "value"), (toggle, "button_style"), {True: "primary", False: ""}.get)
            self.controls.append(toggle)
        label = [widgets.Label(name, layout=LABEL)] if self.options else []
        if not self.options:
            shown = plain_yaml.dump(chosen, in_one_line=True).strip()[1:-1]
            typed = widgets.Text(shown, placeholder="8, 16", continuous_update=False)
            self.controls = [_field(typed, name)]
        for control in self.controls:
            control.observe(lambda _: changed(), "value")
        self.remove_button = button("remove", lambda: remove(name), f"Remove {name}")
        about = html.escape((field.description if field else "") or "A key of DeepSpeed's configuration.")
        meaning = widgets.HTML(f"<small><details><summary>meaning</summary>{about}</details></small>")
        self.box = widgets.HBox([*label, *self.controls, self.remove_button, meaning], layout=ROW)

    @property
    def values(self) -> list[Any]:
        """The chosen values, or those that were typed: YAML with commas between them."""
        typed = "" if self.options else self.controls[0].value
        try:
            values = [option for option, toggle in zip(self.options, self.controls, strict=False) if toggle.value]
            values += plain_yaml.parse(f"[{typed}]")
        except SettingsError as error:
            raise SettingsError(f"{self.name} is {short_repr(typed)}: {error}") from error
        if not values:
            raise SettingsError(f"{self.name} has no value: give one, or several, or remove it")
        return values


class Form:
    """All fields; `changed` is called after every change."""

    def __init__(
        self, name: str, question: str, settings: Mapping[str, Any], gpu: str, changed: Callable[[], None]
    ) -> None:
        self._changed = changed
        kinds = [("choose", ""), *((gpu, gpu) for gpu in GPUS)]
        self.gpu = _field(widgets.Dropdown(options=kinds, value=gpu), "which GPU")
        self.tokens = _field(widgets.BoundedFloatText(100e9, min=1, max=1e18), "tokens to train on")
        self.name = _field(widgets.Text(name, continuous_update=False), "name")
        self.question = _field(widgets.Text(question, continuous_update=False), "question")
        self.repeats = _field(widgets.BoundedIntText(4, min=1, max=1000), "repeats")
        fields = [self.gpu, self.tokens, self.name, self.question, self.repeats]
        for field in fields:
            field.observe(lambda _: changed(), "value")
        self.new, self.message = _field(widgets.Combobox(placeholder="name"), "another setting"), widgets.HTML()
        self.add_button = button("Add", self._add_typed)
        self.rows: dict[str, Row] = {}
        self._rows = widgets.VBox()
        for key, chosen in settings.items():
            self.add(key, list(chosen) if isinstance(chosen, list | tuple) else [chosen])
        new = widgets.HBox([self.new, self.add_button], layout=ROW)
        self.box = widgets.VBox([*fields[:4], self._rows, new, self.message, *fields[4:]])

    @property
    def content(self) -> dict[str, Any]:
        """What the form says, as the content of a params file: a setting with several values is an axis of the grid."""
        settings, problems = {}, []
        for name, row in self.rows.items():
            try:
                settings[name] = row.values
            except SettingsError as error:
                problems += error.problems
        if problems:
            raise SettingsError(problems)
        return {
            "name": self.name.value.strip(),
            "question": self.question.value.strip(),
            "defaults": {name: values[0] for name, values in settings.items() if len(values) == 1},
            "grid": {name: values for name, values in settings.items() if len(values) > 1},
            "repeats": self.repeats.value,
        }

    def add(self, name: str, chosen: list[Any]) -> None:
        """Add a row for a setting with these values, unless there is no such setting, or it has one already."""
        if name in self.rows:
            raise SettingsError(f"{name} is in the form already")
        if name not in Experiment.model_fields and not name.startswith(deepspeed_keys.PREFIX):
            raise SettingsError(checks.unknown_setting(name, Experiment.model_fields))
        self.rows[name] = Row(name, chosen, self._changed, self.remove)
        self._show_rows()

    def remove(self, name: str) -> None:
        """Remove the row of a setting: every run then has its default."""
        del self.rows[name]
        self._show_rows()
        self._changed()

    def _show_rows(self) -> None:
        self._rows.children = [row.box for row in self.rows.values()]
        self.new.options = [name for name in Experiment.model_fields if name not in self.rows]

    def _add_typed(self) -> None:
        name, self.message.value = self.new.value.strip(), ""
        field = Experiment.model_fields.get(name)
        try:
            self.add(name, [field.default] if field and field.default != "" else [])
        except SettingsError as error:
            self.message.value = f'<p role="status">{html.escape(str(error))}</p>'
            return
        self.new.value = ""
        self._changed()


def _field(field: Any, description: str) -> Any:
    field.description, field.style, field.layout = description, WORDS, widgets.Layout(**FIELD)
    return field


def button(description: str, react: Callable[[], None], tooltip: str = "") -> widgets.Button:
    """Return a button that calls `react`."""
    made = widgets.Button(description=description, tooltip=tooltip or description, layout={"width": "auto"})
    made.on_click(lambda _: react())
    return made
