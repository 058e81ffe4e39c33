"""The sweep below the form: started, shown while it goes on, stopped; the explorer of its runs."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import ipywidgets as widgets

from dsnb.designer import markup
from dsnb.designer.following import Following
from dsnb.designer.process import SweepProcess
from dsnb.errors import DsnbError
from dsnb.explorer.explore import Explorer, explore
from dsnb.sweep.params import Sweep

EVERY_S = 1.0
"""Time between two looks at a running sweep."""
ASK_AGAIN_S = 30.0
"""Time after which a sweep that was asked to stop, but goes on, can be asked again."""


class Running:
    """The widgets of a sweep that was started from the form; `changed` is called when it starts and when it ends."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self.process: SweepProcess | None = None
        self.explorer: Explorer | None = None
        self._asked_to_stop_s: float | None = None
        self._following: Following | None = None
        self._objective = "time"
        self.state, self._below = widgets.HTML(), widgets.VBox()
        self.log = widgets.Output(layout={"max_height": "14rem", "overflow": "auto"})
        self.bar = widgets.IntProgress(0, 0, 1, layout={"width": "100%", "display": "none"})
        self.box = widgets.VBox([self.bar, self.state, self.log, self._below])

    @property
    def is_running(self) -> bool:
        """Whether a sweep is running."""
        return self.process is not None and self.process.code is None

    @property
    def may_stop(self) -> bool:
        """Whether a sweep is running that was not asked to stop, or has not stopped for long."""
        asked_s = self._asked_to_stop_s
        return self.is_running and (asked_s is None or time.monotonic() - asked_s > ASK_AGAIN_S)

    def start(self, path: Path, sweep: Sweep, objective: str) -> None:
        """Start the sweep of a params file, as a process that ends with this one.

        Raises
        ------
        OSError
            If the process cannot be started.
        """
        self.process = SweepProcess(str(path.absolute()), "--output", str(sweep.paths.dir.absolute()))
        self._following, self._objective, self._asked_to_stop_s = Following(sweep), objective, None
        self._drop_explorer()
        self.bar.layout.display = None
        self.look()
        with contextlib.suppress(RuntimeError):  # no event loop is running: `look` has to be called
            self._task = asyncio.get_running_loop().create_task(self._follow())

    def ask_to_stop(self) -> None:
        """Ask the sweep to stop; not again at once, because a second SIGINT would not let it end its runs."""
        if self.process and self.may_stop:
            self._asked_to_stop_s = time.monotonic()
            self.process.stop()
            self.look()

    def stop(self) -> None:
        """Stop the sweep, and wait until it has ended."""
        if self.process:
            self.ask_to_stop()
            self.process.wait()
            self.look()

    def look(self) -> None:
        """Show how far the sweep is; a running event loop does so once a second."""
        if self.process is None or self._following is None:
            return
        end, done = self.process.end, self._following.look()
        self.bar.max, self.bar.value = self._following.total, self._following.ended
        text = "".join(f"{line}\n" for line in self.process.lines)
        self.log.outputs = ({"output_type": "stream", "name": "stdout", "text": text},) if text else ()
        problem = self._show_explorer(self._following)
        doing = done if self._asked_to_stop_s is None else f"Stopping. {done}"
        self.state.value = markup.sentence(problem or end or doing)
        if end and self.explorer and self.explorer.watch:
            self.explorer.watch.look()
            self.explorer.watch.stop()
        self._changed()

    async def _follow(self) -> None:
        while self.is_running:
            self.look()
            await asyncio.sleep(EVERY_S)
        self.look()

    def _show_explorer(self, following: Following) -> str:
        """Show the explorer as soon as a run has ended; return why that is not possible."""
        if self.explorer is None and following.ended:
            try:
                explorer = explore(following.folder, watch=True)
                explorer.set(objective=self._objective)
            except (DsnbError, OSError) as error:
                return str(error)
            self.explorer = explorer
            self._below.children = [explorer.live]
        return ""

    def _drop_explorer(self) -> None:
        if self.explorer and self.explorer.watch:
            self.explorer.watch.stop()
        self.explorer, self._below.children = None, ()
