"""Executes one notebook through papermill: the one place that knows papermill."""

import tempfile
from pathlib import Path
from typing import Any

from traitlets.config import Config

from dsnb import paths

KERNEL = "python3"


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
    """
    import papermill

    with tempfile.TemporaryDirectory(prefix="dsnb-", dir=paths.sockets_home()) as sockets:
        config = Config()
        config.KernelManager.transport = "ipc"
        config.KernelManager.ip = f"{sockets}/kernel"
        config.NotebookClient.extra_arguments = ["--log-level=CRITICAL"]
        papermill.execute_notebook(
            _plain(template),
            _plain(target),
            values,
            kernel_name=KERNEL,
            progress_bar=False,
            store_widget_state=False,
            config=config,
        )


def _plain(path: Path) -> str:
    """Give a path as papermill must be told it: it would fill in parameters between braces."""
    return str(path).replace("{", "{{").replace("}", "}}")
