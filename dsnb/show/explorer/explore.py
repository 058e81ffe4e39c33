"""`explore` returns an explorer of runs that displays itself in notebooks and in HTML pages without a kernel."""

import asyncio
import contextlib
import html
import weakref
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat.v4 as nbf
import pandas as pd

from dsnb.base.errors import DsnbError, SettingsError
from dsnb.base.files import json_files
from dsnb.prediction.predicted import Asked, Unmeasured, unmeasured
from dsnb.results.runs.load import load_runs
from dsnb.show.explorer import data, page
from dsnb.show.explorer.data import Data
from dsnb.show.explorer.payload import answered, payload
from dsnb.show.explorer.state import State, change, default, mask, question
from dsnb.show.render import answer, tables

if TYPE_CHECKING:
    from dsnb.show.explorer.live import Live

EVERY_S = 2.0
"""Interval at which the folder is read."""


class Explorer:
    """An interactive view of runs: filters, speed against memory, medians, effects of one change, losses, steps.

    As the last expression of a notebook cell, it is displayed. `state` and `selection` follow its
    controls, and `set` has the same effect as using the controls.
    """

    def __init__(
        self,
        runs: pd.DataFrame,
        home: str | Path | None = None,
        predicted: Unmeasured | None = None,
    ) -> None:
        self.predicted = predicted
        self.data = data.prepared(runs, predicted)
        self.home = Path(home or Path.cwd()).absolute()
        self._state = default(self.data)
        self._live: Live | None = None
        self.watch: Watch | None = None

    @property
    def state(self) -> State:
        """A copy of the state of the controls, with the chosen values of each setting (none means all)."""
        return deepcopy(self._live.state if self._live else self._state)

    @property
    def selection(self) -> pd.DataFrame:
        """The rows of the table that the filters and the brush currently select."""
        return self.data.runs[mask(self.data, self.state)]

    def set(self, **controls: Any) -> "Explorer":
        """Set controls, the same as using them.

        Parameters
        ----------
        controls
            `task` (its title: runs of other tasks are not shown; or `"all"`); settings by name, with a
            value, a list of values or `"all"`, such as `precision="bf16"` or `zero_stage=3`;
            `objective`, `train_tokens`, `gpus_at_hand`, `prices`, `currency` and `relevance`, as in
            `dsnb.results.answers.decide.Question`; `y`, `x` (a figure or a setting), `colour`, `along`
            (settings), `y_scale`, `x_scale` (`linear` or `log`), `table` (`medians` or `runs`), `base`
            (the baseline, an experiment), `brush` (`{"x": [low, high], "y": [low, high]}` in the units of
            the columns, such as seconds for `step_time_mean_s`, or None), `run` (the position of a run,
            or None), `pins` (up to two names of experiments or positions of runs), `sort` (a column and
            `ascending` or `descending`, or None).

        Raises
        ------
        SettingsError
            Listing every control and value that is unknown or does not occur in these runs; nothing is set then.
        """
        self._state = change(self.data, self.state, controls)
        if self._live:
            self._live.state = self._state
        return self

    def show(self, runs: pd.DataFrame) -> None:
        """Show other runs in the same place; choices are kept as far as they exist in them."""
        before, state = self.data, self.state
        self.data = data.prepared(runs, self.predicted)
        self._state = carried_over(before, state, self.data)
        if self._live:
            self._live.show(self.data, self._state)

    @property
    def live(self) -> "Live":
        """The widget, created when it is first displayed."""
        if self._live is None:
            from dsnb.show.explorer.live import Live

            self._live = Live(self.data, self._state)
        return self._live

    def save(self, path: str | Path, title: str = "Runs") -> Path:
        """Write the explorer with its current state to a self-contained HTML file that works offline."""
        target = Path(path).absolute()
        content = (
            f"<h1>{html.escape(title)}</h1><h2>The answer</h2>{self._fragment(target.parent)}"
            f"<h2>Environment</h2>{tables.environment(self.data.runs)}"
        )
        output = nbf.new_output("display_data", data={"text/html": content})
        notebook = nbf.new_notebook(cells=[nbf.new_code_cell("", outputs=[output])])
        json_files.write_text(target, page.of_notebook(notebook, title))
        return target

    def _fragment(self, home: Path) -> str:
        html_answer = answer.answer(answered(self.data), question(self.state))
        return page.fragment(payload(self.data, self.state, home), html_answer.text)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return tables.mimebundle(self.live, self._fragment(self.home))


def explore(
    runs: pd.DataFrame | str | Path,
    home: str | Path | None = None,
    watch: bool = False,
    predict: Asked | Sequence[Asked] | None = None,
    link: str = "nvlink",
) -> Explorer:
    """Return an interactive explorer of runs, for JupyterLab and for HTML pages without a kernel.

    Parameters
    ----------
    runs
        One row per run, as `dsnb.load_runs` returns it, or the folder to load them from.
    home
        The folder of the HTML page that this will be exported to: links to notebooks and profiles are relative to it.
        By default the working folder.
    watch
        Follow a sweep that is running: runs come in as they finish, and filters and axes stay as they are. It needs the
        folder; `explorer.watch.stop()` ends it.
    predict
        Settings to show as hollow marks where they were not run: params files, folders of sweeps (for what is still to
        come of them), or experiments. They are predicted for the GPU of the runs, as `dsnb.predict` does it, with
        speeds that follow from the runs if three settings or more were measured. No statistic includes them.
    link
        How the GPUs of these runs are connected, as `dsnb.predict` takes it, for what is predicted.

    Raises
    ------
    SettingsError
        If columns of a table of runs are missing, the folder does not exist, `watch` is set for a table, a params file
        cannot be used, or the runs were on no GPU that can be predicted for.

    Examples
    --------
    Choose runs on 8 and 16 GPUs, as a reader of the page would, and save the page:

    >>> explorer = dsnb.explore(dsnb.published("lambda_1cc_opt"))
    >>> explorer = explorer.set(gpus=[8, 16])
    >>> set(explorer.selection["gpus"]) == {8, 16}
    True
    >>> explorer.save("opt.html").name
    'opt.html'
    """
    is_folder = isinstance(runs, str | Path)
    if watch and not is_folder:
        raise SettingsError(
            "explore can watch a folder of runs, not a table: pass the folder, such as outputs/name"
        )
    table = load_runs(runs) if is_folder else runs
    explorer = Explorer(table, home, unmeasured(table, predict, link) if predict else None)
    if watch:
        explorer.watch = Watch(explorer, Path(runs).absolute())
    return explorer


class Watch:
    """Updates an explorer with the runs of a folder, until the explorer is deleted or `stop` is called.

    Without an event loop, as in a plain script, call `look`.
    """

    def __init__(self, explorer: "Explorer", folder: Path) -> None:
        self._explorer = weakref.ref(explorer)
        self._folder = folder
        self._seen = _rows(explorer.data.runs, "status")
        with contextlib.suppress(RuntimeError):  # no event loop is running
            self._task = asyncio.get_running_loop().create_task(self._follow())

    def stop(self) -> None:
        """Stop watching."""
        self._explorer = lambda: None  # type: ignore[assignment]

    async def _follow(self) -> None:
        while self._explorer() is not None:
            await asyncio.sleep(EVERY_S)
            self.look()

    def look(self) -> bool:
        """Show the current runs of the folder, and return whether they have changed."""
        explorer = self._explorer()
        if explorer is None:
            return False
        try:
            runs = load_runs(self._folder)
        except (DsnbError, OSError):  # the folder is being replaced
            return False
        seen = _rows(runs, "status")
        if seen == self._seen:
            return False
        self._seen = seen
        explorer.show(runs)
        return True


def _rows(runs: pd.DataFrame, *more: str) -> list[tuple[str, ...]]:
    """Return what identifies each run, and more columns."""
    columns = ["sweep", "experiment", "repeat", *more]
    return list(runs.reindex(columns=columns).astype(str).itertuples(index=False, name=None))


def carried_over(before: Data, state: State, after: Data) -> State:
    """Return the state for other runs, with the reader's choices as far as they exist there.

    Pinned and opened runs are identified by experiment and repeat, since their positions may have
    changed.
    """
    kept = default(after)
    usual = default(before)
    identities = _rows(before.runs)
    places = {identity: place for place, identity in enumerate(_rows(after.runs))}

    def moved(run: str | int | None) -> str | int | None:
        if isinstance(run, int):
            return places.get(identities[run])
        return run

    state = {**state, "run": moved(state["run"]), "pins": [moved(pin) for pin in state["pins"]]}
    state["brush"] = state.pop("brush")  # last, since a change of an axis clears it
    for name, value in state.items():
        if name == "task" or value != usual.get(name):
            with contextlib.suppress(DsnbError):  # not in these runs
                kept = change(after, kept, {name: value})
    return kept
