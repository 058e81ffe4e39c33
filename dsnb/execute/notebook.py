"""Executes one notebook through papermill: the one place that knows papermill."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from traitlets.config import Config

from dsnb.errors import KernelDiedError
from dsnb.system import scratch, signals

START_TIMEOUT_S = 600
"""A kernel takes a second or two, but the groups of a large hostfile start theirs all at once on this machine."""

# What papermill logs is for those who set up logging; without a handler Python would print it on the terminal.
logging.getLogger("papermill").addHandler(logging.NullHandler())


def parameter_names(template: Path) -> set[str]:
    """Return the names in the cell tagged `parameters`; empty if the tag is lost."""
    import papermill

    return set(papermill.inspect_notebook(str(template)))


def execute(template: Path, target: Path, values: dict[str, Any]) -> None:
    """Execute `template` with these parameters and save it, with whatever happened in it, as `target`.

    The kernel runs in this interpreter and prints nothing of its own on the terminal.

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
        kernel = kernels.Kernel(folder)
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
            how = kernel.end() if "died" in str(error) else str(error)
            raise KernelDiedError(f"the kernel of {template.name} failed: {how}") from error


@contextlib.contextmanager
def _interruptible(config: Config) -> Iterator[None]:
    """Let an interrupt cancel the cell that is executed or comes next, and raise KeyboardInterrupt at the end.

    Python raises it in the midst of whatever is done. While the kernel starts, that leaves a kernel that finds its
    sockets' folder gone; later it leaves tasks that see the kernel die, and asyncio prints what they make of it. So it
    is done here as in `asyncio.run`, and as there a second Ctrl-C does not wait.
    """
    cell: asyncio.Task[Any] | None = None
    stopped = False

    def begin(**_: Any) -> None:
        nonlocal cell
        cell = asyncio.current_task()
        if stopped:
            cancel()

    def stop() -> None:
        nonlocal stopped
        stopped = True
        cancel()

    def cancel() -> None:
        if cell and not cell.done():
            loop = cell.get_loop()
            loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])

    config.NotebookClient.on_cell_start = begin
    try:
        with signals.on_stop(stop):
            yield
    except Exception:
        if not stopped:
            raise
    if stopped:
        raise KeyboardInterrupt


def _plain(path: Path) -> str:
    """Return a path as papermill must be told it: it would fill in parameters between braces."""
    return str(path).replace("{", "{{").replace("}", "}}")
