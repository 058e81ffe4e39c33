"""Executes one notebook through papermill, with this interpreter and a private folder.

Installed kernelspecs are ignored: one named `python3` may start another environment or even another
language. The private folder holds the kernel's sockets and IPython's files: the kernel needs no
home folder, and other users of the machine cannot connect to it.
"""

import ast
import asyncio
import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any

from traitlets.config import Config

from dsnb.base.errors import KernelDiedError
from dsnb.base.system import interpreter, scratch, signals

KERNEL = "python3"
START_TIMEOUT_S = 600
"""Starting a kernel takes 1 to 2 s, but a sweep over groups of nodes starts many at once."""

# Without a handler, Python would print papermill's log messages on the terminal.
logging.getLogger("papermill").addHandler(logging.NullHandler())


def parameters(template: Path) -> dict[str, Any]:
    """Return the values in the cell tagged `parameters`, expressions as text; empty without such a cell."""
    import papermill

    values: dict[str, Any] = {}
    for name, parameter in papermill.inspect_notebook(str(template)).items():
        values[name] = parameter["default"]
        with contextlib.suppress(ValueError, SyntaxError):
            values[name] = ast.literal_eval(parameter["default"])
    return values


def execute(template: Path, target: Path, values: dict[str, Any]) -> None:
    """Execute `template` with these parameters, and save it with its outputs and errors as `target`.

    Raises PapermillExecutionError if a cell fails, and KernelDiedError if the kernel cannot be
    started or dies. The kernel prints nothing on the terminal.
    """
    import papermill

    # papermill would replace names in braces
    source, destination = (
        str(path).replace("{", "{{").replace("}", "}}") for path in (template, target)
    )
    with scratch.folder() as folder:
        kernel = _Kernel(Path(folder))
        try:
            with _interruptible(kernel.config):
                papermill.execute_notebook(
                    source,
                    destination,
                    values,
                    kernel_name=KERNEL,
                    progress_bar=False,
                    start_timeout=START_TIMEOUT_S,
                    store_widget_state=False,
                    config=kernel.config,
                )
        except RuntimeError as error:  # nbclient's and jupyter_client's own errors about kernels
            how = kernel.exit_description() if "died" in str(error) else str(error)
            raise KernelDiedError(f"the kernel of {template.name} failed: {how}") from error


class _Kernel:
    """The kernel of one notebook, with a private folder for its sockets and files."""

    def __init__(self, folder: Path) -> None:
        from jupyter_client.kernelspec import KernelSpec
        from jupyter_client.manager import AsyncKernelManager

        words = [
            "-m",
            "dsnb.measure.execute.kernel_process",
            "-f",
            "{connection_file}",
            "--log-level=CRITICAL",
        ]
        words += [
            "--InteractiveShellApp.ignore_cwd=True"
        ]  # IPython before 9.7 adds the current folder otherwise
        env = {
            **interpreter.SAFE_PATH,
            "IPYTHONDIR": str(folder / "ipython"),
            "JUPYTER_RUNTIME_DIR": str(folder),
        }
        kernel = self

        class Manager(AsyncKernelManager):
            kernel_spec = KernelSpec(argv=interpreter.command(*words), env=env, language="python")

            async def _async_launch_kernel(self, kernel_cmd: list[str], **options: Any) -> None:
                with open(kernel._log, "wb") as log:
                    await super()._async_launch_kernel(
                        kernel_cmd, **options, stdout=log, stderr=log
                    )
                kernel._process = getattr(self.provisioner, "process", None)

        self._log = folder / "kernel.log"
        self._process: Popen[bytes] | None = None
        self.config = Config()
        self.config.KernelManager.transport = "ipc"
        self.config.KernelManager.ip = f"{folder}/kernel"
        self.config.KernelManager.connection_file = f"{folder}/kernel.json"
        self.config.NotebookClient.kernel_manager_class = Manager

    def exit_description(self) -> str:
        """Return how a dead kernel ended, with its last line of output."""
        code = self._process.poll() if self._process else None
        if code is not None and code < 0:
            return f"it was {signals.killed_by(-code)}"
        lines = (
            self._log.read_text(errors="replace").strip().splitlines() if self._log.exists() else []
        )
        return f"it ended with exit code {code}" + (f": {lines[-1][:400]}" if lines else "")


@contextlib.contextmanager
def _interruptible(config: Config) -> Iterator[None]:
    """Cancel the current cell, or the next one, when this process receives a stop signal.

    As in `asyncio.run`, KeyboardInterrupt is raised once the tasks have ended; a second Ctrl-C does
    not wait. Raised at once, it would leave a kernel without its socket folder, or tasks whose
    errors asyncio prints.
    """
    requested = False
    task: asyncio.Task[Any] | None = None

    def begin_cell(**_: object) -> None:  # called by nbclient
        nonlocal task
        task = asyncio.current_task()
        if requested:
            cancel()

    def cancel() -> None:
        nonlocal requested
        requested = True
        if task and not task.done():
            task.get_loop().call_soon_threadsafe(end_cell)

    def end_cell() -> None:  # papermill saves the notebook then
        for pending in asyncio.all_tasks():
            pending.cancel()

    config.NotebookClient.on_cell_start = begin_cell
    try:
        with signals.on_stop(cancel):
            yield
    except Exception:
        if not requested:
            raise
    if requested:
        raise KeyboardInterrupt
