"""The explorer with a kernel: the answer, ipywidgets as controls, and the charts and tables of the page as a widget."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets as widgets
import traitlets

from dsnb.explorer import page, series
from dsnb.explorer.data import Choice, Data
from dsnb.explorer.payload import payload
from dsnb.explorer.state import LABELS, State, default, metric, options, same
from dsnb.runs import labels

NARROW = widgets.Layout(width="auto", min_width="3rem")


class View(anywidget.AnyWidget):
    """The charts and tables: `web/main.js`, sharing its state with the kernel."""

    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)
    payload = traitlets.Dict().tag(sync=True)
    state = traitlets.Dict().tag(sync=True)
    series = traitlets.Dict().tag(sync=True)
    user_home = traitlets.Unicode().tag(sync=True)


class CardView(anywidget.AnyWidget):
    """The answer: `web/card.js`, with the data and the state of the views, which it finds by their model."""

    _esm = traitlets.Unicode().tag(sync=True)
    views = traitlets.Instance(View).tag(sync=True, **widgets.widget_serialization)


class Live:
    """The widgets of one explorer. Setting `state` updates them; using one of them updates `state`."""

    def __init__(self, data: Data, state: State, before: "Live | None" = None) -> None:
        self.data = data
        shown = payload(data, state, Path("/"))
        self.view: View = before.view if before else _view()
        self.card: CardView = before.card if before else CardView(_esm=page.card_module(), views=self.view)
        with self.view.hold_sync():
            self.view.set_trait("payload", shown)
            self.view.set_trait("series", {})
            self.view.set_trait("state", state)
        self._setting = False
        self._sent = set(shown["series"])
        self.filters = {name: self._filter(choice) for name, choice in data.choices.items() if choice.is_filter}
        self.filter_lines = {name: _line([widgets.Label(labels.axis(name).title)]) for name in self.filters}
        self.lines = _line([])
        self.selects = {name: self._select(name, values) for name, values in options(data).items()}
        self.reset = widgets.Button(description=LABELS["reset"])
        self.reset.on_click(lambda _: self._set(**default(data, self.state["task"])))
        self.box = widgets.VBox([self.card, *self._rows(), self.view])
        self.view.observe(self._changed, "state")
        self._show(state)

    def replaced(self, data: Data, state: State) -> "Live":
        """Return the widgets of other runs, in the place of these and with the same view."""
        self.view.unobserve(self._changed, "state")
        other = Live(data, state, self)
        self.box.children = other.box.children
        other.box = self.box
        return other

    @property
    def state(self) -> State:
        """The state of the controls."""
        return self.view.state

    @state.setter
    def state(self, state: State) -> None:
        self.view.state = state

    def view_data(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the MIME bundle and metadata that display the widgets."""
        found = self.box._repr_mimebundle_()
        return found if isinstance(found, tuple) else (found, {})

    def _filter(self, choice: Choice) -> dict[int, widgets.ToggleButton]:
        buttons = {}
        for code, value in enumerate(choice.values):
            label = labels.text(value)
            button = widgets.ToggleButton(description=label[:40], tooltip=label[:400], layout=NARROW)
            button.observe(self._chooser(choice), "value")
            buttons[code] = button
        return buttons

    def _chooser(self, choice: Choice) -> Callable[[Any], None]:
        def choose(_: Any) -> None:
            buttons = self.filters[choice.name]
            self._set(**{choice.name: [choice.values[code] for code, button in buttons.items() if button.value]})

        return choose

    def _select(self, name: str, values: list[str]) -> widgets.Dropdown:
        titles = [(value if name.endswith("_scale") else self._heading(value), value) for value in values]
        select = widgets.Dropdown(options=titles, description=LABELS[name], disabled=not values)
        select.observe(lambda change: self._set(**{name: change["new"]}), "value")
        return select

    def _heading(self, name: str) -> str:
        return labels.axis(name).title if name in self.data.choices else metric(name).heading

    def _rows(self) -> list[widgets.Widget]:
        for field in self.selects.values():
            field.style.description_width = "initial"
            field.layout.width = "auto"
        fields = _line([*self.selects.values(), self.reset])
        return [self.lines, fields]

    def _show_filters(self, task: str | None) -> None:
        """Offer the values that occur in the task, as the page does."""
        offered = {name: self.data.offered(name, task) for name in self.filters}
        for name, line in self.filter_lines.items():
            line.children = [line.children[0], *(self.filters[name][code] for code in offered[name])]
        self.lines.children = [line for name, line in self.filter_lines.items() if offered[name]]

    def _set(self, **changes: Any) -> None:
        """Take over what was chosen in a control, but not what `_show` wrote into it."""
        if self._setting:
            return
        state = {**self.view.state, **changes}
        if (state["x"], state["y"]) != (self.view.state["x"], self.view.state["y"]):
            state["brush"] = None
        self.view.state = state

    def _changed(self, change: dict[str, Any]) -> None:
        state = change["new"]
        self._show(state)
        run = state["run"]
        if run is not None and run not in self._sent and str(run) not in self.view.series:
            self.view.series = {**self.view.series, str(run): series.load(self.data, run)}

    def _show(self, state: State) -> None:
        self._setting = True
        try:
            self._show_filters(state["task"])
            for name, buttons in self.filters.items():
                values = self.data.choices[name].values
                for code, button in buttons.items():
                    button.value = any(same(values[code], one) for one in state[name])
            for name, select in self.selects.items():
                select.value = state[name]
            self.selects["x_scale"].disabled = state["x"] in self.data.choices
        finally:
            self._setting = False


def _line(children: list[widgets.Widget]) -> widgets.HBox:
    return widgets.HBox(children, layout={"flex_flow": "row wrap"})


def _view() -> View:
    return View(_esm=page.module(), _css=page.style(), user_home=str(Path("~").expanduser()))
