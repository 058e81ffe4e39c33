"""The explorer of runs: `explore` makes one, and it shows itself, in a notebook with a kernel and in a page without."""

import html
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat.v4 as nbf
import pandas as pd

from dsnb.explorer import data, page
from dsnb.explorer.payload import payload
from dsnb.explorer.state import State, change, default, mask
from dsnb.files import records
from dsnb.render import notebook_page, tables

if TYPE_CHECKING:
    from dsnb.explorer.live import Live


class Explorer:
    """An interactive view of runs: filters, speed against memory, medians, what one change costs, losses, steps.

    Put it last in a cell of a notebook. What is chosen there is in `state` and `selection`, and what `set` chooses is
    shown there.
    """

    def __init__(self, runs: pd.DataFrame, home: str | Path | None = None) -> None:
        self.data = data.read(runs)
        self.home = Path(home or Path.cwd()).absolute()
        self._state = default(self.data)
        self._live: Live | None = None

    @property
    def state(self) -> State:
        """A copy of what the controls are set to: a list of values for each setting (empty: all), and the choices."""
        return deepcopy(self._live.state if self._live else self._state)

    @property
    def selection(self) -> pd.DataFrame:
        """The runs that the filters and the brush select, rows of the table that was given, live."""
        return self.data.runs[mask(self.data, self.state)]

    def set(self, **controls: Any) -> "Explorer":
        """Set controls.

        Parameters
        ----------
        controls
            Settings by name, with a value, a list of values or `"all"`; `y`, `x` (a figure or a setting), `colour`,
            `along` (settings), `y_scale`, `x_scale` (`linear` or `log`), `train_tokens` (for the days), `base` (an
            experiment), `brush` (`{"x": [low, high], "y": [low, high]}` in the units of the axes, or None), `run` (the
            position of a run, or None).

        Raises
        ------
        SettingsError
            Listing everything that is unknown or not in these runs; nothing is set then.
        """
        self._state = change(self.data, self.state, controls)
        if self._live:
            self._live.state = self._state
        return self

    @property
    def live(self) -> "Live":
        """The ipywidgets, made when they are first shown."""
        if self._live is None:
            from dsnb.explorer.live import Live

            self._live = Live(self.data, self._state)
        return self._live

    def save(self, path: str | Path, title: str = "Runs") -> Path:
        """Write the explorer, as its controls are now, as a page of its own that needs no kernel and no network."""
        target = Path(path).absolute()
        pieces = [f"<h1>{html.escape(title)}</h1><h2>The explorer</h2>", self._fragment(target.parent)]
        pieces.append(f"<h2>Medians</h2>{tables.summary_table(data.medians(self.data))}")
        outputs = [nbf.new_output("display_data", data={"text/html": piece}) for piece in pieces]
        content = nbf.new_notebook(cells=[nbf.new_code_cell("", outputs=outputs)])
        records.write_text(target, notebook_page.to_html(content, page.resources(title)))
        return target

    def _fragment(self, home: Path) -> str:
        return page.fragment(payload(self.data, self.state, home))

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Give the widget, for who has a kernel, and the piece of a page, for who has not."""
        bundle, metadata = self.live.view_data()
        return {**bundle, "text/html": self._fragment(self.home)}, metadata


def explore(runs: pd.DataFrame, home: str | Path | None = None) -> Explorer:
    """Explore runs: an object that shows itself, with ipywidgets in JupyterLab, and in an HTML page without a kernel.

    Parameters
    ----------
    runs
        One row a run, as `dsnb.load_runs` gives it.
    home
        The folder in which a page will lie that this is exported to: links to notebooks and profiles are relative to
        it. By default the working folder.

    Raises
    ------
    SettingsError
        If it is no table of runs.
    """
    return Explorer(runs, home)
