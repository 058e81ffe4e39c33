"""Executes one notebook through papermill: the one place that knows papermill."""

from pathlib import Path
from typing import Any

from traitlets.config import Config

KERNEL = "python3"
# Sockets in the user's runtime folder instead of open TCP ports, which any user of the machine could listen to; and no
# word of the kernel's own on the terminal, where an interrupt would make it print a traceback.
PRIVATE_KERNEL = Config(
    {
        "KernelManager": {"transport": "ipc"},
        "NotebookClient": {"extra_arguments": ["--log-level=CRITICAL"]},
    }
)


def parameters(template: Path) -> set[str]:
    """Give the names in the cell tagged `parameters`; empty if the tag is lost."""
    import papermill

    return set(papermill.inspect_notebook(str(template)))


def execute(template: Path, target: Path, values: dict[str, Any]) -> None:
    """Execute `template` with these parameters and save it, with whatever happened in it, as `target`.

    Raises
    ------
    papermill.exceptions.PapermillExecutionError
        If a cell failed.
    """
    import papermill

    papermill.execute_notebook(
        str(template),
        str(target),
        values,
        kernel_name=KERNEL,
        progress_bar=False,
        store_widget_state=False,
        config=PRIVATE_KERNEL,
    )
