"""Executes one notebook through papermill; no other module uses papermill."""

import ast
import asyncio
import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from nbformat.v4 import new_output
from traitlets.config import Config

from dsnb.errors import KernelDiedError
from dsnb.system import scratch, signals

START_TIMEOUT_S = 600
"""Starting a kernel takes 1 to 2 s, but a sweep over groups of nodes starts many at once on this machine."""

# Without a handler, Python would print papermill's log messages on the terminal.
logging.getLogger("papermill").addHandler(logging.NullHandler())


def parameters(template: Path) -> dict[str, Any]:
    """Return the values in the cell tagged `parameters` by name, expressions as text; empty if no cell has the tag."""
    import papermill

    values: dict[str, Any] = {}
    for name, parameter in papermill.inspect_notebook(str(template)).items():
        values[name] = parameter["default"]
        with contextlib.suppress(ValueError, SyntaxError):
            values[name] = ast.literal_eval(parameter["default"])
    return values


def execute(template: Path, target: Path, values: dict[str, Any]) -> None:
    """Execute `template` with these parameters, and save it with its outputs and errors as `target`.

    The kernel uses this Python interpreter and prints nothing on the terminal.

    Raises
    ------
    papermill.exceptions.PapermillExecutionError
        If a cell failed.
    KernelDiedError
        If the kernel could not be started, or ended before the notebook did.
    """
    import papermill

    from dsnb.execute import kernels

    with scratch.folder() as folder:
        kernel = kernels.Kernel(Path(folder))
        try:
            with _interruptible(kernel.config):
                papermill.execute_notebook(
                    _plain(template),
                    _plain(target),
                    values,
                    kernel_name=kernels.NAME,
                    progress_bar=False,
                    start_timeout=START_TIMEOUT_S,
                    store_widget_state=False,
                    config=kernel.config,
                )
        except RuntimeError as error:  # nbclient's and jupyter_client's own errors about kernels
            how = kernel.exit_description() if "died" in str(error) else str(error)
            raise KernelDiedError(f"the kernel of {template.name} failed: {how}") from error


class Interruption:
    """Cancels the cell that is executing, or the next one, when a signal asks this process to stop.

    As in `asyncio.run`, KeyboardInterrupt is raised only when the tasks have ended; a second Ctrl-C does not wait.
    Raised at once, it would leave a kernel whose socket folder is gone, or tasks whose errors asyncio prints.
    """

    def __init__(self) -> None:
        self.requested = False
        self._task: asyncio.Task[Any] | None = None
        self._cell: NotebookNode | None = None

    def begin_cell(self, cell: NotebookNode) -> None:
        """Remember a cell that starts and its task; nbclient calls this."""
        self._task, self._cell = asyncio.current_task(), cell
        if self.requested:
            self._cancel()

    def request(self) -> None:
        """Cancel the notebook."""
        self.requested = True
        self._cancel()

    def _cancel(self) -> None:
        if self._task and not self._task.done():
            loop = self._task.get_loop()
            loop.call_soon_threadsafe(self._end_cell, loop)

    def _end_cell(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write below the outputs of the cell why there are no more, and end it: papermill saves the notebook then."""
        if self._cell is not None and self._cell.cell_type == "code":
            self._cell.outputs.append(new_output("stream", name="stderr", text="interrupted\n"))
        self._cell = None  # a second signal says it no second time
        for task in asyncio.all_tasks(loop):
            task.cancel()


@contextlib.contextmanager
def _interruptible(config: Config) -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of the block if a signal cancelled the notebook that it executes."""
    interruption = Interruption()

    def begin_cell(cell: NotebookNode, **_: object) -> None:
        interruption.begin_cell(cell)

    # traitlets copies configuration values deeply: a bound method would come with a copy of its object.
    config.NotebookClient.on_cell_start = begin_cell
    try:
        with signals.on_stop(interruption.request):
            yield
    except Exception:
        if not interruption.requested:
            raise
    if interruption.requested:
        raise KeyboardInterrupt


def _plain(path: Path) -> str:
    """Return a path with its braces escaped: papermill would fill in parameters between them."""
    return str(path).replace("{", "{{").replace("}", "}}")
