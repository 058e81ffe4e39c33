"""Starts the kernel of a notebook with this interpreter and a private folder, regardless of installed kernelspecs.

A kernelspec named `python3` can come from many places and start another environment or even another language. The
private folder holds the kernel's sockets and IPython's files: the kernel needs no home folder, and other users of the
machine cannot connect to it as they could through TCP ports.
"""

import shutil
import sys
from pathlib import Path
from subprocess import Popen
from typing import Any

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager, NoSuchKernel
from jupyter_client.manager import AsyncKernelManager
from traitlets import TraitError
from traitlets.config import Config

from dsnb.system import interpreter, signals

NAME = "python3"


class Kernel:
    """The kernel of one notebook, with a private folder for its sockets and files."""

    def __init__(self, folder: Path) -> None:
        words = ["-m", "dsnb.execute.kernel_process", "-f", "{connection_file}", "--log-level=CRITICAL"]
        words += ["--InteractiveShellApp.ignore_cwd=True"]  # IPython before 9.7 adds the current folder otherwise
        env = {**interpreter.SAFE_PATH, "IPYTHONDIR": str(folder / "ipython"), "JUPYTER_RUNTIME_DIR": str(folder)}
        kernel = self

        class Manager(AsyncKernelManager):
            kernel_spec = KernelSpec(argv=interpreter.command(*words), env=env, language="python")

            async def _async_launch_kernel(self, kernel_cmd: list[str], **options: Any) -> None:
                with open(kernel._log, "wb") as log:
                    await super()._async_launch_kernel(kernel_cmd, **options, stdout=log, stderr=log)
                kernel._process = getattr(self.provisioner, "process", None)

        self._log = folder / "kernel.log"
        self._process: Popen[bytes] | None = None
        self.config = Config()
        self.config.KernelManager.transport = "ipc"
        self.config.KernelManager.ip = f"{folder}/kernel"
        self.config.KernelManager.connection_file = f"{folder}/kernel.json"
        self.config.NotebookClient.kernel_manager_class = Manager

    def exit_description(self) -> str:
        """Return how a dead kernel ended, with the last line that it printed."""
        code = self._process.poll() if self._process else None
        if code is not None and code < 0:
            return f"it was {signals.killed_by(-code)}"
        lines = self._log.read_text(errors="replace").strip().splitlines() if self._log.exists() else []
        return f"it ended with exit code {code}" + (f": {lines[-1][:400]}" if lines else "")


def foreign_kernelspec() -> str | None:
    """Return the other interpreter that JupyterLab starts for `python3` notebooks; None if it starts this one."""
    try:
        spec = KernelSpecManager().get_kernel_spec(NAME)
        program = str(spec.argv[0])
    except NoSuchKernel:
        return None
    except (OSError, ValueError, TypeError, LookupError, TraitError) as error:
        return f"a kernelspec that cannot be read ({type(error).__name__}: {error})"
    if program in {"python", "python3", "python{}.{}".format(*sys.version_info)}:
        return None  # Jupyter replaces these by its own interpreter
    found = shutil.which(program) or program
    if Path(found).parent.resolve() == Path(sys.executable).parent.resolve():
        return None
    return f"{found} (kernelspec {spec.resource_dir})"
