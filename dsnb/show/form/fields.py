"""The fields of the form: GPU, tokens, name, question, repeats, and one row for each setting with its values."""

import html
import itertools
import typing
from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets as widgets

from dsnb.base.errors import SettingsError
from dsnb.base.files import plain_yaml
from dsnb.base.files.plain_text import short_repr
from dsnb.base.formulas.model_shapes import PRESETS
from dsnb.prediction import gpus
from dsnb.results.runs.labels import text
from dsnb.settings import checks, flat_keys
from dsnb.settings.experiment import Experiment

LABELLED = {"description_width": "9rem"}
FIELD = {"width": "20rem", "max_width": "100%"}
ROW = {"flex_flow": "row wrap", "align_items": "center"}
LABEL = {"width": "9rem", "display": "flex", "justify_content": "flex-end"}


class Row:
    """The values of one setting: buttons if its values are fixed, otherwise a text field, for models with a list."""

    def __init__(self, name: str, chosen: list[Any], changed: Callable[[], None]) -> None:
        field = Experiment.model_fields.get(name)
        kind = field and field.annotation
        choices = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()
        options = (False, True) if kind is bool else choices
        self.name = name
        self.options: tuple[Any, ...] = ()
        if options:  # a value that is not allowed is shown, and refused
            self.options = (*options, *(value for value in chosen if value not in options))
        self.controls: list[Any] = []
        label = [widgets.Label(name, layout=LABEL)] if options else []
        for option in self.options:
            look = {"description": text(option), "tooltip": f"{name}: {text(option)}"}
            toggle = widgets.ToggleButton(option in chosen, layout={"width": "auto"}, **look)
            _tick(toggle)
            toggle.observe(lambda change: _tick(change["owner"]), "value")
            self.controls.append(toggle)
        if not options:
            shown = plain_yaml.dump(chosen, in_one_line=True).strip()[1:-1]
            entry: dict[str, Any] = {"value": shown, "continuous_update": False}
            typed: Any = widgets.Text(placeholder="8, 16", **entry)
            if name == "model":  # a list to search; files and hub ids can be typed
                typed = widgets.Combobox(placeholder="type to search", options=[*PRESETS], **entry)
            self.controls.append(_field(typed, name))
        for control in self.controls:
            control.observe(lambda _: changed(), "value")
        about = (field and field.description) or "A key of DeepSpeed's configuration."
        folded = f"<details><summary>meaning</summary>{html.escape(about)}</details>"
        meaning = widgets.HTML(f"<small>{folded}</small>")
        self.box = widgets.HBox([*label, *self.controls, meaning], layout=ROW)

    @property
    def values(self) -> list[Any]:
        """The chosen values, or the typed ones (YAML, separated by commas); none for the setting's default."""
        if self.options:
            chosen = [toggle.value for toggle in self.controls]
            return list(itertools.compress(self.options, chosen))
        typed = self.controls[0].value
        try:
            return list(plain_yaml.parse(f"[{typed}]"))
        except SettingsError as error:
            raise SettingsError(f"{self.name} is {short_repr(typed)}: {error}") from error


class Form:
    """All fields; `changed` is called after every change."""

    def __init__(
        self,
        name: str,
        question: str,
        settings: Mapping[str, Any],
        gpu: str,
        changed: Callable[[], None],
    ) -> None:
        self._changed = changed
        gpu_names = [("choose", ""), *((gpu, gpu) for gpu in gpus.known())]
        self.gpu = _field(widgets.Dropdown(options=gpu_names, value=gpu), "which GPU")
        self.tokens = _field(widgets.BoundedFloatText(0, min=0, max=1e18), "tokens (0: as usual)")
        self.name = _field(widgets.Text(name, continuous_update=False), "name")
        self.question = _field(widgets.Text(question, continuous_update=False), "question")
        self.repeats = _field(widgets.BoundedIntText(4, min=1, max=1000), "repeats")
        fields = [self.gpu, self.tokens, self.name, self.question, self.repeats]
        for field in fields:
            field.observe(lambda _: changed(), "value")
        self.new = _field(widgets.Combobox(placeholder="name"), "another setting")
        self.message = widgets.HTML()
        self.add_button = button("Add", self._add_typed)
        self.rows: dict[str, Row] = {}
        self._rows = widgets.VBox()
        for key, chosen in settings.items():
            self.add(key, list(chosen) if isinstance(chosen, list | tuple) else [chosen])
        new = widgets.HBox([self.new, self.add_button], layout=ROW)
        self.box = widgets.VBox([*fields[:4], self._rows, new, self.message, *fields[4:]])

    @property
    def content(self) -> dict[str, Any]:
        """The content of a params file; a setting with several values is an axis of its grid."""
        settings = {name: row.values for name, row in self.rows.items()}
        return {
            "name": self.name.value.strip(),
            "question": self.question.value.strip(),
            "defaults": {name: values[0] for name, values in settings.items() if len(values) == 1},
            "grid": {name: values for name, values in settings.items() if len(values) > 1},
            "repeats": self.repeats.value,
        }

    def add(self, name: str, chosen: list[Any]) -> None:
        """Add a row for a setting with these values, or replace its row."""
        if name not in Experiment.model_fields and not flat_keys.is_key(name):
            raise SettingsError(checks.unknown_setting(name, Experiment.model_fields))
        self.rows[name] = Row(name, chosen, self._changed)
        self._rows.children = [row.box for row in self.rows.values()]
        self.new.options = [name for name in Experiment.model_fields if name not in self.rows]

    def _add_typed(self) -> None:
        name = self.new.value.strip()
        self.message.value = ""
        field = Experiment.model_fields.get(name)
        try:
            self.add(name, [field.default] if field and field.default != "" else [])
        except SettingsError as error:
            self.message.value = f'<p role="status">{html.escape(str(error))}</p>'
            return
        self.new.value = ""
        self._changed()


def _tick(toggle: widgets.ToggleButton) -> None:
    """Mark a chosen button, since a dark theme hardly shows that it is pressed."""
    toggle.icon = ""
    if toggle.value:
        toggle.icon = "check"


def _field(field: Any, description: str) -> Any:
    field.description = description
    field.style = LABELLED
    field.layout = widgets.Layout(**FIELD)
    return field


def button(description: str, react: Callable[[], object]) -> widgets.Button:
    """Return a button that calls `react`."""
    made = widgets.Button(description=description, tooltip=description, layout={"width": "auto"})
    made.on_click(lambda _: react())
    return made
