"""Executes one notebook through papermill: the one place that knows papermill."""

import asyncio
import contextlib
import logging
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from traitlets.config import Config

from dsnb import paths

KERNEL = "python3"
START_WITHIN_S = 600
"""A kernel takes a second or two, but the groups of a large hostfile start theirs all at once on this machine."""

# What papermill logs is for those who set up logging; without a handler Python would print it on the terminal.
logging.getLogger("papermill").addHandler(logging.NullHandler())


def parameters(template: Path) -> set[str]:
    """Give the names in the cell tagged `parameters`; empty if the tag is lost."""
    import papermill

    return set(papermill.inspect_notebook(str(template)))


def execute(template: Path, target: Path, values: dict[str, Any]) -> None:
    """Execute `template` with these parameters and save it, with whatever happened in it, as `target`.

    The kernel is reached through sockets in a folder that only this user can open, not through TCP ports that every
    user of the machine could listen to; and it says nothing of its own on the terminal.

    Raises
    ------
    papermill.exceptions.PapermillExecutionError
        If a cell failed.
    nbclient.exceptions.DeadKernelError
        If the kernel died.
    """
    import papermill

    config = Config()
    with tempfile.TemporaryDirectory(prefix="dsnb-", dir=paths.sockets_home()) as sockets, _interruptible(config):
        config.KernelManager.transport = "ipc"
        config.KernelManager.ip = f"{sockets}/kernel"
        config.NotebookClient.extra_arguments = ["--log-level=CRITICAL"]
        papermill.execute_notebook(
            _plain(template),
            _plain(target),
            values,
            kernel_name=KERNEL,
            progress_bar=False,
            start_timeout=START_WITHIN_S,
            store_widget_state=False,
            config=config,
        )


@contextlib.contextmanager
def _interruptible(config: Config) -> Iterator[None]:
    """Let an interrupt cancel the cell that is executed or comes next, and raise KeyboardInterrupt at the end.

    Python raises it in the midst of whatever is done. While the kernel starts, that leaves a kernel that finds its
    sockets' folder gone; later it leaves tasks that see the kernel die, and asyncio prints what they make of it. So it
    is done here as in `asyncio.run`, and as there a second interrupt does not wait.
    """
    if threading.current_thread() is not threading.main_thread() or (
        signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    cell: asyncio.Task[Any] | None = None
    stopped = False

    def begin(**_: Any) -> None:
        nonlocal cell
        cell = asyncio.current_task()
        if stopped:
            cancel()

    def stop(*_: Any) -> None:
        nonlocal stopped
        if stopped:
            raise KeyboardInterrupt
        stopped = True
        cancel()

    def cancel() -> None:
        if cell and not cell.done():
            loop = cell.get_loop()
            loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])

    config.NotebookClient.on_cell_start = begin
    signal.signal(signal.SIGINT, stop)
    try:
        yield
    except Exception:
        if not stopped:
            raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if stopped:
        raise KeyboardInterrupt


def _plain(path: Path) -> str:
    """Give a path as papermill must be told it: it would fill in parameters between braces."""
    return str(path).replace("{", "{{").replace("}", "}}")
