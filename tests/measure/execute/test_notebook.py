"""A notebook's end: the caller is told how it ended, the terminal nothing, and no kernel stays."""

import contextlib
import os
import subprocess
import sys

import nbformat
import nbformat.v4 as nbf
import pytest

from dsnb.base.errors import KernelDiedError
from dsnb.measure.execute import notebook
from tests.support.waiting import WAIT_S

EXECUTE = """
import asyncio, signal, sys
from pathlib import Path
import psutil
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from dsnb.measure.execute import notebook

tidy, connect = KernelManager._async_cleanup_resources, NotebookClient.start_new_kernel_client

async def tidy_late(manager, restart=False):
    await asyncio.sleep(1.5)  # nbclient looks every second whether the kernel lives
    await tidy(manager, restart)

def interrupted_connect(client):
    signal.raise_signal(signal.SIGINT)
    return connect(client)

KernelManager._async_cleanup_resources = tidy_late
for source in sorted(Path.cwd().glob("*/in.ipynb")):
    NotebookClient.start_new_kernel_client = interrupted_connect if "starts" in str(source) else connect
    try:
        notebook.execute(source, source.with_name("out.ipynb"), {})
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", psutil.Process().children())
"""

DIED = "the kernel of in.ipynb failed:"
CELLS = {
    "killed": "import os; os.kill(os.getpid(), 9)",
    "starts": "pass",
    "works": "import os, time; os.kill(os.getppid(), 2); time.sleep(100)",
}


@pytest.mark.process
def test_only_the_caller_hears_of_a_kernels_end(tmp_path):
    """The kernel is killed, or the notebook is interrupted while its kernel starts or a cell works."""
    for name, source in CELLS.items():
        (tmp_path / name).mkdir()
        nbformat.write(
            nbf.new_notebook(cells=[nbf.new_code_cell(source)]), tmp_path / name / "in.ipynb"
        )
    command = [sys.executable, "-c", EXECUTE]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S)
    killed = f"KernelDiedError: {DIED} it was killed by signal 9 (SIGKILL) []"
    assert done.stdout.splitlines() == [killed, "KeyboardInterrupt:  []", "KeyboardInterrupt:  []"]
    assert done.stderr == ""
    assert (tmp_path / "works" / "out.ipynb").is_file()


@pytest.mark.process
def test_a_kernel_that_cannot_start_says_why(tmp_path, monkeypatch):
    (tmp_path / "ipykernel.py").write_text("raise SystemExit('no room for it')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ['PYTHONPATH']}")
    nbformat.write(nbf.new_notebook(), tmp_path / "in.ipynb")
    with pytest.raises(
        KernelDiedError, match=f"^{DIED} it ended with exit code 1: no room for it$"
    ):
        notebook.execute(tmp_path / "in.ipynb", tmp_path / "out.ipynb", {})


def test_parameters_are_those_of_the_tagged_cell(tmp_path):
    cells = [
        nbf.new_code_cell("other: int = 7"),
        nbf.new_code_cell(
            'steps: int = 3\nname: str = "a b"\nrate = 1e-3\nrun_dir = None\nwhere = len("x")',
            metadata={"tags": ["parameters"]},
        ),
    ]
    python = {"kernelspec": {"name": "python3", "language": "python", "display_name": "Python"}}
    nbformat.write(nbf.new_notebook(cells=cells, metadata=python), tmp_path / "a.ipynb")
    assert notebook.parameters(tmp_path / "a.ipynb") == {
        "steps": 3,
        "name": "a b",
        "rate": 1e-3,
        "run_dir": None,
        "where": 'len("x")',
    }
    nbformat.write(nbf.new_notebook(cells=cells[:1], metadata=python), tmp_path / "b.ipynb")
    assert notebook.parameters(tmp_path / "b.ipynb") == {}


@pytest.mark.parametrize("error", [None, RuntimeError("Kernel died"), ValueError("a cell")])
def test_a_notebook_is_executed_with_its_values_and_saved(tmp_path, monkeypatch, error):
    given = {}

    def execute(source, target, values, **options):
        given.update(source=source, target=target, values=values, **options)
        if error:
            raise error

    monkeypatch.setattr("papermill.execute_notebook", execute)
    folder = tmp_path / "{a}"
    ending = pytest.raises(KernelDiedError, match=r"^the kernel of in\.ipynb failed: it ended with")
    if not error:
        ending = contextlib.nullcontext()
    elif isinstance(error, ValueError):
        ending = pytest.raises(ValueError, match=r"^a cell$")
    with ending:
        notebook.execute(folder / "in.ipynb", folder / "out.ipynb", {"steps": 3})
    assert given["values"] == {"steps": 3}
    names = [f"{tmp_path}/{{{{a}}}}/{name}.ipynb" for name in ("in", "out")]
    assert [given["source"], given["target"]] == names  # papermill would replace names in braces
