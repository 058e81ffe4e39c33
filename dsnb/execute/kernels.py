"""Starts the kernel of one notebook: in this interpreter, whatever kernelspecs there are, and in a private folder.

A kernelspec named `python3` can lie in many places and start anything: another environment, another language. The
kernel also keeps its sockets and whatever IPython writes in the private folder, so that it needs no home folder, and
no other user of the machine can connect to it, as they could to TCP ports.
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
    """The kernel of one notebook.

    Parameters
    ----------
    folder
        A private folder, for its sockets and files.
    """

    def __init__(self, folder: Path) -> None:
        self._log = folder / "kernel.log"
        self._process: Popen[bytes] | None = None
        self.config = Config()
        self.config.KernelManager.transport = "ipc"
        self.config.KernelManager.ip = f"{folder}/kernel"
        self.config.KernelManager.connection_file = f"{folder}/kernel.json"
        self.config.NotebookClient.kernel_manager_class = self._manager(folder)

    def _manager(self, folder: Path) -> type[AsyncKernelManager]:
        kernel = self

        class Manager(AsyncKernelManager):
            def _kernel_spec_manager_default(self) -> KernelSpecManager:
                return OwnInterpreterSpec(folder)

            async def _async_launch_kernel(self, kernel_cmd: list[str], **options: Any) -> None:
                with open(kernel._log, "wb") as log:
                    await super()._async_launch_kernel(kernel_cmd, **options, stdout=log, stderr=log)
                kernel._process = getattr(self.provisioner, "process", None)

        return Manager

    def end(self) -> str:
        """Say how a dead kernel ended, with the last line that it printed itself."""
        code = self._process.poll() if self._process else None
        if code is not None and code < 0:
            return f"it was {signals.killed_by(-code)}"
        said = self._log.read_text(errors="replace").strip().splitlines() if self._log.exists() else []
        return f"it ended with exit code {code}" + (f": {said[-1][:400]}" if said else "")


def foreign_kernelspec() -> str | None:
    """Say what else than this Python JupyterLab starts for notebooks that ask for `python3`; None if it starts this."""
    try:
        spec = KernelSpecManager().get_kernel_spec(NAME)
        program = str(spec.argv[0])
    except NoSuchKernel:
        return None
    except (OSError, ValueError, TypeError, LookupError, TraitError) as error:
        return f"a kernelspec that cannot be read ({type(error).__name__}: {error})"
    if program in {"python", "python3", "python{}.{}".format(*sys.version_info)}:
        return None  # Jupyter takes its own interpreter for these
    found = shutil.which(program) or program
    if Path(found).parent.resolve() == Path(sys.executable).parent.resolve():
        return None
    return f"{found} (kernelspec {spec.resource_dir})"


class OwnInterpreterSpec(KernelSpecManager):
    """Knows one kernel: this interpreter."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """Return the specification of the kernel, whatever it is called."""
        return KernelSpec(
            argv=interpreter.command(
                "-m",
                "dsnb.execute.kernel_process",
                "-f",
                "{connection_file}",
                "--log-level=CRITICAL",
                "--InteractiveShellApp.ignore_cwd=True",  # IPython before 9.7 adds the current folder all the same
            ),
            env={
                **interpreter.SAFE_PATH,
                "IPYTHONDIR": str(self._folder / "ipython"),
                "JUPYTER_RUNTIME_DIR": str(self._folder),
            },
            display_name="Python 3",
            language="python",
        )
