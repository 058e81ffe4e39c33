"""The explorer with a kernel: the page as a widget that shares its state."""

from pathlib import Path
from typing import Any

import anywidget
import traitlets

from dsnb.show.explorer import page, single_runs
from dsnb.show.explorer.data import Data
from dsnb.show.explorer.payload import payload
from dsnb.show.explorer.state import State


class Live(anywidget.AnyWidget):
    """The widget of one explorer (`web/widget.js`): `state` follows its controls, and setting it sets them."""

    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)
    payload = traitlets.Dict().tag(sync=True)
    state = traitlets.Dict().tag(sync=True)
    series = traitlets.Dict().tag(sync=True)
    user_home = traitlets.Unicode().tag(sync=True)

    def __init__(self, data: Data, state: State) -> None:
        super().__init__(
            _esm=page.module(), _css=page.style(), user_home=str(Path("~").expanduser())
        )
        self.show(data, state)
        self.observe(self._send_series, "state")

    def show(self, data: Data, state: State) -> None:
        """Replace the runs."""
        self._data = data
        with self.hold_sync():
            self.payload = payload(data, state, Path("/"))
            self.series = {}
            self.state = state

    def _send_series(self, change: dict[str, Any]) -> None:
        """Send the steps of an opened run, unless the page has them."""
        run = change["new"]["run"]
        if run is not None and run not in self.payload["series"] and str(run) not in self.series:
            self.series = {**self.series, str(run): single_runs.load(self._data, run)}
